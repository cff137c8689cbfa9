"""Rotary position embedding."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from tracelens.dtypes import DType
from tracelens.errors import SignatureError
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import Like, PerfModel, resolved, total_bytes
from tracelens.signature import OpSignature


@dataclass(frozen=True, slots=True, kw_only=True)
class RoPE(PerfModel):
    """``x*cos + rotated(x)*sin`` for the first ``rotated`` of ``elements``; the others pass.

    flops = 3 per rotated element: two products and a sum; bytes = every element read and written once, ``copied`` more
    that the same op only moves (into a cache) read and written. The table of sines and cosines is left out: all heads
    share a row of it. ``dtype_copied`` is the type that is written there.
    """

    category: ClassVar[str] = "RoPE_fwd"

    elements: int
    rotated: int
    copied: int = 0
    dtype: DType | None = DType.BF16
    dtype_copied: DType | Like | None = Like.FIRST

    def flops(self) -> int:
        return 3 * self.rotated

    def hbm_bytes(self) -> int | float | None:
        return total_bytes(
            (2 * self.elements + self.copied, self.dtype), (self.copied, resolved(self.dtype_copied, self.dtype))
        )

    def backward(self) -> RoPEBackward:
        """The gradient of the same call: the opposite rotation."""
        return RoPEBackward(elements=self.elements, rotated=self.rotated, dtype=self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoPEBackward(RoPE):
    """The gradient: the opposite rotation, at the same cost."""

    category: ClassVar[str] = "RoPE_bwd"


def rotated(op: OpSignature, *tensors: int, share: float = 1.0) -> RoPE:
    """The ``tensors`` rotated in place, or ``share`` of each head of them."""
    elements = sum(prod(op.shape(i)) for i in tensors if op.has(i))
    return RoPE(elements=elements, rotated=round(elements * share), dtype=op.dtype(tensors[0]))


def rotated_heads(op: OpSignature, *tensors: int, head: int, table: int) -> RoPE:
    """Like ``rotated``, where argument ``head`` is the head size and the ``table``'s last dim how much of it turns."""
    size = op.literal(head)
    turned = op.shape(table, rank=2)[1]
    if not isinstance(size, int) or not 0 < turned <= size:
        raise SignatureError(f"{op.name}: argument {head}, the head size, is {size!r} for a table of {turned}")
    return rotated(op, *tensors, share=turned / size)
