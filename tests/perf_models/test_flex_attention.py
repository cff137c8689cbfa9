"""Attention whose mask was not recorded: bytes, and no FLOPs."""

from __future__ import annotations

import pytest

from tracelens.analysis.reading.catalog import Catalog
from tracelens.errors import SignatureError
from tracelens.extensions import load_extension, overlay
from tracelens.perf_models import SDPA
from tracelens.perf_models.kernels import classify, kernel_patterns
from tracelens.registry import Registry
from tracelens.types.signature import OpSignature

B, HQ, HKV, S, D = 2, 8, 2, 256, 64
Q, KV = B * HQ * S * D, B * HKV * S * D


def flex(name: str) -> OpSignature:
    heads = ((B, HQ, S, D), (B, HKV, S, D), (B, HKV, S, D), (B, HQ, S), (1, 1, 2), (1, 1, 2, 2), (B, HQ, S, D))
    return OpSignature(name=name, shapes=heads, dtypes=(*["c10::BFloat16"] * 3, "float", "int", "int", "c10::BFloat16"))


def test_flex_attention_moves_its_four_tensors_and_says_no_flops():
    reading = Catalog().read(flex("triton_tem_fused_flex_attention_0"))
    assert reading.model is not None
    assert (reading.category, reading.model.flops()) == ("SDPA_fwd", None)
    assert reading.model.hbm_bytes() == 2 * (2 * Q + 2 * KV)


def test_the_backward_of_flex_attention_is_one_too():
    reading = Catalog().read(flex("triton_tem_fused_flex_attention_backward_zeros_1"))
    assert reading.model is not None
    assert (reading.category, reading.model.flops()) == ("SDPA_bwd", None)
    assert reading.model.hbm_bytes() == 2 * (3 * Q + 4 * KV)


def sage(*scales: int) -> SDPA:
    patterns = overlay(Registry("traced_as_pattern", {}), (load_extension("sage_attention"),))
    binding = next(claim.target for key, claim in patterns.items() if "sage_fwd" in key)
    shapes = ((B, S, HQ, D), (B, S, HKV, D), (B, S, HKV, D), scales, (B, HKV, 4), (B, S, HQ, D))
    types = ("signed char", "signed char", "c10::Half", "float", "float", "c10::BFloat16")
    model = binding(OpSignature(name="sage_fwd", shapes=shapes, dtypes=types))
    assert isinstance(model, SDPA)
    return model


def test_the_scales_of_sage_fwd_say_which_dim_counts_the_heads():
    model = sage(B, HQ, 4)
    assert (model.q_heads, model.kv_heads, model.s_q, model.flops()) == (HQ, HKV, S, None)
    assert model.hbm_bytes() == Q + KV + 2 * KV + 2 * Q


def test_sage_fwd_without_such_scales_has_no_model():
    with pytest.raises(SignatureError, match="which dim"):
        sage(B, 3, 4)


@pytest.mark.parametrize(
    ("kernel", "category"),
    [
        ("reduce_fused_kernel", "MoE_aux"), ("expand_to_fused_kernel", "MoE_aux"), ("get_fused_mapping_kernel", "MoE_aux"),
        ("void moe::dev::routing::routingRenormalize::routingIndicesHistogramScoresKernel<x>()", "MoE_aux"),
        ("_copy_tensor_kernel", "memory"), ("_copy_page_indices_kernel", "memory"),
        ("per_token_cast_to_fp8_kernel", "GroupQuant"), ("cast_1x128_kernel", "GroupQuant"),
        ("sage_quant_kernel", "GroupQuant"), ("sage_fwd", "SDPA_fwd"), ("qk_int8_sv_f16_accum_f32_attn_kernel", "SDPA_fwd"),
        ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_dynBatch_sm100f", "MoE_unfused"),
        ("bmm_Bfloat16_E4m3E4m3_Fp32_t128x16x256u2_s3_sm100f", "GEMM"), ("void marlin::Marlin<half>", "GEMM"),
        ("void regular_fft_factor<1024>", "FFT"), ("void vector_fft<512>", "FFT"),
        ("RNN_blockPersist_fp_LSTM<float>", "RNN_fwd"), ("void grid_sampler_2d_kernel<float>", "grid_sampler_fwd"),
        ("void grid_sampler_2d_backward_kernel<float>", "grid_sampler_bwd"),
        ("triton_red_fused_add_0", "triton"),
    ],
)  # fmt: skip
def test_kernels_without_an_op_have_their_category_by_name(kernel: str, category: str):
    (pattern,) = classify([kernel], kernel_patterns())
    assert pattern is not None
    assert pattern.category == category
