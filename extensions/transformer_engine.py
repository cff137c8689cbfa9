"""Transformer Engine: its GEMMs, fused attention, layer normalization, rotary embedding and cross entropy.

Version 1 records each GEMM as ``tex_ts::te_gemm_ts``. Version 2 launches GEMMs straight from the autograd functions of
its modules; here they become ops of their own, ``_Linear_yfwd_mm`` and so on, with shapes from the module's arguments:
the forward's ``yfwd`` [t,in]x[in,out]; the backward's ``xgrad`` [t,out]x[out,in], then ``wgrad`` [out,t]x[t,in]. A call
with another number of GEMM kernels stays whole, and the report says so.

Slots follow ``transformer_engine/pytorch/module/*.py`` of version 2. FP8 operands are shown as e4m3 whichever format
the recipe chose, which is not recorded; both have one byte. Tokens that user buffers gather inside a GEMM are not
recorded either: with those the shapes are one rank's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tracelens import GEMM, SDPA, CategoryOf, DType, GroupedGEMM, Normalization, OpSignature, SignatureError, traced_as
from tracelens.perf_models import (
    BackwardPairs,
    CrossEntropy,
    InnerOp,
    OpCall,
    RoPE,
    RoPEBackward,
    classify,
    holds_ops,
    kernel_patterns,
)
from tracelens.perf_models.gemm import check_inner, matrix_dims

# NVTEDType of Transformer Engine 1 (transformer_engine.h), the only version that records te_gemm_ts.
_NVTE_TYPES = {
    1: DType.INT32, 2: DType.INT64, 3: DType.FP32, 4: DType.FP16, 5: DType.BF16, 6: DType.FP8_E4M3FN, 7: DType.FP8_E5M2,
}  # fmt: skip


@traced_as("tex_ts::te_gemm_ts")
def _te_gemm(op: OpSignature) -> GEMM:
    """(A, A_scale_inverse, A_fp8_tensor, A_type, transa, B, B_scale_inverse, B_fp8_tensor, B_type, transb, D, D_scale,
    D_type, D_amax, bias, bias_type, pre_gelu_out, grad, workspace, ...), as a column-major BLAS sees A and B.

    An absent bias is recorded as an empty tensor. With ``accumulate`` D is read too, which is not counted.
    """
    a, b = op.shape(0, rank=2), op.shape(5, rank=2)
    transposed_a, transposed_b = op.literal(4), op.literal(9)
    if not isinstance(transposed_a, int) or not isinstance(transposed_b, int):
        raise SignatureError(f"{op.name}: the transposition flags were not recorded")
    m, k = a if transposed_a else reversed(a)
    n, k_b = reversed(b) if transposed_b else b
    check_inner(op, k, k_b)
    bias = op.has(14) and math.prod(op.shape(14)) > 0
    return GEMM(
        m=m,
        n=n,
        k=k,
        bias=bias,
        bias_elements=math.prod(op.shape(14)) if bias else None,
        dtype=_te_dtype(op, 0, 3),
        dtype_b=_te_dtype(op, 5, 8),
        dtype_out=_te_dtype(op, 10, 12),
        dtype_bias=op.dtype(14) if bias else None,
    )


@traced_as(
    "_Linear_yfwd_mm", "_LayerNormLinear_yfwd_mm", "_LinearBackward_xgrad_mm", "_LinearBackward_wgrad_mm",
    "_LayerNormLinearBackward_xgrad_mm", "_LayerNormLinearBackward_wgrad_mm", "_LayerNormMLP_fc1_yfwd_mm",
    "_LayerNormMLP_fc2_yfwd_mm", "_LayerNormMLPBackward_fc1_xgrad_mm", "_LayerNormMLPBackward_fc1_wgrad_mm",
    "_LayerNormMLPBackward_fc2_xgrad_mm", "_LayerNormMLPBackward_fc2_wgrad_mm",
)  # fmt: skip
def _module_gemm(op: OpSignature) -> GEMM:
    """(A [m,k], B [k,n]): one GEMM of a version 2 module, under the name that tools insert for it; 16-bit result."""
    m, n, k = matrix_dims(op)
    return GEMM(m=m, n=n, k=k, dtype=op.dtype(0), dtype_b=op.dtype(1), dtype_out=DType.BF16)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Module:
    """Where a module's forward has its input, its weights and the FP8 flag, and what its GEMMs are called."""

    input: int
    weights: tuple[int, ...]
    fp8: int
    parts: tuple[str, ...] = ("",)


_MODULES = {
    "_Linear": _Module(input=1, weights=(0,), fp8=4),
    "_LayerNormLinear": _Module(input=0, weights=(3,), fp8=7),
    "_LayerNormMLP": _Module(input=0, weights=(3, 5), fp8=9, parts=("_fc1", "_fc2")),
}


@holds_ops("_Linear", "_LayerNormLinear", "_LayerNormMLP")
def _forward_gemms(call: OpCall) -> list[InnerOp]:
    """One GEMM per weight, in their order. A gathered input (sequence parallelism) has the all-gather's rows."""
    op, module = call.signature, _MODULES[call.signature.name]
    if any(below.name == "tex_ts::te_gemm_ts" for below in call.below):
        return []
    kernels = _gemm_kernels(call, len(module.weights))
    tokens = max(_rows(op, module.input), _gathered_rows(call, op.shape(module.input)[-1]))
    inner = []
    for kernel, part, weight in zip(kernels, module.parts, module.weights, strict=True):
        out, width = _weight(op, module, weight)
        inner.append(_gemm(f"{op.name}{part}_yfwd_mm", kernel, (tokens, width), (width, out), _operand(op, module)))
    return inner


@holds_ops("_LinearBackward", "_LayerNormLinearBackward", "_LayerNormMLPBackward")
def _backward_gemms(call: OpCall) -> list[InnerOp]:
    """Per weight, the last first: the gradient of its input, then of itself; shapes from the forward."""
    name, op = call.signature.name, call.forward
    module = _MODULES[name.removesuffix("Backward")]
    if any(below.name == "tex_ts::te_gemm_ts" for below in call.below):
        return []
    if op is None:
        raise SignatureError(f"{name}: its forward, which has the shapes, is not in the trace")
    kernels = iter(_gemm_kernels(call, 2 * len(module.weights)))
    tokens = max(_rows(op, module.input), _rows(call.signature, 0))
    inner = []
    for part, weight in reversed(list(zip(module.parts, module.weights, strict=True))):
        out, width = _weight(op, module, weight)
        dtype = _operand(op, module)
        inner.append(_gemm(f"{name}{part}_xgrad_mm", next(kernels), (tokens, out), (out, width), dtype))
        inner.append(_gemm(f"{name}{part}_wgrad_mm", next(kernels), (out, tokens), (tokens, width), dtype))
    return inner


def _gemm_kernels(call: OpCall, wanted: int) -> list[int]:
    patterns = classify(call.kernels, kernel_patterns())
    found = [
        i
        for i, (kernel, pattern) in enumerate(zip(call.kernels, patterns, strict=True))
        if pattern is not None and pattern.category == GEMM.category and "reduce" not in kernel.lower()
    ]
    if len(found) != wanted:
        raise SignatureError(f"{call.signature.name}: {len(found)} GEMM kernels instead of {wanted}")
    return found


def _weight(op: OpSignature, module: _Module, weight: int) -> tuple[int, int]:
    """(out, in) of a weight; SignatureError where the arguments do not lie as in version 2."""
    out, width = op.shape(weight, rank=2)
    if weight == module.weights[0] and op.shape(module.input)[-1] != width:
        raise SignatureError(f"{op.name}: inputs {module.input} and {weight} do not fit one another")
    return out, width


def _rows(op: OpSignature, tensor: int) -> int:
    return math.prod(op.shape(tensor)[:-1])


def _gathered_rows(call: OpCall, width: int) -> int:
    """Rows that an all-gather within the call gave."""
    for below in call.below:
        elements = below.attribute("Out msg nelems")
        if "gather" in str(below.attribute("Collective name")).lower() and isinstance(elements, int):
            return elements // width
    return 0


def _operand(op: OpSignature, module: _Module) -> str:
    """The type that a GEMM's operands have, as traces spell it."""
    if op.literal(module.fp8) is True:
        return DType.FP8_E4M3FN.traced
    return op.dtype_text(module.weights[0]) or ""


def _gemm(name: str, kernel: int, a: tuple[int, int], b: tuple[int, int], dtype: str) -> InnerOp:
    strides = ((a[1], 1), (b[1], 1))
    signature = OpSignature(name=name, shapes=(a, b), dtypes=(dtype, dtype), strides=strides, scalars=("", ""))
    return InnerOp(kernel=kernel, signature=signature)


BACKWARDS = BackwardPairs(
    pairs=tuple(
        (name, f"{name}Backward") for name in ("_Linear", "_LayerNormLinear", "_LayerNormMLP", "_GroupedLinear")
    )
)


@traced_as("_GroupedLinear")
def _grouped_linear(op: OpSignature) -> GroupedGEMM:
    """(x [t,in], .., a weight [out,in] per group, a bias per group): the split of the tokens is not recorded."""
    *rows, k = op.shape(0)
    weights = [op.shape(i) for i in range(1, len(op.shapes or ())) if op.has(i) and len(op.shape_or_scalar(i)) == 2]
    if not weights or any(weight != weights[0] for weight in weights) or weights[0][1] != k:
        raise SignatureError(f"{op.name}: no weights that fit an input of {k} columns were recorded")
    at = next(i for i in range(1, len(op.shapes or ())) if op.has(i) and len(op.shape_or_scalar(i)) == 2)
    return GroupedGEMM(
        m=math.prod(rows), n=weights[0][0], k=k, groups=len(weights), dtype=op.dtype(0), dtype_b=op.dtype(at)
    )


def _te_dtype(op: OpSignature, tensor: int, number: int) -> DType | None:
    """8-bit floats are stored as bytes; the number beside the tensor says which they are."""
    stored = op.dtype(tensor)
    if stored is not DType.UINT8:
        return stored
    recorded = op.literal(number)
    return _NVTE_TYPES.get(recorded) if isinstance(recorded, int) else None


class FusedAttention(SDPA, frozen=True, kw_only=True):
    """Attention whose mask and layout are text arguments, which a trace does not record.

    Assumed, and shown as ``param_assumed``: a causal mask where queries and keys are equally long, as in language
    models; without causality the flops are almost twice as many. With unequal lengths nothing is assumed and the flops
    are unknown. Bytes do not depend on it.
    """

    assumed: str = ""

    def parameters(self) -> dict[str, Any]:
        return {**SDPA.parameters(self), "assumed": self.assumed}


@traced_as("FusedAttnFunc")
def _fused_attention(op: OpSignature) -> FusedAttention:
    """(is_training, max_seqlen_q, max_seqlen_kv, cu_seqlens_q, cu_seqlens_kv, 4 more, q, k, v, ...).

    q, k, v are ``s b h d`` unless the sequence counts say ``b s h d``, or packed ``t h d``.
    """
    q, k, v = (op.shape(i) for i in (9, 10, 11))
    sequences = op.shape(3)[0] - 1 if op.has(3) else None
    tokens: tuple[int | None, int | None] = (None, None)
    lengths: tuple[int | None, int | None]
    if len(q) == 4:
        batch_first = sequences is not None and q[1] != sequences and q[0] == sequences
        batch, rows = (0, 1) if batch_first else (1, 0)
        b, lengths = q[batch], (q[rows], k[rows])
        layout = "" if sequences == b else "layout s b h d"
    elif len(q) == 3 and sequences:
        longest = (op.literal(1), op.literal(2))
        full = [isinstance(s, int) and t[0] == sequences * s for t, s in zip((q, k), longest, strict=True)]
        b, lengths = sequences, longest if all(full) else (None, None)
        tokens, layout = (q[0], k[0]), ""
    else:
        raise SignatureError(f"{op.name}: q should be [s,b,h,d], or packed with lengths, the trace recorded {list(q)}")
    is_self = lengths[0] is not None and lengths[0] == lengths[1]
    assumed = [text for text in (layout, "causal" if is_self else "") if text]
    return FusedAttention(
        b=b,
        s_q=lengths[0],
        s_kv=lengths[1],
        q_heads=q[-2],
        kv_heads=k[-2],
        d_qk=q[-1],
        d_v=v[-1],
        mask="top_left" if is_self else None,
        dropout=None,
        tokens_q=tokens[0],
        tokens_kv=tokens[1],
        dtype=op.dtype(9),
        dtype_k=op.dtype(10),
        dtype_v=op.dtype(11),
        assumed=", ".join(assumed),
    )


@traced_as("LayerNormFn")
def _layer_norm(op: OpSignature) -> Normalization:
    """(x, weight, bias, ...)."""
    shape, channels = op.shape(0), math.prod(op.shape(1))
    return Normalization(
        shape=shape,
        channels=channels,
        statistics=math.prod(shape) // max(channels, 1),
        weight=True,
        bias=op.has(2),
        dtype=op.dtype(0),
        dtype_weight=op.dtype(1),
        stride_x=op.stride(0),
    )


@traced_as("LayerNormFnBackward", category="NORM_bwd")
def _layer_norm_backward(op: OpSignature) -> Normalization:
    """(dy, ...): the module normalizes the last dim and has weight and bias, which are not recorded here."""
    shape = op.shape(0)
    forward = Normalization(
        shape=shape, channels=shape[-1], statistics=math.prod(shape[:-1]), weight=True, bias=True, dtype=op.dtype(0)
    )
    return forward.backward()


@traced_as("FusedRoPEFunc")
def _fused_rope(op: OpSignature) -> RoPE:
    """(t [s,b,h,d], freqs [s,1,1,r], ...): the first r of d turn."""
    elements = math.prod(op.shape(0))
    turned = op.shape(1)[-1] if op.has(1) else op.shape(0)[-1]
    rotated = elements // op.shape(0)[-1] * min(turned, op.shape(0)[-1])
    return RoPE(elements=elements, rotated=rotated, dtype=op.dtype(0))


@traced_as("FusedRoPEFuncBackward")
def _fused_rope_backward(op: OpSignature) -> RoPEBackward:
    """(dt [s,b,h,d]): how much of d turns is not recorded here, so that all of it counts."""
    elements = math.prod(op.shape(0))
    return RoPEBackward(elements=elements, rotated=elements, dtype=op.dtype(0))


@traced_as("CrossEntropyFunction")
def _cross_entropy(op: OpSignature) -> CrossEntropy:
    """(logits [b,s,v], target, ...)."""
    *rows, vocabulary = op.shape(0)
    return CrossEntropy(rows=math.prod(rows), vocabulary=vocabulary, dtype=op.dtype(0))


LINEAR = CategoryOf(
    category="GEMM",
    names=(
        "_Linear", "_LinearBackward", "_LayerNormLinear", "_LayerNormLinearBackward", "_LayerNormMLP",
        "_LayerNormMLPBackward",
    ),
)  # fmt: skip
GROUPED_LINEAR_BACKWARD = CategoryOf(category="GroupedGEMM_bwd", names=("_GroupedLinearBackward",))
FUSED_ATTENTION_BACKWARD = CategoryOf(category="SDPA_bwd", names=("FusedAttnFuncBackward",))
CROSS_ENTROPY_BACKWARD = CategoryOf(category="CrossEntropy_bwd", names=("CrossEntropyFunctionBackward",))
MOE = CategoryOf(category="MoE_comm_fwd", names=("TokenPermuteMaskMap", "_OperationFuserAutogradFunction"))
MOE_BACKWARD = CategoryOf(
    category="MoE_comm_bwd", names=("TokenPermuteMaskMapBackward", "_OperationFuserAutogradFunctionBackward")
)
