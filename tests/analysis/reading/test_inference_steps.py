"""Engine steps by their annotations: requests, tokens, time, and the steady window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import RealAnalysis
from tracelens.analysis.analyze import Analysis, Options, analyze
from tracelens.analysis.reading.engine_steps import phase
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
    rows = frame(analyze(served(build), Options()), "inference_iterations")
    assert rows["phase"].tolist() == ["prefill", "mixed", "decode", "decode", "decode", "decode", "decode"]
    assert rows["context_tokens"].tolist() == [4096, 512, 0, 0, 0, 0, 0]
    assert rows["duration_us"].tolist()[:6] == [100.0] * 6
    assert rows["busy_us"].tolist() == [50.0] * 7
    assert rows["attention_us"].tolist() == [20.0] * 7
    assert rows["tokens_s"].tolist()[:3] == pytest.approx([4096e4, 514e4, 3e4])


def test_phases_add_up_their_complete_steps(build: Build):
    rows = frame(analyze(served(build), Options()), "inference_phases")
    assert rows.index.tolist() == ["prefill", "decode", "mixed", "steady decode"]
    assert rows["steps"].tolist() == [1, 5, 1, 2]
    assert rows.loc["decode", "requests_mean"] == pytest.approx((3 + 4 + 4 + 4 + 1) / 5)
    assert rows.loc["steady decode", "tokens_s"] == pytest.approx(4 / 100e-6)
    assert rows.loc["steady decode", "busy_percent"] == pytest.approx(50)


def test_the_steady_window_is_the_longest_run_of_like_steps_without_its_first(build: Build):
    trace = served(build)
    rows = frame(analyze(trace, Options()), "inference_iterations")
    assert rows.index[rows["steady"]].tolist() == [4, 5]
    chosen = analyze(trace, Options(steps="steady"))
    assert [chosen.step_times.steps[i].number for i in chosen.selected_steps] == [4, 5]
    assert chosen.timeline.total_ns == 2 * 100_000
    assert frame(chosen, "inference_iterations").index.tolist() == [4, 5]


def test_engine_steps_are_the_steps_where_the_profiler_records_none(build: Build):
    found = analyze(served(build), Options())
    assert (found.step_stem, len(found.step_times)) == ("inference step", 7)
    assert analyze(served(build), Options(steps="2-3")).selected_steps == (2, 3)
    with pytest.raises(UsageError, match="steps 0 to 6"):
        analyze(served(build), Options(steps="9"))


def test_the_profilers_steps_stay_the_steps_and_engine_steps_a_sheet(build: Build):
    made = build()
    made.op("ProfilerStep#3", 0, 400, cat="user_annotation")
    for i in range(2):
        made.op("execute_context_0(0)_generation_4(4)", 200 * i, 150, cat="user_annotation")
        made.mm(8, 8, 8, at=200 * i + 1, start=200 * i + 10, duration=40)
    found = analyze(made.trace(), Options())
    assert [step.number for step in found.step_times.steps] == [3]
    assert frame(found, "inference_iterations")["busy_us"].tolist() == [40.0, 40.0]


def test_an_annotation_inside_another_is_the_same_step(build: Build):
    made = build()
    made.op("execute_context_0(0)_generation_4(4)", 0, 100, cat="user_annotation")
    made.op("execute_context_0(0)_generation_4(4)", 10, 50, cat="user_annotation")
    made.mm(8, 8, 8, at=20, start=30, duration=40)
    assert len(frame(analyze(made.trace(), Options()), "inference_iterations")) == 1


def test_a_capture_has_a_batch_and_no_phase():
    assert phase(InferenceStep(padded_requests=32)) is None
    assert phase(InferenceStep(context_requests=0, generation_requests=0)) == "decode"


@pytest.mark.shared
def test_a_decode_of_vllm_has_32_requests_with_55086_keys(real_analysis: RealAnalysis):
    """Its annotation: generation_32(sq32sk55086...), so 55086 - 32 were cached before."""
    found = real_analysis("inference/vllm_decode_full/graph_execution")
    (row,) = found.frames["inference_iterations"].to_dict("records")
    assert (row["phase"], row["generation_requests"], row["past_tokens"]) == ("decode", 32, 55086 - 32)
