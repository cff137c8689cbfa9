"""The critical path: what it goes through, that it is no longer than the step and no shorter than the busiest stream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.conftest import Builder
from tests.conftest import RealTrace
from tracelens.analysis.analyze import analyze
from tracelens.analysis.attribution.activity import device_activity, gpu_timeline
from tracelens.analysis.attribution.host_time import host_calls
from tracelens.analysis.idle.dependencies import CALLS, KINDS, LAUNCH, CriticalPath, critical_path
from tracelens.analysis.idle.idle_time import CAUSES, IdleTime, queue
from tracelens.analysis.intervals import union_ns
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace, load
from tracelens.analysis.reading.catalog import Catalog

Build = Callable[[], Builder]


def test_no_kind_reads_as_another() -> None:
    """A gap between queued kernels while the device was busy beside it is not idle time of that cause."""
    assert len(set(KINDS)) == len(KINDS)
    assert not set(KINDS) & set(CAUSES)


def path_of(trace: Trace) -> CriticalPath:
    activity = device_activity(trace.table, trace.tree, Catalog(()).kernel_patterns)
    host = host_calls(trace.table, trace.tree)
    timeline = gpu_timeline(activity)
    queued = queue(trace.table, trace.tree, host, activity)
    idle = IdleTime(trace.table, trace.tree, host, activity, queued, timeline.spans)
    found = critical_path(trace.table, trace.tree, host, activity, idle, timeline.spans)
    assert found is not None
    return found


def segments(builder: Builder) -> list[tuple[str, str, float]]:
    """(kind, name, length in us) along the path."""
    trace = builder.trace()
    frame = path_of(trace).segments(trace.table)
    return list(zip(frame["kind"], frame["name"], frame["time_us"], strict=True))


def recorded(builder: Builder, name: str, at: float, correlation: int) -> None:
    builder.op(name, at, 0.5, cat="cuda_runtime", correlation=correlation)


def sync(builder: Builder, name: str, at: float, stream: int, correlation: int, on: int, record: int) -> None:
    """What CUPTI records of a wait: which stream waits for which event of which other one."""
    waited = {"wait_on_stream": on, "wait_on_cuda_event_record_corr_id": record}
    builder.op(name, at, 1, cat="cuda_sync", stream=stream, device=0, correlation=correlation, **waited)


def test_a_full_queue_leaves_the_path_on_the_device(build: Build) -> None:
    # the host is done at 3.5; the kernels follow one another, 1 us apart, which is what launches take here: 1 us
    builder = build().launch(0, "a", 1, 9).launch(1, "b", 11, 9).launch(3, "c", 21, 9)
    assert segments(builder) == [
        ("computation", "a", 9), ("idle: between queued kernels", "b", 1), ("computation", "b", 9),
        ("idle: between queued kernels", "c", 1), ("computation", "c", 9),
    ]  # fmt: skip


def test_a_busy_host_is_not_blamed_while_the_queues_are_never_empty(build: Build) -> None:
    # The host is in ops all the time. Streams 7 and 8 are each idle half of the time, never both; what they wait for was
    # not recorded. Stream 9 says what is usual between queued kernels: 1 us
    builder = build().op("aten::a", 0, 200)
    for number in range(20):
        builder.launch(0, "c", 20 + 2 * number, 1, stream=9)
    for number in range(6):
        builder.launch(1 + 28 * number, "a", 20 + 30 * number, 16, stream=7)
        builder.launch(2 + 28 * number, "b", 34 + 30 * number, 18, stream=8)
    assert not {kind for kind, _, _ in segments(builder)} & {CALLS, LAUNCH}


def test_of_chains_as_long_the_one_on_the_device_is_taken(build: Build) -> None:
    """The host is in ops from 0 to 100 and the device busy from 1 to 101, each kernel launched when the last one began."""
    builder = build().op("aten::a", 0, 100)
    for number in range(10):
        builder.launch(max(10 * number - 9, 0), "k", 1 + 10 * number, 10)
    assert {kind for kind, _, _ in segments(builder)} == {"computation"}


def test_a_host_that_takes_longer_than_the_device_is_on_the_path_beside_a_busy_device(build: Build) -> None:
    """Each launch comes when the last kernel is done: of every 10 us the host needs all and the device 8."""
    builder = build().op("aten::a", 0, 100)
    for number in range(10):
        builder.launch(10 * number, "k", 10 * number + 1, 8)
    found = segments(builder)
    assert sum(length for kind, _, length in found if kind == "host ops and launches") == 9 * 8


def test_what_is_left_out_of_a_step_is_left_out_of_its_path(build: Build) -> None:
    """Two spans of 8 and 2 us of a step with 60 us of kernels exist only because recording began."""
    builder = build().kernel("k", 0, 50).op("ProfilerStep#0", 0, 92, cat="user_annotation")
    builder.op("cudaDeviceSynchronize", 1, 50, cat="cuda_runtime")
    for at, start in ((55, 58), (79, 80), (81, 100)):
        builder.launch(at, "k", start, 20)
    found = analyze(builder.trace(), AnalysisOptions(), on_demand=True)
    assert found.step_times.duration_ns.tolist() == [60_000]
    assert found.frames["critical_path"]["time_us"].sum() == 60


def test_late_launches_take_the_path_to_the_host(build: Build) -> None:
    # window 4 to 46. The second op runs from 20 to 40 and calls the launch at 36; its kernel starts 4 us later
    builder = build().op("aten::a", 0, 10).launch(0, "a", 4, 2).op("aten::b", 20, 20).launch(36, "b", 40, 6)
    assert segments(builder) == [
        # idle from 6 until the launch call ends at 36.5: 4 us in aten::a, 16.5 in aten::b, 10 in nothing recorded
        ("host ops and launches", "aten::b", 2), ("idle: launch-bound", "aten::b", 4 + 16.5),
        ("idle: Python or other host work", "aten::b", 10), ("idle: launch latency", "b", 3.5), ("computation", "b", 6),
    ]  # fmt: skip


def test_a_synchronization_leads_from_the_device_to_the_host(build: Build) -> None:
    builder = build().launch(0, "a", 4, 20)
    builder.op("cudaDeviceSynchronize", 2, 25, cat="cuda_runtime", correlation=90)  # until 27, 3 us after the kernel
    builder.op("aten::b", 27, 10).launch(30, "b", 34, 5)
    assert segments(builder) == [
        ("computation", "a", 20), ("idle: blocking copy or synchronization", "aten::b", 3),
        ("idle: launch-bound", "aten::b", 3.5), ("idle: launch latency", "b", 3.5), ("computation", "b", 5),
    ]  # fmt: skip


def test_a_recorded_event_joins_two_streams(build: Build) -> None:
    # stream 8 waits for the event that stream 7 records behind kernel a (4 to 24); both launches take 4 us
    builder = build().launch(0, "a", 4, 20, stream=7)
    recorded(builder, "cudaEventRecord", 1, 80)
    recorded(builder, "cudaStreamWaitEvent", 2, 81)
    sync(builder, "Stream Wait Event", 2, stream=8, correlation=81, on=7, record=80)
    builder.launch(3, "other", 7, 1, stream=9).launch(4, "b", 26, 10, stream=8)
    assert segments(builder) == [
        ("computation", "a", 20), ("idle: stream dependency", "b", 2), ("computation", "b", 10),
    ]  # fmt: skip


def test_without_records_a_late_start_waits_for_the_stream_that_ended_last(build: Build) -> None:
    builder = build().launch(0, "a", 4, 20, stream=7).launch(1, "c", 5, 3, stream=9).launch(3, "b", 26, 10, stream=8)
    assert [(kind, name) for kind, name, _ in segments(builder)] == [
        ("computation", "a"), ("idle: stream dependency", "b"), ("computation", "b"),
    ]  # fmt: skip


def test_a_wait_longer_than_usual_is_not_on_the_path_while_another_stream_is_busy(build: Build) -> None:
    # window 2 to 70. From 2 to 12 nothing is recorded; launches take 2 us; c, launched at 13, waits from 20 to 60; from
    # 40 to 65 another stream is busy, which c did not wait for
    builder = build().launch(0, "a", 2, 8).launch(12, "b", 14, 6).launch(13, "c", 60, 10)
    builder.launch(20, "other", 40, 25, stream=8)
    path = path_of(builder.trace())
    frame = path.by_kind(None).set_index("kind")
    assert frame.loc["not on the path", "time_us"] == 20
    assert frame.loc["idle: between queued kernels", "time_us"] == 20
    assert path.length_ns == (70 - 2 - 20) * 1000
    assert frame["time_us"].sum() == 68


def test_the_path_changes_threads_where_the_next_call_is_anothers(build: Build) -> None:
    # forward on thread 1 until 10, backward on thread 2 from 12; nobody works in between but the host itself
    builder = build().op("aten::a", 0, 10, tid=1).launch(0, "a", 4, 2, tid=1)
    builder.op("aten::b", 12, 20, tid=2).launch(30, "b", 34, 6, tid=2)
    assert segments(builder) == [
        ("host ops and launches", "aten::a", 2), ("idle: launch-bound", "aten::b", 4 + 18.5),
        ("idle: Python or other host work", "aten::b", 2), ("idle: launch latency", "b", 3.5), ("computation", "b", 6),
    ]  # fmt: skip


def test_the_path_is_that_of_the_typical_step(build: Build) -> None:
    builder = build()
    for number, length in enumerate((40, 50, 60)):
        start = 100 * number
        builder.op(f"ProfilerStep#{number}", start, 90, cat="user_annotation").launch(
            start + 1, "k", start + 10, length
        )
    frame = analyze(builder.trace(), AnalysisOptions(), on_demand=True).frames["critical_path"]
    # steps last from kernel to kernel, 100 us, the last to the end of its annotation, 80: the typical one is the first
    assert frame["step"].tolist() == [0] * len(frame)
    assert frame["time_us"].sum() == 100


def test_a_step_with_too_many_events_is_said_to_have_no_path(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelens.analysis.idle.dependencies.MAX_EVENTS", 2)
    analysis = analyze(
        build().launch(0, "a", 4, 2).launch(1, "b", 6, 2).launch(2, "c", 8, 2).trace(), AnalysisOptions()
    )
    assert "critical_path" not in analysis.frames
    assert "the critical path" in [missing.question for missing in analysis.missing]


times = st.integers(0, 200)
short = st.integers(0, 40)


@given(
    st.lists(st.tuples(times, short, st.integers(1, 3), short, st.integers(1, 2), st.booleans()), min_size=1, max_size=14),
    st.lists(
        st.tuples(
            st.sampled_from(["aten::mm", "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpy"]),
            times, short, st.integers(1, 2),
        ),
        max_size=8,
    ),
    st.lists(st.tuples(times, st.integers(1, 3), st.integers(1, 3), st.integers(1, 14)), max_size=4),
)  # fmt: skip
def test_the_path_is_at_most_the_step_and_at_least_the_busiest_stream(
    kernels: list[tuple[int, int, int, int, int, bool]],
    host: list[tuple[str, int, int, int]],
    waits: list[tuple[int, int, int, int]],
) -> None:
    builder = Builder()
    for start, duration, stream, lead, thread, linked in kernels:
        if linked:
            builder.launch(start - lead, "k", start, duration, stream=stream, tid=thread)
        else:
            builder.kernel("k", start, duration, stream=stream)
    for number, (name, start, duration, thread) in enumerate(host):
        cat = "cuda_runtime" if name.startswith("cuda") else "cpu_op"
        builder.op(name, start, duration, tid=thread, cat=cat, correlation=1000 + number)
    for number, (at, stream, on, record) in enumerate(waits):
        recorded(builder, "cudaStreamWaitEvent", at, 2000 + number)
        sync(builder, "Stream Wait Event", at, stream=stream, correlation=2000 + number, on=on, record=record)
    builder.kernel("k", 0, 1, stream=1)
    trace = builder.trace()
    activity = device_activity(trace.table, trace.tree, ())
    path = path_of(trace)
    busy = [union_ns(activity.start[activity.stream == s], activity.end[activity.stream == s]) for s in (1, 2, 3)]
    assert path.busiest_stream_ns == max(busy)
    first, last = gpu_timeline(activity).window
    assert max(busy) <= path.length_ns <= path.window_ns == last - first
    assert (path.length > 0).all()
    assert (path.start >= first).all()
    assert (path.start + path.length <= last).all()
    assert (np.diff(path.start) >= 0).all()
    # the segments do not overlap: together they are as long as their union
    assert union_ns(path.start, path.start + path.length) == path.length_ns


@pytest.mark.shared
def test_the_long_wait_of_sglang_is_on_the_path(real_trace: RealTrace) -> None:
    trace = real_trace("inference/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode")
    frame = path_of(trace).by_kind(None).set_index("kind")
    assert frame.loc["idle: work from before recording", "time_us"] == 493_239.121
    assert frame.loc["not on the path", "percent_of_step"] < 0.01


@pytest.mark.shared
def test_a_stream_of_hta_waits_for_the_event_that_was_recorded(shared_traces: Path) -> None:
    file = shared_traces / "hta/critical_path/cuda_event_sync_multi_stream/event_sync_trace.json.gz"
    trace = load(file)
    # "Stream Wait Event": stream 24 waits for the event that call 1385 recorded on stream 20
    waits = trace.table.event_waits
    assert (1385, 20) in list(zip(waits.record.tolist(), waits.stream.tolist(), strict=True))
    path = path_of(trace)
    assert KINDS[path.kind[-1]] == "computation"
    assert trace.table.stream[path.row[-1]] == 24
