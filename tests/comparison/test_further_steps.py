"""What some steps alone run is laid beside what it became there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tracelens.comparison.compare import compare_sides
from tracelens.comparison.compared import FUSED
from tracelens.comparison.sides import UNKNOWN_DEVICE, Call, CallWork, Recorded, Side


def side_of(*steps: str) -> Side:
    """Calls by letter, a step per text."""
    calls = {
        letter: Call(name=f"aten::{letter}", category="elementwise", shapes="((4,),)") for letter in "".join(steps)
    }
    call = np.array([list(calls).index(letter) for letter in "".join(steps)], np.int64)
    step = np.repeat(np.arange(len(steps)), [len(text) for text in steps])
    unit, ones = np.arange(len(call)), np.ones(len(call), np.int64)
    recorded = Recorded(
        source="built", calls=tuple(calls.values()), rates=(CallWork(),) * len(calls), call=call, step=step, kernel_ns=ones,
        piece_unit=unit, piece_step=step, piece_ns=ones, durations_ns=np.bincount(step), event_unit=unit,
        event_kernel=call, event_ns=ones, kernel_names=tuple(calls), repeats=np.ones(len(call)),
    )  # fmt: skip
    return Side(name="built", parts=((recorded,),))


def test_what_only_some_steps_run_is_fused_there() -> None:
    """Every third step runs the optimizer: its kernels p and q became r."""
    rows = compare_sides(side_of("abc", "abc", "abcpq"), side_of("abc", "abc", "abcr")).rows
    assert [(row.cause, row.a.ops, row.b.ops) for row in rows if row.a and row.b] == [
        (FUSED, ("aten::p", "aten::q"), ("aten::r",))
    ]


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (("NVIDIA H100", "NVIDIA H100"), None),
        (("NVIDIA H100", "NVIDIA A100"), "the devices differ: NVIDIA H100 -> NVIDIA A100"),
        (("NVIDIA H100", UNKNOWN_DEVICE), "built does not record its device, so it may be another one"),
        ((UNKNOWN_DEVICE, UNKNOWN_DEVICE), None),
    ],
)
def test_a_device_that_was_not_recorded_is_no_other_device(devices: tuple[str, str], said: str | None) -> None:
    sides = [replace(side_of("ab"), parts=((replace(side_of("ab").first, device_label=name),),)) for name in devices]
    found = [note for note in compare_sides(*sides).notes if "device" in note]
    assert found == ([] if said is None else [said])


def test_calls_without_shapes_are_said_to_be_matched_by_guess() -> None:
    shaped = side_of("ab")
    bare = tuple(replace(call, shapes=None) for call in shaped.first.calls)
    other = replace(shaped, parts=((replace(shaped.first, source="bare", calls=bare),),))
    for sides in ((shaped, other), (other, shaped)):
        assert any(note.startswith("bare has no ops with shapes") for note in compare_sides(*sides).notes)
    assert not any("shapes" in note for sides in (shaped, other) for note in compare_sides(sides, sides).notes)
