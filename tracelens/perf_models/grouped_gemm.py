"""Grouped matrix multiplication: one GEMM per expert, the rows shared out among them."""

from __future__ import annotations

from math import nan, prod
from typing import Any, ClassVar

from tracelens.dtypes import DType
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import (
    Like,
    Moved,
    PerfModel,
    Shown,
    Slot,
    recorded_as,
    recorded_call,
    resolved,
    scalar_type,
    traced_as,
    with_fields_of,
)
from tracelens.perf_models.gemm import Product, product_flops, product_operands, scale_type, widened
from tracelens.signature import OpSignature

PADDED_ROWS = "rows beyond the offsets are padding, and how many there are was not recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedGEMM(PerfModel):
    """``C[rows of g] = A[rows of g] @ B[g]`` for every group ``g``; ``m`` rows in all, ``B[groups,k,n]``.

    flops = 2*m*n*k, however the rows are shared out; bytes = one read of A and of all groups' B, one write of C:
    ``groups`` are those that have rows, as far as the caller knows.
    ``dtype`` is A's; B and C are like it unless said otherwise. ``scale_elements`` of ``dtype_scale`` are the scales of
    quantized operands, read once; those of the gradients are not counted.
    ``padded``: groups end where offsets in device memory say, which a recording does not hold. The ``m`` rows of the
    buffer are then at most those that were multiplied.
    """

    category: ClassVar[str] = "GroupedGEMM_fwd"
    engine: ClassVar[str] = "matrix"
    priced_as: ClassVar[str | None] = "grouped-gemm"
    shown: ClassVar[Shown | None] = {
        "M": "m", "N": "n", "K": "k", "G": "groups", "dtype_A_B": ("dtype", "dtype_b"), "dtype_out": "dtype_out"
    }  # fmt: skip

    m: int
    n: int
    k: int
    groups: int
    dtype: DType | None = DType.BF16
    dtype_b: DType | Like | None = Like.FIRST
    dtype_out: DType | Like | None = Like.FIRST
    scale_elements: int = 0
    dtype_scale: DType | None = DType.FP32
    padded: bool = False

    @property
    def at_most(self) -> str:
        return PADDED_ROWS if self.padded else ""

    def flops(self) -> int:
        flops: int = product_flops(self.m, self.n, self.k)
        return flops

    def moved(self) -> Moved:
        a, b, c = product_operands(self.m, self.n, self.k, self.groups)
        scales = (self.scale_elements, self.dtype_scale)
        return ((a, self.dtype), (b, self.dtype_b), (c, self.dtype_out), scales)

    def products(self) -> tuple[Product, ...]:
        """What is multiplied, as backends price it."""
        return (Product(self.m, self.n, self.k, groups=self.groups, b_width=self._widened),)

    def backward(self) -> GroupedGEMMBackward:
        """Both gradients of the same call."""
        return with_fields_of(self, GroupedGEMMBackward)

    @property
    def _widened(self) -> float | None:
        return widened(resolved(self.dtype_b, self.dtype), self.compute_dtype)

    def _per_group(self, b_width: float | None) -> Product:
        """The gradient of the weights: one product per group, over that group's rows."""
        rows = self.m / self.groups if self.groups else nan
        return Product(self.k, self.n, rows, self.groups, b_width=b_width)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedGEMMBackward(GroupedGEMM):
    """Both gradients of a ``GroupedGEMM``: ``dA = dC @ B^T`` and ``dB[g] = A[rows of g]^T @ dC[rows of g]``.

    flops = 4*m*n*k; bytes = dC read twice, A and all B read once, dA and all dB written.
    """

    category: ClassVar[str] = "GroupedGEMM_bwd"
    gradient: ClassVar[bool] = True

    def flops(self) -> int:
        flops: int = 2 * product_flops(self.m, self.n, self.k)
        return flops

    def products(self) -> tuple[Product, ...]:
        return Product(self.m, self.k, self.n, groups=self.groups, b_width=self._widened), self._per_group(None)

    def moved(self) -> Moved:
        a, b, c = product_operands(self.m, self.n, self.k, self.groups)
        return ((2 * a, self.dtype), (2 * b, self.dtype_b), (2 * c, self.dtype_out))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedGEMMVariableK(GroupedGEMM):
    """``C[g] = A[rows of g]^T @ B[rows of g]``, the gradient of the weights: ``A[m,k]``, ``B[m,n]``, ``C[groups,k,n]``.

    The summed dimension is the rows of each group. flops = 2*m*n*k; bytes = one read of A and B, one write of the
    result of every group.
    """

    category: ClassVar[str] = "GroupedGEMM_bwd"
    gradient: ClassVar[bool] = True

    def products(self) -> tuple[Product, ...]:
        return (self._per_group(self._widened),)

    def moved(self) -> Moved:
        return (
            (self.m * self.k, self.dtype),
            (self.m * self.n, self.dtype_b),
            (self.groups * self.k * self.n, self.dtype_out),
            (self.scale_elements, self.dtype_scale),
        )


@traced_as("aten::_grouped_mm")
def _grouped_mm(op: OpSignature) -> GroupedGEMM | None:
    """(self, mat2, offs, bias, out_dtype)."""
    return _grouped(op, offsets=2, out=scalar_type(op.literal(4)))


@traced_as("aten::_scaled_grouped_mm")
def _scaled_grouped_mm(op: OpSignature) -> GroupedGEMM | None:
    """(self, mat2, scale_a, scale_b, offs, bias, scale_result, out_dtype, ...): to BF16 where no type was given."""
    scales = sum(prod(op.shape_or_scalar(slot)) for slot in (2, 3))
    return _grouped(op, offsets=4, out=scalar_type(op.literal(7)) or DType.BF16, scales=scales, scale=op.dtype(2))


@traced_as("aten::_scaled_grouped_mm_v2")
def _scaled_grouped_mm_v2(op: OpSignature) -> GroupedGEMM | None:
    """(self, mat2, scales_a, recipes, swizzles, scales_b, recipes, swizzles, offs, bias, out_dtype, ...)."""
    scales = sum(prod(s) for slot in (2, 5) if op.has(slot) for s in op.shape_list(slot))
    out = scalar_type(op.literal(10)) or DType.BF16
    return _grouped(op, offsets=8, out=out, scales=scales, scale=scale_type(op, 3))


def _grouped(
    op: OpSignature, *, offsets: int, out: DType | None, scales: int = 0, scale: DType | None = None
) -> GroupedGEMM | None:
    """2-D by 3-D shares out A's rows, 3-D by 2-D B's columns, 2-D by 2-D the summed dimension, 3-D by 3-D nothing.

    One of PyTorch's FP4 elements along k holds two values. Scales of an unknown type take a byte, as those of MX do.
    """
    a, b = op.shape(0), op.shape(1)
    (packed, dtype), (_, dtype_b) = (_values_of(op.dtype(slot)) for slot in (0, 1))
    common: dict[str, Any] = {"dtype": dtype, "dtype_b": dtype_b, "dtype_out": Like.FIRST if out is None else out}
    common["padded"] = op.has(offsets)
    if scales:
        common |= {"scale_elements": scales, "dtype_scale": scale or DType.FP8_E8M0FNU}
    if len(a) == 2 and len(b) == 3:
        return GroupedGEMM(m=a[0], k=packed * a[1], groups=b[0], n=b[2], **common)
    if len(a) == 3 and len(b) == 2:
        swapped = common | {"dtype": dtype_b, "dtype_b": dtype, "dtype_out": dtype if out is None else out}
        return GroupedGEMM(m=b[1], k=packed * b[0], groups=a[0], n=a[1], **swapped)
    if len(a) == 3 and len(b) == 3:
        return GroupedGEMM(m=a[0] * a[1], k=packed * a[2], groups=b[0], n=b[2], **common)
    if len(a) == 2 and len(b) == 2 and op.has(offsets):
        groups = op.shape(offsets, rank=1)[0]
        return GroupedGEMMVariableK(m=packed * a[1], k=a[0], n=b[1], groups=groups, **common)
    return None


def _values_of(dtype: DType | None) -> tuple[int, DType | None]:
    return (1, None) if dtype is None else dtype.values


@recorded_as("aten::_grouped_mm")
def _recorded_grouped_mm(model: GroupedGEMM) -> OpSignature:
    a: tuple[int, ...] = (model.m, model.k)
    b: tuple[int, ...] = (model.groups, model.k, model.n)
    if isinstance(model, GroupedGEMMVariableK):
        a, b = (model.k, model.m), (model.m, model.n)
    return recorded_call(
        "aten::_grouped_mm",
        Slot.tensor(a, model.dtype),
        Slot.tensor(b, resolved(model.dtype_b, model.dtype)),
        Slot((model.groups,), "int", (1,)),
        Slot(),
        Slot(),
    )
