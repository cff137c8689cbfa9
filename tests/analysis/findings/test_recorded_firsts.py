"""What comes first in recorded traces, against an expert's reading of them."""

from __future__ import annotations

import pytest

from tests.conftest import RealAnalysis, part

pytestmark = pytest.mark.shared


@pytest.mark.parametrize(
    ("trace", "kind", "said"),
    [
        ("mi300/facebook_timesformer-base-finetuned-k400__1016002", "attention_from_parts", "unfused attention (bmm, softmax, bmm) runs 24 times"),
        ("mi300/Qwen_Qwen1.5-0.5B-Chat__1016005", "unfused_elementwise", "unfused elementwise kernels take"),
        ("mi300/resnet_act_checkpoint", "exposed_communication", "allreduce of 17.6 MB reaches 3.45 GB/s bus bandwidth"),
        ("inference/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode", "op_below_roofline: compute",
         "144 calls of aiter::gemm_a16w16 in 4 shapes reach 72 % of the bf16 compute roofline; most of the gain is in (15360, 4096), (24576, 4096)"),
    ],
)  # fmt: skip
def test_the_first_finding_is_the_experts(real_analysis: RealAnalysis, trace: str, kind: str, said: str) -> None:
    first = real_analysis(trace).findings[0]
    assert first.kind == kind
    assert said in first.why


@pytest.mark.parametrize(
    "trace",
    part(["mi300/gaunernst_bert-small-uncased__1016001", "h100/gaunernst_bert-small-uncased__1016001",
     "mi300/Falconsai_nsfw_image_detection__1016002", "b200/eager_trace"], 2),
)  # fmt: skip
def test_a_trace_bound_by_its_host_says_so_first(real_analysis: RealAnalysis, trace: str) -> None:
    """The device is idle for most of the time: faster kernels would make it wait longer, for all but a percent."""
    analysis = real_analysis(trace)
    assert analysis.findings[0].kind in {"idle: launch-bound", "idle: Python or other host work"}
    kernels = {"op_below_roofline", "unfused_elementwise", "short_kernels"}
    gained_us = sum(finding.gain_us or 0 for finding in analysis.findings if finding.id in kernels)
    assert gained_us < 0.01 * analysis.timeline.total_ns / 1000 / max(1, len(analysis.complete_steps))


@pytest.mark.sweep
def test_what_writes_the_cache_is_no_attention(real_analysis: RealAnalysis) -> None:
    """Another attention backend would write it no faster."""
    folder = "inference/vllm_decode_full"
    captured = f"{folder}/capture_traces/graph_capture_rank_0.1773709742341309550.pt.trace"
    kinds = {each.op: each.kind for each in real_analysis(f"{folder}/graph_execution", captured).findings}
    assert kinds["_C_cache_ops::reshape_and_cache_flash"] == "op_below_roofline: memory"
    assert kinds["vllm::unified_attention_with_output"] == "op_below_roofline: attention"


def test_preparation_before_a_step_counts_for_what_the_step_can_hide(real_analysis: RealAnalysis) -> None:
    """268 of 391 ms are spent in preprocess(); beside the other 122.6 ms as much of it can be done."""
    analysis = real_analysis("mi300/facebook_timesformer-base-finetuned-k400__1016002")
    (finding,) = (f for f in analysis.findings if f.id == "host_before_first_launch")
    assert "268 ms" in finding.why
    assert finding.why.endswith("while the host runs `preprocess`")
    assert finding.gain_us == pytest.approx(390_680 - 268_035, rel=1e-3)
    assert finding.where is not None
    assert "video_classification.py(129): preprocess" in (finding.where.call_stack or "")


@pytest.mark.parametrize(
    ("trace", "said", "remedy"),
    [
        ("mi300/facebook_timesformer-base-finetuned-k400__1016002", "preprocess", "prepare the next step's input"),
        ("h100/gaunernst_bert-small-uncased__1016001", "forward", "run less Python before the model's first kernel"),
    ],
)
def test_a_wait_in_the_model_is_not_one_for_its_input(
    real_analysis: RealAnalysis, trace: str, said: str, remedy: str
) -> None:
    (finding,) = (f for f in real_analysis(trace).findings if f.id == "host_before_first_launch")
    assert finding.why.endswith(f"while the host runs `{said}`")
    assert finding.remedy.startswith(remedy)
