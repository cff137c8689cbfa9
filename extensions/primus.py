"""Primus-Turbo: GEMM, grouped GEMM and quantization ops, and its expert-parallel dispatch and combine.

Argument orders are those of the library's ``TORCH_LIBRARY`` definitions (csrc/pytorch/bindings_pytorch.cpp). Its C++
ops are ``primus_turbo_cpp_extension::*``; the Python wrappers around them are ``primus_turbo::*`` with the same leading
arguments, so the outer of the two is the one with the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from tracelens import GEMM, DType, EPComm, GroupedGEMM, OpSignature, PerfModel, SignatureError, traced_as
from tracelens.perf_models import GroupedGEMMVariableK, UnaryElementwise, bind
from tracelens.perf_models.base import Moved, scalar_type, with_fields_of
from tracelens.perf_models.collective import COMBINE, DISPATCH, given_tokens, routed_tokens
from tracelens.perf_models.elementwise import Operand
from tracelens.perf_models.gemm import check_inner

_GROUPED = ("grouped_gemm", "grouped_gemm_impl", "ck_grouped_gemm", "ck_grouped_gemm_impl", "hipblaslt_grouped_gemm")
_VARIABLE_K = (
    "grouped_gemm_variable_k",
    "grouped_gemm_variable_k_impl",
    "ck_grouped_gemm_variable_k",
    "ck_grouped_gemm_variable_k_impl",
)
_GROUPED_FP8 = ("grouped_gemm_fp8", "ck_grouped_gemm_fp8", "hipblaslt_grouped_gemm_fp8")
_VARIABLE_K_FP8 = ("grouped_gemm_fp8_variable_k", "ck_grouped_gemm_fp8_variable_k")


def _in_both(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{space}::{name}" for space in ("primus_turbo", "primus_turbo_cpp_extension") for name in names)


@traced_as(*_in_both(_GROUPED))
def _grouped_gemm(op: OpSignature) -> GroupedGEMM:
    """(a [m,k], b [g,k,n] or [g,n,k], group_lens [g], ...), or zipped lists of the groups' a and b."""
    out = _sixteen_bit(op.dtype(0))
    if _is_list(op, 0):
        return _rows_in_groups(op, out)
    return _grouped(op, out)


@traced_as(*_in_both(_GROUPED_FP8))
def _grouped_gemm_fp8(op: OpSignature) -> GroupedGEMM:
    """(a, b, a_scales, b_scales, group_lens, group_offs, transA, transB, out_dtype, ...)."""
    return _grouped(op, scalar_type(op.literal(8)))


@traced_as(*_in_both(_VARIABLE_K))
def _grouped_gemm_variable_k(op: OpSignature) -> GroupedGEMMVariableK:
    """(a [m,k], b [m,n], group_lens [g], ...): the weights' gradient.

    Or zipped lists of the groups' a and b: of each the rows are summed, or the last dim of a and the first of b.
    """
    out = _sixteen_bit(op.dtype(0))
    if not _is_list(op, 0):
        return _variable_k(op, out, lengths=2)
    a, b = op.shape_list(0), op.shape_list(1)
    if len(a) != len(b) or any(len(shape) != 2 for shape in (*a, *b)):
        raise SignatureError(f"{op.name}: groups of {list(a)} and {list(b)} do not fit one another")
    if any(one[0] != other[0] for one, other in zip(a, b, strict=True)):
        if any(one[1] != other[0] for one, other in zip(a, b, strict=True)):
            raise SignatureError(f"{op.name}: groups of {list(a)} and {list(b)} do not fit one another")
        a = tuple(shape[::-1] for shape in a)
    k, n = _common(op, a, -1), _common(op, b, -1)
    m, dtype, dtype_b = sum(shape[0] for shape in a), op.dtype(0), op.dtype(1)
    return GroupedGEMMVariableK(m=m, n=n, k=k, groups=len(a), dtype=dtype, dtype_b=dtype_b, dtype_out=out)


@traced_as(*_in_both(_VARIABLE_K_FP8))
def _grouped_gemm_fp8_variable_k(op: OpSignature) -> GroupedGEMMVariableK:
    """(a, b, a_scales, b_scales, group_lens, group_offs, transA, transB, out_dtype, ...)."""
    return _variable_k(op, scalar_type(op.literal(8)), lengths=4)


def _grouped(op: OpSignature, out: DType | None) -> GroupedGEMM:
    m, k = op.shape(0, rank=2)
    groups, *b = op.shape(1, rank=3)
    if k not in b:
        raise SignatureError(f"{op.name}: inner dims differ, {k} and {b}")
    n = b[1] if b[0] == k else b[0]
    return GroupedGEMM(m=m, n=n, k=k, groups=groups, dtype=op.dtype(0), dtype_b=op.dtype(1), dtype_out=out)


def _rows_in_groups(op: OpSignature, out: DType | None) -> GroupedGEMM:
    a, b = op.shape_list(0), op.shape_list(1)
    k = _common(op, a, -1)
    axes = {shape[0] if shape[1] == k else shape[1] for shape in b if len(shape) == 2 and k in shape}
    if len(axes) != 1 or len(a) != len(b):
        raise SignatureError(f"{op.name}: groups of {list(a)} and {list(b)} do not fit one another")
    rows = sum(shape[0] for shape in a)
    return GroupedGEMM(m=rows, n=axes.pop(), k=k, groups=len(a), dtype=op.dtype(0), dtype_b=op.dtype(1), dtype_out=out)


class OfUnknownGroups(GroupedGEMMVariableK, frozen=True, kw_only=True):
    """The same of a call whose groups were not recorded: the bytes are those of one group, the least there can be."""

    def parameters(self) -> dict[str, object]:
        return {**GroupedGEMMVariableK.parameters(self), "G": None, "assumed": "bytes of 1 group"}


def _variable_k(op: OpSignature, out: DType | None, *, lengths: int) -> GroupedGEMMVariableK:
    """The number of groups stands in the group lengths only, tensor ``lengths``."""
    (m, k), (m_b, n) = op.shape(0, rank=2), op.shape(1, rank=2)
    if m != m_b:
        raise SignatureError(f"{op.name}: rows differ, {m} and {m_b}")
    kind, groups = (GroupedGEMMVariableK, op.shape(lengths, rank=1)[0]) if op.has(lengths) else (OfUnknownGroups, 1)
    return kind(m=m, n=n, k=k, groups=groups, dtype=op.dtype(0), dtype_b=op.dtype(1), dtype_out=out)


def _is_list(op: OpSignature, index: int) -> bool:
    return op.has(index) and op.shapes is not None and isinstance(op.shapes[index][0], tuple)


def _common(op: OpSignature, shapes: tuple[tuple[int, ...], ...], axis: int) -> int:
    sizes = {shape[axis] for shape in shapes if len(shape) == 2}
    if len(sizes) != 1:
        raise SignatureError(f"{op.name}: the groups' shapes {list(shapes)} share no dim {axis}")
    return sizes.pop()


def _sixteen_bit(dtype: DType | None) -> DType | None:
    """These ops take 16-bit operands and return a's type; for narrower ones the library returns bfloat16."""
    return dtype if dtype is None or dtype.bits >= 16 else DType.BF16


@traced_as(*_in_both(("hipblaslt_gemm_fp8", "turbo_gemm_fp8")))
def _gemm_fp8(op: OpSignature) -> GEMM:
    """(A, scale of A, B, scale of B, out_dtype, transA, transB, transC, granularity)."""
    return _scaled_gemm(op, packed=1, dtypes=(op.dtype(0), op.dtype(2)))


@traced_as(*_in_both(("hipblaslt_gemm_fp4",)))
def _gemm_fp4(op: OpSignature) -> GEMM:
    """As for fp8; both operands hold two values per byte along k, with an E8M0 scale per 32 of them."""
    return _scaled_gemm(op, packed=2, dtypes=(DType.FP4_E2M1, DType.FP4_E2M1))


def _scaled_gemm(op: OpSignature, *, packed: int, dtypes: tuple[DType | None, DType | None]) -> GEMM:
    a, b = op.shape(0, rank=2), op.shape(2, rank=2)
    flags = tuple(op.literal(i) for i in (5, 6, 7))
    if not all(isinstance(flag, bool) for flag in flags):
        raise SignatureError(f"{op.name}: the transposition flags were not recorded")
    m, k = reversed(a) if flags[0] else a
    k_b, n = reversed(b) if flags[1] else b
    check_inner(op, k, k_b)
    if flags[2]:  # the transpose of a product is the product of the transposes, the other way round
        m, n, dtypes = n, m, dtypes[::-1]
    return GEMM(
        m=m,
        n=n,
        k=packed * k,
        dtype=dtypes[0],
        dtype_b=dtypes[1],
        dtype_out=scalar_type(op.literal(4)),
        scale_elements=math.prod(op.shape_or_scalar(1)) + math.prod(op.shape_or_scalar(3)),
        dtype_scale=op.dtype(1),
    )


@traced_as(*_in_both(("quantize_fp8_tensorwise",)))
def _quantize_fp8(op: OpSignature) -> UnaryElementwise:
    """(input, dest_dtype, scale, ...): the one scale is left out."""
    read = Operand(shape=op.shape(0), dtype=op.dtype(0), stride=op.stride(0))
    written = Operand(shape=read.shape, dtype=scalar_type(op.literal(1)))
    return UnaryElementwise(shape=read.shape, inputs=(read,), outputs=(written,))


@dataclass(frozen=True, slots=True, kw_only=True)
class DualQuantization(PerfModel):
    """``elements`` quantized to FP4 twice, along the rows and along the columns, a scale per block of 32.

    flops = 1 per element and copy; bytes = one read, two packed copies and their 1-byte scales written.
    """

    category: ClassVar[str] = "elementwise"
    family: ClassVar[str | None] = "UnaryElementwise"

    elements: int
    dtype: DType | None

    def flops(self) -> int:
        return 2 * self.elements

    def moved(self) -> Moved:
        scales = math.ceil(self.elements / 32)
        return ((self.elements, self.dtype), (2 * self.elements, DType.FP4_E2M1), (2 * scales, DType.FP8_E8M0FNU))


@traced_as("primus::quantize_mxfp4_dual", *_in_both(("quantize_mxfp4_dual",)))
def _quantize_mxfp4_dual(op: OpSignature) -> DualQuantization:
    """(input, dest_dtype, ...)."""
    return DualQuantization(elements=math.prod(op.shape(0)), dtype=op.dtype(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedLayerNormModulate(PerfModel):
    """Layer normalization of ``elements``, scaled and shifted per sample.

    flops = 12 per element; bytes = one read and one write. The scale and shift, a sample's row each, are left out.
    """

    category: ClassVar[str] = "NORM_fwd"
    family: ClassVar[str | None] = "Normalization"

    elements: int
    dtype: DType | None

    def flops(self) -> int:
        return 12 * self.elements

    def moved(self) -> Moved:
        return ((2 * self.elements, self.dtype),)


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedLayerNormModulateBackward(FusedLayerNormModulate):
    """Its gradient: flops = 15 per element; bytes = x and dy read, dx written."""

    category: ClassVar[str] = "NORM_bwd"

    def flops(self) -> int:
        return 15 * self.elements

    def moved(self) -> Moved:
        return ((3 * self.elements, self.dtype),)


def _modulated(op: OpSignature, *, kind: type[FusedLayerNormModulate]) -> FusedLayerNormModulate:
    return kind(elements=math.prod(op.shape(0)), dtype=op.dtype(0))


class MoETransfer(EPComm, frozen=True, kw_only=True):
    """Primus-Turbo's own dispatch and combine, which wrap DeepEP kernels: rows * hidden * width leave the rank.

    What remains open is what stands in ``EPComm``: an effective rate, and the share of rows that stay local.
    """

    category: ClassVar[str] = "MoE_comm_fwd"

    def backward(self, gradient: OpSignature | None = None) -> EPComm:
        back = EPComm.backward(self, gradient)
        return with_fields_of(back, MoETransferBackward)


class MoETransferBackward(MoETransfer, frozen=True, kw_only=True):
    """The gradient's way back: a dispatch's is a combine and the other way round, read from its own tensor 0."""

    category: ClassVar[str] = "MoE_comm_bwd"


@traced_as("MoEDispatch")
def _moe_dispatch(op: OpSignature) -> MoETransfer:
    """(x [t,h] or an FP8 pair, token_indices [t,k], token_probs, num_experts, ...)."""
    found = routed_tokens(op)
    return MoETransfer(
        tokens=found.tokens, hidden=found.hidden, dtype=found.dtype, topk=found.topk, experts=found.number,
        buffer_rows=found.buffer_rows, phase=DISPATCH,
    )  # fmt: skip


def _given(op: OpSignature, *, kind: type[MoETransfer], phase: str) -> MoETransfer:
    (tokens, hidden), dtype = given_tokens(op)
    return kind(tokens=tokens, hidden=hidden, dtype=dtype, phase=phase)


#: Calls that only say where the operands stand, by the arguments as they are recorded.
BINDINGS = (
    bind(_modulated, "primus::fused_ln_modulate", kind=FusedLayerNormModulate),
    bind(_modulated, "primus::fused_ln_modulate_backward", kind=FusedLayerNormModulateBackward),
    # (x [rows,h], ...)
    bind(_given, "MoECombine", kind=MoETransfer, phase=COMBINE),
    bind(_given, "MoEDispatchBackward", kind=MoETransferBackward, phase=COMBINE),
    bind(_given, "MoECombineBackward", kind=MoETransferBackward, phase=DISPATCH),
)
