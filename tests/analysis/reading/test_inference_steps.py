"""Engine steps by their annotations: requests, tokens, time, and the steady window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import RealAnalysis
from tracelens.analysis.analyze import Analysis, analyze
from tracelens.analysis.loaded_trace import AnalysisOptions
from tracelens.analysis.reading.engine_steps import phase
from tracelens.analysis.verdict.verdict import summarize
from tracelens.errors import UsageError
from tracelens.perf_models import InferenceStep

Build = Callable[[], Any]
#: (context requests, context tokens, generation requests) of the steps below, 100 us apart.
STEPS = ((2, 4096, 0), (1, 512, 2), (0, 0, 3), (0, 0, 4), (0, 0, 4), (0, 0, 4), (0, 0, 1))


def served(build: Build, *, steps: tuple[tuple[int, int, int], ...] = STEPS) -> Any:
    """Per step a GEMM of 40 us and attention of 20 us on another stream, 10 us of them at once: 50 us busy."""
    made = build()
    for i, (contexts, tokens, generating) in enumerate(steps):
        at = 100 * i
        made.op(f"execute_context_{contexts}({tokens})_generation_{generating}({generating})", at, 90,
                cat="user_annotation")  # fmt: skip
        made.mm(8, 8, 8, at=at + 1, start=at + 10, duration=40)
        made.op("vllm::unified_attention_with_output", at + 10, 5).launch(
            at + 11, "kernel_unified_attention_2d", at + 40, 20, stream=9
        )
    return made.trace()


def frame(found: Analysis, name: str) -> Any:
    return found.frames[name].set_index("phase" if name == "inference_phases" else "step")


def test_every_step_says_its_phase_its_tokens_and_where_its_time_went(build: Build):
    rows = frame(analyze(served(build), AnalysisOptions(), on_demand=True), "inference_iterations")
    assert rows["phase"].tolist() == ["prefill", "mixed", "decode", "decode", "decode", "decode", "decode"]
    assert rows["context_tokens"].tolist() == [4096, 512, 0, 0, 0, 0, 0]
    assert rows["duration_us"].tolist()[:6] == [100.0] * 6
    assert rows["busy_us"].tolist() == [50.0] * 7
    assert rows["attention_us"].tolist() == [20.0] * 7
    assert rows["tokens_s"].tolist()[:3] == pytest.approx([4096e4, 514e4, 3e4])


def test_phases_add_up_their_complete_steps(build: Build):
    rows = frame(analyze(served(build), AnalysisOptions(), on_demand=True), "inference_phases")
    assert rows.index.tolist() == ["prefill", "decode", "mixed", "steady decode"]
    assert rows["steps"].tolist() == [1, 5, 1, 2]
    assert rows.loc["decode", "requests_mean"] == pytest.approx((3 + 4 + 4 + 4 + 1) / 5)
    assert rows.loc["steady decode", "tokens_s"] == pytest.approx(4 / 100e-6)
    assert rows.loc["steady decode", "busy_percent"] == pytest.approx(50)


def test_the_steady_window_is_the_longest_run_of_like_steps_without_its_first(build: Build):
    trace = served(build)
    rows = frame(analyze(trace, AnalysisOptions(), on_demand=True), "inference_iterations")
    assert rows.index[rows["steady"]].tolist() == [4, 5]
    chosen = analyze(trace, AnalysisOptions(steps="steady"), on_demand=True)
    assert [chosen.step_times.steps[i].number for i in chosen.selected_steps] == [4, 5]
    assert chosen.timeline.total_ns == 2 * 100_000
    assert frame(chosen, "inference_iterations").index.tolist() == [4, 5]


def test_engine_steps_are_the_steps_where_the_profiler_records_none(build: Build):
    found = analyze(served(build), AnalysisOptions())
    assert (found.step_stem, len(found.step_times)) == ("inference step", 7)
    assert analyze(served(build), AnalysisOptions(steps="2-3")).selected_steps == (2, 3)
    with pytest.raises(UsageError, match="steps 0 to 6"):
        analyze(served(build), AnalysisOptions(steps="9"))


def test_the_profilers_steps_stay_the_steps_and_engine_steps_a_sheet(build: Build):
    made = build()
    made.op("ProfilerStep#3", 0, 400, cat="user_annotation")
    for i in range(2):
        made.op("execute_context_0(0)_generation_4(4)", 200 * i, 150, cat="user_annotation")
        made.mm(8, 8, 8, at=200 * i + 1, start=200 * i + 10, duration=40)
    found = analyze(made.trace(), AnalysisOptions(), on_demand=True)
    assert [step.number for step in found.step_times.steps] == [3]
    assert frame(found, "inference_iterations")["busy_us"].tolist() == [40.0, 40.0]


def test_an_annotation_inside_another_is_the_same_step(build: Build):
    made = build()
    made.op("execute_context_0(0)_generation_4(4)", 0, 100, cat="user_annotation")
    made.op("execute_context_0(0)_generation_4(4)", 10, 50, cat="user_annotation")
    made.mm(8, 8, 8, at=20, start=30, duration=40)
    assert len(frame(analyze(made.trace(), AnalysisOptions(), on_demand=True), "inference_iterations")) == 1


def test_a_capture_has_a_batch_and_no_phase():
    assert phase(InferenceStep(padded_requests=32)) is None
    assert phase(InferenceStep(context_requests=0, generation_requests=0)) == "decode"


@pytest.mark.shared
def test_a_decode_of_vllm_has_32_requests_with_55086_keys(real_analysis: RealAnalysis):
    """Its annotation: generation_32(sq32sk55086...), so 55086 - 32 were cached before."""
    found = real_analysis("inference/vllm_decode_full/graph_execution", on_demand=True)
    (row,) = found.frames["inference_iterations"].to_dict("records")
    assert (row["phase"], row["generation_requests"], row["past_tokens"]) == ("decode", 32, 55086 - 32)


def test_a_first_iteration_begins_when_the_device_is_done_with_work_that_was_not_recorded(build: Build):
    """Its first kernel is launched 20 us after recording began and starts at 1000, as a copy waits in a call till then;
    the iteration takes 300 us, 280 of them busy: 4 tokens per 300 us. Its host needs 1200 - 960 us without that wait."""
    made = build().op("execute_context_0(0)_generation_4(4)", 0, 1200, cat="user_annotation")
    made.launch(20, "first", 1000, 40).op("cudaStreamSynchronize", 40, 970, cat="cuda_runtime")
    made.launch(1020, "second", 1060, 240)
    found = analyze(made.trace(), AnalysisOptions())
    assert found.found_steps.name == "decode iterations of vLLM"
    said = summarize(found).steps
    assert (said.time_us, said.unseen_us, said.host_us) == (300, 1000, 240)
    (row,) = found.frames["inference_iterations"].to_dict("records")
    assert (row["duration_us"], row["busy_us"], row["tokens_s"]) == (300, 280, pytest.approx(4 / 300e-6))


@pytest.mark.parametrize("what", ["launched as late", "a copy from the host", "while another stream was busy"])
def test_a_first_kernel_that_is_late_for_another_reason_begins_no_iteration(build: Build, what: str):
    made = build().op("execute_context_0(0)_generation_4(4)", 0, 1200, cat="user_annotation")
    if what == "while another stream was busy":
        made.launch(5, "other", 10, 985, stream=9)
    late = {"launched as late": 980}.get(what, 20)
    if what == "a copy from the host":
        made.launch(late, "Memcpy HtoD (Pageable -> Device)", 1000, 40, cat="gpu_memcpy")
    else:
        made.launch(late, "first", 1000, 40)
    made.launch(1020, "second", 1060, 240)
    found = analyze(made.trace(), AnalysisOptions())
    assert (summarize(found).steps.unseen_us, found.step_times.start_ns.tolist()) == (0, [0])


ENGINES = {
    "inference/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode": (
        "prefill iterations of SGLang",
        494_001.673,
        0.9976,
    ),
    "inference/vllm_decode_full/graph_execution": ("decode iterations of vLLM", 10_743.181, 0.9976),
    "inference/vllm_prefilldecode_piecewise/graph_execution": ("mixed iterations of vLLM", 156_466.417, 0.9976),
}


@pytest.mark.shared
@pytest.mark.parametrize("name", ENGINES)
def test_real_iterations_leave_out_the_work_before_them(real_analysis: RealAnalysis, name: str):
    """From the first kernel of the iteration to its last; tokens/s times that time are its tokens."""
    found = real_analysis(name)
    summary = summarize(found)
    assert summary.steps is not None
    assert summary.busy is not None
    (row,) = found.frames["inference_iterations"].to_dict("records")
    assert (summary.steps.name, summary.steps.time_us) == ENGINES[name][:2]
    assert summary.busy.busy == pytest.approx(ENGINES[name][2], abs=1e-4)
    assert row["duration_us"] == summary.steps.time_us
    tokens = row["context_tokens"] + row["generation_tokens"]
    assert row["tokens_s"] * row["duration_us"] == pytest.approx(tokens * 1e6)
    assert "work_before_recording" not in {notice.id for notice in summary.notices}
