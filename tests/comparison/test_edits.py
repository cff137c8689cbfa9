"""One thing changed in a real trace is what a comparison says, and nothing else."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from tests.comparison import edits
from tests.comparison.edits import Original, calls_that, original, read_again
from tests.conftest import TRACES, device_traces
from tracelens.analysis.intervals import covered_ns, overlapping
from tracelens.comparison.compare import compare_sides
from tracelens.comparison.compared import (
    ADDED,
    CLOCK,
    EVERYTHING,
    FUSED,
    KERNEL,
    NOISE,
    REMOVED,
    REPLACED,
    SPEED,
    WORK,
    ComparedRow,
    Comparison,
)
from tracelens.comparison.sides import ATTENTION, PRODUCT, STREAMING, Call, CallWork, call_role, role

#: Quick to read again.
SMALL = [name for name in device_traces() if (TRACES / name).stat().st_size < 40_000]
#: In the sweep each trace of at most this many bytes is edited in one way; with TRACELENS_EVERY_EDIT all in every way, an hour.
AFFORDABLE = 1_000_000
EVERY = pytest.mark.skipif("TRACELENS_EVERY_EDIT" not in os.environ, reason="TRACELENS_EVERY_EDIT is not set")
EDITS = ("slower", "gone", "renamed", "doubled", "fused")


def in_traces(edit: str) -> pytest.MarkDecorator:
    def marks(name: str) -> tuple[pytest.MarkDecorator, ...]:
        own = EDITS[crc32(name.encode()) % len(EDITS)] == edit and (TRACES / name).stat().st_size <= AFFORDABLE
        return (pytest.mark.sweep,) if own else (pytest.mark.sweep, EVERY)

    every = [pytest.param([name], id=name, marks=marks(name)) for name in device_traces()]
    return pytest.mark.parametrize("names", [pytest.param(SMALL, id="small"), *every])


DRAWS = settings(
    max_examples=2,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate),
    derandomize=True,
)

pytestmark = pytest.mark.shared


def drawn(data: st.DataObject, names: list[str]) -> Original:
    return original(TRACES / data.draw(st.sampled_from(names)))


def one_of(data: st.DataObject, names: list[str], found: list[Any]) -> Any:
    """One of what a trace has to be edited; another trace is drawn where it has nothing."""
    if not found and len(names) == 1:
        pytest.skip("nothing in this trace can be edited so")
    assume(found)
    return data.draw(st.sampled_from(found))


def call_of(data: st.DataObject, before: Original, names: list[str], *, whole: bool = False) -> Call:
    """A call beside which nothing runs at the same time."""
    return one_of(data, names, list(lone_calls(before, whole)))


#: Of a step that leaves out the time of work queued before recording, what may be left out otherwise once a call is gone:
#: at most 0.11 % in the shared traces.
LEFT_OUT = 2e-3


@lru_cache(maxsize=2)
def lone_calls(before: Original, whole: bool) -> tuple[Call, ...]:
    calls = calls_that(
        before, lambda call, _: not call.kernel and bool(re.search("[1-9]", call.shapes or "")) if whole else True
    )
    return tuple(call for call in calls if is_alone(before, call))


def compared(before: Original, events: edits.Events) -> Comparison:
    found = compare_sides(before.side, read_again(before, events))
    assert sum(row.change_ms for row in found.rows) == found.change_ms
    return found


def busy(found: Comparison, least_ms: float = 2e-6) -> list[ComparedRow]:
    """Changed rows of device work, but for what rounding to whole ns moves."""
    return [
        row
        for row in found.rows
        if not row.is_idle and (abs(row.change_ms) > least_ms or row.cause in (KERNEL, REPLACED))
    ]


def speaks_of(row: ComparedRow, call: Call) -> bool:
    return call.label in (*(row.a.ops if row.a else ()), *(row.b.ops if row.b else ()))


def is_compute_bound(call: Call, known: CallWork) -> bool:
    return known.bound == "compute" if known.bound else role(call.category) in (PRODUCT, ATTENTION)


def is_alone(before: Original, call: Call) -> bool:
    """Whether nothing else runs at the same time as a call, so that its kernel time is its part of the step."""
    rows, table = before.events_of(call), before.trace.table
    start, end = table.start_ns[rows], table.ends_ns(rows)
    near = (table.start_ns[before.rows] < end.max()) & (table.ends_ns(before.rows) > start.min())
    others = np.setdiff1d(before.rows[near], rows)
    shared = covered_ns(start, end, table.start_ns[others], table.ends_ns(others))
    return not shared.any() and not overlapping(start, end).any()


@in_traces("slower")
@given(data=st.data())
@DRAWS
def test_a_slower_call_is_that_much_slower_and_nothing_else_changed(
    data: st.DataObject, names: list[str], shared_traces: Path
) -> None:
    before = drawn(data, names)
    call = call_of(data, before, names)
    found = compared(before, edits.slower(before, call))
    assert [speaks_of(row, call) for row in busy(found)] == [True] * len(busy(found))
    told = [row for row in busy(found) if row.cause == SPEED]
    assert told
    for row in told:
        assert row.a is not None
        assert row.b is not None
        assert "% slower, same kernels" in row.why
    changed = [
        row for row in told if row.b and row.a and row.b.kernel_ms / row.a.kernel_ms == pytest.approx(1.3, abs=0.02)
    ]
    assert changed


@in_traces("gone")
@given(data=st.data())
@DRAWS
def test_a_call_that_is_gone_is_told_with_its_time(data: st.DataObject, names: list[str], shared_traces: Path) -> None:
    before = drawn(data, names)
    recorded = Counter(replace(call, work=None) for call in calls_that(before, lambda *_: True))
    inner = [
        call
        for call in lone_calls(before, False)
        if (before.one.has_steps or not edits.at_an_end(before, call)) and recorded[replace(call, work=None)] == 1
    ]
    call = one_of(data, names, inner if len(recorded) > 1 else [])
    found = compared(before, edits.without(before, call))
    assert {row.cause for row in busy(found)} == {REMOVED}
    assert all(speaks_of(row, call) for row in busy(found))
    rest_ms = 1e-4 + 1e-6 * edits.moments_within(before, call)
    if edits.leaves_out(before) and found.a.step_ms:
        rest_ms += LEFT_OUT * found.a.step_ms
    assert sum(row.change_ms for row in found.rows) == pytest.approx(found.change_ms, abs=1e-6)
    assert sum(row.change_ms for row in busy(found)) == pytest.approx(found.change_ms, abs=rest_ms)
    assert abs(sum(row.change_ms for row in found.rows if row.is_idle)) < rest_ms


@in_traces("renamed")
@given(data=st.data())
@DRAWS
def test_a_renamed_kernel_is_told_in_no_time(data: st.DataObject, names: list[str], shared_traces: Path) -> None:
    before = drawn(data, names)
    kernel = data.draw(st.sampled_from(before.one.kernel_names))
    found = compared(before, edits.renamed(before, kernel))
    assert found.change_ms == 0
    assert {row.cause for row in found.rows} <= {KERNEL, REPLACED}
    for row in found.rows:
        assert row.a is not None
        assert row.b is not None
        assert kernel in {one.name for one in row.a.kernels}
        assert f"{kernel}_v2" in {one.name for one in row.b.kernels}


@in_traces("doubled")
@given(data=st.data())
@DRAWS
def test_doubled_shapes_are_other_work_of_the_same_op(
    data: st.DataObject, names: list[str], shared_traces: Path
) -> None:
    before = drawn(data, names)
    call = call_of(data, before, names, whole=True)
    found = compared(before, edits.doubled(before, call))
    assert {row.cause for row in busy(found)} == {WORK}
    assert all(speaks_of(row, call) and "different shapes" in row.why for row in busy(found))
    assert sum(row.change_ms for row in busy(found)) == pytest.approx(found.change_ms, abs=1e-4)


def neighbors(before: Original) -> list[tuple[Call, Call]]:
    """Distinct pairs of memory-bound calls of one kernel each that follow one another; of PyTorch, as a compiler fuses."""
    one, found = before.one, {}
    kernels = np.bincount(one.event_unit, minlength=len(one.call)).tolist()
    calls = [one.calls[call] for call in one.call.tolist()]
    times, together = Counter(calls), Counter(pairwise(calls))
    most: defaultdict[Call, int] = defaultdict(int)
    for call, launched in zip(calls, kernels, strict=True):
        most[call] = max(most[call], launched)
    for pair in together:
        ends = times[pair[0]] == times[pair[1]] == together[pair]
        fits = ends and all(
            c.name.startswith("aten::") and c.shapes and not c.kernel and call_role(c) == STREAMING for c in pair
        )
        if fits and pair[0].name != pair[1].name and most[pair[0]] == most[pair[1]] == 1:
            found[pair] = None
    return list(found)


@in_traces("fused")
@given(data=st.data())
@DRAWS
def test_two_calls_that_became_one_kernel_are_fused(data: st.DataObject, names: list[str], shared_traces: Path) -> None:
    before = drawn(data, [name for name in names if len(names) == 1 or "handmade" not in name])
    one, other = one_of(data, names, neighbors(before))
    found = compared(before, edits.fused(before, one, other))
    assume(any(edits.FUSED_KERNEL[:-2] in (row.b.ops[0] if row.b else "") for row in found.rows))
    told = [row for row in found.rows if row.cause == FUSED]
    assert told
    for row in told:
        assert row.a is not None
        assert {one.name, other.name} <= set(row.a.ops)
        assert "fused into" in row.why
    assert not [row for row in found.rows if row.cause == ADDED]


@pytest.mark.parametrize(
    "ratio", [0.96, *(pytest.param(each, marks=(pytest.mark.sweep, EVERY)) for each in (0.9, 1.05))]
)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=()
            if name in SMALL[::4]
            else (pytest.mark.sweep,)
            if (TRACES / name).stat().st_size <= AFFORDABLE
            else (pytest.mark.sweep, EVERY),
        )
        for name in sorted(device_traces(), key=lambda each: each not in SMALL)
    ],
)
def test_another_clock_is_told_apart_from_other_code(name: str, ratio: float, shared_traces: Path) -> None:
    before = original(TRACES / name)
    bound = {
        call for call, known in zip(before.one.calls, before.one.rates, strict=True) if is_compute_bound(call, known)
    }
    calls = [call for call in calls_that(before, lambda *_: True) if call in bound]
    if len(calls) < 3:
        pytest.skip("fewer than three compute-bound calls")
    found = compared(before, edits.on_other_clock(before, ratio, calls))
    of_clock = [row.change_ms for row in found.rows if row.cause in (CLOCK, EVERYTHING)]
    assert sum(of_clock) == pytest.approx((1 / ratio - 1) * before.step_ms_of(calls), rel=0.03)
    told = [change for change in found.changes if change.cause in (CLOCK, EVERYTHING)]
    if not told:
        # Steps that spread further than that
        assert [change.cause for change in found.changes] == [NOISE]
        return
    assert len(told) == 1
    assert (
        f"clock {abs(100 * (1 - ratio)):.2g} % {'lower' if ratio < 1 else 'higher'}" in told[0].text
        or told[0].cause == EVERYTHING
    )
