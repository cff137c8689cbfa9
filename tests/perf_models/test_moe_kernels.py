"""The kernels of a fused MoE layer that an engine records as one op."""

from __future__ import annotations

from typing import Any

import pytest

from tracelens.errors import SignatureError
from tracelens.extensions import load_extension, overlay
from tracelens.perf_models import InnerOp, OpCall, PerfModel, bindings
from tracelens.perf_models.moe import LayerShape, layer_ops, product_types, touched_experts
from tracelens.registry import Registry
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature

UP = ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b_rM_TN_transOut_"
      "schedP2x1x2x3_biasM_bN_tma_tmaOpt_clmp_swiGlu_dynBatch_sm100f")  # fmt: skip
DOWN = ("bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b_rM_TN_transOut_"
        "schedP2x1x2x3_biasM_bN_tmaOpt_clmp_dynBatch_sm100f")  # fmt: skip
QUANTIZE = "void tensorrt_llm::kernels::quantize_with_block_size<(tensorrt_llm::BlockScaleQuantizationType)2>(int)"
ROUTE = "void moe::dev::routing::routingRenormalize::routingIndicesHistogramScoresKernel<KernelParams<__nv_bfloat16>>()"
FINALIZE = "void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::finalize::KernelParams<cutlass::bfloat16_t>>()"
T, H, F, E, K = 888, 3072, 512, 128, 4
LAYER = LayerShape(tokens=T, hidden=H, ffn=F, experts=E, top_k=K, dtype=DType.BF16)


def models(ops: list[InnerOp]) -> list[PerfModel]:
    return [bindings()[op.signature.name].target(op.signature) for op in ops]


@pytest.mark.parametrize(
    ("kernel", "tokens", "weights", "out", "gated"),
    [
        (UP, "fp8_e4m3fn", "fp4_e2m1", "fp8_e4m3fn", True),
        (DOWN, "fp8_e4m3fn", "fp4_e2m1", "bf16", False),
        ("bmm_E2m1_E2m1E2m1_Fp32_t128x8x512_s4_transOut_swiGlu_sm100a", "fp4_e2m1", "fp4_e2m1", "fp4_e2m1", True),
        ("bmm_Bfloat16_E4m3_Fp32_t128x8x128_s4_sm100a", "fp8_e4m3fn", "fp8_e4m3fn", "bf16", False),
        ("bmm_Fp16_Bfloat16MxInt4_Fp32_t64x8x128_sm100a", "bf16", "int4", "fp16", False),
    ],
)
def test_a_trtllm_gen_kernel_names_its_types(kernel: str, tokens: str, weights: str, out: str, gated: bool):
    types = product_types(kernel)
    assert types is not None
    found = (types.tokens.label, types.weights.label, types.out.label, types.gated, types.activated)
    assert found == (tokens, weights, out, gated, gated)


@pytest.mark.parametrize("kernel", ["bmm_kernel", "nvjet_hsh_128x256", "bmm_MxE4m3_Foo_Fp32_t1x1x1"])
def test_other_kernels_name_no_types(kernel: str):
    assert product_types(kernel) is None


def test_a_layer_is_quantized_routed_multiplied_twice_and_summed_up():
    ops = layer_ops((QUANTIZE, ROUTE, UP, DOWN, FINALIZE), LAYER)
    assert [op.kernel for op in ops] == [0, 1, 2, 3, 4]
    quantize, route, up, down, finalize = models(ops)
    assert quantize.hbm_bytes() == T * H * 2 + T * H + T * H / 32
    assert route.hbm_bytes() == T * E * 2 + T * K * 4
    touched = touched_experts(E, K, T)
    assert up.flops() == 2 * 2 * T * K * H * F
    assert up.hbm_bytes() == pytest.approx(T * H + touched * 2 * H * F * (1 / 2 + 1 / 32) + T * K * F)
    assert up.compute_dtype is DType.FP8_E4M3FN
    assert down.flops() == 2 * T * K * H * F
    assert down.hbm_bytes() == pytest.approx(T * K * F + touched * H * F * (1 / 2 + 1 / 32) + T * H * 2)
    assert finalize.flops() == T * H * (2 * K - 1)
    assert finalize.hbm_bytes() == 2 * (T * K * H + T * H)


def test_a_layer_of_another_number_of_products_stays_whole():
    with pytest.raises(SignatureError, match="1 expert GEMMs"):
        layer_ops((QUANTIZE, UP, FINALIZE), LAYER)


def allocated(*size: int, dtype: int) -> OpSignature:
    """``aten::empty`` of this size; 0 is uint8, 3 int32, 15 bf16."""
    return OpSignature(name="aten::empty", shapes=((),) * 2, dtypes=("", ""), scalars=(str(list(size)), str(dtype)))


def taken_apart(*below: OpSignature, kernels: tuple[str, ...] = (QUANTIZE, ROUTE, UP, DOWN, FINALIZE)) -> Any:
    reader = overlay(Registry("holds_ops", {}), (load_extension("vllm"),))["vllm::moe_forward"].target
    signature = OpSignature(
        name="vllm::moe_forward", shapes=((T, H), (T, E), ()), dtypes=("c10::BFloat16", "c10::BFloat16", "")
    )
    return reader(OpCall(signature=signature, kernels=kernels, below=below))


def test_vllm_layers_take_their_dimensions_from_flashinfers_buffers():
    rows = T * K + E * 15  # one row per choice, and up to a tile of 16 for each expert
    buffers = (allocated(T, H, dtype=24), allocated(T, K, dtype=3), allocated(T, K, dtype=15), allocated(T, H, dtype=15),
               allocated(rows, F, dtype=0), allocated(88064, dtype=0), allocated(rows, H, dtype=15))  # fmt: skip
    assert taken_apart(*buffers) == layer_ops((QUANTIZE, ROUTE, UP, DOWN, FINALIZE), LAYER)


def test_vllm_layers_without_those_buffers_say_why_they_stay_whole():
    with pytest.raises(SignatureError, match="the buffers that say its top-k"):
        taken_apart(allocated(T, H, dtype=15))


def test_vllms_own_triton_experts_take_their_dimensions_from_routing_and_activation():
    top_k = OpSignature(name="_moe_C::topk_softmax", shapes=((T, K), (T, K), (T, K), (T, E)))
    gate = OpSignature(name="_C::silu_and_mul", shapes=((T * K, F), (T * K, 2 * F)))
    kernels = ("topk_kernel", "fused_moe_kernel", "act_and_mul_kernel", "fused_moe_kernel", "moe_sum")
    up, down = models(taken_apart(top_k, gate, kernels=kernels))
    assert (up.flops(), down.flops()) == (4 * T * K * H * F, 2 * T * K * H * F)
    assert up.hbm_bytes() == pytest.approx(2 * (T * H + touched_experts(E, K, T) * 2 * H * F + T * K * F))
    quant = OpSignature(name="_C::dynamic_scaled_fp8_quant")
    assert [model.hbm_bytes() for model in models(taken_apart(top_k, gate, quant, kernels=kernels))] == [None, None]
