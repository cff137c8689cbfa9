"""``Record``: a class with fields, as ``dataclasses.dataclass`` makes one, made by ``msgspec`` in C.

The standard library compiles the methods of each class while it is imported: 350 classes of four fields take 0.26 s
so, and 8 ms here. A record says ``frozen`` and ``kw_only`` in its header, and ``dict`` where it has a
``cached_property``. ``fields``, ``replace`` and ``asdict`` of ``dataclasses`` take records too.
What has ``metadata``, or fields that are not shown or compared, is a dataclass of the standard library.
``pd`` is pandas, for tables of records.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform

import msgspec
from msgspec import NODEFAULT, Struct, StructMeta


class _Pandas(ModuleType):
    """``pandas``, imported when something of it is first asked for: that takes longer than a small trace does."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(import_module("pandas"), name)
        setattr(self, name, found)
        return found


if TYPE_CHECKING:
    import pandas

    pd = pandas
else:
    pd = _Pandas("pandas")

_T = TypeVar("_T", bound="RecordType")
#: What ``dataclasses.dataclass`` sets, and a record has.
_OF_DATACLASSES = frozenset(
    f"__{name}__"
    for name in (
        "dataclass_fields", "dataclass_params", "delattr", "eq", "getstate", "hash", "init", "match_args", "replace",
        "repr", "setattr", "setstate",
    )
)  # fmt: skip


@dataclass_transform(field_specifiers=(msgspec.field,))
class RecordType(StructMeta):
    """Makes records, from which ``dataclasses.dataclass`` can derive too: extensions do so with the perf models.

    A class that says nothing else is frozen, with keywords only, as those are.
    """

    def __new__(mcls: type[_T], name: str, bases: tuple[type, ...], namespace: dict[str, Any], /, **options: Any) -> _T:
        # ``dataclass(slots=True)`` makes the class once more, of what is in it, and refuses one that has slots
        if "__record__" in namespace:
            return namespace["__record__"]
        if namespace.get("__slots__") == ():  # as a class says that derives from one with slots
            del namespace["__slots__"]
        for key, value in namespace.items():
            if isinstance(value, dataclasses.Field):
                namespace[key] = _msgspec_field(value)
        made = super().__new__(mcls, name, bases, namespace, **(options or {"frozen": True, "kw_only": True}))
        type.__delattr__(made, "__slots__")
        type.__setattr__(made, "__record__", made)
        return made

    def __setattr__(cls, name: str, value: Any) -> None:
        if name not in _OF_DATACLASSES:
            super().__setattr__(name, value)


def _msgspec_field(given: dataclasses.Field[Any]) -> Any:
    if given.default_factory is not dataclasses.MISSING:
        return msgspec.field(default_factory=given.default_factory)
    return msgspec.field() if given.default is dataclasses.MISSING else given.default


class _Read:
    """An attribute by which ``dataclasses`` knows its classes; ``Record`` itself, neither frozen nor not, is none."""

    def __init__(self, read: Any) -> None:
        self._read = read

    def __get__(self, instance: object, owner: type[Struct]) -> Any:
        if owner is Record:
            raise AttributeError
        return self._read(owner)


@functools.cache
def _fields(owner: type[Struct]) -> dict[str, dataclasses.Field[Any]]:
    types: dict[str, Any] = {}
    for base in reversed(owner.__mro__):
        types |= inspect.get_annotations(base)
    names = owner.__struct_fields__
    defaults = (NODEFAULT,) * (len(names) - len(owner.__struct_defaults__)) + owner.__struct_defaults__
    rows = []
    for name, default in zip(names, defaults, strict=True):
        if default is NODEFAULT:
            given = dataclasses.field()
        elif hasattr(default, "factory"):
            given = dataclasses.field(default_factory=default.factory)
        else:
            given = dataclasses.field(default=default)
        rows.append((name, types[name], given))
    alike = dataclasses.make_dataclass(owner.__name__, rows, init=False, repr=False, eq=False, kw_only=True)
    return vars(alike)["__dataclass_fields__"]


@functools.cache
def _parameters(owner: type[Struct]) -> Any:
    alike = dataclasses.make_dataclass(owner.__name__, [], frozen=owner.__struct_config__.frozen)
    return vars(alike)["__dataclass_params__"]


class Record(Struct, metaclass=RecordType, frozen=False):
    """A class with fields: ``class Point(Record, frozen=True, kw_only=True)``."""

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    else:
        __dataclass_fields__ = _Read(_fields)
        __dataclass_params__ = _Read(_parameters)
