"""A step lasts as long as a loop repeats, and owns what its host calls launched."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.conftest import Builder
from tests.conftest import RealAnalysis, RealTrace, examples, part
from tests.trace.event_texts import read_events
from tracelens.analysis.analyze import analyze
from tracelens.analysis.attribution.steps import (
    BEFORE,
    StepTimes,
    complete_steps,
    device_steps,
    find_steps,
    refill_spans,
    select_steps,
    typical_step,
)
from tracelens.analysis.intervals import union_ns
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace
from tracelens.analysis.verdict.summary import CategoryRow, Summary
from tracelens.analysis.verdict.verdict import summarize
from tracelens.errors import UsageError
from tracelens.report.figures import lines_of_window
from tracelens.trace.table import DEVICE_KINDS

#: The trace of one step whose annotations are edited below.
TWIN = "mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"


def times_of(trace: Trace) -> StepTimes:
    return device_steps(trace.table, trace.tree, trace.table.rows_of(DEVICE_KINDS))[1]


def durations_us(trace: Trace) -> list[float]:
    return (times_of(trace).duration_ns / 1e3).tolist()


def step(b: Builder, number: int, start: float, duration: float) -> Builder:
    return b.op(f"ProfilerStep#{number}", start, duration, cat="user_annotation")


def test_a_single_step_ends_when_its_host_code_and_its_device_work_have_ended(build):
    """A step of [0, 100] whose one kernel is launched at 90 and runs from 95 to 150."""
    assert durations_us(step(build(), 0, 0, 100).launch(90, "k", 95, 55).trace()) == [150.0]
    assert durations_us(step(build(), 0, 0, 100).launch(10, "k", 15, 55).trace()) == [100.0]


def test_data_loading_before_the_first_kernel_is_in_the_step(build):
    """Steps of 100 that launch 80 in, and whose kernel has ended before the next begins."""
    b = build()
    for i in range(3):
        step(b, i, 100 * i, 100).launch(100 * i + 80, "k", 100 * i + 82, 10)
    times = times_of(b.trace())
    assert (times.duration_ns / 1e3).tolist() == [100.0] * 3
    assert not times.on_device.any()
    assert times.busy_ns.tolist() == [10_000] * 3


def test_where_the_host_runs_ahead_a_step_begins_when_the_device_has_finished_the_one_before(build):
    """Host windows of 20, kernels of 50 one behind the other: the device needs 50 a step, from its first at 5."""
    b = build()
    for i in range(4):
        step(b, i, 20 * i, 20).launch(20 * i + 1, "k", 5 + 50 * i, 50)
    times = times_of(b.trace())
    assert (times.duration_ns / 1e3).tolist() == [55.0, 50.0, 50.0, 50.0]
    assert times.on_device.tolist() == [False, True, True, True]
    assert (times.host_period_ns / 1e3).tolist() == [20.0, 20.0, 20.0, 145.0]
    assert (times.device_period_ns / 1e3).tolist() == [50.0] * 4


def queued(b: Builder) -> Builder:
    """Two steps with host windows of 20; 100 us of kernels were in the queue as recording began."""
    for i in range(10):
        b.kernel("k", 10 * i, 10)
    for i in range(2):
        step(b, i, 20 * i, 20).launch(20 * i + 1, "k", 100 + 50 * i, 50)
    return b


def test_work_queued_before_recording_is_in_no_step_and_has_a_row_of_its_own(build):
    trace = queued(build()).trace()
    times = times_of(trace)
    assert (times.duration_ns / 1e3).tolist() == [50.0, 50.0]
    assert times.device_events.tolist() == [1, 1]
    frame = analyze(trace, AnalysisOptions(), on_demand=True).frames["steps"]
    assert frame["step"].tolist() == [None, 0, 1]
    assert frame["begins_with"].tolist() == [BEFORE, "device", "device"]
    assert frame["busy_us"].tolist() == [100.0, 50.0, 50.0]
    assert frame["device_events"].tolist() == [10, 1, 1]


def test_a_stream_that_ran_only_unlaunched_work_while_the_queue_drained_ran_it_before_the_first_step(build):
    b = queued(build()).kernel("other", 40, 5, stream=9)
    assert times_of(b.trace()).before_events == 11


def test_without_any_recorded_launch_work_belongs_to_the_step_in_which_it_ran(build):
    b = build()
    for i in range(2):
        step(b, i, 100 * i, 100).kernel("k", 100 * i + 10, 20)
    times = times_of(b.trace())
    assert times.before_events == 0
    assert times.device_events.tolist() == [1, 1]
    assert (times.duration_ns / 1e3).tolist() == [100.0, 100.0]


def test_a_host_that_waited_for_earlier_work_leaves_no_refill_of_the_queue_in_the_step(build):
    """A wait of [1, 50] for work from before recording, then three kernels of 20, each launched 10 after the last.

    The device is idle in [50, 58] and [78, 80]; the loop would repeat the device's 60, its host needs 92 - 49 = 43.
    """
    b = step(build().kernel("k", 0, 50), 0, 0, 92)
    b.op("cudaDeviceSynchronize", 1, 50, cat="cuda_runtime")
    for i, (at, start) in enumerate(((55, 58), (79, 80), (81, 100))):
        b.launch(at, f"k{i}", start, 20)
    times = times_of(b.trace())
    assert (times.duration_ns / 1e3).tolist() == [60.0]
    assert [spans.tolist() for spans in times.left_out] == [[50_000, 78_000], [58_000, 80_000]]
    assert times.busy_ns.tolist() == [60_000]


def test_a_steps_row_says_how_long_it_was_busy_and_idle_and_what_was_left_out(build):
    """Of the step above, from 1000 us before its first event on; then two of 100 with 20 and 30 us of work."""
    b = step(build().kernel("k", 0, 50), 0, 0, 92)
    b.op("cudaDeviceSynchronize", 1, 50, cat="cuda_runtime")
    for i, (at, start) in enumerate(((55, 58), (79, 80), (81, 100))):
        b.launch(at, f"k{i}", start, 20)
    times = times_of(b.trace())
    (row,) = times.frame(int(times.start_ns[0]) - 1_000_000).to_dict("records")
    shown = ("start_us", "duration_us", "busy_us", "idle_us", "left_out_us", "device_events", "outside_us")
    assert [row[name] for name in shown] == [1000, 60, 60, 0, 8 + 2, 3, 0]
    assert row["begins_with"] == "device"
    b = build()
    for i in range(2):
        step(b, 7 + i, 100 * i, 100).launch(100 * i + 10, "k", 100 * i + 12, 20 + 10 * i)
    times = times_of(b.trace())
    frame = times.frame(int(times.start_ns[0]))
    assert frame["step"].tolist() == [7, 8]
    assert frame[["start_us", "duration_us", "busy_us", "idle_us", "left_out_us"]].to_numpy().tolist() == [
        [0, 100, 20, 80, 0], [100, 100, 30, 70, 0],
    ]  # fmt: skip
    assert frame["begins_with"].tolist() == ["host", "host"]
    assert frame["host_period_us"].tolist() == [100, 100]


def test_a_single_step_is_never_shorter_than_its_host_code_without_the_wait(build):
    """As above with 200 us of host code behind the launches: the host alone needs 300 - 49."""
    b = step(build().kernel("k", 0, 50), 0, 0, 300)
    b.op("cudaDeviceSynchronize", 1, 50, cat="cuda_runtime").launch(55, "k", 58, 20)
    assert durations_us(b.trace()) == [251.0]


def test_a_tail_on_another_stream_does_not_hold_up_the_next_step(build):
    """A copy of 1000 us that step 0 launches on a stream of its own; kernels one behind the other, 50 a step."""
    b = build()
    for i in range(3):
        step(b, i, 20 * i, 20).launch(20 * i + 1, "k", 5 + 50 * i, 25).launch(20 * i + 2, "k", 30 + 50 * i, 25)
        if not i:
            b.launch(3, "Memcpy DtoH", 10, 140, stream=9, cat="gpu_memcpy")
    times = times_of(b.trace())
    assert (times.duration_ns / 1e3).tolist() == [55.0, 50.0, 50.0]
    assert times.busy_ns.tolist() == [50_000, 50_000, 50_000]
    assert times.outside_ns.tolist() == [95_000, 0, 0]


# Random traces: (gap before a step, its length), and events (launch or None, when it is run, how long, stream)
STEPS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 60)), min_size=1, max_size=5)
EVENTS = st.lists(
    st.tuples(st.none() | st.integers(0, 200), st.integers(0, 400), st.integers(0, 60), st.integers(1, 3)),
    max_size=14,
)
WAITS = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 100)), max_size=2)


def built(steps: Any, events: Any, waits: Any) -> tuple[list[tuple[int, int]], Trace]:
    b, at, windows = Builder(), 0, []
    for number, (gap, length) in enumerate(steps):
        at += gap
        windows.append((at, at + length))
        step(b, number, at, length)
        at += length
    for launch, start, length, stream in events:
        if launch is None:
            b.kernel("k", start, length, stream=stream)
        else:
            b.launch(launch, "k", start, length, stream=stream)
    for start, length in waits:
        b.op("cudaDeviceSynchronize", start, length, tid=3, cat="cuda_runtime")
    return windows, b.trace()


def covered(events: Any, first: int, last: int) -> set[int]:
    """Every whole µs of [first, last) in which one of the events runs."""
    return {t for _, start, length, _ in events for t in range(max(start, first), min(start + length, last))}


def owners(windows: list[tuple[int, int]], events: Any) -> list[int | None]:
    """The step of each event by the definition, one by one; -1: before the first step, None: in none."""
    first: dict[int, int] = {}
    for launch, start, _, stream in events:
        if launch is not None:
            first[stream] = min(first.get(stream, start), start)
    if not first or all(launch is not None for launch, *_ in events):
        first = {}
    early = [e for e in events if e[0] is None and e[3] in first and e[1] < first[e[3]]]
    horizon = max([min(first.values()), *(start + length for _, start, length, _ in early)]) if first else -math.inf
    found: list[int | None] = []
    for event in events:
        launch, start, _, stream = event
        if launch is None and (event in early or (stream not in first and start < horizon)):
            found.append(-1)
            continue
        moment = start if launch is None else launch
        begun = [k for k, (begin, _) in enumerate(windows) if begin <= moment]
        found.append(begun[-1] if begun and moment <= windows[-1][1] else None)
    return found


def plain_periods(windows: list[tuple[int, int]], events: Any) -> list[tuple[int, int]]:
    """(begin, end) of each step, before anything is left out: a plain loop over steps and events."""
    owner = owners(windows, events)
    streams = [event[3] for event, k in zip(events, owner, strict=True) if k is not None and k >= 0]
    main = max(sorted(set(streams)), key=streams.count) if streams else None
    begins = []
    for k, (begin, _) in enumerate(windows):
        ended = [begin]
        for (launch, start, length, stream), of in zip(events, owner, strict=True):
            moment = start if launch is None else launch
            if stream == main and (of == -1 or moment < windows[k][0]):
                ended.append(start + length)
        begins.append(max(ended))
    own = [s + n for (_, s, n, _), k in zip(events, owner, strict=True) if k == len(windows) - 1]
    return list(zip(begins, [*begins[1:], max([windows[-1][1], begins[-1], *own])], strict=True))


@given(STEPS, EVENTS)
@settings(max_examples=examples(80), deadline=None)
def test_periods_and_owners_equal_those_of_a_plain_loop(steps, events):
    windows, trace = built(steps, events, [])
    times, owner = times_of(trace), owners(windows, events)
    assert times.before_events == owner.count(-1)
    assert times.device_events.tolist() == [owner.count(k) for k in range(len(windows))]
    found = list(zip((times.start_ns // 1000).tolist(), (times.end_ns // 1000).tolist(), strict=True))
    expected = plain_periods(windows, events)
    if len(windows) == 1 and expected[0][0] > windows[0][0]:
        begin, end = expected[0]
        expected = [(min(begin, end - (windows[0][1] - windows[0][0])), end)]
    base = windows[0][0] - times.steps[0].start_ns // 1000
    assert [(a + base, b + base) for a, b in found] == expected
    for k, (first, last) in enumerate(expected):
        own = [event for event, of in zip(events, owner, strict=True) if of == k]
        assert times.busy_ns[k] == 1000 * len(covered(own, first, last))
        assert times.busy_ns[k] + times.outside_ns[k] == 1000 * len(covered(own, 0, 1000))


@given(STEPS, EVENTS, WAITS)
@settings(max_examples=examples(80), deadline=None)
def test_no_step_is_busy_for_longer_than_it_lasts(steps, events, waits):
    """And what is left out is idle time between the bounds of the first step."""
    windows, trace = built(steps, events, waits)
    times = times_of(trace)
    assert (times.busy_ns <= times.duration_ns).all()
    opens, closes = ((spans // 1000).tolist() for spans in times.left_out)
    own = [event for event, of in zip(events, owners(windows, events), strict=True) if of in (0, -1)]
    shift = windows[0][0] - int(times.steps[0].start_ns) // 1000
    for first, last in zip(opens, closes, strict=True):
        assert not covered(own, first + shift, last + shift)
        assert times.start_ns[0] <= 1000 * first <= 1000 * last <= times.end_ns[0]


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "expected_ms", "tolerance"),
    [
        ("mi300/resnet_act_checkpoint.json.gz", [18.980, 18.983, 18.554], 1e-3),
        ("mi300/facebook_timesformer-base-finetuned-k400__1016002.json.gz", [390.7], 1e-3),
        ("mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", [30.0], 0.02),
        ("hta/triton_example/triton_example.json.gz", [13_336.3], 1e-3),
    ],
)
def test_real_steps_last_as_long_as_recomputed_by_launch(
    real_trace: RealTrace, name: str, expected_ms: list[float], tolerance: float
):
    times = times_of(real_trace(name))
    assert (times.duration_ns / 1e6).tolist() == pytest.approx(expected_ms, rel=tolerance)


@pytest.mark.shared
def test_the_steps_of_a_host_that_runs_ahead_own_equally_many_events(real_trace: RealTrace):
    times = times_of(real_trace("mi300/resnet_act_checkpoint"))
    assert times.device_events.tolist() == [895] * 3
    assert times.before_events == 968
    assert times.outside_ns.tolist() == [0] * 3


def lines_of_table(summary: Summary) -> list[CategoryRow]:
    return lines_of_window(summary)


def test_table_step_and_busy_share_speak_of_the_same_time(build):
    """Two steps of 50 us on the device behind 100 us of earlier work: one kernel each, busy all the time."""
    summary = summarize(analyze(queued(build()).trace(), AnalysisOptions()))
    assert (summary.steps.count, summary.steps.time_us, summary.busy.total_us) == (2, 50.0, 100.0)
    assert (summary.steps.on_device, summary.steps.host_us) == (2, 20.0)
    assert (summary.steps.before_events, summary.steps.before_us) == (10, 100.0)
    assert [(row.name, row.time_us, row.share) for row in lines_of_table(summary)] == [
        ("other", 50.0, 1.0),
        ("(idle)", 0.0, 0.0),
    ]
    assert summary.coverage.unlinked == 0


def test_a_step_cut_short_by_the_recording_is_in_no_figure(build):
    """Three steps of 100 with ten kernels of 5, and one with two of 50 that the recording cut off."""
    b = build()
    for i in range(3):
        step(b, i, 100 * i, 100)
        for j in range(10):
            b.launch(100 * i + j, "k", 100 * i + 10 + 6 * j, 5)
    step(b, 3, 300, 100).launch(301, "k", 305, 50).launch(302, "k", 355, 50)
    summary = summarize(analyze(b.trace(), AnalysisOptions()))
    assert (summary.steps.count, summary.steps.window, summary.steps.left_out) == (3, "0-2", "steps 3")
    assert [(row.name, row.time_us) for row in lines_of_table(summary)] == [("other", 50.0), ("(idle)", 50.0)]
    assert summary.busy.idle == 0.5


def test_the_idle_time_of_the_verdict_has_causes_without_what_is_left_out(build):
    b = step(build().kernel("k", 0, 50), 0, 0, 92)
    b.op("cudaDeviceSynchronize", 1, 50, cat="cuda_runtime")
    for i, (at, start) in enumerate(((55, 58), (56, 80), (81, 100))):
        b.launch(at, f"k{i}", start, 20)
    found = analyze(b.trace(), AnalysisOptions())
    summary = summarize(found)
    # idle in [50, 58], left out, and in [78, 80], which was launched long before
    assert (summary.steps.time_us, summary.steps.skipped_us, summary.steps.host_us) == (62.0, 8.0, 43.0)
    assert summary.busy.idle == pytest.approx(2 / 62)
    assert found.frames["idle_causes"]["idle_us"].sum() == pytest.approx(2.0)


def test_steps_without_any_kernel_are_not_what_a_report_speaks_of(build):
    """A step of 100 in which nothing is launched, and a kernel of 10 that was launched after it."""
    b = step(build(), 0, 0, 100).op("aten::relu", 120, 10).launch(121, "k", 125, 10)
    summary = summarize(analyze(b.trace(), AnalysisOptions()))
    assert (summary.steps, summary.scope.kind, summary.busy.total_us, summary.busy.busy) == (None, "file", 10.0, 1.0)


@pytest.mark.shared
@pytest.mark.parametrize(
    "name",
    part(
        [
            "mi300/resnet_act_checkpoint",
            "mi300/Qwen_Qwen1.5-0.5B-Chat__1016005",
            "mi300/facebook_timesformer-base-finetuned-k400__1016002",
            "hta/triton_example/triton_example",
            "more/torchrec_pr1460/sst_long_a2a_optimizer_5/rank3.pt.trace",
            "more/param/dlrm_8rank/worker1_step_12.1694128201556.pt.trace",
        ],
        3,
        ["mi300/Qwen_Qwen1.5-0.5B-Chat__1016005"],
    ),
)
def test_real_tables_and_idle_time_add_up_to_the_printed_step(real_analysis: RealAnalysis, name: str):
    found = real_analysis(name)
    summary = summarize(found)
    assert sum(row.time_us for row in lines_of_table(summary)) == pytest.approx(summary.steps.time_us, rel=1e-3)
    assert sum(row.share for row in lines_of_table(summary)) == pytest.approx(1.0, rel=1e-3)
    assert summary.busy.total_us / summary.steps.count == pytest.approx(summary.steps.time_us)
    causes = found.frames["idle_causes"]["idle_us"].sum()
    assert causes == pytest.approx(summary.busy.idle * summary.busy.total_us, abs=1e-3)
    assert all((finding.gain_us or 0) <= summary.steps.time_us for finding in summary.findings)


def test_a_step_without_length_is_not_what_a_report_speaks_of(build):
    b = step(build(), 0, 50, 0).op("aten::relu", 120, 10).launch(121, "k", 125, 10)
    summary = summarize(analyze(b.trace(), AnalysisOptions()))
    assert (summary.steps, summary.busy.total_us, summary.busy.busy) == (None, 10.0, 1.0)


def steps_of(*kernels: int, first: int = 5) -> StepTimes:
    """Steps of 100 us numbered from ``first``, each with so many kernels."""
    b = Builder()
    for i, many in enumerate(kernels):
        step(b, first + i, 100 * i, 100)
        for j in range(many):
            b.launch(100 * i + j, "k", 100 * i + 1 + 6 * j, 5)
    return times_of(b.trace())


@pytest.mark.parametrize(
    ("kernels", "complete"),
    [
        ((10, 9), [True, True]),
        ((10, 2), [True, False]),  # fewer than 90 % of the median of 6
        ((10, 10, 9), [True, True, True]),
        ((10, 10, 8), [True, True, False]),
        ((1,), [True]),
        ((0, 0), [True, True]),
    ],
)
def test_a_last_step_with_fewer_events_than_its_like_is_not_complete(kernels: tuple[int, ...], complete: list[bool]):
    assert steps_of(*kernels).complete.tolist() == complete


@pytest.mark.parametrize(
    ("wanted", "positions"),
    [("5", [0]), ("6-7", [1, 2]), ("7-90", [2, 3]), ("0-5", [0]), ("steady", [1, 2])],
)
def test_steps_are_chosen_by_number_or_as_steady(wanted: str, positions: list[int]):
    """Of 5 to 8, the last of which was cut off."""
    assert select_steps(wanted, steps_of(10, 10, 10, 2)) == positions


def test_steady_steps_are_all_but_the_first_and_those_cut_off_as_long_as_that_leaves_any():
    assert select_steps("steady", steps_of(10, 2)) == [0]
    assert select_steps("steady", steps_of(10)) == [0]
    # where the analysis knows better, as of an engine's phases
    assert select_steps("steady", steps_of(10, 10, 10), [2, 0]) == [2, 0]
    assert select_steps("6", steps_of(10, 10, 10), [2, 0]) == [1]


@pytest.mark.parametrize(
    ("lost", "whole"),
    [
        ([0, 0, 0, 0], [0, 1, 2, 3]),
        ([0, 0, 0, 20], [0, 1, 2]),
        ([0, 0, 10, 20], [0, 1]),
        ([0, 0, 1, 20], [0, 1]),  # its end is lost, which may be its longest kernel
        ([1, 20, 20, 20], [0]),
        ([5, 5, 5, 5], [0, 1, 2, 3]),  # a recording that lost some everywhere
        ([0, 10, 0, 0], [0, 1, 2, 3]),  # the end is whole
    ],
)
def test_last_steps_whose_kernels_were_lost_are_not_complete(build, lost: list[int], whole: list[int]):
    """Steps of 20 launches a microsecond apart, of whose last ones some have no kernel."""
    b = build()
    for i, without in enumerate(lost):
        step(b, i, 100 * i, 100)
        for k in range(20):
            b.launch(100 * i + k, "k", 100 * i + k + 1, 0.5)
        b.events = [e for e in b.events if not (e["cat"] == "kernel" and e["ts"] > 100 * i + 20 - without)]
    assert complete_steps(times_of(b.trace())) == whole


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("9", "--steps 9: the trace has steps 5 to 6"),
        ("8-9", "--steps 8-9: the trace has steps 5 to 6"),
        ("6-5", "--steps 6-5: the trace has steps 5 to 6"),
        ("last", "--steps takes a number, a range like 3-5, or steady; got 'last'"),
        ("5-", "--steps takes a number"),
    ],
)
def test_steps_that_are_not_there_are_refused(wanted: str, message: str):
    with pytest.raises(UsageError, match=message):
        select_steps(wanted, steps_of(1, 1))
    with pytest.raises(UsageError, match="the trace has no steps"):
        select_steps(wanted, times_of(Builder().launch(1, "k", 2, 3).trace()))


def test_figures_are_of_complete_steps_and_the_typical_one_is_nearest_their_median():
    times = steps_of(10, 10, 10, 2)
    assert complete_steps(times) == [0, 1, 2]
    assert complete_steps(times, [2, 3]) == [2]
    assert complete_steps(times, [3]) == [3]
    b = Builder()
    for i, (start, duration) in enumerate([(0, 100), (100, 160), (260, 120), (380, 120)]):
        step(b, i, start, duration).launch(start + 1, "k", start + 2, 5)
    # 100, 160, 120, 120: the median of the first three is 120, of the first two 130, from which both are 30
    times = times_of(b.trace())
    assert [typical_step(times, among) for among in ([0, 1, 2], [0, 1], [1, 2, 3], [3, 2])] == [2, 0, 2, 2]


@pytest.mark.parametrize(
    ("longest", "spans"),
    [
        (0, []),
        (5, [(10, 15)]),
        (15, [(10, 20), (30, 35)]),
        (25, [(10, 20), (30, 40), (50, 55)]),
        (99, [(10, 20), (30, 40), (50, 60)]),
    ],
)
def test_what_is_left_out_of_a_refill_are_its_first_gaps(longest: int, spans: list[tuple[int, int]]):
    """Kernels of [20, 30], [40, 50] and [60, 70], each launched 2 before; the gap up to 80 is of one launched long ago."""
    start = np.array([0, 20, 40, 60, 80])
    work = SimpleNamespace(
        start=start, end=start + 10, launch=np.array([-1, 18, 38, 58, 59]), before=np.array([True] + [False] * 4)
    )
    opens, closes = refill_spans((0, 90), work, ~work.before, longest)  # type: ignore[arg-type]
    assert list(zip(opens.tolist(), closes.tolist(), strict=True)) == spans


#: Annotations that look like steps, as (name without its number, how many, from and to as shares of the step).
LOOK_LIKE_STEPS = (
    ("load shard ", 3, (-0.1, 0.0)),  # before the model
    ("load batch ", 3, (0.0, 0.05)),  # a data loader's, inside the step
    ("XLA::TPU Phase ", 2, (-0.1, 0.001)),
    ("cond_6/branch_1_fun/_", 2, (-0.2, 0.0)),
    ("layer ", 24, (0.0, 1.0)),  # they hold all work, and are parts of one step
    ("model.layers.", 24, (0.0, 1.0)),
)


def renamed_steps(path: Path, *annotations: tuple[str, int, tuple[float, float]]) -> Trace:
    """A trace without its ProfilerStep, with these annotations on its thread in place of it, each as long as the next."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    step = next(e for e in document["traceEvents"] if str(e.get("name", "")).startswith("ProfilerStep#"))
    events = [e for e in document["traceEvents"] if not str(e.get("name", "")).startswith("ProfilerStep#")]
    for name, count, (first, last) in annotations:
        width = (last - first) / count * float(step["dur"])
        events += [
            {**step, "name": f"{name}{i}" if count > 1 else name, "dur": width,
             "ts": float(step["ts"]) + first * float(step["dur"]) + i * width, "cat": "user_annotation"}
            for i in range(count)
        ]  # fmt: skip
    metadata = {key: value for key, value in document.items() if key != "traceEvents"}
    return Trace.of(read_events(events, metadata, source="edited.json"))


@pytest.mark.shared
@pytest.mark.parametrize(
    "annotation", part([(each,) for each in LOOK_LIKE_STEPS], 3), ids=lambda annotation: annotation[0].strip()
)
def test_numbered_annotations_that_own_little_or_are_parts_are_no_steps(
    shared_traces: Path, annotation: tuple[str, int, tuple[float, float]]
):
    found = analyze(renamed_steps(shared_traces / TWIN, annotation), AnalysisOptions())
    summary = summarize(found)
    assert summary.steps is None
    assert summary.busy is not None
    events = found.activity
    whole = int(events.end.max() - events.start.min())
    assert round(summary.busy.busy * whole) == union_ns(events.start, events.end)
    (said,) = [notice.text for notice in summary.notices if notice.id == "not_steps"]
    assert said.startswith(f"annotations '{annotation[0]}0' to '{annotation[0]}{annotation[1] - 1}' ")
    assert ("name parts of a step" in said) == (annotation[2] == (0.0, 1.0))


@pytest.mark.sweep
@pytest.mark.shared
def test_what_is_round_annotations_decides_where_their_name_does_not(shared_traces: Path):
    """Four 'piece N' hold all work of the file: steps, unless one annotation is round all of them."""
    pieces = ("piece ", 4, (0.0, 1.0))
    alone = find_steps(*found_in(renamed_steps(shared_traces / TWIN, pieces)))
    assert (alone.name, len(alone.steps)) == ("piece", 4)
    inside = find_steps(*found_in(renamed_steps(shared_traces / TWIN, ("forward", 1, (-0.01, 1.01)), pieces)))
    assert (inside.steps, inside.refused.is_part) == ((), True)
    epoch = find_steps(
        *found_in(renamed_steps(shared_traces / TWIN, ("train", 1, (-0.01, 1.01)), ("step ", 4, (0, 1))))
    )
    assert (epoch.name, len(epoch.steps)) == ("step", 4)


def found_in(trace: Trace) -> tuple[Any, Any, Any]:
    return trace.table, trace.tree, trace.table.rows_of(DEVICE_KINDS)


@pytest.mark.parametrize(
    ("name", "are_steps"),
    part([
        ("iteration ", True), ("train_step_", True), ("trainStep#", True), ("stage 1 step ", True), ("", True),
        ("layer ", False), ("DecoderLayer_", False), ("micro batch ", False), ("epoch 0 / block ", False),
    ], 3),
)  # fmt: skip
def test_the_word_next_to_the_number_says_whether_a_range_is_a_step_or_a_part(build, name: str, are_steps: bool):
    b = build()
    for i in range(3):
        b.op(f"{name}{i}", 100 * i, 100, cat="user_annotation").launch(100 * i + 10, "k", 100 * i + 12, 50)
    found = analyze(b.trace(), AnalysisOptions(), on_demand=True)
    assert len(found.step_times) == (3 if are_steps else 0)


def test_steps_hold_at_least_half_of_the_work_that_was_launched_while_recording(build):
    """Three ranges launch 50 us each; more than 150 us launched beside them, and they are none; queued work is neither."""
    for beside, are_steps in ((150, True), (151, False)):
        b = build().kernel("k", -600, 500)
        for i in range(3):
            step(b, i, 100 * i, 80).launch(100 * i + 10, "k", 100 * i + 12, 50)
            b.events[-3]["name"] = f"tick {i}"
        b.launch(90, "beside", 300, beside)
        found = analyze(b.trace(), AnalysisOptions(), on_demand=True)
        assert len(found.step_times) == (3 if are_steps else 0), beside


def test_without_device_events_steps_hold_at_least_half_of_the_time_of_ops(build):
    for inside, are_steps in ((60, True), (20, False)):
        b = build().op("aten::other", 300, 150)
        for i in range(3):
            b.op(f"tick {i}", 100 * i, 80, cat="user_annotation").op("aten::mm", 100 * i + 10, inside)
        assert len(find_steps(*found_in(b.trace())).steps) == (3 if are_steps else 0)


def test_the_verdict_names_what_it_took_for_a_step(build):
    b = step(build(), 0, 0, 100).launch(10, "k", 15, 55)
    assert summarize(analyze(b.trace(), AnalysisOptions())).steps.name == "ProfilerStep"
