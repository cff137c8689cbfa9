"""Products of activations with integer weights: both sides int8, or weights alone, widened on the way."""

from __future__ import annotations

from math import prod

from tracelens.dtypes import DType
from tracelens.errors import SignatureError
from tracelens.perf_models.base import traced_as
from tracelens.perf_models.gemm import GEMM, matrix_product
from tracelens.signature import OpSignature


def weight_only(op: OpSignature, x: int, *, n: int, weight: DType | None, scales: tuple[int, ...] = ()) -> GEMM:
    """``x`` [..,k] by a weight [n,k] of narrow values; result like x. ``scales``: slots of scale tensors."""
    *rows, k = op.shape(x)
    held = [slot for slot in scales if op.has(slot)]
    return GEMM(
        m=prod(rows),
        n=n,
        k=k,
        dtype=op.dtype(x),
        dtype_b=weight,
        scale_elements=sum(prod(op.shape(slot)) for slot in held),
        dtype_scale=op.dtype(held[0]) if held else DType.FP32,
        stride_a=op.stride(x),
    )


def packed_bits(op: OpSignature, slot: int, values: int) -> DType | None:
    """The type of ``values`` packed values in tensor ``slot``: by how many bits each takes; None for other widths."""
    container = op.dtype(slot)
    if container is None or not values:
        return None
    bits = prod(op.shape(slot)) * container.bits / values
    return {4: DType.INT4, 8: DType.INT8}.get(int(bits)) if bits == int(bits) else None


def size_argument(op: OpSignature, index: int, what: str) -> int:
    """An integer argument that is a dimension."""
    value = op.literal(index)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise SignatureError(f"{op.name}: argument {index}, {what}, is {value!r}")
    return value


@traced_as("aten::_int_mm")
def _int_mm(op: OpSignature) -> GEMM:
    """(A [m,k], B [k,n]), both int8, into int32."""
    return matrix_product(op, dtype_out=DType.INT32, stride_a=op.stride(0), stride_b=op.stride(1))


@traced_as("aten::_weight_int4pack_mm")
def _int4(op: OpSignature) -> GEMM:
    """(x [m,k], packed weight, group size, scales and zeros [k/group, n, 2])."""
    _, n, _ = op.shape(3, rank=3)
    return weight_only(op, 0, n=n, weight=DType.INT4, scales=(3,))


@traced_as("aten::_weight_int8pack_mm")
def _int8(op: OpSignature) -> GEMM:
    """(x [m,k], weight [n,k] int8, scales [n])."""
    return weight_only(op, 0, n=op.shape(1, rank=2)[0], weight=op.dtype(1), scales=(2,))
