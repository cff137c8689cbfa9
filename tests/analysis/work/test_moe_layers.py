"""MoE layers that an engine records as one op become rows of the operations that their kernels are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import RealAnalysis
from tracelens.analysis.analyze import analyze
from tracelens.analysis.loaded_trace import AnalysisOptions
from tracelens.extensions import load_extension

T, H, F, E, K = 888, 3072, 512, 128, 4
ROUTE = "void moe::dev::routing::routingRenormalize::routingIndicesHistogramScoresKernel<KernelParams<__nv_bfloat16>>()"
UP = "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_transOut_biasM_swiGlu_dynBatch_sm100f"
DOWN = "bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_transOut_biasM_dynBatch_sm100f"
FINALIZE = "void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::finalize::KernelParams<cutlass::bfloat16_t>>()"


@pytest.mark.shared
def test_the_experts_of_a_b200_trace_have_work(real_analysis: RealAnalysis):
    found = real_analysis("b200/eager_trace", on_demand=True)
    rows = found.frames["unified_perf_summary"].set_index("name")
    up = rows.loc["pseudo_op::moe_up"]
    assert up["gflops"] == pytest.approx(2 * 2 * 888 * 4 * 3072 * 512 / 1e9)  # gpt-oss on 8 ranks: 2880 / 8, padded
    assert rows.loc["pseudo_op::moe_down", "gflops"] == pytest.approx(up["gflops"] / 2)
    attention = rows.loc[
        ["vllm::unified_attention_with_output"], "gflops"
    ]  # layers with a window are rows of their own
    assert attention.max() == pytest.approx(8 * 128 * 888 * 888 / 1e9)


def test_a_layer_in_a_trace_becomes_rows_of_its_operations(build: Callable[[], Any]):
    made = build()
    made.op("vllm::moe_forward", 0, 100, **{"Input Dims": [[T, H], [T, E], []],
            "Input type": ["c10::BFloat16", "c10::BFloat16", ""], "Concrete Inputs": ["", "", ""]})  # fmt: skip
    for i, (size, dtype) in enumerate((([T, K], 3), ([T * K, F], 0), ([T * K, H], 15))):
        made.op("aten::empty", 1 + i, 0.5, **{"Input Dims": [[], []], "Input type": ["ScalarList", "Scalar"],
                "Concrete Inputs": [str(size), str(dtype)]})  # fmt: skip
    for i, kernel in enumerate((ROUTE, UP, DOWN, FINALIZE)):
        made.launch(10 + i, kernel, 200 + 10 * i, 8)
    found = analyze(made.trace(), AnalysisOptions(extensions=(load_extension("vllm"),)), on_demand=True)
    names = set(found.frames["unified_perf_summary"]["name"])
    assert names == {f"pseudo_op::moe_{kind}" for kind in ("route", "up", "down", "finalize")}
    assert found.coverage.perf_model == 1
