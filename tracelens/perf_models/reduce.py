"""Reductions and scans, softmax, and cross entropy."""

from __future__ import annotations

from math import prod
from typing import Any

from tracelens.errors import SignatureError
from tracelens.perf_models.base import (
    Like,
    ModelRecord,
    Moved,
    aten,
    bind,
    scalar_type,
    traced_as,
    traced_name,
    with_fields_of,
)
from tracelens.perf_models.elementwise import Operand, operand
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature, Shape


class Reduce(ModelRecord, category="reduce", family="Reduce_fwd"):
    """``elements`` reduced (or scanned) to ``results``; ``kind`` is the op's word for it.

    flops = one per element of the input; bytes = one read of the input, one write of the result, and of
    ``indices`` 8-byte positions where the op returns them. ``dtype_out`` is like the input's unless said otherwise.
    """

    elements: int
    results: int
    kind: str
    indices: int = 0
    distinct: int | None = None
    dtype: DType | None = DType.BF16
    dtype_out: DType | Like | None = Like.FIRST

    def flops(self) -> int:
        return self.elements

    def moved(self) -> Moved:
        read = self.elements if self.distinct is None else self.distinct
        return ((read, self.dtype), (self.results, self.dtype_out), (self.indices, DType.INT64))

    def parameters(self) -> dict[str, Any]:
        out = None if isinstance(self.dtype_out, Like) else traced_name(self.dtype_out)
        return {
            "num_input_elems": self.elements, "num_output_elems": self.results,
            "dtype_in_out": (traced_name(self.dtype), out), "reduce_type": self.kind,
        }  # fmt: skip


def reduced(x: Operand, dims: Any) -> int:
    """Elements left of ``x`` after reducing ``dims``: a number, a list, or None or [] for all.

    >>> reduced(Operand(shape=(8, 16, 32), dtype=None), [-1, 0])
    16
    """
    if dims is None or dims in ((), []):
        return 1
    wanted = list(dims) if isinstance(dims, list | tuple) else [dims]
    rank = len(x.shape)
    if not all(isinstance(d, int) and -max(rank, 1) <= d < max(rank, 1) for d in wanted):
        raise SignatureError(f"cannot reduce dims {dims!r} of shape {list(x.shape)}")
    dropped = {d % rank for d in wanted} if rank else set()
    return prod(size for i, size in enumerate(x.shape) if i not in dropped)


def _reduce(
    op: OpSignature, *, dims: int | None, dtype_out: DType | Like | None = Like.FIRST, positions: bool = False
) -> Reduce:
    """Tensor 0 over the dims in slot ``dims``, over all where it holds none."""
    x = operand(op, 0)
    results = reduced(x, None if dims is None else _dims(op, dims))
    return Reduce(
        elements=prod(x.shape),
        results=results,
        kind=_kind(op.name),
        indices=results if positions else 0,
        distinct=x.elements,
        dtype=x.dtype,
        dtype_out=dtype_out,
    )


def _kind(name: str) -> str:
    """``sum`` of ``aten::sum`` and ``aten::cumsum``: what the op does to a pair."""
    return name.partition("::")[2].removeprefix("linalg_").removeprefix("vector_").removeprefix("cum")


def _dims(op: OpSignature, index: int) -> Any:
    """A recorded ``dim`` argument; a slot that is not there reduces everything."""
    value = op.literal(index)
    return None if isinstance(value, bool | str) else value


def _summed_type(op: OpSignature, dtype: int, out: int) -> DType | Like:
    """That of ``out``, else the one asked for in slot ``dtype``, else int64 where x is an integer, else that of x."""
    if op.has(out) and (written := op.dtype(out)) is not None:
        return written
    if (asked := scalar_type(op.literal(dtype))) is not None:
        return asked
    x = op.dtype(0)
    return Like.FIRST if x is None or x.is_floating or x.is_complex else DType.INT64


@traced_as("aten::sum", "aten::mean")
@traced_as("aten::prod", "aten::nansum", leaf_only=True)
def _sum(op: OpSignature) -> Reduce:
    """(x, dims, keepdim, dtype, out), or (x, dtype): integers are summed as int64."""
    if op.shapes is not None and len(op.shapes) <= 2:
        return _reduce(op, dims=None, dtype_out=_summed_type(op, 1, 2))
    return _reduce(op, dims=1, dtype_out=_summed_type(op, 3, 4))


@traced_as("aten::max", "aten::min")
def _extremum(op: OpSignature) -> Reduce | None:
    """(x), (x, dim, keepdim) with positions; (x, other) is elementwise and not this."""
    if op.has(1):
        return None
    return _reduce(op, dims=1, positions=_dims(op, 1) is not None)


@traced_as("aten::cumsum", "aten::cumprod")
@traced_as("aten::cumsum_", "aten::_cumsum", "aten::logcumsumexp", leaf_only=True)
def _scan(op: OpSignature) -> Reduce:
    """(x, dim, dtype, out): as many results as elements; integers are summed as int64."""
    x = operand(op, 0)
    return Reduce(
        elements=prod(x.shape),
        results=prod(x.shape),
        kind=_kind(op.name),
        distinct=x.elements,
        dtype=x.dtype,
        dtype_out=Like.FIRST if op.name.endswith("_") else _summed_type(op, 2, 3),
    )


REDUCTIONS = (
    # (x, dims, ...)
    bind(_reduce, *aten("amax amin std var logsumexp"), dims=1),
    bind(_reduce, *aten("std_mean var_mean"), leaf_only=True, dims=1),
    bind(_reduce, *aten("any all"), leaf_only=True, dims=1, dtype_out=DType.BOOL),
    bind(_reduce, *aten("argmax argmin count_nonzero"), leaf_only=True, dims=1, dtype_out=DType.INT64),
    # (x, p, dims, keepdim, ...)
    bind(_reduce, *aten("norm linalg_norm"), dims=2),
    bind(_reduce, *aten("linalg_vector_norm"), leaf_only=True, dims=2),
)


@traced_as("aten::_local_scalar_dense", "aten::item", leaf_only=True, category="memory")
def _to_host(op: OpSignature) -> Reduce:
    """One element read for the host."""
    x = operand(op, 0)
    return Reduce(elements=0, results=0, kind="item", distinct=1, dtype=x.dtype)


class Softmax(ModelRecord, category="softmax", family="Softmax_fwd"):
    """``exp(x - max) / sum(exp(x - max))`` along one dim, or its logarithm.

    flops = 5 per element: maximum, subtraction, exponential, sum, division; bytes = x read, y written.
    ``dtype_out`` is like x's unless said otherwise.
    """

    shape: Shape
    dim: int | None = None
    dtype: DType | None = DType.BF16
    dtype_out: DType | Like | None = Like.FIRST

    def flops(self) -> int:
        return 5 * prod(self.shape)

    def moved(self) -> Moved:
        n = prod(self.shape)
        return ((n, self.dtype), (n, self.dtype_out))

    def backward(self) -> SoftmaxBackward:
        return with_fields_of(self, SoftmaxBackward)


class SoftmaxBackward(Softmax, family="Softmax_bwd"):
    """``y * (dy - sum(dy * y))``: 4 flops per element; bytes = y and dy read, dx written."""

    def flops(self) -> int:
        return 4 * prod(self.shape)

    def moved(self) -> Moved:
        n = prod(self.shape)
        return ((n, self.dtype), (2 * n, self.dtype_out))


def _dim(op: OpSignature, index: int) -> int | None:
    value = op.literal(index)
    return value if isinstance(value, int) else None


@traced_as(*aten("softmax log_softmax _softmax _log_softmax special_softmax"), leaf_only=True)
def _softmax(op: OpSignature) -> Softmax:
    """(x, dim, dtype) or, of a kernel, (x, dim, half_to_float): with the flag, half precision gives an FP32 result."""
    out = DType.FP32 if op.literal(2) is True else scalar_type(op.literal(2)) or Like.FIRST
    return Softmax(shape=op.shape(0), dim=_dim(op, 1), dtype=op.dtype(0), dtype_out=out)


@traced_as("aten::_safe_softmax", "aten::_masked_softmax", leaf_only=True)
def _softmax_variant(op: OpSignature) -> Softmax:
    return Softmax(shape=op.shape(0), dtype=op.dtype(0))


@traced_as("aten::_softmax_backward_data", "aten::_log_softmax_backward_data", leaf_only=True)
def _softmax_backward(op: OpSignature) -> SoftmaxBackward:
    """(dy, y, dim, input dtype)."""
    dtype_x = scalar_type(op.literal(3))
    return SoftmaxBackward(shape=op.shape(0), dim=_dim(op, 2), dtype=dtype_x or op.dtype(0), dtype_out=op.dtype(0))


class CrossEntropy(ModelRecord, category="CrossEntropy_fwd"):
    """Softmax cross entropy over ``vocabulary`` logits of each row, and its gradient in place.

    flops = 5 per logit; bytes = one read and one write of the logits, the least that the gradient in place needs.
    """

    rows: int
    vocabulary: int
    dtype: DType | None

    def flops(self) -> int:
        return 5 * self.rows * self.vocabulary

    def moved(self) -> Moved:
        return ((2 * self.rows * self.vocabulary, self.dtype),)

    def backward(self) -> CrossEntropyBackward:
        return with_fields_of(self, CrossEntropyBackward)


class CrossEntropyBackward(CrossEntropy, category="CrossEntropy_bwd"):
    """The gradient that the forward left in place, times the loss' gradient: 1 flop per logit, read and written."""

    def flops(self) -> int:
        return self.rows * self.vocabulary
