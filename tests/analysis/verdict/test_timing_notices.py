"""Recordings whose launches do not fit their device events say so before a figure is read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.analysis.conftest import Builder
from tests.conftest import RealAnalysis, part
from tracelens.analysis.analyze import analyze
from tracelens.analysis.loaded_trace import AnalysisOptions
from tracelens.analysis.verdict.summary import Notice
from tracelens.analysis.verdict.verdict import summarize

Build = Callable[[], Builder]


def notices(builder: Builder) -> dict[str, Notice]:
    return {notice.id: notice for notice in summarize(analyze(builder.trace(), AnalysisOptions())).notices}


def launched(builder: Builder, count: int, delay: float = 5) -> Builder:
    for i in range(count):
        builder.op(f"op_{i}", 100 * i, 20).launch(100 * i + 10, "some_kernel", 100 * i + 10 + delay, 40)
    return builder


def test_a_sound_recording_says_nothing(build: Build) -> None:
    ids = {"clocks_disagree", "lost_kernels", "no_launch_calls", "several_devices", "silence"}
    assert not ids & set(notices(launched(build(), 20)))


def test_an_extract_of_collectives_is_called_one(build: Build) -> None:
    """What computed beside them is not in the file, so that nothing is known of what they hid."""
    builder = build()
    for i in range(3):
        builder.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 100 * i, 60)
    analysis = analyze(builder.trace(), AnalysisOptions())
    assert "only communication kernels" in notices(builder)["only_communication"].text
    assert "exposed_communication" not in {finding.id for finding in analysis.findings}
    builder.launch(5, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 400, 60)
    assert "only_communication" not in notices(builder)


@pytest.mark.parametrize(("delay", "said"), [(-0.5, False), (-7, True)])
def test_a_kernel_before_its_launch_tells_of_clocks(build: Build, delay: float, said: bool) -> None:
    found = notices(launched(launched(build(), 5), 3, delay)).get("clocks_disagree")
    assert (found is not None) == said
    if found is not None:
        assert found.text.startswith("3 of 8 device events begin before their launch, by up to 7 µs")


@pytest.mark.parametrize(("late", "said"), [(15, False), (300, True)])
def test_a_wait_that_ends_before_its_work_tells_of_clocks(build: Build, late: float, said: bool) -> None:
    """The wait ends at 500; the last of the kernels that were launched before it does ``late`` after that."""
    builder = launched(build(), 3).launch(400, "some_kernel", 450, 50 + late)
    builder.op("cudaDeviceSynchronize", 410, 90, cat="cuda_runtime").launch(505, "some_kernel", 900, 40)
    found = notices(builder).get("clocks_disagree")
    assert (found is not None) == said
    if found is not None:
        assert found.text.startswith(
            "1 wait for the device ended before the work did that was launched earlier, by up to 300 µs"
        )


@pytest.mark.parametrize(("lost", "said"), [(1, False), (5, True)])
def test_launches_without_kernels_are_counted(build: Build, lost: int, said: bool) -> None:
    """Of 20 and more launches: one lost is what was under way at the end, five of 25 are 20 %."""
    builder = launched(build(), 20)
    for i in range(lost):
        builder.op("cudaLaunchKernel", 3000 + i, 0.5, cat="cuda_runtime", correlation=900 + i)
    found = notices(builder).get("lost_kernels")
    assert (found is not None) == said
    if found is not None:
        assert found.text.startswith("5 of 25 kernel launches (20 %) have no kernel")


@pytest.mark.parametrize(("recorded_us", "said"), [(200, True), (600, False)])
def test_waiting_for_work_from_before_recording_is_said_and_gains_nothing(
    build: Build, recorded_us: int, said: bool
) -> None:
    """The first kernel of stream 8 starts 500 µs after its launch, longer than the recording had lasted by then."""
    at = recorded_us - 20.5
    builder = build().launch(at, "k", at + 5, 5).op("load", 0, at).launch(at + 20, "k", at + 520.5, 5, stream=8)
    summary = summarize(analyze(builder.trace(), AnalysisOptions()))
    found = {notice.id: notice for notice in summary.notices}.get("work_before_recording")
    assert (found is not None) == said
    if found is not None:
        assert found.text.startswith("the GPU looks idle for 500 µs (")
        assert not any(finding.id.startswith("idle") for finding in summary.findings)


def test_a_driver_call_within_a_runtime_call_is_the_same_launch(build: Build) -> None:
    builder = launched(build(), 20)
    for i in range(20):
        builder.op("cuLaunchKernel", 100 * i + 10.1, 0.2, cat="cuda_driver", correlation=900 + i)
    assert "lost_kernels" not in notices(builder)


def test_launches_into_a_graph_run_nothing(build: Build) -> None:
    builder = launched(build(), 5).op("cudaStreamBeginCapture", 2000, 1, cat="cuda_runtime", correlation=800)
    for i in range(9):
        builder.op("cudaLaunchKernel", 2010 + i, 0.5, cat="cuda_runtime", correlation=900 + i)
    assert "lost_kernels" not in notices(builder)


def test_without_launch_calls_ops_stand_for_them(build: Build) -> None:
    builder = build()
    for i in range(5):
        builder.op("aten::relu", 100 * i, 20, **{"External id": i + 1})
        builder.kernel("relu", 100 * i + 30, 40, **{"External id": i + 1})
    assert "no_launch_calls" in notices(builder)


def test_several_devices_of_one_process_are_said(build: Build) -> None:
    builder = launched(build(), 5)
    for event in [event for event in builder.events if event["cat"] == "kernel"][:2]:
        event["pid"] = event["args"]["device"] = 1
    assert notices(builder)["several_devices"].text.startswith("the file holds 2 devices (0, 1)")


def test_a_time_that_is_far_off_is_said_and_a_wait_of_the_host_is_not(build: Build) -> None:
    """Five kernels in half a millisecond, and one 30 s before: nothing was recorded in between."""
    far = launched(build(), 5).kernel("stray", -30e6, 3)
    assert notices(far)["silence"].text.startswith("nothing was recorded for 30.0 s (100 % of the window)")
    waiting = launched(build(), 5).op("aten::item", 450, 30e6).launch(30e6 + 460, "late", 30e6 + 470, 5)
    assert "silence" not in notices(waiting)


@pytest.mark.parametrize(
    ("lengths", "said", "left_out"),
    part(
        [
            ((100, 110, 100, 150), "", ""),
            ((900, 100, 100, 120), "step 0 takes 900 µs, 9.0 times", "; --steps 1-3 leaves it out"),
            ((100, 100, 900, 100), "step 2 takes 900 µs, 9.0 times", "; --steps 0-1 leaves it out"),
            ((100, 300), "step 1 takes 300 µs, 3.0 times", "; --steps 0 leaves it out"),
            ((100, 300, 100, 400, 100, 100), "2 of 6 steps take up to 400 µs, 4.0 times", ""),
        ],
        3,
    ),
)
def test_a_step_that_takes_far_longer_than_the_others_is_said(
    build: Build, lengths: tuple[int, ...], said: str, left_out: str
) -> None:
    builder, at = build(), 0
    for number, length in enumerate(lengths):
        builder.op(f"ProfilerStep#{number}", at, length, cat="user_annotation").launch(at + 1, "k", at + 5, 10)
        at += length
    found = notices(builder).get("long_steps")
    text = f"{said} the median of the others; figures per step are the mean of all{left_out}"
    assert (found.text if found else "") == (text if said else "")


def test_a_prefill_among_decodes_is_no_step_that_takes_too_long(build: Build) -> None:
    builder, at = build(), 0
    for context, took in ((1, 900), (0, 100), (0, 100), (0, 100)):
        name = f"execute_context_{context}({512 * context})_generation_8(8)"
        builder.op(name, at, took, cat="user_annotation").launch(at + 1, "k", at + 5, 10)
        at += took
    assert "long_steps" not in notices(builder)


@pytest.mark.shared
def test_real_clocks_that_differ(real_analysis: RealAnalysis) -> None:
    found = summarize(real_analysis("more/torchrec_pr1460/sst_long_a2a_optimizer_5/rank0.pt.trace")).notices
    (text,) = (notice.text for notice in found if notice.id == "clocks_disagree")
    assert text.startswith("148 of 624 device events begin before their launch, by up to 42 µs")
