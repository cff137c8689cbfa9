"""Mark, collect, overlay: how anything is added to tracelens.

A decorator only *marks* its object; ``Registry.collect`` gathers the marked objects of given modules into an
immutable mapping and refuses two claimants of one key, naming both. ``overlaid`` makes a new registry in which the
added modules win. So importing has no side effect, and an extension never leaks into another report.
"""

from __future__ import annotations

import functools
import inspect
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import msgspec

from tracelens.errors import UsageError
from tracelens.types.records import Record

T = TypeVar("T")
_ATTRIBUTE = "__tracelens_marks__"


class Mark(Record, frozen=True, kw_only=True):
    """What an object claims to be: ``kind`` (``"traced_as"``) of every key in ``keys``."""

    kind: str
    keys: tuple[str, ...]
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)


class Claim(Record, frozen=True, kw_only=True):
    """A marked object under one of its keys; ``source`` is the module, or the object itself, that it was given in."""

    key: str
    target: Any
    options: Mapping[str, Any]
    source: object

    @property
    def origin(self) -> str:
        """Where the object stands, see ``origin_of``; looked up when asked, as few claims ever are."""
        return origin_of(self.target, self.source)


def mark(kind: str, *keys: str, **options: Any) -> Callable[[T], T]:
    """A decorator that adds ``Mark(kind, keys, options)`` to its object and returns the object unchanged."""
    if not keys or not all(isinstance(key, str) for key in keys):
        raise UsageError(f"@{kind} needs at least one name, each a string")

    def decorate(target: T) -> T:
        marks = (*marks_of(target), Mark(kind=kind, keys=keys, options=options))
        setattr(target, _ATTRIBUTE, marks)
        return target

    return decorate


def marks_of(target: object) -> tuple[Mark, ...]:
    """The marks of an object; classes whose instances are additions give them as a property of the same name."""
    marks = getattr(target, _ATTRIBUTE, ())
    return marks if isinstance(marks, tuple) else ()


class Registry(Mapping[str, Claim]):
    """Claims of one kind by key. Immutable."""

    def __init__(self, kind: str, claims: Mapping[str, Claim]) -> None:
        self.kind = kind
        self._claims = dict(claims)

    @classmethod
    def collect(cls, kind: str, sources: Iterable[object]) -> Registry:
        """From modules, or marked objects themselves. UsageError when two different objects claim one key."""
        claims: dict[str, Claim] = {}
        for source in sources:
            for target in marked_in(source):
                for found in marks_of(target):
                    if found.kind != kind:
                        continue
                    for key in found.keys:
                        claim = Claim(key=key, target=target, options=found.options, source=source)
                        other = claims.setdefault(key, claim)
                        if other.target is not target:
                            raise UsageError(f"{kind} {key!r} is claimed by both {other.origin} and {claim.origin}")
        return cls(kind, claims)

    @classmethod
    def collect_below(cls, kind: str, package: str) -> Registry:
        """From every module below ``package``, in the order of their names."""
        return cls.collect(kind, modules_below(package))

    def overlaid(self, sources: Iterable[object]) -> Registry:
        """A new registry in which what ``sources`` claim replaces what is here."""
        return Registry(self.kind, self._claims | Registry.collect(self.kind, sources)._claims)

    def __getitem__(self, key: str) -> Claim:
        return self._claims[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._claims)

    def __len__(self) -> int:
        return len(self._claims)


def modules_below(package: str) -> list[ModuleType]:
    """Every module below ``package``, however deep, in the order of their names."""
    path = import_module(package).__path__
    return [import_module(name) for name in sorted(found.name for found in pkgutil.walk_packages(path, f"{package}."))]


def announced(group: str) -> list[Any]:
    """Entry points of ``group``; what reads them, as slow as forty modules of ours, is imported if some may be."""
    texts = _announcements(tuple(sys.path))
    if texts is not None and group.encode() not in texts:
        return []
    from importlib.metadata import entry_points

    return [entry.load() for entry in entry_points(group=group)]


@functools.cache
def _announcements(path: tuple[str, ...]) -> bytes | None:
    """The texts of all entry points of the packages on ``path``; None where archives may hold some."""
    found = []
    for place in path:
        if Path(place).is_file():
            return None
        with suppress(OSError), os.scandir(place or ".") as entries:
            names = [entry.path for entry in entries if entry.name.endswith((".dist-info", ".egg-info", ".egg"))]
            if any(name.endswith(".egg") for name in names):
                return None
            for name in names:
                with suppress(OSError):
                    found.append(Path(name, "entry_points.txt").read_bytes())
    return b"".join(found)


def origin_of(target: object, source: object) -> str:
    """``file.py:12`` of a marked object where Python knows it, else the module's name.

    An object that was made for another one says so: its ``__stands_for__``. Of a row of a table it is the function.
    """
    target = getattr(target, "__stands_for__", target)
    target = target.func if isinstance(target, functools.partial) else target
    module = source if isinstance(source, ModuleType) else inspect.getmodule(target)
    name = getattr(module, "__name__", "?")
    code = getattr(target, "__code__", None)
    try:
        if code is not None and Path(code.co_filename).is_file():
            # Without reading the source, which took a third of a small report.
            path, line = Path(code.co_filename), code.co_firstlineno
        else:
            line = inspect.getsourcelines(target)[1]  # type: ignore[arg-type]
            path = Path(inspect.getsourcefile(target) or name)  # type: ignore[arg-type]
    except (TypeError, OSError):
        return f"{name}.{getattr(target, '__qualname__', type(target).__name__)}"
    shown = max(2, name.count(".")) if name.startswith("tracelens.") else 2
    return f"{Path(*path.parts[-shown:])}:{line} ({getattr(target, '__qualname__', name)})"


def marked_in(source: object) -> tuple[object, ...]:
    """Marked objects at a module's top level, and the rows of tables there; what is no module stands for itself."""
    if not isinstance(source, ModuleType):
        return (source,) if marks_of(source) else ()
    return _of_own_module(source) if source.__name__.startswith("tracelens.") else _of_module(source)


def _of_module(module: ModuleType) -> tuple[object, ...]:
    found: list[object] = []
    for value in vars(module).values():
        if not isinstance(value, ModuleType) and marks_of(value):
            found.append(value)
        elif isinstance(value, tuple):
            found += (row for row in value if isinstance(row, functools.partial) and marks_of(row))
    return tuple(found)


#: Modules of ours are asked for several kinds of marks, and stay as they are.
_of_own_module = functools.cache(_of_module)
