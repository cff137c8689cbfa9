"""A replay with nothing changed gives the recorded times; a shorter event makes nothing later."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.conftest import Builder
from tests.conftest import RealTrace, device_traces, examples, part, part_of_traces
from tests.trace.event_texts import read_events
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace, load
from tracelens.comparison.whatif.plan import Subject
from tracelens.comparison.whatif.what_if import HEAD_START, what_if

#: Of these the dependencies alone do not give 95 % of the recorded time: what is waited for is in another process (also
#: on the same device), or was launched before recording began.
WAITING = (
    "inference/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz",
    "inference/vllm_decode_full/graph_execution.json.gz",
    "inference/vllm_prefilldecode_piecewise/capture_traces/graph_capture_rank_0.pt.trace.json.gz",
    "inference/vllm_prefilldecode_piecewise/graph_execution.json.gz",
    "more/ao/quantize_vit/2025-01-10_eb21c325_ed7231/quant.json.gz",
    "more/megatron_pr1316_tp2/rank0.pt.trace.json.gz",
)


@st.composite
def recordings(draw: st.DrawFn) -> Trace:
    """One thread, three streams; now and then a synchronization. Kernels of a stream run in order, after their launch."""
    built, now, free = Builder(), 0, [0, 0, 0]
    for _ in range(draw(st.integers(1, 12))):
        now += draw(st.integers(1, 20))
        if draw(st.integers(0, 4)) == 0:
            end = max(now + 1, *(f + draw(st.integers(0, 3)) for f in free))
            built.op("cudaDeviceSynchronize", now, end - now, 1, "cuda_runtime")
            now = end
            continue
        stream = draw(st.integers(0, 2))
        start = max(now + 1, free[stream]) + draw(st.integers(0, 6))
        length = draw(st.integers(1, 40))
        built.launch(now, f"kernel{stream}", start, length, stream=stream + 7)
        free[stream], now = start + length, now + 1
    built.launch(now + 1, "last", max(now + 2, *free), 1)
    return built.trace()


@settings(max_examples=examples(40))
@given(recordings())
def test_nothing_changed_gives_the_recorded_times(trace: Trace) -> None:
    replay = Subject.of(trace, AnalysisOptions()).replay
    found = replay.times(replay.recorded)
    assert found.start.tolist() == replay.device.start.tolist()
    assert found.done.tolist() == replay.device.end.tolist()
    assert found.reached.tolist() == replay.threads.time.tolist()


@settings(max_examples=examples(40))
@given(recordings(), st.data())
def test_shorter_events_make_nothing_later(trace: Trace, data: st.DataObject) -> None:
    replay = Subject.of(trace, AnalysisOptions()).replay
    factors = st.lists(st.floats(0, 1), min_size=replay.events, max_size=replay.events)
    one, more = np.array(data.draw(factors)), np.array(data.draw(factors))
    lengths = replay.recorded.length * one
    before = replay.times(replace(replay.recorded, length=lengths))
    after = replay.times(replace(replay.recorded, length=lengths * more))
    for old, new in ((before.start, after.start), (before.done, after.done), (before.reached, after.reached)):
        assert (new <= old).all()


@settings(max_examples=examples(25))
@given(recordings())
def test_what_has_slack_can_go_without_effect(trace: Trace) -> None:
    """An event that could take 1 ns longer without a change to the end is not what the end waits for."""
    replay = Subject.of(trace, AnalysisOptions()).replay
    recorded = replay.times(replay.recorded)
    end = max(recorded.done.max(), recorded.reached.max())
    for event in range(replay.events):
        longer = replay.recorded.length.copy()
        longer[event] += 1000
        slack = replay.times(replace(replay.recorded, length=longer))
        if max(slack.done.max(), slack.reached.max()) == end and not replay.recorded.removed[event]:
            removed = replay.recorded.removed.copy()
            removed[event] = True
            without = replay.times(replace(replay.recorded, removed=removed))
            rest = np.arange(replay.events) != event
            assert max(without.done[rest].max(initial=0), without.reached.max()) <= end


def test_a_kernel_beside_a_longer_one_is_removed_without_effect() -> None:
    built = Builder()
    built.launch(0, "long", 5, 100, stream=7).launch(2, "short", 7, 20, stream=8)
    built.op("cudaDeviceSynchronize", 4, 103, 1, "cuda_runtime").launch(110, "last", 115, 10, stream=7)
    found = what_if(built.trace(), remove=("short",))
    assert found.before.step_us == found.after.step_us == 120
    # The longer one's 100 us: the synchronization then waits for the shorter one, which ends at 27
    shorter = what_if(built.trace(), scale=("long=0.1",))
    assert shorter.after.step_us == 120 - (105 - 27)


def test_a_removed_kernel_gains_its_own_time_where_rounding_makes_neighbors_overlap() -> None:
    built = Builder()
    for i, name in enumerate(("one", "two", "three", "four")):
        built.launch(i, name, 10 + 49.9 * i, 50)
    found = what_if(built.trace(), remove=("two",))
    # From 10 to 209.7 us; the third begins where the second did
    assert (found.before.step_us, found.after.step_us) == (pytest.approx(199.7), pytest.approx(149.8, abs=0.2))


def test_a_wait_that_ends_as_the_next_launch_begins_still_gets_shorter_with_its_kernel() -> None:
    """Both at 60 us: the wait ends first, so the launch follows it and not the other way round."""
    built = Builder()
    built.launch(0, "gemm", 5, 50).op("cudaDeviceSynchronize", 2, 58, 1, "cuda_runtime")
    built.launch(60, "next", 65, 10).launch(62, "last", 75, 10)
    found = what_if(built.trace(), scale=("gemm=0.5",))
    # From 5 to 85 us; the kernel's 25 us less bring all that comes after the wait forward
    assert (found.before.step_us, found.after.step_us) == (80, 80 - 25)


def test_a_collective_waits_for_what_its_thread_launched_before() -> None:
    """The host was late for both; without it the collective still follows the kernel whose result it sends."""
    built = Builder()
    built.op("aten::mm", 0, 20).launch(10, "gemm", 15, 60, stream=7)
    built.op("c10d::allreduce_", 200, 20).launch(210, "ncclDevKernel_AllReduce_Sum_bf16", 215, 40, stream=20)
    found = what_if(built.trace(), scale=("host=0",))
    # 60 us, what a launch takes here, 5 us, and 40 us
    assert (found.before.step_us, found.after.step_us) == (240, 60 + 5 + 40)


def test_a_thread_that_another_one_enters_begins_with_it() -> None:
    """The backward thread begins when the main thread is done: an op less there is earlier everywhere."""
    built = Builder()
    for i, name in enumerate(("aten::one", "aten::two")):
        built.op(name, 100 * i, 90).launch(100 * i + 80, f"kernel{i}", 100 * i + 85, 5)
    for i, name in enumerate(("aten::three", "aten::four"), 2):
        built.op(name, 100 * i, 90, 2).launch(100 * i + 80, f"kernel{i}", 100 * i + 85, 5, tid=2)
    found = what_if(built.trace(), remove=("aten::two",))
    assert (found.before.step_us, found.after.step_us) == (305, 305 - 90)


def test_kernels_without_any_host_event_are_replayed() -> None:
    """Two of 50 us behind each other: half of the first one's time is 25 us less."""
    rows = [{"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": 50, "args": {"stream": 7}} for name, ts in (("one", 0), ("two", 50))]  # fmt: skip
    found = what_if(Trace.of(read_events(rows)), scale=("one=0.5",))
    assert (found.before.step_us, found.after.step_us) == (100, 75)


def test_half_the_kernels_time_is_half_the_busy_time() -> None:
    built = Builder()
    for i in range(4):
        built.launch(i, "work", 10 + 50 * i, 50)
    found = what_if(built.trace(), scale=("work=0.5",))
    assert (found.before.step_us, found.after.step_us) == (200, 100)
    assert [(row.name, row.before_us, row.after_us) for row in found.rows] == [("work", 200, 100)]


def test_removing_an_op_takes_its_host_time_too() -> None:
    built = Builder()
    for i, name in enumerate(("aten::one", "aten::two", "aten::three")):
        built.op(name, 100 * i, 90).launch(100 * i + 80, f"kernel{i}", 100 * i + 85, 5)
    found = what_if(built.trace(), remove=("aten::two",))
    # From 85 us, where the first kernel starts, to 290, where the last ends; the second op took 90 us of it
    assert (found.before.step_us, found.after.step_us) == (205, 205 - 90)


@pytest.mark.shared
@pytest.mark.parametrize("name", part_of_traces(device_traces()))
def test_every_real_trace_is_replayed_as_recorded(real_trace: RealTrace, name: str) -> None:
    found = what_if(real_trace(name))
    assert found.after == found.before
    assert found.after.step_us == pytest.approx(found.before.step_us, rel=0.01)
    assert (found.explained >= 0.95) == (name not in WAITING)


@pytest.mark.shared
@pytest.mark.parametrize(
    "name", part(["mi300/Qwen_Qwen1.5-0.5B-Chat__1016005", "mi300/resnet_act_checkpoint", "b200/eager_trace"], 3)
)
def test_the_written_traces_report_is_the_prediction(real_trace: RealTrace, name: str, tmp_path) -> None:
    import tracelens

    found = what_if(real_trace(name), scale=("GEMM=0.5",), remove=("aten::copy_",))
    found.write_trace(tmp_path / "after.json")
    report = tracelens.report(load(tmp_path / "after.json")).summary
    step = report.steps.time_us if report.steps is not None else report.busy.total_us
    # The file is the recording as it would have been, with its head start; the prediction is of a step in the long run
    more_us = found.after.idle.get(HEAD_START, 0.0)
    assert step == pytest.approx(found.after.step_us - more_us, rel=1e-6)
    assert abs(more_us) < 0.01 * step
    assert step < found.before.step_us
    assert report.busy.idle * report.busy.total_us == pytest.approx(
        (found.after.idle_us - more_us) * (report.steps.count if report.steps else 1), rel=1e-6, abs=1
    )
