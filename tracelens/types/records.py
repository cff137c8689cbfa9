"""``dataclass`` as in the standard library, whose methods are made when first called.

The standard library compiles five functions for a frozen class while it is imported: of the 300 classes that a report
imports that was a sixth of its processor time, and most are never made. Fields, slots and parameters are those of the
standard library, so ``fields``, ``replace`` and classes derived with its own ``dataclass`` work.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable
from operator import attrgetter
from reprlib import recursive_repr
from threading import RLock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, eq=True, frozen=False, kw_only=False, repr=True, slots=False):  # noqa: A002
        """A class with fields, see ``dataclasses.dataclass``."""

        def decorate(plain):
            made = _with_fields(plain, kw_only=kw_only, slots=slots)
            made.__dataclass_params__.frozen = frozen
            _add(made, "__init__", _init(made, frozen=frozen))
            if "__signature__" not in made.__dict__:
                made.__signature__ = _Signature()
            if repr:
                _add(made, "__repr__", _repr)
            if eq:
                _compare(made, frozen=frozen)
            if frozen:
                _freeze(made, slots=slots)
            return made

        return decorate if cls is None else decorate(cls)


_LOCK = RLock()
_MISSING = dataclasses.MISSING
_FEW = 20


class _Factory:
    """The default of a field whose value is made for each object."""

    def __repr__(self) -> str:
        return "<factory>"


_MADE = _Factory()


def _with_fields(plain: type, **how: bool) -> Any:
    """The class with its fields and slots, and no methods yet.

    The standard library refuses to derive what is not frozen from what is; here every class is frozen later.
    """
    if plain.__doc__ is None:
        plain.__doc__ = plain.__name__  # else the signature is made of it
    bases = (base.__dict__.get("__dataclass_params__") for base in plain.__mro__[1:])
    with _LOCK:
        frozen = [params for params in bases if params is not None and params.frozen]
        try:
            for params in frozen:
                params.frozen = False
            return dataclasses.dataclass(init=False, repr=False, eq=False, **how)(plain)
        finally:
            for params in frozen:
                params.frozen = True


def _add(made: type, name: str, function: Callable[..., Any]) -> None:
    """What a class defines itself stays."""
    if name not in made.__dict__:
        setattr(made, name, function)


def _init(made: type, *, frozen: bool) -> Callable[..., None]:
    """An ``__init__`` that takes keywords one by one; after some calls, and for all else, the compiled one replaces it.

    Most classes are made a few times: compiling their ``__init__`` takes as long as a hundred of those.
    """
    every = {field.name: (field.default, field.default_factory) for field in dataclasses.fields(made)}
    required = {name for name, (default, make) in every.items() if default is make is _MISSING}
    has_more, put, calls = hasattr(made, "__post_init__"), object.__setattr__, itertools.count()

    def __init__(self: Any, *values: Any, **named: Any) -> None:  # noqa: N807 - a method of the class to be
        if values or not frozen or next(calls) > _FEW or not required <= named.keys() <= every.keys():
            compiled(made)(self, *values, **named)
            return
        for name, (default, make) in every.items():
            put(self, name, named[name] if name in named else default if make is _MISSING else make())
        if has_more:
            self.__post_init__()

    def compiled(owner: type) -> Callable[..., None]:
        function = _compiled_init(made, frozen=frozen)
        if made.__dict__.get("__init__") is __init__:
            made.__init__ = function  # type: ignore[misc]
        return function

    __init__.compiled = compiled  # type: ignore[attr-defined]
    return __init__


def _compiled_init(made: type, *, frozen: bool) -> Callable[..., None]:
    every = dataclasses.fields(made)
    values: dict[str, Any] = {"_set": object.__setattr__, "_made": _MADE}
    positional: list[str] = ["self"]
    named: list[str] = []
    body: list[str] = []
    for field in every:
        name, value = field.name, field.name
        declared = name
        if field.default_factory is not _MISSING:
            values[f"_make_{name}"] = field.default_factory
            declared, value = f"{name}=_made", f"_make_{name}() if {name} is _made else {name}"
        elif field.default is not _MISSING:
            values[f"_default_{name}"] = field.default
            declared = f"{name}=_default_{name}"
        (named if field.kw_only else positional).append(declared)
        body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(made, "__post_init__"):
        body.append("self.__post_init__()")
    given = ", ".join([*positional, *(["*", *named] if named else [])])
    exec(f"def __init__({given}):\n " + "\n ".join(body or ["pass"]), values)  # noqa: S102 - names of fields
    function: Callable[..., None] = values["__init__"]
    function.__qualname__ = f"{made.__qualname__}.__init__"
    function.__module__ = made.__module__
    function.__annotations__ = {**{field.name: field.type for field in every}, "return": None}
    return function


class _Signature:
    """What ``inspect.signature`` finds of a class whose ``__init__`` is not compiled yet."""

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        if instance is not None:
            raise AttributeError("__signature__")
        init: Any = owner.__init__  # type: ignore[misc]
        function = init.compiled(owner) if hasattr(init, "compiled") else init
        whole = inspect.signature(function)
        return whole.replace(parameters=list(whole.parameters.values())[1:])


@recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({shown})"


def _compare(made: Any, *, frozen: bool) -> None:
    names = [field.name for field in dataclasses.fields(made) if field.compare]
    one = attrgetter(*names) if names else None
    values: Callable[[Any], tuple[Any, ...]]
    if one is None:
        values = lambda _: ()  # noqa: E731
    elif len(names) == 1:
        values = lambda each: (one(each),)  # noqa: E731
    else:
        values = one

    def __eq__(self: Any, other: object) -> Any:  # noqa: N807
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:  # noqa: N807
        return hash(values(self))

    own_hash = made.__dict__.get("__hash__") is not None or (
        "__hash__" in made.__dict__ and "__eq__" not in made.__dict__
    )
    _add(made, "__eq__", __eq__)
    if not own_hash:
        made.__hash__ = __hash__ if frozen else None


def _freeze(made: Any, *, slots: bool) -> None:
    names = {field.name for field in dataclasses.fields(made)}

    def __setattr__(self: Any, name: str, value: object) -> None:  # noqa: N807
        if type(self) is made or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(made, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:  # noqa: N807
        if type(self) is made or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(made, self).__delattr__(name)

    made.__setattr__, made.__delattr__ = __setattr__, __delattr__
    if slots:
        _add(made, "__getstate__", _state)
        _add(made, "__setstate__", _set_state)


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
