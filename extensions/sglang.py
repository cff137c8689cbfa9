"""SGLang: its kernels, the ops of its profiler, and the annotation around each engine step.

``sgl_kernel::*`` follow ``sgl-kernel/csrc``. ``sglang_profiler::<module>_<function>_<n>`` are the ranges that SGLang's
detailed profiling puts around functions; ``<n>`` counts call sites and is left out of the names below.
"""

from __future__ import annotations

import math
import re
from dataclasses import fields
from typing import Any

from tracelens import GEMM, DType, OpSignature, SignatureError, traced_as, traced_as_pattern
from tracelens.perf_models import (
    AttentionSums,
    CacheWrite,
    CustomCollective,
    DynamicQuantGEMM,
    GroupQuant,
    InferenceAttention,
    InferenceStep,
    MoEAux,
    MoEDown,
    MoEFused,
    MoEUp,
    RMSNorm,
    RoPE,
    SparseAttention,
    annotated_as,
    bind,
)
from tracelens.perf_models.collective import exchanged
from tracelens.perf_models.elementwise import gated, mxfp4, quantized
from tracelens.perf_models.gemm import times_transposed
from tracelens.perf_models.inference_attention import (
    annotated_numbers,
    cache_write,
    paged_attention,
    rotated_heads,
    step_of_one_kind,
)
from tracelens.perf_models.moe import all_operands, expert_product, fused_experts
from tracelens.perf_models.normalization import rms_norm

_STEP = re.compile(r"step\[(EXTEND|DECODE|MIXED|TARGET_VERIFY|DRAFT_EXTEND\w*)\b([^\]]*)\]")


@annotated_as("step[")
def _step(annotation: str) -> InferenceStep | None:
    """``step[EXTEND bs=2 toks=14721 c_sq=.. c_sk=.. c_sqsq=.. c_sqsk=..]``; without the sums in plain profiles.

    MIXED gives the requests of each kind as ``c=`` and ``g=``. TARGET_VERIFY generates several tokens per request;
    DRAFT_EXTEND, the draft model on tokens that a step of the target has counted, is no step of its own.
    """
    match = _STEP.match(annotation)
    if match is None:
        return None
    mode, body = match.groups()
    found = annotated_numbers(body)
    sums = _sums(found)
    if mode == "MIXED":
        return InferenceStep(
            context_requests=found.get("c"),
            context_tokens=found.get("c_sq"),
            generation_requests=found.get("g"),
            generation_tokens=found.get("g_sq"),
            sums=sums,
        )
    if mode.startswith("DRAFT"):
        return InferenceStep(sums=sums)
    is_context = mode == "EXTEND"
    tokens = found.get("c_sq", found.get("toks")) if is_context else found.get("g_sq")
    return step_of_one_kind(is_context, found.get("bs"), tokens, sums)


def _sums(found: dict[str, int]) -> AttentionSums | None:
    """The sums of an annotation, None where one of a kind lacks; ``found`` gets the new tokens that it leaves to the
    label: ``toks`` of prompts, and of ``bs`` requests that generate alike the root of bs * the sum of their squares.
    """
    kinds = [kind for kind in "cg" if {f"{kind}_sk", f"{kind}_sqsq", f"{kind}_sqsk"} <= set(found)]
    if "c" in kinds and "toks" in found:
        found.setdefault("c_sq", found["toks"])
    if "g" in kinds and "bs" in found:
        found.setdefault("g_sq", math.isqrt(found["bs"] * found["g_sqsq"]))
    known: dict[str, Any] = {field.name: found[field.name] for field in fields(AttentionSums) if field.name in found}
    return AttentionSums(**known) if kinds and all(f"{kind}_sq" in known for kind in kinds) else None


def _profiled(*names: str) -> tuple[str, ...]:
    """Patterns of the profiler's ranges around these functions."""
    return tuple(rf"^sglang_profiler::{re.escape(name)}(?:_\d+)?$" for name in names)


@traced_as("sgl_kernel::rotary_embedding")
def _rope(op: OpSignature) -> RoPE:
    """(positions, query, key, head_size, cos_sin_cache, is_neox)."""
    return rotated_heads(op, 1, 2, head=3, table=4)


@traced_as("sglang::store_cache")
def _store_cache(op: OpSignature) -> CacheWrite:
    """(k [t,d], v, k_cache, v_cache, indices, ...)."""
    return cache_write(op, 0, 1, cache=2)


@traced_as("sglang::outplace_fused_experts", "sglang::inplace_fused_experts")
def _fused_experts(op: OpSignature) -> MoEFused:
    """(hidden_states, w1, w2, topk_weights [t,k], topk_ids, ...)."""
    return fused_experts(op, 0, 1, 2, top_k=op.shape(3, rank=2)[1], packed_as=DType.INT4)


@traced_as("sglang::reg_all_gather_into_tensor")
def _all_gather(op: OpSignature) -> CustomCollective:
    """(output, input, group name); some builds put the handle first, as in (handle, input, output)."""
    return exchanged(op, "all_gather", 1, 2 if op.has(2) else 0)


@traced_as_pattern(*_profiled("fp8_utils_gemm_a8w8_blockscale", "gemm_a8w8_blockscale_gemm_a8w8_blockscale"))
def _gemm_a8w8(op: OpSignature) -> GEMM:
    """(x [m,k], w [n,k], x_scale, w_scale, ...): 16-bit output."""
    return times_transposed(op, scales=(2, 3), dtype_out=DType.BF16)


@traced_as_pattern(*_profiled("gemm_kernels_flydsl_hgemm"))
def _hgemm(op: OpSignature) -> GEMM:
    """(a [m,k], b [n,k], .., out)."""
    return times_transposed(op, dtype_out=op.dtype(3) if op.has(3) else op.dtype(0))


# the function is called like its module
_BATCHED = "batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant"


@traced_as_pattern(*_profiled(f"{_BATCHED}_{_BATCHED}"))
def _batched_gemm(op: OpSignature) -> GEMM:
    """(x [b,m,k] or [m,b,k], w [b,n,k], ...): x is narrowed to w's type on the way; output as x."""
    x, (b, n, k) = op.shape(0, rank=3), op.shape(1, rank=3)
    if x[2] != k or b not in x[:2]:
        raise SignatureError(f"{op.name}: {list(x)} and {[b, n, k]} do not fit one another")
    m = x[1] if x[0] == b else x[0]
    return DynamicQuantGEMM(b=b, m=m, n=n, k=k, dtype=op.dtype(0), dtype_b=op.dtype(1), dtype_out=op.dtype(0))


@traced_as_pattern(*_profiled("attention_paged_attention_ragged"), per_step=True)
def _ragged_attention(op: OpSignature) -> InferenceAttention:
    """(out, workspace, q [t,hq,d], k cache [..,hkv,d], v cache, ...); hkv is the last dim but one."""
    return paged_attention(op, 2, 3, 4)


@traced_as_pattern(*_profiled("tilelang_kernel_tilelang_sparse_fwd"))
def _sparse_attention(op: OpSignature) -> SparseAttention:
    """(q [t,hq,d], kv, indices [t,..,selected], sm_scale, d_v): unused indices, -1, are counted too."""
    (tokens, q_heads, d_qk), d_v = op.shape(0, rank=3), op.integer(4, "the size of a value")
    return SparseAttention(
        tokens=tokens,
        q_heads=q_heads,
        d_qk=d_qk,
        d_v=d_v,
        pairs=math.prod(op.shape(2)),
        dtype=op.dtype(0),
        dtype_kv=op.dtype(1),
    )


@traced_as_pattern(*_profiled("fused_moe_triton_kernels_invoke_fused_moe_kernel"))
def _expert_product(op: OpSignature) -> MoEUp | MoEDown:
    """(A, B [e,n,k], bias, C, A_scale, B_scale, B_zp, topk_weights, topk_ids [t,k], ...), once per projection."""
    return expert_product(op, 0, 1, 8, 3)


@traced_as_pattern(*_profiled("fused_moe_triton_kernels_fused_append_shared_experts"))
def _moe_aux(op: OpSignature) -> MoEAux:
    return all_operands(op)


@traced_as_pattern(*_profiled("fused_mxfp4_quant_fused_rms_mxfp4_quant"))
def _rms_norm_fp4(op: OpSignature) -> RMSNorm:
    """(x, weight, epsilon, x2, weight2, epsilon2, residual, ...): x2, a second tensor to normalize, is left out."""
    return rms_norm(op, 0, 1, residual=op.has(6), quantized=True, **mxfp4(math.prod(op.shape(0))))


@traced_as_pattern(*_profiled("quant_dynamic_mxfp4_quant", "fused_mxfp4_quant_fused_flatten_mxfp4_quant"))
def _fp4_quant(op: OpSignature) -> GroupQuant:
    """(x, ...)."""
    return quantized(op, 0, **mxfp4(math.prod(op.shape(0))))


#: Calls that only say where the operands stand, by the arguments as they are recorded.
BINDINGS = (
    # (q [t,hq*d], k [t,hkv,d], v, out, save_kv_cache, layer, ...)
    bind(paged_attention, "sglang::unified_attention_with_output", per_step=True, q=0, k=1, v=2),
    # (out, x)
    bind(gated, "sgl_kernel::silu_and_mul", "sgl_kernel::gelu_and_mul", "sgl_kernel::gelu_tanh_and_mul"),
    # (out, x, weight, eps, ...)
    bind(rms_norm, "sgl_kernel::rmsnorm", x=1, weight=2, out=0),
    # (x, residual, weight, eps, ...): both in place
    bind(rms_norm, "sgl_kernel::fused_add_rmsnorm", x=0, weight=2, residual=True),
    # (handle, x, out, ...)
    bind(exchanged, "sgl_kernel::all_reduce_reg", "sgl_kernel::qr_all_reduce", kind="all_reduce", x=1, out=2),
)  # fmt: skip
