"""vLLM: its custom ops, the C++ ops of its extension modules, and the annotation around each engine step.

``vllm::*`` are Python functions registered as ops; ``_C::*``, ``_C_cache_ops::*``, ``_moe_C::*`` and
``_C_custom_ar::*`` follow ``csrc/torch_bindings.cpp`` and its neighbors. What attends to how much is not in the shapes:
it is in the annotation ``execute_<tokens>_context_<requests>(sq..sk..sqsq..sqsk..)_generation_<requests>(...)``.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

from tracelens import GEMM, CategoryOf, DType, OpSignature, SignatureError, traced_as
from tracelens.perf_models import (
    AttentionSums,
    CacheWrite,
    DynamicQuantGEMM,
    GroupQuant,
    InferenceStep,
    InnerOp,
    MoEDown,
    MoEFused,
    MoEUp,
    OpCall,
    RMSNorm,
    RoPE,
    annotated_as,
    bind,
    holds_ops,
)
from tracelens.perf_models.base import scalar_type
from tracelens.perf_models.collective import exchanged
from tracelens.perf_models.elementwise import MX_GROUP, gated, quantized
from tracelens.perf_models.gemm import check_inner, matrix_product, times_transposed
from tracelens.perf_models.inference_attention import cache_write, paged_attention, rotated_heads
from tracelens.perf_models.moe import (
    DOWN,
    UP,
    LayerShape,
    all_operands,
    fused_experts,
    helper,
    layer_ops,
    product_types,
    unquantized_product,
)
from tracelens.perf_models.normalization import rms_norm
from tracelens.perf_models.recurrent_layers import gated_delta_rule

_TRITON_PRODUCTS = ("pseudo_op::moe_triton_unfused_up", "pseudo_op::moe_triton_unfused_down")
_SUMS = r"\(sq(\d{1,18})sk(\d{1,18})sqsq(\d{1,18})sqsk(\d{1,18})\)"
_DETAILED = re.compile(rf"execute_\d+_context_(\d{{1,18}}){_SUMS}_generation_(\d{{1,18}}){_SUMS}")
_TOKENS = r"\((\d{1,18})(?:_(\d{1,18}))?\)"
_PLAIN = re.compile(rf"execute_context_(\d{{1,18}}){_TOKENS}_generation_(\d{{1,18}}){_TOKENS}")

_REQUESTS = re.compile(r"execute_new_(\d{1,18})_cached_(\d{1,18})")


@annotated_as("capture_")
def _capture(annotation: str) -> InferenceStep | None:
    """``capture_<bs>_<phase>``, round the capture of the graph for batches padded to ``bs``."""
    match = re.fullmatch(r"capture_(\d{1,18})_\w+", annotation)
    return None if match is None else InferenceStep(padded_requests=int(match[1]))


@annotated_as("execute_")
def _step(annotation: str) -> InferenceStep | None:
    """With sums, with requests, tokens and one sum, with requests and tokens alone, or with requests alone.

    ``execute_new_1_cached_31``: requests that were new in the step, and those that had been in one before,
    which generate (or go on with a prompt in chunks: that is not said). ``execute_diffusion_<bs>_<WxH>`` has none.
    """
    if match := _DETAILED.match(annotation):
        context, c_sq, c_sk, c_sqsq, c_sqsk, generation, *g = (int(text) for text in match.groups())
        sums = AttentionSums(
            c_sq=c_sq, c_sk=c_sk, c_sqsq=c_sqsq, c_sqsk=c_sqsk, g_sq=g[0], g_sk=g[1], g_sqsq=g[2], g_sqsk=g[3]
        )
        return InferenceStep(
            context_requests=context,
            context_tokens=sums.c_sq,
            generation_requests=generation,
            generation_tokens=sums.g_sq,
            sums=sums,
        )
    if match := _PLAIN.match(annotation):
        numbers = [int(text) if text else None for text in match.groups()]
        prompts, c_tokens, c_sum, answers, g_tokens, g_sum = numbers
        return InferenceStep(
            context_requests=prompts,
            context_tokens=c_tokens,
            generation_requests=answers,
            generation_tokens=g_tokens,
            sums=_sums(prompts or 0, c_tokens or 0, c_sum, g_tokens or 0, g_sum),
        )
    if match := _REQUESTS.match(annotation):
        return InferenceStep(context_requests=int(match[1]), generation_requests=int(match[2]))
    return None


def _sums(requests: int, c_tokens: int, c_sum: int | None, g_tokens: int, g_sum: int | None) -> AttentionSums | None:
    """The sums that ``execute_context_1(888_788544)_generation_2(2_9000)`` says: new tokens times keys, second number.

    Of a context without a past that is the sum of the tokens' squares, at most the square of their sum: there no past
    is assumed. A larger number has a past in it, which only a single request lets tell apart. Generated tokens, one per
    request, add their keys. None where that leaves something open.
    """
    context: dict[str, Any] | None = None
    if not c_tokens:
        context = {}
    elif c_sum and c_tokens <= c_sum <= c_tokens**2:
        context = {"c_sq": c_tokens, "c_sk": c_tokens, "c_sqsq": c_sum, "c_sqsk": c_sum, "assumed": "no cached context"}
    elif c_sum and requests == 1 and c_sum % c_tokens == 0:
        context = {"c_sq": c_tokens, "c_sk": c_sum // c_tokens, "c_sqsq": c_tokens**2, "c_sqsk": c_sum}
    if context is None or not (c_tokens or g_tokens) or (g_tokens and (g_sum is None or g_sum <= g_tokens)):
        return None
    generated = g_sum or 0
    return AttentionSums(**context, g_sq=g_tokens, g_sk=generated, g_sqsq=g_tokens, g_sqsk=generated)


@traced_as(
    "_C_cache_ops::reshape_and_cache_flash", "_C_cache_ops::reshape_and_cache", "_C_cache_ops::concat_and_cache_mla"
)  # fmt: skip
def _cache_write(op: OpSignature) -> CacheWrite:
    """(key [t,hkv,d], value, key_cache, value_cache, slot_mapping, ...); latent: (kv_c, k_pe, kv_cache, ...)."""
    return cache_write(op, 0, 1, cache=2)


@traced_as("vllm::rocm_unquantized_gemm")
def _unquantized_gemm(op: OpSignature) -> GEMM:
    """(x [..,k], weight [n,k], bias)."""
    *rows, k = op.shape(0)
    n, k_b = op.shape(1, rank=2)
    check_inner(op, k, k_b)
    return GEMM(m=math.prod(rows), n=n, k=k, bias=op.has(2), dtype=op.dtype(0), dtype_b=op.dtype(1))


@traced_as("vllm::gemm_with_dynamic_quant")
def _gemm_dynamic_quant(op: OpSignature) -> GEMM:
    """The first two matrices are x [m,k] and weight [n,k/2] in FP4; x is narrowed on the way. The others are scales."""
    matrices = [i for i, shape in enumerate(op.shapes or ()) if len(shape) == 2 and not isinstance(shape[0], tuple)]
    if len(matrices) < 2:
        raise SignatureError(f"{op.name}: fewer than two matrices were recorded")
    x, weight = matrices[:2]
    dtypes = (op.dtype(x), DType.FP4_E2M1)
    return times_transposed(
        op,
        x,
        weight,
        scales=tuple(matrices[2:]),
        packed=(1, 2),
        dtypes=dtypes,
        dtype_out=op.dtype(x),
        kind=DynamicQuantGEMM,
    )


@traced_as("_C::cutlass_scaled_mm")
def _cutlass_scaled_mm(op: OpSignature) -> GEMM:
    """(out [m,n], a [m,k], b [k,n], a_scales, b_scales, bias)."""
    scales, out = sum(math.prod(op.shape_or_scalar(i)) for i in (3, 4)), op.dtype(0)
    return matrix_product(op, 1, 2, bias=op.has(5), dtype_out=out, dtype_bias=out, scale_elements=scales)


@traced_as("_C::rms_norm_dynamic_per_token_quant", "_C::rms_norm_per_block_quant")
def _rms_norm_by_row(op: OpSignature) -> RMSNorm:
    """(out, x, weight, scales, epsilon, the scales' bound, residual, ...)."""
    return rms_norm(op, 1, 2, out=0, scale=3, quantized=True, residual=op.has(6))


def _rms_norm_quant(op: OpSignature, *, weight: int, residual: bool) -> RMSNorm:
    """The size of a group stands behind the epsilon."""
    return rms_norm(op, 0, weight, residual=residual, quantized=True, **_groups_of(op, weight + 2))


@traced_as("vllm::triton_per_token_group_quant_fp8")
def _group_quant(op: OpSignature) -> GroupQuant:
    """(x, group_size)."""
    fields = _groups_of(op, 1)
    return quantized(op, 0, **fields)


def _groups_of(op: OpSignature, group: int) -> dict[str, Any]:
    """What an FP8 result with one FP32 scale per group of argument ``group`` adds."""
    size = op.literal(group)
    if not isinstance(size, int) or size <= 0:
        raise SignatureError(f"{op.name}: argument {group}, the group size, was not recorded")
    scales = -(-math.prod(op.shape(0)) // size)
    return {"dtype_out": DType.FP8_E4M3FN, "scale_elements": scales, "dtype_scale": DType.FP32}


@traced_as("_C::scaled_fp4_quant")
def _fp4_quant(op: OpSignature) -> GroupQuant:
    """(out, x, scales, scale of the tensor); later (x, scale of the tensor, layout): an FP8 scale per 16 values."""
    if op.has(2):
        return quantized(op, 1, out=0, scale=2)
    groups = math.prod(op.shape(0)) // 16
    return quantized(op, 0, dtype_out=DType.FP4_E2M1, scale_elements=groups, dtype_scale=DType.FP8_E4M3FN)


@traced_as("_C::rotary_embedding")
def _rope(op: OpSignature) -> RoPE:
    """(positions, query, key, head_size, cos_sin_cache, is_neox)."""
    return rotated_heads(op, 1, 2, head=3, table=4)


@traced_as("vllm::outplace_fused_experts", "vllm::inplace_fused_experts", "vllm::rocm_aiter_fused_moe")
def _fused_experts(op: OpSignature) -> MoEFused:
    """(hidden_states, w1, w2, topk_weights [t,k], topk_ids, ...); GPTQ and AWQ hold two INT4 weights per byte."""
    return fused_experts(op, 0, 1, 2, top_k=op.shape(3, rank=2)[1], packed_as=DType.INT4)


@traced_as("pseudo_op::moe_gptq_awq_up", "pseudo_op::moe_gptq_awq_down")
def _int4_experts(op: OpSignature) -> MoEUp | MoEDown:
    """(x [t,h], w1 [e,2f,h/2], w2 [e,h,f/2], topk_weights, topk_ids [t,k], ...): one half of a fused layer."""
    whole = fused_experts(op, 0, 1, 2, top_k=op.shape(4, rank=2)[1], packed_as=DType.INT4)
    half = MoEUp if op.name.endswith("up") else MoEDown
    return half(
        tokens=whole.tokens,
        hidden=whole.hidden,
        ffn=whole.ffn,
        experts=whole.experts,
        top_k=whole.top_k,
        gated=whole.gated and half is MoEUp,
        dtype=whole.dtype,
        dtype_weight=whole.dtype_weight,
    )


@holds_ops("vllm::moe_forward", "vllm::moe_forward_shared")
def _experts(call: OpCall) -> list[InnerOp]:
    """The operations of a layer that records (x [t,h], router logits [t,e], ...), by whose kernels run in it."""
    if any(kernel.startswith("_matmul_ogs") for kernel in call.kernels):
        return _triton_experts(call)
    if any(product_types(kernel) is not None for kernel in call.kernels):
        return layer_ops(call.kernels, _trtllm_gen_layer(call))
    if any(kernel.startswith("fused_moe_kernel") for kernel in call.kernels):
        return _triton_fused_experts(call)
    return []


def _trtllm_gen_layer(call: OpCall) -> LayerShape:
    """The layer's dimensions, from the buffers that flashinfer allocates in the call.

    Experts and weights of the choice [t,k], then the first product's result [p,f] and the second's [p,h], for ``p``
    rows: one per choice, padded to tiles. Values of less than a byte are packed.
    """
    op = call.signature
    (tokens, hidden), (_, experts) = op.shape(0, rank=2), op.shape(1, rank=2)
    up = next(types for kernel in call.kernels if (types := product_types(kernel)) is not None)
    buffers = [
        (*size, dtype)
        for below in call.below
        if below.name == "aten::empty"
        and isinstance(size := below.literal(0), list)
        and len(size) == 2
        and all(isinstance(n, int) for n in size)
        and (dtype := scalar_type(below.literal(1))) is not None
    ]
    top_k = next((k for rows, k, _ in buffers if rows == tokens and 0 < k <= experts and k != hidden), None)
    pairs = [
        (columns, dtype)
        for (rows, columns, dtype), (rows_out, columns_out, _) in itertools.combinations(buffers, 2)
        if top_k and rows == rows_out >= tokens * top_k and columns_out == hidden
    ]
    if not top_k or not pairs:
        raise SignatureError(
            f"{op.name}: the buffers that say its top-k and the width of its experts were not recorded"
        )
    columns, dtype = pairs[-1]
    ffn = columns * dtype.bits // up.out.bits
    return LayerShape(tokens=tokens, hidden=hidden, ffn=ffn, experts=experts, top_k=top_k, dtype=op.dtype(0))


def _triton_fused_experts(call: OpCall) -> list[InnerOp]:
    """The two products of vLLM's own ``fused_moe_kernel``.

    ``_moe_C::topk_softmax`` in the call says how many experts a token takes, the activation's result [t*k,f] how wide
    they are. The weights' type is the input's where nothing in the call quantizes that, else unknown.
    """
    op = call.signature
    (tokens, hidden), (_, experts) = op.shape(0, rank=2), op.shape(1, rank=2)
    products = [i for i, kernel in enumerate(call.kernels) if kernel.startswith("fused_moe_kernel")]
    chosen = next((below.shape(0, rank=2) for below in call.below if "topk_s" in below.name and below.has(0)), None)
    gates = [b for b in call.below if b.name in ("_C::silu_and_mul", "_C::gelu_and_mul", "_C::swigluoai_and_mul")]
    if len(products) != 2 or chosen is None or len(gates) != 1 or gates[0].shape(0)[-1] * 2 != gates[0].shape(1)[-1]:
        raise SignatureError(f"{op.name}: no pair of products with a routing and an activation that say its dimensions")
    layer = LayerShape(
        tokens=tokens, hidden=hidden, ffn=gates[0].shape(0)[-1], experts=experts, top_k=chosen[1], dtype=op.dtype(0)
    )
    is_quantized = any("quant" in below.name for below in call.below) or any(
        "gptq" in call.kernels[i] for i in products
    )
    names = (UP, DOWN)
    return [
        InnerOp(kernel=kernel, signature=unquantized_product(name, layer, known=not is_quantized))
        for kernel, name in zip(products, names, strict=True)
    ]


def _triton_experts(call: OpCall) -> list[InnerOp]:
    """The two products of the Triton kernels that vLLM ships for gpt-oss, with MXFP4 weights.

    ``TopK`` in the call says how many experts a token takes; the weights, two values per byte, show in views: up
    [e,h/2,2f], then down [e,f/2,h].
    """
    op = call.signature
    products = [i for i, kernel in enumerate(call.kernels) if kernel.startswith("_matmul_ogs")]
    (tokens, hidden), (_, experts) = op.shape(0, rank=2), op.shape(1, rank=2)
    chosen = next((below.literal(1) for below in call.below if below.name == "TopK"), None)
    views = [
        below.shape(0)
        for below in call.below
        if below.name == "aten::view" and below.dtype_text(0) == "unsigned char" and len(below.shape_or_scalar(0)) == 3
    ]
    if len(products) != 2 or not all("mxfp4" in call.kernels[i] for i in products) or not isinstance(chosen, int):
        raise SignatureError(f"{op.name}: no pair of MXFP4 products after a routing that says its top-k")
    if len(views) != 2 or views[0][:2] != (experts, hidden // 2) or views[1][::2] != (experts, hidden):
        raise SignatureError(f"{op.name}: the shapes of the experts' weights were not recorded")
    shapes = ((tokens, hidden), *views, (tokens, chosen))
    dtypes = (op.dtype_text(0) or "", DType.FP4_E2M1.traced, DType.FP4_E2M1.traced, "int")
    layer = LayerShape(
        tokens=tokens, hidden=hidden, ffn=2 * views[1][1], experts=experts, top_k=chosen, dtype=op.dtype(0)
    )
    helpers = ((i, helper(kernel, layer)) for i, kernel in enumerate(call.kernels))
    return [
        *(
            InnerOp(kernel=kernel, signature=OpSignature(name=name, shapes=shapes, dtypes=dtypes))
            for kernel, name in zip(products, _TRITON_PRODUCTS, strict=True)
        ),
        *(InnerOp(kernel=i, signature=signature) for i, signature in helpers if signature is not None),
    ]


@traced_as(*_TRITON_PRODUCTS)
def _triton_product(op: OpSignature) -> MoEUp | MoEDown:
    """(x [t,h], w1 [e,h/2,2f or f], w2 [e,f/2,h], chosen experts [t,k]): MXFP4, one scale per 32 weights."""
    (tokens, hidden), (experts, packed, _) = op.shape(0, rank=2), op.shape(2, rank=3)
    is_up = op.name.endswith("up")
    return (MoEUp if is_up else MoEDown)(
        tokens=tokens,
        hidden=hidden,
        ffn=2 * packed,
        experts=experts,
        top_k=op.shape(3, rank=2)[1],
        gated=is_up and op.shape(1, rank=3)[2] == 4 * packed,
        dtype=op.dtype(0),
        dtype_weight=packed_type.values[1] if (packed_type := op.dtype(1)) is not None else None,
        dtype_out=op.dtype(0),
        scaled_by=MX_GROUP,
    )


#: A whole layer: neither the width of its experts nor its top-k is among the arguments.
MOE_LAYER = CategoryOf(category="MoE_unfused", names=("vllm::moe_forward", "vllm::moe_forward_shared"))


#: Calls that only say where the operands stand, by the arguments as they are recorded.
BINDINGS = (
    # (q [t,hq,d], k [t,hkv,d], v, ...). The type of the cache is not among the arguments: that of k is taken
    bind(
        paged_attention, "vllm::unified_attention_with_output", "vllm::unified_attention", per_step=True, q=0, k=1, v=2,
    ),
    # (mixed_qkv, b, a, core_attn_out, layer_name)
    bind(gated_delta_rule, "vllm::gdn_attention_core"),
    # (A [m,k], B [n,k], A scales, B scales, ...): 16-bit output
    bind(
        times_transposed, "vllm::rocm_aiter_triton_gemm_a8w8_blockscale",
        "vllm::_rocm_aiter_preshuffled_per_token_w8a8_gemm", "vllm::rocm_aiter_gemm_a8w8_blockscale", scales=(2, 3),
        dtype_out=DType.BF16,
    ),
    # (out, x, weight, epsilon)
    bind(rms_norm, "_C::rms_norm", x=1, weight=2, out=0),
    # (x, weight, epsilon, group_size)
    bind(_rms_norm_quant, "vllm::rocm_aiter_rmsnorm_fp8_group_quant", weight=1, residual=False),
    # (x, residual, weight, epsilon, group_size)
    bind(_rms_norm_quant, "vllm::rocm_aiter_rmsnorm_with_add_fp8_group_quant", weight=2, residual=True),
    # (x, residual, weight, epsilon): the C++ op in place
    bind(rms_norm, "_C::fused_add_rms_norm", x=0, weight=2, residual=True),
    bind(rms_norm, "vllm::rocm_aiter_rmsnorm2d_fwd_with_add", leaf_only=True, x=0, weight=2, residual=True),
    # (out, x, weight, scale of the tensor, epsilon)
    bind(rms_norm, "_C::rms_norm_static_fp8_quant", x=1, weight=2, out=0, scale=3, quantized=True),
    # (out, x, residual, weight, scale of the tensor, epsilon)
    bind(
        rms_norm, "_C::fused_add_rms_norm_static_fp8_quant", x=1, weight=3, out=0, scale=4, quantized=True,
        residual=True,
    ),
    # (x, weight, epsilon)
    bind(rms_norm, "vllm::rocm_aiter_rms_norm", leaf_only=True, x=0, weight=1),
    # (x, weight, epsilon, residual, ...): the padding is left out
    bind(rms_norm, "vllm::rocm_aiter_triton_add_rmsnorm_pad", x=0, weight=1, residual=True),
    # (out, x, scales, ...)
    bind(
        quantized, "_C::static_scaled_fp8_quant", "_C::dynamic_scaled_fp8_quant",
        "_C::dynamic_per_token_scaled_fp8_quant", x=1, out=0, scale=2,
    ),
    # (out, x, scales, zero points)
    bind(quantized, "_C::static_scaled_int8_quant", "_C::dynamic_scaled_int8_quant", x=1, out=0, scale=2),
    # (out, x)
    bind(gated, "_C::silu_and_mul", "_C::gelu_and_mul", "_C::gelu_tanh_and_mul", "_C::silu_and_mul_quant"),
    # ``TopK`` and ``SortTokens`` are the routing of the Triton kernels that vLLM ships for gpt-oss
    bind(all_operands, "_moe_C::topk_softmax", "_moe_C::moe_sum", "_moe_C::moe_align_block_size", "TopK", "SortTokens"),
    # (handle, x, out, ...)
    bind(exchanged, "_C_custom_ar::all_reduce", "_C_custom_ar::qr_all_reduce", kind="all_reduce", x=1, out=2),
)  # fmt: skip
