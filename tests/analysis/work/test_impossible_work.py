"""Inferred work above what the device can do is unknown, with the reason; windows that a model's layers say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RealTrace
from tracelens.analysis.analyze import analyze
from tracelens.analysis.attribution.calls import too_much
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace
from tracelens.analysis.verdict.verdict import summarize
from tracelens.extensions import load_extension
from tracelens.hardware import HardwareSpec
from tracelens.perf_models import GEMM, AttentionSums, InferenceAttention
from tracelens.predict.workload import ModelConfig
from tracelens.trace.reading.read import read_trace

Build = Callable[[], Any]


def fused(b: Any, name: str, elements: int, at: float, duration: float) -> Any:
    """A pointwise kernel over three BF16 tensors: 6 bytes per element."""
    b.op(
        name, at, 9, kernel_backend="triton",
        **{"Input Dims": [[elements]] * 3 + [[]], "Input type": ["c10::BFloat16"] * 3 + ["Scalar"],
           "Concrete Inputs": ["", "", "", str(elements)]},
    )  # fmt: skip
    return b.launch(at + 1, name, at + 20, duration)


def test_inferred_work_above_one_and_a_half_rooflines_is_unknown(build: Build):
    """MI300X moves 5.3 TB/s. 6 GB in 500 us are 12 TB/s, 2.3 times that; in 1,000 us 6 TB/s, 1.13 times."""
    b = build()
    fused(b, "triton_poi_fused_add_1", 10**9, 0, 500)
    fused(b, "triton_poi_fused_mul_2", 10**9, 1000, 1000)
    found = analyze(b.trace(), AnalysisOptions())
    rows = found.frames["unified_perf_summary"].set_index("name")
    refused, kept = rows.loc["triton_poi_fused_add_1"], rows.loc["triton_poi_fused_mul_2"]
    assert refused[["gflops", "hbm_mb", "roofline_us", "percent_of_roofline_mean"]].isna().all()
    assert refused["note"].endswith("would be 12.00 TB/s, the device has 5.30: not counted")
    assert "xnumel" in refused["perf_params"]
    assert (kept["hbm_mb"], kept["gflops"]) == (6000, 1)
    assert not isinstance(kept["note"], str)
    assert any(n.id == "impossible_work" and n.count == 1 for n in summarize(found).notices)


def test_the_mean_over_all_calls_decides(build: Build):
    b = build()
    for at, duration in ((0, 500), (1000, 1500), (3000, 1500)):
        fused(b, "triton_poi_fused_add_1", 10**9, at, duration)
    row = analyze(b.trace(), AnalysisOptions(), on_demand=True).frames["unified_perf_summary"].iloc[0]
    assert row["hbm_mb"] == 6000


def test_what_fits_in_the_last_cache_may_come_from_there(build: Build):
    """MI300X has 256 MiB of Infinity Cache: 60 MB in 5 us are 12 TB/s."""
    row = (
        analyze(fused(build(), "triton_poi_fused_add_1", 10**7, 0, 5).trace(), AnalysisOptions(), on_demand=True)
        .frames["unified_perf_summary"]
        .iloc[0]
    )
    assert row["hbm_mb"] == 60


def test_recorded_work_is_never_dropped(build: Build):
    """8192^3 in 100 us are 11 PFLOPS/s: a wrong device or file, which a warning says."""
    found = analyze(build().mm(8192, 8192, 8192, at=0, start=10, duration=100).trace(), AnalysisOptions())
    assert found.frames["unified_perf_summary"].iloc[0]["gflops"] > 1000
    assert any(n.id == "above_peak" for n in summarize(found).notices)


def test_flops_count_against_their_own_rate():
    device = HardwareSpec.load("h100-sxm")
    gemm = GEMM(m=8192, n=8192, k=8192)
    assert too_much(gemm, 1.1e12 / 989e12 * 1e6, device) is None
    assert too_much(gemm, 1.1e12 / 989e12 / 1.7 * 1e6, device) is not None


def serving(build: Build, calls: int, *, q_heads: int = 64) -> Trace:
    """A vLLM step of 100 decoding requests over 100,000 keys in all, one attention call per layer."""
    b = build()
    step = "execute_100_context_0(sq0sk0sqsq0sqsk0)_generation_100(sq100sk100000sqsq100sqsk100000)"
    b.op(step, 0, 10_000, cat="user_annotation")
    dims = [[100, q_heads, 64], [100, 8, 64], [100, 8, 64], [100, q_heads, 64]]
    for layer in range(calls):
        b.op(
            "vllm::unified_attention_with_output", 100 * layer + 10, 9,
            **{"Input Dims": dims, "Input type": ["c10::BFloat16"] * 4, "Concrete Inputs": [""] * 4},
        )  # fmt: skip
        b.launch(100 * layer + 11, "kernel_unified_attention_3d", 100 * layer + 30, 60)
    trace: Trace = b.trace()
    return trace


def attention(trace: Trace, **options: Any) -> list[tuple[int, float]]:
    """(calls, keys read of the cache per call) of each kind of attention, most keys first."""
    found = analyze(trace, AnalysisOptions(extensions=(load_extension("vllm"),), **options))
    rows = found.frames["unified_perf_summary"]
    rows = rows[rows["name"] == "vllm::unified_attention_with_output"]
    new = 2 * 100 * (64 + 8) * 128
    return sorted(
        zip(rows["operation_count"], (rows["hbm_mb"] * 1e6 - new) / (2 * 8 * 128), strict=True), key=lambda r: -r[1]
    )


def test_layers_of_a_model_with_windows_are_told_apart_by_their_order(build: Build):
    """gpt-oss 20b has 24 layers of 64 and 8 heads of 64: 12 see 128 keys per request, 12 all 100,000 less the new."""
    assert attention(serving(build, 24)) == [(12, pytest.approx(99_900)), (12, pytest.approx(100 * 128 - 100))]


def test_a_model_without_windows_or_that_is_not_known_sees_everything(build: Build):
    assert attention(serving(build, 23)) == [(23, pytest.approx(99_900))]
    # on two ranks gpt-oss has 32 and 4 heads, not 32 and 8
    assert [calls for calls, _ in attention(serving(build, 24, q_heads=32))] == [24]


@pytest.mark.shared
def test_windowed_layers_of_a_real_step_are_the_quick_ones(real_trace: RealTrace):
    """Of 24 calls 12 see a window; none of these takes as long as any of the others."""
    found = analyze(
        real_trace("inference/vllm_prefilldecode_piecewise/graph_execution"), AnalysisOptions(), on_demand=True
    )
    rows = found.frames["unified_perf_summary"]
    rows = rows[rows["name"] == "vllm::unified_attention_with_output"].sort_values("kernel_us_max")
    assert rows["operation_count"].tolist() == [12, 12]
    assert rows["kernel_us_max"].iloc[0] < rows["kernel_us_min"].iloc[1]
    assert "'sliding_window': 128" in rows["perf_params"].iloc[0]
    assert "'sliding_window': None" in rows["perf_params"].iloc[1]


def read(path: Path) -> Trace:
    return Trace.of(read_trace(path))


def test_what_the_sums_and_what_the_window_assume_both_show():
    heads = {"tokens": 1, "q_heads": 8, "kv_heads": 1, "d_qk": 64, "d_v": 64}
    model = InferenceAttention(**heads, sums=AttentionSums(g_sq=1, g_sk=9, assumed="no context"), assumed="a window")
    assert model.parameters()["assumed"] == "no context, a window"


def test_every_model_with_windows_says_how_wide_they_are():
    assert all(model.window for model in ModelConfig.all() if "w" in model.blocks)
