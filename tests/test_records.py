"""``tracelens.types.records.dataclass`` beside the standard library's: the same classes made with both behave alike."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field, fields, replace
from typing import Any, ClassVar

import pytest

from tracelens.types.records import dataclass


def family(mark: Callable[..., Any]) -> dict[str, Any]:
    """Classes of every kind that the package has."""

    @mark(frozen=True, slots=True, kw_only=True)
    class Frozen:
        """Docs."""

        size: int
        words: tuple[str, ...] = ("a",)
        more: list[int] = field(default_factory=list, compare=False)
        hidden: int = field(default=3, repr=False)
        shared: ClassVar[int] = 7

    @mark(frozen=True, slots=True, kw_only=True)
    class Derived(Frozen):
        """Docs."""

        extra: float = 1.5

        def __post_init__(self) -> None:
            if self.size < 0:
                raise ValueError("negative")

    @mark(slots=True)
    class Plain:
        """Docs."""

        a: int
        b: int = 2

        def __repr__(self) -> str:
            return "own"

    @mark(frozen=True, eq=False)
    class Identity:
        """Docs."""

        a: int

    @mark(frozen=True)
    class OwnHash:
        """Docs."""

        a: int

        def __hash__(self) -> int:
            return 5

    @mark(frozen=True)
    class Nothing:
        """Docs."""

    @mark
    class Bare:
        """Docs."""

        a: int

    return {made.__name__: made for made in (Frozen, Derived, Plain, Identity, OwnHash, Nothing, Bare)}


OURS, THEIRS = family(dataclass), family(dataclasses.dataclass)
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Frozen", (), {"size": 1}),
    ("Frozen", (), {"size": 1, "more": [1], "hidden": 9}),
    ("Frozen", (), {}),
    ("Frozen", (1,), {}),
    ("Frozen", (), {"size": 1, "other": 2}),
    ("Derived", (), {"size": 1, "extra": 2.0}),
    ("Derived", (), {"size": -1}),
    ("Plain", (1,), {}),
    ("Plain", (1, 3), {}),
    ("Plain", (), {"b": 1}),
    ("Identity", (1,), {}),
    ("OwnHash", (1,), {}),
    ("Nothing", (), {}),
    ("Nothing", (1,), {}),
    ("Bare", (1,), {}),
]


def outcome(run: Callable[[], object]) -> object:
    try:
        return run()
    except (TypeError, ValueError, AttributeError) as error:
        return type(error), str(error)


def behaviour(classes: dict[str, Any], name: str, values: tuple[Any, ...], named: dict[str, Any]) -> list[object]:
    kind = classes[name]
    try:
        one, same = kind(*values, **named), kind(*values, **named)
    except (TypeError, ValueError) as error:
        return [type(error), str(error)]

    first = next(iter(kind.__dataclass_fields__), "none")

    def assign() -> None:
        setattr(one, first, 1)

    def delete() -> None:
        delattr(one, first)

    return [
        repr(one),
        one == same,
        one != same,
        one == 1,
        outcome(lambda: hash(one) == hash(same)),
        outcome(lambda: hash(one) if name != "Identity" else None),
        dataclasses.asdict(one),
        dataclasses.asdict(copy.copy(one)),
        outcome(lambda: dataclasses.asdict(replace(one, size=4))),
        *(outcome(change) for change in (assign, delete)),
    ]


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_they_behave_as_the_standard_librarys_do(call: tuple[str, tuple[Any, ...], dict[str, Any]]) -> None:
    # Often enough that its __init__ is compiled
    for _ in range(12):
        assert behaviour(OURS, *call) == behaviour(THEIRS, *call)


@pytest.mark.parametrize("name", list(OURS))
def test_classes_look_alike(name: str) -> None:
    ours, theirs = family(dataclass)[name], THEIRS[name]
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert [(f.name, f.type, f.kw_only) for f in fields(ours)] == [(f.name, f.type, f.kw_only) for f in fields(theirs)]
    for attribute in ("__slots__", "__match_args__", "__doc__"):
        assert getattr(ours, attribute, None) == getattr(theirs, attribute, None), attribute


def test_extensions_derive_from_them_with_the_standard_librarys() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Added(OURS["Frozen"]):  # type: ignore[misc]
        """Docs."""

        own: int = 1

    added = Added(size=2)
    assert (added.size, added.own) == (2, 1)
    with pytest.raises(FrozenInstanceError):
        added.own = 3
    assert str(inspect.signature(Added)).startswith("(*, size")


def test_a_class_with_an_init_of_its_own_keeps_it() -> None:
    class Own(OURS["Plain"]):  # type: ignore[misc]
        def __init__(self, only: int) -> None:
            super().__init__(only, b=4)

    assert (Own(1).a, Own(1).b) == (1, 4)
    assert list(inspect.signature(Own).parameters) == ["only"]


@dataclass(frozen=True, slots=True)
class Sent:
    """At module level, so that it can be pickled."""

    a: int
    b: tuple[int, ...] = (1,)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_frozen_slots_go_to_other_processes(protocol: int) -> None:
    assert pickle.loads(pickle.dumps(Sent(1, (2, 3)), protocol)) == Sent(1, (2, 3))  # noqa: S301
