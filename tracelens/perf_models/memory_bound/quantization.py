"""Quantization of a tensor with a scale per token, per group or for all of it."""

from __future__ import annotations

from math import ceil, prod
from typing import Any, ClassVar

from tracelens.dtypes import DType
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import PerfModel, total_bytes, traced_name
from tracelens.signature import OpSignature

#: Values that share one E8M0 scale: OCP Microscaling Formats (MX) v1.0, section 5.1.
MX_GROUP = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupQuant(PerfModel):
    """``elements`` scaled to a narrow type, ``scale_elements`` scales found on the way.

    flops = 2 per element, its group's maximum and its scaling; bytes = one read, one write of the narrow values, one
    write of the scales. None where one of their types or the number of scales was not recorded.
    """

    category: ClassVar[str] = "GroupQuant"
    family: ClassVar[str | None] = "GroupQuant_fwd"

    elements: int
    scale_elements: int | None
    dtype: DType | None
    dtype_out: DType | None
    dtype_scale: DType | None = DType.FP32

    def flops(self) -> int:
        return 2 * self.elements

    def hbm_bytes(self) -> int | float | None:
        if self.scale_elements is None:
            return None
        return total_bytes(
            (self.elements, self.dtype), (self.elements, self.dtype_out), (self.scale_elements, self.dtype_scale)
        )

    def parameters(self) -> dict[str, Any]:
        return {
            "num_elems": self.elements, "num_scales": self.scale_elements,
            "dtype_in_out": (traced_name(self.dtype), traced_name(self.dtype_out)),
            "dtype_scale": traced_name(self.dtype_scale),
        }  # fmt: skip


def quantized(op: OpSignature, x: int, out: int | None = None, scale: int | None = None, **fields: Any) -> GroupQuant:
    """Tensor ``x`` into ``out`` with the scales ``scale``; ``fields`` are GroupQuant's that the slots do not hold.

    An ``out`` of half as many elements holds two FP4 values in each.
    """
    recorded: dict[str, Any] = {"scale_elements": None, "dtype_out": None}
    if out is not None:
        halved = 2 * prod(op.shape(out)) == prod(op.shape(x))
        recorded["dtype_out"] = DType.FP4_E2M1 if halved else op.dtype(out)
    if scale is not None:
        recorded |= {"scale_elements": prod(op.shape_or_scalar(scale)), "dtype_scale": op.dtype(scale)}
    return GroupQuant(elements=prod(op.shape(x)), dtype=op.dtype(x), **recorded | fields)


def mxfp4(elements: int) -> dict[str, Any]:
    """What an FP4 result of so many elements adds to a model: one E8M0 scale per ``MX_GROUP`` of them."""
    return {"dtype_out": DType.FP4_E2M1, "scale_elements": ceil(elements / MX_GROUP), "dtype_scale": DType.FP8_E8M0FNU}
