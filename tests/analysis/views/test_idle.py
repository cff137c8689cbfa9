"""Idle causes: each by a trace made for it, and that they add up to the idle time of the timeline exactly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.conftest import Builder
from tracelens.analysis.activity import device_activity
from tracelens.analysis.analyze import analyze
from tracelens.analysis.catalog import Catalog
from tracelens.analysis.intervals import Covered, idle_spans
from tracelens.analysis.options import Options
from tracelens.analysis.timeline import gpu_timeline
from tracelens.analysis.trace import Trace, load
from tracelens.analysis.verdict import summarize
from tracelens.analysis.views.host_calls import host_calls
from tracelens.analysis.views.idle import CAUSES, IdleGaps, idle_gaps
from tracelens.trace.table import TraceTable

Build = Callable[[], Builder]


def gaps_of(trace: Trace) -> IdleGaps:
    activity = device_activity(trace.table, trace.tree, Catalog(()).kernel_patterns)
    host = host_calls(trace.table, trace.tree)
    return idle_gaps(trace.table, trace.tree, host, activity, activity, gpu_timeline(activity).window)


def causes(builder: Builder) -> list[tuple[str, float]]:
    """(cause, length in us) of every gap."""
    gaps = gaps_of(builder.trace())
    return [
        (CAUSES[cause], length / 1000)
        for cause, length in zip(gaps.cause.tolist(), (gaps.end - gaps.start).tolist(), strict=True)
    ]


def test_a_host_that_is_busy_with_ops_is_launch_bound(build: Build) -> None:
    # idle from 10 to 30, in ops from 11 to 28: 17 of 20 us
    builder = build().launch(0, "k", 5, 5).op("aten::add", 11, 17).launch(26, "k", 30, 5)
    assert causes(builder) == [("launch-bound", 20)]


def test_a_host_outside_of_its_ops_does_other_work(build: Build) -> None:
    # idle from 10 to 30, in an op from 24: before that 14 of 20 us in no recorded call
    builder = build().launch(0, "k", 5, 5).op("aten::add", 24, 4).launch(25, "k", 30, 5)
    assert causes(builder) == [("host work outside of ops", 20)]


def test_a_call_that_waited_for_the_device_is_the_cause_even_when_python_follows(build: Build) -> None:
    builder = build().launch(0, "k", 5, 5)
    builder.op("cudaStreamSynchronize", 2, 9, cat="cuda_runtime", correlation=90)  # returns at 11, the kernel at 10
    assert causes(builder.launch(25, "k", 30, 5)) == [("synchronization", 20)]


def test_a_copy_that_returns_after_the_copy_is_done_waited_for_it(build: Build) -> None:
    # the call lasts from 0 to 12, its copy from 5 to 10
    builder = build().op("cudaMemcpyAsync", 0, 12, cat="cuda_runtime", correlation=90)
    builder.kernel("Memcpy DtoH", 5, 5, cat="gpu_memcpy", correlation=90)
    assert causes(builder.launch(25, "k", 30, 5)) == [("synchronization", 20)]


def test_data_loading_that_fills_half_of_the_gap_is_its_cause(build: Build) -> None:
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    builder = build().launch(0, "k", 5, 5).op(loader, 12, 10, cat="user_annotation").launch(25, "k", 30, 5)
    assert causes(builder) == [("data loading", 20)]
    builder = build().launch(0, "k", 5, 5).op(loader, 12, 9, cat="user_annotation").launch(25, "k", 30, 5)
    assert causes(builder) == [("host work outside of ops", 20)]


def test_communication_on_the_host_is_a_cause(build: Build) -> None:
    builder = build().launch(0, "k", 5, 5).op("gloo:all_reduce", 11, 12, cat="user_annotation").launch(25, "k", 30, 5)
    assert causes(builder) == [("communication on the host", 20)]


def test_a_kernel_that_was_launched_before_the_gap_was_queued(build: Build) -> None:
    builder = build().launch(0, "k", 5, 5).launch(2, "k", 12, 5)
    assert causes(builder) == [("between queued kernels", 2)]


def test_a_graph_that_has_begun_was_launched_already(build: Build) -> None:
    # one call from 0 to 50 launches both
    builder = build().op("cudaGraphLaunch", 0, 50, cat="cuda_runtime", correlation=90)
    builder.kernel("k", 5, 5, correlation=90).kernel("k", 12, 5, correlation=90)
    assert causes(builder) == [("between queued kernels", 2)]


def test_a_kernel_without_a_launch_leaves_the_cause_unknown(build: Build) -> None:
    assert causes(build().launch(0, "k", 5, 5).kernel("k", 30, 5)) == [("unknown", 20)]


def test_another_process_does_not_explain_this_ones_gaps(build: Build) -> None:
    builder = build().launch(0, "k", 5, 5).launch(25, "k", 30, 5)
    builder.events.append({"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 2, "tid": 1, "ts": 10, "dur": 15})
    assert causes(builder) == [("host work outside of ops", 20)]


def test_a_step_window_holds_the_gaps_before_its_first_and_after_its_last_kernel(build: Build) -> None:
    builder = build()
    for number, start in enumerate((0, 100, 200)):
        builder.op(f"ProfilerStep#{number}", start, 90, cat="user_annotation").launch(start + 1, "k", start + 10, 40)
    analysis = analyze(builder.trace(), Options(steps="1"))
    found = analysis.frames["idle_causes"]
    # step 1 lasts from 100 to 200; busy from 110 to 150; the host launched at 101, and was at nothing from 150 on
    assert found[["cause", "gaps", "idle_us"]].to_numpy().tolist() == [
        ["host work outside of ops", 1, 50.0],
        ["launch-bound", 1, 10.0],
    ]
    assert found["percent_of_window"].tolist() == [50.0, 10.0]
    idle = next(finding for finding in summarize(analysis).findings if finding.id == "idle")
    assert idle.why == "device idle 60 %: 2 gaps, the longest 50 µs; 83 % host work outside of ops"


def test_a_gap_of_unknown_cause_gets_none_in_the_verdict(build: Build) -> None:
    analysis = analyze(build().launch(0, "k", 5, 5).kernel("k", 30, 5).trace(), Options())
    idle = next(finding for finding in summarize(analysis).findings if finding.id == "idle")
    assert idle.why == "device idle 67 %: 1 gap, the longest 20 µs"


def test_the_gaps_are_listed_with_what_stands_round_them(build: Build) -> None:
    builder = (
        build().launch(0, "first", 5, 5).op("aten::add", 24, 4).launch(25, "second", 30, 5).launch(26, "third", 36, 1)
    )
    trace = builder.trace()
    frame = gaps_of(trace).longest(trace.table, trace.tree)
    assert frame["idle_us"].tolist() == [20.0, 1.0]
    assert frame.loc[0, ["start_us", "kernel_before", "kernel_after", "op_after"]].tolist() == [
        10.0, "first", "second", "aten::add",
    ]  # fmt: skip


def test_the_spans_between_intervals() -> None:
    start, end = np.array([5, 0, 12]), np.array([9, 6, 14])
    assert [list(part) for part in idle_spans(start, end, 0, 20)] == [[9, 14], [12, 20]]
    assert [list(part) for part in idle_spans(start[:0], end[:0], 3, 7)] == [[3], [7]]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 15)), max_size=12),
    st.integers(0, 2), st.integers(0, 50), st.integers(0, 20),
)  # fmt: skip
def test_cover_is_the_length_of_the_union(spans: list[tuple[int, int, int]], key: int, start: int, length: int) -> None:
    keys, starts, lengths = (np.array([span[i] for span in spans], np.int64) for i in range(3))
    covered = Covered(keys, starts, starts + lengths)
    busy = {t for k, s, n in spans if k == key for t in range(s, s + n)}
    expected = len(busy & set(range(start, start + length)))
    assert covered.within(np.array([key]), np.array([start]), np.array([start + length])).tolist() == [expected]
    parts = zip(*covered.spans(key), strict=True)
    assert {t for s, e in parts for t in range(s, e)} == busy


HOST_NAMES = ["aten::mm", "cudaStreamSynchronize", "enumerate(DataLoader)#next", "c10d::allreduce_"]


@given(
    st.lists(
        st.tuples(st.integers(0, 200), st.integers(0, 30), st.integers(1, 3), st.integers(0, 60), st.booleans()),
        min_size=1, max_size=15,
    ),
    st.lists(
        st.tuples(st.sampled_from(HOST_NAMES), st.integers(0, 200), st.integers(0, 60), st.integers(1, 2)), max_size=8
    ),
)  # fmt: skip
def test_the_causes_add_up_to_the_idle_time_exactly(
    kernels: list[tuple[int, int, int, int, bool]], host: list[tuple[str, int, int, int]]
) -> None:
    builder = Builder()
    for start, duration, stream, lead, linked in kernels:
        if linked:
            builder.launch(start - lead, "k", start + 0.001, duration, stream=stream)
        else:
            builder.kernel("k", start, duration, stream=stream)
    for number, (name, start, duration, thread) in enumerate(host):
        cat = "cuda_runtime" if name.startswith("cuda") else "cpu_op"
        builder.op(name, start, duration, tid=thread, cat=cat, correlation=1000 + number)
    trace = Trace.of(TraceTable.from_events(builder.events))
    activity = device_activity(trace.table, trace.tree, ())
    gaps = gaps_of(trace)
    assert gaps.total_ns == gpu_timeline(activity).idle_ns
    assert (gaps.end > gaps.start).all()
    frame = gaps.by_cause()
    assert np.rint(frame["idle_us"] * 1000).astype(np.int64).sum() == gaps.total_ns
    assert frame["gaps"].sum() == len(gaps.start)


def test_causes_do_not_depend_on_how_many_gaps_are_looked_at_together(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = load(repository / "example_traces" / "moe_ep8" / "rank0.json.gz")
    together = gaps_of(trace).cause
    monkeypatch.setattr("tracelens.analysis.views.idle._BLOCK", 7)
    assert len(np.unique(together)) > 1
    assert (gaps_of(trace).cause == together).all()


@pytest.mark.shared
def test_the_causes_add_up_on_every_real_trace(shared_traces: Path) -> None:
    found: list[Any] = []
    for path in sorted(shared_traces.rglob("*.json.gz")):
        trace = load(path)
        if trace.table.has_device_events:
            activity = device_activity(trace.table, trace.tree, Catalog(()).kernel_patterns)
            found.append((path.name, gaps_of(trace).total_ns, gpu_timeline(activity).idle_ns))
    assert len(found) >= 20
    assert [name for name, by_cause, idle in found if by_cause != idle] == []


@pytest.mark.shared
@pytest.mark.parametrize("overlap", ["keep", "clip"])
@pytest.mark.parametrize("name", ["mi300/resnet_act_checkpoint", "hta/nccl_parser_config/nccl_data"])
def test_the_causes_add_up_in_selected_steps_too(shared_traces: Path, name: str, overlap: str) -> None:
    analysis = analyze(load(shared_traces / f"{name}.json.gz"), Options(steps="steady", overlap=overlap))
    by_cause = analysis.frames["idle_causes"]["idle_us"]
    assert round(1000 * by_cause.sum()) == analysis.timeline.idle_ns > 0
    idle = analysis.frames["gpu_timeline"].set_index("type").loc["idle_time", "time_ms"]
    assert by_cause.sum() / 1000 == pytest.approx(idle, rel=1e-12)
