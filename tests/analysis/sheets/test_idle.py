"""Idle causes: each by a trace made for it, mixtures by their shares, and that they add up to the idle time exactly."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.conftest import Builder
from tests.conftest import RealAnalysis, RealTrace, part
from tests.trace.event_texts import read_events
from tracelens.analysis.analyze import analyze
from tracelens.analysis.attribution import host_time
from tracelens.analysis.attribution.activity import device_activity, gpu_timeline
from tracelens.analysis.attribution.host_time import host_calls
from tracelens.analysis.idle.idle_time import CAUSES, IdleGaps, IdleTime, queue
from tracelens.analysis.intervals import Covered, idle_spans
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace, load
from tracelens.analysis.reading.catalog import Catalog
from tracelens.analysis.verdict.verdict import summarize
from tracelens.trace.tree import OpTree

Build = Callable[[], Builder]

LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
#: What a host thread does to make the device wait: cause -> (category, name) of events that are it.
HOST_EVENTS = {
    "launch-bound": [("cpu_op", "aten::add"), ("cuda_runtime", "cudaEventRecord")],
    "data loading": [("user_annotation", LOADER), ("python_function", "torch/utils/data/dataloader.py(700): __next__")],
    "blocking copy or synchronization": [
        ("cuda_runtime", "cudaStreamSynchronize"), ("cuda_runtime", "cudaMemcpy"), ("hip_runtime", "hipMemcpyWithStream"),
        ("cpu_op", "aten::item"),
    ],
    "allocator": [("cuda_runtime", "cudaMalloc"), ("cuda_runtime", "cudaFree"), ("hip_runtime", "hipMalloc"),
                  ("cuda_runtime", "cudaHostAlloc"), ("hip_runtime", "hipHostMalloc")],
    "first-time loading": [("cuda_driver", "cuModuleLoadData"), ("hip_runtime", "hipModuleLoad"),
                           ("cuda_driver", "cuLibraryLoadData"), ("overhead", "Lazy Function Loading")],
    "compilation": [("user_annotation", "compile_fx_inner"), ("user_annotation", "_compile.compile_inner"),
                    ("python_function", "torch/_dynamo/convert_frame.py(500): __call__")],
    "Python garbage collection": [("python_function", "Python GC")],
    "communication on the host": [("user_annotation", "gloo:all_reduce")],
    "waiting for requests or the scheduler": [
        ("python_function", "vllm/v1/engine/core.py(1092): _process_input_queue"),
        ("python_function", "vllm/distributed/device_communicators/shm_broadcast.py(590): acquire_read"),
        ("python_function", "/opt/venv/lib/python3.12/site-packages/zmq/sugar/poll.py(80): poll"),
        ("python_function", "selectors.py(452): select"),
        ("python_function", "<built-in method poll of select.epoll object at 0x7f01>"),
    ],
    "graph capture": [("cuda_runtime", "cudaGraphInstantiate"), ("hip_runtime", "hipGraphInstantiateWithFlags")],
    "profiler overhead": [("overhead", "Activity Buffer Request")],
    "Python or other host work": [("python_function", "train.py(3): step")],
}  # fmt: skip


def gaps_of(trace: Trace) -> IdleGaps:
    activity = device_activity(trace.table, trace.tree, Catalog(()).kernel_patterns)
    host = host_calls(trace.table, trace.tree)
    queued = queue(trace.table, trace.tree, host, activity)
    return IdleTime(trace.table, trace.tree, host, activity, queued, gpu_timeline(activity).spans).gaps()


def causes(builder: Builder) -> dict[str, float]:
    """Cause -> its time (us)."""
    frame = gaps_of(builder.trace()).by_cause()
    return dict(zip(frame["cause"], frame["idle_us"], strict=True))


def runtime(builder: Builder, name: str, at: float, length: float, correlation: int = 90) -> Builder:
    return builder.op(name, at, length, cat="cuda_runtime", correlation=correlation)


@pytest.mark.parametrize(
    ("cause", "cat", "name"), [(cause, *event) for cause, events in HOST_EVENTS.items() for event in events]
)
def test_each_cause_of_a_late_host_is_told_by_what_its_thread_was_at(
    build: Build, cause: str, cat: str, name: str
) -> None:
    # idle from 10 to 60; the host at one thing from 10 to 50, the launch takes 0.5 us, the kernel 9.5 more
    builder = build().launch(0, "k", 5, 5).op(name, 10, 40, cat=cat).launch(50, "k", 60, 5)
    expected = {cause: 40.0, "launch latency": 9.5, "launch-bound": 0.5}
    if cause == "launch-bound":
        expected = {cause: 40.5, "launch latency": 9.5}
    assert causes(builder) == expected


@pytest.mark.parametrize(
    ("cat", "name"), [("hip_runtime", "hipLaunchKernel"), ("cuda_runtime", "cudaLaunchKernel"),
                      ("cuda_driver", "cuLaunchKernelEx"), ("cuda_runtime", "cudaFuncGetAttributes")],
)  # fmt: skip
def test_a_launch_far_longer_than_its_kind_loads_the_kernel_for_the_first_time(
    build: Build, cat: str, name: str
) -> None:
    builder = build().launch(0, "k", 5, 5).op(name, 20, 331_000, cat=cat, correlation=90)
    builder.kernel("new", 331_025, 5, correlation=90)
    if "Launch" not in name:
        builder.launch(331_021, "k", 331_030, 5)
    assert causes(builder)["first-time loading"] == 331_000
    assert causes(builder).get("launch-bound", 0) <= 0.5


def test_what_is_launched_into_a_graph_is_not_launched_to_the_device(build: Build) -> None:
    """Captured from 20 to 81; a second capture, which the recording cut off, explains nothing."""
    builder = runtime(build().launch(0, "k", 5, 5), "cudaStreamBeginCapture_v10000", 20, 1).op("aten::mm", 30, 40)
    runtime(builder, "cudaLaunchKernel", 40, 5, 91)
    runtime(builder, "cudaStreamEndCapture_v10000", 80, 1).launch(99.5, "k", 105, 5)
    runtime(builder, "cudaStreamBeginCapture_v10000", 120, 1, 92).op("aten::mm", 121, 19).launch(139.5, "k", 145, 5)
    expected = {"graph capture": 61.0, "Python or other host work": 38.5, "launch-bound": 20.5, "launch latency": 10.0}
    assert causes(builder) == expected


def test_rounds_of_a_loop_that_has_nothing_to_run_wait_for_requests(build: Build) -> None:
    """Rounds of 10 us with 4 in on_idle: from 20 to 44 the loop waits, and the 4 of the last round. What is before and
    after is other host work: a round in which it launched did not only wait.
    """
    frame = "sglang/srt/managers/scheduler.py(2100): on_idle"
    builder = build().launch(0, "k", 1, 5)
    for at in (20, 30, 40, 60):
        builder.op(frame, at, 4, cat="python_function")
    builder.launch(50, "k", 51, 1).launch(79.5, "k", 80, 5)
    found = causes(builder)
    assert found["waiting for requests or the scheduler"] == (44 - 20) + 4
    assert found["Python or other host work"] == (20 - 6) + (50 - 44) + (79.5 - 52 - 4)


def test_a_free_of_seconds_creates_the_context(build: Build) -> None:
    builder = build().launch(0, "k", 5, 5)
    runtime(builder, "cudaFree", 20, 6_000_000).launch(6_000_030, "k", 6_000_040, 5)
    assert causes(builder)["first-time loading"] == 6_000_000


def test_long_launches_of_graphs_are_as_long_as_graphs_are(build: Build) -> None:
    builder = build()
    for number in range(8):
        start = 10_000 * number
        builder.op("cudaGraphLaunch", start, 4_000, cat="cuda_runtime", correlation=100 + number)
        builder.kernel("k", start + 5_000, 1_000, correlation=100 + number)
    found = causes(builder)
    assert "first-time loading" not in found
    assert found["launch-bound"] == 7 * 4_000


@pytest.mark.parametrize(("length", "cause"), [(300, "launch-bound"), (2_300, "Python or other host work")])
def test_an_op_that_computes_for_long_without_a_call_does_not_launch(build: Build, length: int, cause: str) -> None:
    builder = build().launch(0, "k", 5, 5).op("aten::addmm", 10, length + 5).launch(length + 12, "k", length + 20, 5)
    found = causes(builder)
    assert max(found, key=lambda name: found[name]) == cause


def waiting(build: Build, name: str, start: float = 500, kernel: str = "k", cat: str = "kernel") -> Builder:
    """A kernel launched at 20, 10 us into the gap, behind a call on its stream at 15."""
    builder = runtime(build().launch(0, "k", 5, 5).launch(0.5, "k", 6, 3, stream=8), name, 15, 1)
    return builder.launch(20, kernel, start, 5, stream=8, cat=cat)


@pytest.mark.parametrize(
    ("name", "kernel", "cat", "cause"),
    [
        ("cudaStreamWaitEvent", "k", "kernel", "event wait"),
        ("hipStreamWaitEvent", "k", "kernel", "event wait"),
        ("cuStreamWaitValue32_v2", "k", "kernel", "another rank"),
        ("cudaEventRecord", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "kernel", "device wait, cause not recorded"),
        ("cudaEventRecord", "Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", "copy engine busy"),
        ("cudaEventRecord", "k", "kernel", "device wait, cause not recorded"),
    ],
)
def test_after_the_launch_the_device_waited(build: Build, name: str, kernel: str, cat: str, cause: str) -> None:
    found = causes(waiting(build, name, kernel=kernel, cat=cat))
    # launched from 20 to 20.5, started at 500
    assert found.pop(cause) == 500 - 20.5
    assert sum(found.values()) == 10.5


def test_a_blocking_copy_after_the_launch_explains_nothing(build: Build) -> None:
    # as in SGLang's trace: the kernel waits for an event, and the host sits in a copy meanwhile
    builder = runtime(waiting(build, "hipStreamWaitEvent", 1000), "hipMemcpyWithStream", 30, 975, correlation=91)
    builder.kernel("Memcpy DtoH (Device -> Host)", 1005, 1, stream=8, cat="gpu_memcpy", correlation=91)
    found = causes(builder)
    assert found["event wait"] == 1000 - 20.5
    assert found.get("launch-bound", 0) <= 1.5  # the two calls, of half a us and of 1


@pytest.mark.parametrize(("recorded_us", "cause"), [(200, "work from before recording"), (600, "event wait")])
def test_the_first_kernel_of_a_stream_may_wait_for_work_from_before(build: Build, recorded_us: int, cause: str) -> None:
    """Launched when the recording had lasted for ``recorded_us``, it starts 500 µs after: no stream is busy so long."""
    at = recorded_us - 20.5
    builder = runtime(build().launch(at, "k", at + 5, 5), "cudaStreamWaitEvent", at + 15, 1).op("load", 0, at)
    assert causes(builder.launch(at + 20, "k", at + 520.5, 5, stream=8))[cause] == 500


def test_a_copy_call_that_blocks_is_the_cause_until_its_copy_starts(build: Build) -> None:
    builder = runtime(build().launch(0, "k", 5, 5), "cudaMemcpy", 10, 40)
    builder.kernel("Memcpy HtoD (Pageable -> Device)", 40, 8, cat="gpu_memcpy", correlation=90)
    assert causes(builder) == {"blocking copy or synchronization": 30}


def test_a_kernel_that_was_launched_before_the_gap_was_queued(build: Build) -> None:
    assert causes(build().launch(0, "k", 5, 5).launch(2, "k", 12, 5)) == {"between queued kernels": 2}


def test_a_stream_that_was_free_followed_the_one_that_ended(build: Build) -> None:
    builder = build().launch(0, "k", 5, 5, stream=7).launch(2, "k", 12, 5, stream=8)
    assert causes(builder) == {"stream dependency": 2}


def test_a_copy_follows_a_copy_of_another_stream_on_their_engine(build: Build) -> None:
    copy = "Memcpy HtoD (Pinned -> Device)"
    builder = (
        build().launch(0, copy, 5, 5, stream=7, cat="gpu_memcpy").launch(2, copy, 12, 5, stream=8, cat="gpu_memcpy")
    )
    assert causes(builder) == {"copy engine busy": 2}


def test_a_graph_that_has_begun_was_launched_already(build: Build) -> None:
    # one call from 0 to 50 launches both
    builder = runtime(build(), "cudaGraphLaunch", 0, 50)
    builder.kernel("k", 5, 5, correlation=90).kernel("k", 12, 5, correlation=90)
    assert causes(builder) == {"between queued kernels": 2}


def test_launch_bound_ends_when_anything_is_in_the_queue(build: Build) -> None:
    # stream 8's kernel is in the queue from 15.5 on, though stream 7's, launched at 25, starts before it
    builder = build().op("aten::add", 0, 40).launch(0, "k", 5, 5).launch(15, "k", 60, 5, stream=8)
    assert causes(builder.launch(25, "k", 30, 5)) == {
        "launch-bound": 5.5, "launch latency": 14.5, "stream dependency": 25,
    }  # fmt: skip


def test_a_kernel_without_a_launch_leaves_the_cause_unknown(build: Build) -> None:
    assert causes(build().launch(0, "k", 5, 5).kernel("k", 30, 5)) == {"unknown": 20}


def test_what_was_queued_before_the_recording_began_was_in_the_queue(build: Build) -> None:
    # of one stream in order: what runs before a kernel launched at 1 was launched before 1
    builder = build().kernel("early", 5, 5).kernel("early", 12, 5).launch(1, "k", 17, 5)
    assert causes(builder) == {"between queued kernels": 2}


def test_another_process_does_not_explain_this_ones_gaps(build: Build) -> None:
    builder = build().launch(0, "k", 5, 5).launch(25, "k", 30, 5)
    builder.events.append({"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 2, "tid": 1, "ts": 10, "dur": 15})
    assert causes(builder) == {"Python or other host work": 15, "launch-bound": 0.5, "launch latency": 4.5}


def test_a_launching_thread_that_rests_waits_for_the_other_one_that_launches(build: Build) -> None:
    # backward on thread 2 begins at 30; before that thread 1 was in an op from 12 to 22
    builder = build().launch(0, "k", 5, 5).op("aten::forward", 12, 10).op("aten::backward", 30, 9, tid=2)
    # A watchdog, which launches nothing
    builder.op("cudaEventQuery", 10, 19, tid=3, cat="cuda_runtime", correlation=91)
    assert causes(builder.launch(35, "k", 40, 5, tid=2)) == {
        "launch-bound": 10 + 5.5, "Python or other host work": 10, "launch latency": 4.5,
    }  # fmt: skip


PIECES = sorted(HOST_EVENTS)


@given(
    st.lists(st.tuples(st.sampled_from(PIECES), st.integers(1, 400)), min_size=1, max_size=8),
    st.sampled_from([("event wait", "cudaStreamWaitEvent"), ("another rank", "cuStreamWaitValue32"), ("", "")]),
    st.integers(1, 90),
)
def test_mixtures_of_causes_get_their_shares(pieces: list[tuple[str, int]], told: tuple[str, str], wait: int) -> None:
    builder = Builder().launch(0, "k", 5, 5)
    at, expected = 10.0, dict.fromkeys(CAUSES, 0.0)
    for number, (cause, length) in enumerate(pieces):
        cat, name = HOST_EVENTS[cause][number % len(HOST_EVENTS[cause])]
        builder.op(name, at, length, cat=cat)
        expected[cause] += length
        at += length
    if told[1]:
        runtime(builder, told[1], at, 0.5)
        at += 0.5
        expected["launch-bound"] += 0.5
    builder.launch(at, "k", at + 0.5 + wait, 5)
    expected["launch-bound"] += 0.5
    expected[told[0] or "launch latency"] += wait
    found = causes(builder)
    gap = at + 0.5 + wait - 10
    assert sum(found.values()) == pytest.approx(gap, abs=1e-6)
    for cause, time in expected.items():
        assert found.get(cause, 0) == pytest.approx(time, abs=0.01 * gap), cause


def test_a_step_window_holds_the_gaps_before_its_first_and_after_its_last_kernel(build: Build) -> None:
    builder = build()
    for number, start in enumerate((0, 100, 200)):
        builder.op(f"ProfilerStep#{number}", start, 90, cat="user_annotation").launch(start + 1, "k", start + 10, 40)
    analysis = analyze(builder.trace(), AnalysisOptions(steps="1"))
    found = analysis.frames["idle_causes"]
    # step 1 lasts from 100 to 200; busy from 110 to 150; launched at 101 to 101.5, and at nothing from 150 on
    assert found[["cause", "gaps", "idle_us"]].to_numpy().tolist() == [
        ["Python or other host work", 2, 51.0],
        ["launch latency", 1, 8.5],
        ["launch-bound", 1, 0.5],
    ]
    assert found["percent_of_window"].tolist() == [51.0, 8.5, 0.5]
    idle = [finding.why for finding in summarize(analysis).findings if finding.id == "idle"]
    assert idle == [
        "the GPU idles 50 % of the time (Python or other host work), in 1 gap of 50 µs",
        "the GPU idles 9 % of the time (launch latency), in 1 gap of 9 µs",
    ]


def test_a_launch_bound_finding_gains_at_most_the_time_of_launches_and_their_latency(build: Build) -> None:
    builder = build()
    for start in range(0, 1000, 100):
        # 60 us of data loading, 20 in an op that launches at its end, 5 us latency, a kernel of 10
        builder.op(LOADER, start, 60, cat="user_annotation").op("aten::add", start + 60, 20)
        builder.launch(start + 79.5, "k", start + 85, 10)
    analysis = analyze(builder.trace(), AnalysisOptions())
    idle = [finding for finding in summarize(analysis).findings if finding.id == "idle"]
    by_cause = analysis.frames["idle_causes"].set_index("cause")["idle_us"]
    assert [finding.kind.removeprefix("idle: ") for finding in idle][:2] == ["data loading", "launch-bound"]
    # 5 us until what was launched begins, and 5 before the loader, are of the same cause
    assert [finding.gain_us for finding in idle][:2] == [
        by_cause["data loading"],
        pytest.approx(9 * (20 + 5 + 5), rel=0.03),
    ]
    assert by_cause["launch-bound"] == 9 * 20


def test_a_gap_of_unknown_cause_says_so_in_the_verdict(build: Build) -> None:
    analysis = analyze(build().launch(0, "k", 5, 5).kernel("k", 30, 5).trace(), AnalysisOptions())
    idle = next(finding for finding in summarize(analysis).findings if finding.id == "idle")
    assert idle.why == "the GPU idles 67 % of the time (cause unknown), in 1 gap of 20 µs"


def test_the_gaps_are_listed_with_what_stands_round_them(build: Build) -> None:
    builder = (
        build().launch(0, "first", 5, 5).op("aten::add", 24, 4).launch(25, "second", 30, 5).launch(26, "third", 36, 1)
    )
    trace = builder.trace()
    frame = gaps_of(trace).longest(trace.table, trace.tree)
    assert frame["idle_us"].tolist() == [20.0, 1.0]
    # from 10 to 24 nothing recorded; launched at 25.5
    assert frame.loc[0, ["start_us", "cause", "percent_of_gap", "queue_empty_us"]].tolist() == [
        10.0, "Python or other host work", 100 * 14 / 20, 15.5,
    ]  # fmt: skip
    assert frame.loc[0, ["kernel_before", "kernel_after", "op_after"]].tolist() == ["first", "second", "aten::add"]


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
    trace = Trace.of(read_events(builder.events))
    activity = device_activity(trace.table, trace.tree, ())
    gaps = gaps_of(trace)
    assert gaps.total_ns == gpu_timeline(activity).idle_ns
    assert (gaps.end > gaps.start).all()
    frame = gaps.by_cause()
    assert np.rint(frame["idle_us"] * 1000).astype(np.int64).sum() == gaps.total_ns
    assert frame["gaps"].sum() >= len(gaps.start)
    assert (gaps.share > 0).all()
    assert (gaps.share <= gaps.end - gaps.start).all()


def test_causes_do_not_depend_on_how_many_gaps_are_looked_at_together(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = load(repository / "example_traces" / "moe_ep8" / "rank0.json.gz")
    together = gaps_of(trace)
    monkeypatch.setattr("tracelens.analysis.idle.idle_time._BLOCK", 7)
    assert len(np.unique(together.cause)) > 1
    assert (gaps_of(trace).cause == together.cause).all()
    assert gaps_of(trace).by_cause().equals(together.by_cause())


@given(
    st.lists(
        st.tuples(st.integers(0, 30_000), st.sampled_from([1, 50, 900, 1_100, 8_000]), st.integers(1, 2)), min_size=1
    ),
    st.integers(1, 4),
)
def test_host_work_is_where_no_call_began_or_ended_for_a_millisecond_however_many_are_looked_at_together(
    calls: list[tuple[int, int, int]], together: int
) -> None:
    ops = [(start, start + duration, tid) for start, duration, tid in dict.fromkeys(calls)]
    table = read_events(
        [
            {"ph": "X", "cat": "cpu_op", "name": "aten::op", "pid": 1, "tid": tid, "ts": start, "dur": end - start}
            for start, end, tid in ops
        ]
    )
    expected = []
    for tid in (1, 2):
        times = sorted(time for start, end, own in ops if own == tid for time in (start, end))
        expected += [(tid, a, b) for a, b in itertools.pairwise(times) if b - a >= 1_000]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_time, "_BLOCK", together)
        found = host_time._long_stretches(table, OpTree(table), np.ones(2, bool))
    base, threads = min(start for start, _, _ in ops), [thread for _, thread in table.lanes]
    us = ((times - table.start_ns.min()) // 1_000 + base for times in (found.start, found.end))
    assert sorted(zip([threads[lane] for lane in found.lane], *us, strict=True)) == sorted(expected)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "cause", "least_ms", "at_most_launch_bound_ms"),
    [
        # launched 45 us into its gap, after hipStreamWaitEvent; the host then sits in a blocking copy
        ("inference/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode", "work from before recording", 493, 1),
        (
            "inference/vllm_decode_full/capture_traces/graph_capture_rank_0.1773709742341309550.pt.trace",
            "graph capture",
            54,
            1,
        ),
        ("inference/vllm_prefilldecode_piecewise/capture_traces/graph_capture_rank_0.pt.trace", "graph capture", 40, 3),
        # hipLaunchKernel of 331, 210 and 137 ms
        ("perf_model/normalization/normalization_layer_test", "first-time loading", 900, 25),
        # cudaFree of 12.8 s
        ("hta/critical_path/simple_add/benchmark_result_493459_1694039959_trace", "first-time loading", 12_000, 20),
        ("more/kineto/samples/resnet50_num_workers_0/worker0.1623143089861.pt.trace", "data loading", 280, 100),
        # cudaFree and cudaMalloc of 100 ms
        ("more/torchrec_pr1460/sst_long_a2a_optimizer_5/rank0.pt.trace", "allocator", 250, 10),
    ],
)
def test_the_long_gaps_of_real_traces_have_their_cause(
    real_trace: RealTrace, name: str, cause: str, least_ms: float, at_most_launch_bound_ms: float
) -> None:
    frame = gaps_of(real_trace(name)).by_cause()
    idle_ms = dict(zip(frame["cause"], frame["idle_us"] / 1000, strict=True))
    assert frame["cause"].iloc[0] == cause
    assert idle_ms[cause] >= least_ms
    assert idle_ms.get("launch-bound", 0) <= at_most_launch_bound_ms


@pytest.mark.shared
@pytest.mark.parametrize("overlap", ["keep", "clip"])
@pytest.mark.parametrize("name", part(["hta/nccl_parser_config/nccl_data", "mi300/resnet_act_checkpoint"], 2))
def test_the_causes_add_up_in_selected_steps_too(real_analysis: RealAnalysis, name: str, overlap: str) -> None:
    analysis = real_analysis(name, steps="steady", overlap=overlap, on_demand=True)
    by_cause = analysis.frames["idle_causes"]["idle_us"]
    assert round(1000 * by_cause.sum()) == analysis.timeline.idle_ns > 0
    idle = analysis.frames["gpu_timeline"].set_index("type").loc["idle_time", "time_us"] / 1e3
    assert by_cause.sum() / 1000 == pytest.approx(idle, rel=1e-12)


def test_the_profilers_own_stop_is_no_synchronization_of_the_program(build: Build) -> None:
    """Two kernels of 5 us from 5 and 100 on; the step ends at 200, behind a synchronization of [150, 190]."""
    builder = build().op("ProfilerStep#1", 0, 200, cat="user_annotation").launch(0, "k", 5, 5).launch(90, "k", 100, 5)
    builder.op("cudaDeviceSynchronize", 150, 40, cat="cuda_runtime")

    def idle_us() -> dict[str, float]:
        frame = analyze(builder.trace(), AnalysisOptions(steps="1"), on_demand=True).frames["idle_causes"]
        return dict(zip(frame["cause"], frame["idle_us"], strict=True))

    assert idle_us()["profiler overhead"] == 40
    assert "blocking copy or synchronization" not in idle_us()
    builder.launch(195, "k", 196, 2)
    assert idle_us()["blocking copy or synchronization"] == 40
