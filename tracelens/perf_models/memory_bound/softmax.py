"""Softmax, log-softmax and the losses made of them."""

from __future__ import annotations

from dataclasses import fields
from math import prod
from typing import ClassVar

from tracelens.dtypes import DType
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import Like, PerfModel, resolved, scalar_type, total_bytes, traced_as
from tracelens.signature import OpSignature, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Softmax(PerfModel):
    """``exp(x - max) / sum(exp(x - max))`` along one dim, or its logarithm.

    flops = 5 per element: maximum, subtraction, exponential, sum, division; bytes = x read, y written.
    ``dtype_out`` is like x's unless said otherwise.
    """

    category: ClassVar[str] = "softmax"
    engine: ClassVar[str] = "vector"
    family: ClassVar[str | None] = "Softmax_fwd"

    shape: Shape
    dim: int | None = None
    dtype: DType | None = DType.BF16
    dtype_out: DType | Like | None = Like.FIRST

    def flops(self) -> int:
        return 5 * prod(self.shape)

    def hbm_bytes(self) -> int | float | None:
        n = prod(self.shape)
        return total_bytes((n, self.dtype), (n, resolved(self.dtype_out, self.dtype)))

    def backward(self) -> SoftmaxBackward:
        """The gradient of the same call."""
        return SoftmaxBackward(**{f.name: getattr(self, f.name) for f in fields(Softmax)})


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxBackward(Softmax):
    """``y * (dy - sum(dy * y))``: 4 flops per element; bytes = y and dy read, dx written."""

    family: ClassVar[str | None] = "Softmax_bwd"

    def flops(self) -> int:
        return 4 * prod(self.shape)

    def hbm_bytes(self) -> int | float | None:
        n = prod(self.shape)
        return total_bytes((n, self.dtype), (2 * n, resolved(self.dtype_out, self.dtype)))


def _dim(op: OpSignature, index: int) -> int | None:
    value = op.literal(index)
    return value if isinstance(value, int) else None


@traced_as("aten::_softmax", "aten::_log_softmax", leaf_only=True)
def _softmax(op: OpSignature) -> Softmax:
    """(x, dim, half_to_float): with the flag, a half-precision input gives an FP32 result."""
    widened = op.literal(2) is True
    return Softmax(
        shape=op.shape(0), dim=_dim(op, 1), dtype=op.dtype(0), dtype_out=DType.FP32 if widened else Like.FIRST
    )


@traced_as("aten::softmax", "aten::log_softmax", "aten::special_softmax", leaf_only=True)
def _softmax_wrapper(op: OpSignature) -> Softmax:
    """(x, dim, dtype)."""
    return Softmax(
        shape=op.shape(0), dim=_dim(op, 1), dtype=op.dtype(0), dtype_out=scalar_type(op.literal(2)) or Like.FIRST
    )


@traced_as("aten::_safe_softmax", "aten::_masked_softmax", leaf_only=True)
def _softmax_variant(op: OpSignature) -> Softmax:
    return Softmax(shape=op.shape(0), dtype=op.dtype(0))


@traced_as("aten::_softmax_backward_data", "aten::_log_softmax_backward_data", leaf_only=True)
def _softmax_backward(op: OpSignature) -> SoftmaxBackward:
    """(dy, y, dim, input dtype)."""
    dtype_x = scalar_type(op.literal(3))
    return SoftmaxBackward(shape=op.shape(0), dim=_dim(op, 2), dtype=dtype_x or op.dtype(0), dtype_out=op.dtype(0))
