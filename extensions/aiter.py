"""AITER, AMD's kernel library: GEMMs, attention, normalization, quantization, mixture of experts, custom collectives.

And the step annotation of ATOM, the engine that runs on it.

Slots follow the Python stubs in ``aiter/ops/*.py``, whose functions are recorded as ``aiter::*`` with every argument.
Outputs that the caller allocates come first in most of them. The output type of a GEMM is that of the tensor it writes,
else the recorded ``dtype`` argument, else bfloat16, which the library's GEMMs return by default.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from tracelens import GEMM, SDPA, CategoryOf, DType, Normalization, OpSignature, traced_as
from tracelens.perf_models import (
    AllReduceRMSNorm,
    AttentionSums,
    DynamicQuantGEMM,
    HyperConnectionCoefficients,
    HyperConnectionPost,
    HyperConnectionPostPre,
    HyperConnectionPre,
    InferenceAttention,
    InferenceStep,
    MoEFused,
    RMSNorm,
    RoPE,
    SparseAttention,
    annotated_as,
    bind,
)
from tracelens.perf_models.base import scalar_type
from tracelens.perf_models.collective import exchanged
from tracelens.perf_models.elementwise import Elementwise, gated, mxfp4, operand, quantized
from tracelens.perf_models.gemm import times_transposed
from tracelens.perf_models.inference_attention import (
    annotated_numbers,
    attention_sums,
    paged_attention,
    rotated,
    step_of_one_kind,
)
from tracelens.perf_models.moe import all_operands, expert_down, expert_up, fused_experts
from tracelens.perf_models.normalization import rms_norm
from tracelens.perf_models.recurrent_layers import gated_delta_rule
from tracelens.perf_models.sdpa import causal, gradients_of, rows_then_heads, windowed

_ATOM_STEP = re.compile(r"(prefill|decode)\[(.*)\]")
_FP4 = (DType.FP4_E2M1, DType.FP4_E2M1)


@annotated_as("prefill[", "decode[")
def _atom_step(annotation: str) -> InferenceStep | None:
    """ATOM, the engine on AITER: ``prefill[bs=2 tok=14721 ctx=[..] sqsq=.. sqsk=.. sk=..]``, ``decode[bs=117/128 ..]``.

    ``bs=real/padded``: a captured graph runs the padded batch. The sums stand there with detailed annotations only.
    """
    match = _ATOM_STEP.match(annotation)
    if match is None:
        return None
    phase, body = match.groups()
    found = annotated_numbers(body)
    padded = re.search(r"\bbs=\d+/(\d+)", body)
    requests, tokens = found.get("bs"), found.get("tok")
    sums = None
    if tokens is not None and {"sk", "sqsq", "sqsk"} <= set(found):
        of = "c" if phase == "prefill" else "g"
        values = {"sq": tokens, **{key: found[key] for key in ("sk", "sqsq", "sqsk")}}
        named: dict[str, Any] = {f"{of}_{key}": value for key, value in values.items()}
        sums = AttentionSums(**named)
    padded_requests = int(padded[1]) if padded else None
    return step_of_one_kind(phase == "prefill", requests, tokens, sums, padded_requests=padded_requests)


def _out_type(op: OpSignature, *slots: int) -> DType | None:
    """The type of the first of ``slots`` that holds a tensor [.., m, n], else a recorded type number, else bfloat16."""
    for slot in slots:
        if op.has(slot) and len(op.shape(slot)) > 1:
            return op.dtype(slot)
        if (recorded := scalar_type(op.literal(slot))) is not None:
            return recorded
    return DType.BF16


def _fp4_product(op: OpSignature, *, out: tuple[int, int]) -> GEMM:
    """Two FP4 values per recorded element; ``out``: where the result or its type stand."""
    return times_transposed(op, scales=(2, 3), packed=(2, 2), dtypes=_FP4, dtype_out=_out_type(op, *out))


@traced_as(
    "aiter::gemm_a8w8_ck", "aiter::gemm_a8w8_bpreshuffle", "aiter::gemm_a8w8_bpreshuffle_ck",
    "aiter::gemm_a8w8_blockscale_ck", "aiter::gemm_a8w8_blockscale_cktile",
    "aiter::gemm_a8w8_blockscale_bpreshuffle_ck", "aiter::gemm_a8w8_blockscale_bpreshuffle_cktile",
    "aiter::flatmm_a8w8_blockscale_asm", "aiter::gfx950_a8w8_blockscale_asm",
    "aiter::_gemm_a8w8_blockscale_bpreshuffle_asm",
)  # fmt: skip
def _gemm_a8w8(op: OpSignature) -> GEMM:
    """(XQ [m,k], WQ [n,k], x_scale, w_scale, out, ...): a scale per tensor, row or block."""
    return times_transposed(op, scales=(2, 3), dtype_out=_out_type(op, 4))


@traced_as("aiter::gemm_a16w16")
def _gemm_a16w16(op: OpSignature) -> GEMM:
    """(A [m,k], B [n,k], bias, dtype, scale_a, scale_b, scale_c)."""
    return times_transposed(op, bias=2, dtype_out=scalar_type(op.literal(3)) or op.dtype(0))


@traced_as("aiter::gemm_a16w16_atomic_")
def _gemm_a16w16_atomic(op: OpSignature) -> GEMM:
    """(x [m,k], w [n,k], dtype, y, ...)."""
    return times_transposed(op, dtype_out=op.dtype(3) if op.has(3) else op.dtype(0))


@traced_as("aiter::_gemm_a16w16_asm")
def _gemm_a16w16_asm(op: OpSignature) -> GEMM:
    """(A [m,k], B [n,k], out, ...)."""
    return times_transposed(op, dtype_out=op.dtype(2))


@traced_as("aiter::batched_gemm_a16wfp4_")
def _batched_gemm_a16wfp4(op: OpSignature) -> GEMM:
    """(x [b,m,k], w [b,n,k/2], w_scales, dtype, y, ...): x is narrowed to FP4 in the kernel."""
    dtypes, out = (op.dtype(0), DType.FP4_E2M1), _out_type(op, 4, 3)
    return times_transposed(op, rank=3, scales=(2,), packed=(1, 2), dtypes=dtypes, dtype_out=out, kind=DynamicQuantGEMM)


def _dense_attention(op: OpSignature, first: int, *, dropout: int, is_causal: int) -> SDPA:
    """The window sizes follow ``is_causal``."""
    probability = op.literal(dropout)
    return rows_then_heads(
        op,
        first,
        dropout=float(probability) if isinstance(probability, int | float) else None,
        mask=causal(op.literal(is_causal), "bottom_right"),
        **windowed(op, is_causal + 1, is_causal + 2, op.literal(is_causal)),
    )


@traced_as("aiter::pa_decode_gluon", per_step=True)
def _paged_decode(op: OpSignature) -> InferenceAttention:
    """(q [t,hq,d], .., k_cache [blocks,hkv,..], ..): decode only; argument 19 is the window, -1 for none."""
    tokens, q_heads, size = op.shape(0, rank=3)
    window = op.literal(19)
    return InferenceAttention(
        tokens=tokens,
        q_heads=q_heads,
        kv_heads=op.shape(2)[1],
        d_qk=size,
        d_v=size,
        sums=replace(attention_sums(op), c_sq=0, c_sk=0, c_sqsq=0, c_sqsk=0),
        window=window if isinstance(window, int) and window > 0 else None,
        dtype=op.dtype(0),
        dtype_kv=op.dtype(2),
    )


@traced_as("aiter::pa_sparse_prefill_opus_fwd")
def _sparse_prefill(op: OpSignature) -> SparseAttention:
    """(q [t,hq,d], kv, prefix indices, .., .., extend indices, ...): one index per pair."""
    tokens, q_heads, size = op.shape(0, rank=3)
    pairs = op.shape(2, rank=1)[0] + op.shape(5, rank=1)[0]
    return SparseAttention(
        tokens=tokens, q_heads=q_heads, d_qk=size, d_v=size, pairs=pairs, dtype=op.dtype(0), dtype_kv=op.dtype(1)
    )


@traced_as("aiter::fused_add_rmsnorm_pad_")
def _add_rms_norm_pad(op: OpSignature) -> RMSNorm:
    """(x, weight, epsilon, residual, ...): the padding is left out."""
    return rms_norm(op, 0, 1, residual=op.has(3))


@traced_as("aiter::_fuse_rmsnorm_fp4_quant")
def _rms_norm_fp4(op: OpSignature) -> RMSNorm:
    """(x, weight, epsilon, x2, weight2, epsilon2, residual, ...): x2, a second tensor to normalize, is left out."""
    return rms_norm(op, 0, 1, residual=op.has(6), quantized=True, **mxfp4(math.prod(op.shape(0))))


@traced_as("aiter::_groupnorm_run")
def _group_norm(op: OpSignature) -> Normalization:
    """(x, groups, weight, bias, eps); since 2026 (y, workspace, x, groups, weight, bias, eps)."""
    x = 2 if op.has(0) and op.has(2) and op.shape(0) == op.shape(2) else 0
    shape, groups = op.shape(x), op.integer(x + 1, "the number of groups")
    return Normalization(
        shape=shape,
        channels=shape[1],
        statistics=shape[0] * groups,
        weight=op.has(x + 2),
        bias=op.has(x + 3),
        dtype=op.dtype(x),
        dtype_weight=op.dtype(x + 2),
    )


@traced_as("aiter::mixed_sample_outer_exponential")
def _sample(op: OpSignature) -> Elementwise:
    """(out, logits, exponentials, temperature, eps): one operation per logit; noise may be one row for all."""
    logits, noise = operand(op, 1), operand(op, 2)
    return Elementwise(shape=logits.shape, inputs=(logits, noise), outputs=(operand(op, 0),))


@traced_as("aiter::rope_cached_positions_2c_fwd_impl")
def _rope(op: OpSignature) -> RoPE:
    """(output_x, output_y, input_x, input_y, cos, sin, positions, ...): full heads are taken as rotated."""
    return rotated(op, 2, 3)


@traced_as("aiter::fused_qk_rope_cat_and_cache_mla", "aiter::fused_qk_rope_concat_and_cache_mla")
def _rope_and_cache(op: OpSignature) -> RoPE:
    """(q_nope, q_pe, k_nope, k_pe, kv_cache, ...): the ``pe`` parts are rotated, keys go to the cache."""
    q_nope, q_pe, k_nope, k_pe = (math.prod(op.shape(i)) for i in range(4))
    return RoPE(
        elements=q_nope + q_pe, rotated=q_pe + k_pe, copied=k_nope + k_pe, dtype=op.dtype(0), dtype_copied=op.dtype(4)
    )


@traced_as("aiter::fmoe_fp8_blockscale_g1u1", "aiter::fmoe_g1u1")
def _fused_moe(op: OpSignature) -> MoEFused:
    """(out, x, gate, down, sorted_ids, sorted_weights, sorted_expert_ids, num_valid_ids, topk, ...)."""
    return fused_experts(op, 1, 2, 3, top_k=op.literal(8), packed_as=DType.INT4, out=0)


@traced_as("pseudo_op::moe_aiter_fused_1stage")
def _fused_moe_one_stage(op: OpSignature) -> MoEFused:
    """(x [t,h], w1, w2, topk_weights [t,k], ...)."""
    return fused_experts(op, 0, 1, 2, top_k=op.shape(3, rank=2)[1], packed_as=DType.INT4)


def _normalized_sum(op: OpSignature, x: int, weight: int) -> AllReduceRMSNorm:
    n = math.prod(op.shape(x))
    return AllReduceRMSNorm(
        kind="all_reduce",
        elements_in=n,
        elements_out=n,
        ranks=None,
        dtype=op.dtype(x),
        channels=math.prod(op.shape(weight)),
    )


def _hyper_connection(
    op: OpSignature, *, residual: int, kind: type[HyperConnectionPost] | type[HyperConnectionPre]
) -> HyperConnectionPost | HyperConnectionPre:
    t, n, c = op.shape(residual, rank=3)
    return kind(tokens=t, streams=n, channels=c, dtype=op.dtype(residual))


@traced_as("aiter::mhc_pre_gemm_sqrsum")
def _mhc_coefficients(op: OpSignature) -> HyperConnectionCoefficients:
    """(out, sqrsum, x [t,n,c] or [t,n*c], fn [outputs,n*c], ...): flattened streams count as one."""
    t, *streams, c = op.shape(2)
    return HyperConnectionCoefficients(
        tokens=t,
        streams=math.prod(streams),
        channels=c,
        outputs=op.shape(3, rank=2)[0],
        dtype=op.dtype(2),
        dtype_weight=op.dtype(3),
    )


@traced_as("aiter::mhc_fused_post_pre_gemm_sqrsum")
def _mhc_post_pre(op: OpSignature) -> HyperConnectionPostPre:
    """(gemm_out_mul, gemm_out_sqrsum, next_residual, layer_input, residual [t,n,c], .., .., fn [outputs,n*c], ...)."""
    t, n, c = op.shape(4, rank=3)
    return HyperConnectionPostPre(
        tokens=t, streams=n, channels=c, outputs=op.shape(7, rank=2)[0], dtype=op.dtype(4), dtype_weight=op.dtype(7)
    )


METADATA = CategoryOf(category="InferenceAttention", names=("aiter::get_mla_metadata_v1", "aiter::indexer_score_topk"))
#: The window, and how much of the past is compressed, are the model's and stand in no argument.
WINDOWED = CategoryOf(
    category="InferenceAttention",
    names=("pseudo_v4_paged_decode_swa", "pseudo_v4_paged_decode_csa", "pseudo_v4_paged_decode_hca"),
)
STAGES = CategoryOf(category="MoE_unfused", names=("pseudo_op::moe_flydsl_stage1", "pseudo_op::moe_flydsl_stage2"))


#: Calls that only say where the operands stand, by the arguments as they are recorded.
BINDINGS = (
    # (A [m,k/2], B [n,k/2], A_scale, B_scale, bias | out, dtype | ..)
    bind(_fp4_product, "aiter::gemm_a4w4", "aiter::_gemm_a4w4_asm", out=(4, 5)),
    # (x [m,k/2], w [n,k/2], x_scales, w_scales, dtype, y, ...)
    bind(_fp4_product, "aiter::gemm_afp4wfp4_", out=(5, 4)),
    # (out [t,n,c], layer output, residual [t,n,c], ...)
    bind(_hyper_connection, "aiter::mhc_post", residual=0, kind=HyperConnectionPost),
    # (post_mix, comb_mix, out, gemm_out_mul, gemm_out_sqrsum, hc_scale, hc_base, residual [t,n,c], weight, ...)
    bind(_hyper_connection, "aiter::mhc_pre_big_fuse_rmsnorm", residual=7, kind=HyperConnectionPre),
    # (q, k, v, dropout_p, softmax_scale, is_causal, window_size_left, window_size_right, ...)
    bind(
        _dense_attention, "aiter::_flash_attn_forward", "aiter::mha_fwd", "aiter::fmha_v3_fwd", first=0, dropout=3,
        is_causal=5,
    ),
    bind(_dense_attention, "aiter::wrapper_fmha_v3_fwd", first=1, dropout=4, is_causal=6),
    # (dO, q, k, v, o, lse, dq, dk, dv, dbias, dropout_p, softmax_scale, causal, ...)
    bind(gradients_of, "aiter::_flash_attn_backward", forward=_dense_attention, first=1, dropout=10, is_causal=12),
    bind(gradients_of, "aiter::wrapper_fmha_v3_bwd", forward=_dense_attention, first=1, dropout=7, is_causal=9),
    # (dO, q, k, v, o, lse, dropout_p, softmax_scale, is_causal, ...)
    bind(gradients_of, "aiter::mha_bwd", forward=_dense_attention, first=1, dropout=6, is_causal=8),
    # (q [t,hq,d], k [..,hkv,d], v, cu_seqlens_q, ...): how long the sequences are stands in the step's annotation
    bind(
        paged_attention, "aiter::mha_varlen_fwd", "aiter::fmha_v3_varlen_fwd", "aiter::mha_batch_prefill",
        "pseudo_mla_prefill_fwd", per_step=True, q=0, k=1, v=2,
    ),
    # (q [t,hq,d], latent cache [..,hkv,d], ...): the whole latent row is taken as the value
    bind(paged_attention, "pseudo_mla_decode_fwd", per_step=True, q=0, k=1),
    # (mixed_qkv, b, a, core_attn_out, ...)
    bind(gated_delta_rule, "aiter::linear_attention_with_output_base"),
    # (x, weight, epsilon, ...)
    bind(rms_norm, "aiter::rms_norm", "aiter::rmsnorm2d_fwd_ck", x=0, weight=1),
    # (out, x, weight, epsilon)
    bind(rms_norm, "aiter::rmsnorm", x=1, weight=2, out=0),
    # (out, x, scale, weight, epsilon, ...)
    bind(
        rms_norm, "aiter::rmsnorm2d_fwd_with_dynamicquant_ck", "aiter::rmsnorm_quant", x=1, weight=3, out=0, scale=2,
        quantized=True,
    ),
    # (out, x, residual_in, residual_out, weight, epsilon, ...)
    bind(rms_norm, "aiter::rmsnorm2d_fwd_with_add_ck", "aiter::add_rmsnorm", x=1, weight=4, out=0, residual=True),
    # (out, x, scales, ...)
    bind(
        quantized, "aiter::dynamic_per_token_scaled_quant", "aiter::dynamic_per_group_scaled_quant",
        "aiter::dynamic_per_tensor_quant", "aiter::dynamic_per_group_scaled_quant_fp4", x=1, out=0, scale=2,
    ),
    # (out, scales, x, sorted_ids, num_valid_ids, ...)
    bind(
        quantized, "aiter::fused_dynamic_mxfp4_quant_moe_sort_hip", "aiter::fused_dynamic_mx_quant_moe_sort_hip", x=2,
        out=0, scale=1,
    ),
    # (out, x)
    bind(gated, "aiter::silu_and_mul", "aiter::gelu_and_mul", "aiter::gelu_tanh_and_mul"),
    # (x [t,h], w1, out [t,k,f], ...)
    bind(expert_up, "aiter::moe_cktile2stages_gemm1_ck", x=0, w1=1, out=2, packed_as=DType.FP4_E2M1),
    # (x [t,k,f], w2, out, ...)
    bind(expert_down, "aiter::moe_cktile2stages_gemm2_ck", x=0, w2=1, out=2, packed_as=DType.FP4_E2M1),
    # (x, w1, w2, sorted_token_ids, sorted_expert_ids, num_valid_ids, out [t,k,f], topk, ...)
    bind(
        expert_up, "aiter::ck_moe_stage1", "aiter::ck_moe_stage1_fwd", x=0, w1=1, out=6, packed_as=DType.FP4_E2M1, w2=2,
    ),
    # (x [t,k,f], w1, w2, sorted_token_ids, sorted_expert_ids, num_valid_ids, out, topk, ...)
    bind(
        expert_down, "aiter::ck_moe_stage2", "aiter::ck_moe_stage2_fwd", x=0, w2=2, out=6, packed_as=DType.FP4_E2M1,
        w1=1,
    ),
    bind(
        all_operands, "aiter::moe_sorting_fwd", "aiter::mxfp4_moe_sort_hip", "aiter::biased_grouped_topk_hip",
        "aiter::topk_softplus", "aiter::moe_sorting_opus_fwd", "aiter::moe_align_block_size", "aiter::moe_sum",
        "aiter::topk_softmax", "aiter::topk_softmax_asm", "aiter::topk_sigmoid", "aiter::grouped_topk",
        "aiter::moe_fused_gate",
    ),
    # (handle, x, out, ...)
    bind(exchanged, "aiter::reduce_scatter", kind="reduce_scatter", x=1, out=2),
    # (handle, x, out)
    bind(exchanged, "aiter::all_gather_reg", kind="all_gather", x=1, out=2),
    # (pointer, registered, x, residual_in, residual_out, out, weight, eps, ...)
    bind(_normalized_sum, "aiter::fused_allreduce_rmsnorm", x=2, weight=6),
    # (x, residual, weight, eps, ...)
    bind(_normalized_sum, "aiter::fused_allreduce_rmsnorm_", x=0, weight=2),
)  # fmt: skip
