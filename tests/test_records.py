"""Records behave as the same classes made by ``dataclasses.dataclass`` do."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from functools import cached_property
from typing import Any, ClassVar

import msgspec
import pytest

from tracelens.perf_models import GEMM
from tracelens.types.records import Record


class Point(Record, frozen=True, kw_only=True, dict=True):
    """A place."""

    x: int
    words: tuple[str, ...] = ("a",)
    more: list[int] = msgspec.field(default_factory=list)
    shared: ClassVar[int] = 7

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("negative")

    @cached_property
    def doubled(self) -> int:
        return 2 * self.x


class Near(Point, frozen=True, kw_only=True):
    """A place with a distance."""

    metres: float = 1.5
    words: tuple[str, ...] = ()


class Mutable(Record, frozen=False):
    """What changes, given by place."""

    a: int
    b: int = 2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Padded(GEMM):
    """As an extension derives it: a dataclass of the standard library."""

    to: int
    why: str = "tiles"
    left: list[int] = dataclasses.field(default_factory=list)

    def flops(self) -> int:
        return self.to * super().flops()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unslotted(GEMM):
    """The same without slots."""

    to: int = 1


def test_fields_replace_and_asdict_take_records() -> None:
    point = Near(x=3)
    assert [each.name for each in dataclasses.fields(Near)] == ["x", "words", "more", "metres"]
    named = {each.name: each for each in dataclasses.fields(point)}
    assert named["x"].default is dataclasses.MISSING
    assert (named["words"].default, named["more"].default_factory) == ((), list)
    assert named["metres"].type == "float"
    assert dataclasses.replace(point, metres=2.0) == Near(x=3, metres=2.0)
    assert dataclasses.asdict(point) == {"x": 3, "words": (), "more": [], "metres": 1.5}
    assert dataclasses.is_dataclass(point)
    with pytest.raises(ValueError, match="negative"):
        dataclasses.replace(point, x=-1)


def test_a_frozen_record_has_a_hash_of_its_values_and_stays_as_it_is() -> None:
    one, other = Near(x=3, more=()), Near(x=3, more=())
    assert (one, hash(one)) == (other, hash(other))
    assert one != Near(x=4, more=())
    assert Point(x=3, words=()) != Near(x=3)
    with pytest.raises(AttributeError):
        one.x = 4
    assert one.doubled == 6
    assert repr(Mutable(1)) == "Mutable(a=1, b=2)"
    with pytest.raises(TypeError, match="unhashable"):
        hash(Mutable(1))


@pytest.mark.parametrize("made", [Near(x=3, metres=2.0), Mutable(1, b=5), Padded(m=1, n=2, k=3, to=4)])
def test_records_travel_and_are_copied(made: Any) -> None:
    read = pickle.loads(pickle.dumps(made))  # noqa: S301 - our own
    assert read == copy.deepcopy(made) == copy.copy(made) == made


@pytest.mark.parametrize("kind", [Padded, Unslotted])
def test_a_dataclass_of_the_standard_library_derives_from_a_record(kind: type[GEMM]) -> None:
    made = kind(m=1, n=2, k=3, to=4)
    assert getattr(made, "left", []) == []
    assert [each.name for each in dataclasses.fields(kind)][:3] == ["m", "n", "k"]
    assert dataclasses.fields(kind)[len(dataclasses.fields(GEMM))].name == "to"
    assert made.to == 4
    assert made.flops() in (12, 48)
    assert dataclasses.replace(made, to=5) == kind(m=1, n=2, k=3, to=5) != made
    assert repr(made).startswith(f"{kind.__name__}(m=1, n=2, k=3, b=1")
    with pytest.raises(AttributeError):
        made.m = 2
    with pytest.raises(TypeError):
        kind(m=1, n=2, to=1)


def test_a_projected_step_needs_no_pandas() -> None:
    """Modules name it for tables that a step has none of: importing it takes as long as the step."""
    asked = "project --model llama3.1-8b --cluster h100 --gpus 8 --tp 2 --global-batch 8"
    run = f"import sys; from tracelens.cli import main; main({asked.split()}); sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", run], capture_output=True).returncode == 0
