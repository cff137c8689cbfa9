"""Ops that move data and compute next to nothing: indexing, embedding and pooled look-ups, concatenation, sorting."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import ceil, prod
from typing import Any

from tracelens.errors import SignatureError
from tracelens.perf_models.base import (
    ModelRecord,
    Moved,
    aten,
    bind,
    scalar_type,
    total_bytes,
    traced_as,
    traced_name,
    with_fields_of,
)
from tracelens.perf_models.elementwise import Operand, broadcast, operand
from tracelens.perf_models.surroundings import Launch, caller_of, copied_list_types, copied_type, gradient_of, launch_of
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature, Shape


class Movement(ModelRecord, category="memory", engine="none", family="Memory"):
    """``read`` and ``written`` elements, each with its type; ``added`` of them accumulate (one flop each).

    A lookup reads the rows that it returns, and at most the whole table: which rows an index repeats is not recorded.
    ``element_bytes``: the width of elements whose type is unknown.
    ``permutes``: rows of tokens go where their experts are, which is far slower than a copy.
    """

    read: tuple[tuple[int, DType | None], ...]
    written: tuple[tuple[int, DType | None], ...]
    added: int = 0
    permutes: bool = False
    element_bytes: int | None = None

    def flops(self) -> int:
        return self.added

    def hbm_bytes(self) -> int | float | None:
        if self.element_bytes is not None:
            return self.element_bytes * sum(n for n, _ in (*self.read, *self.written))
        return total_bytes(*self.read, *self.written)

    def parameters(self) -> dict[str, Any]:
        return {
            "num_read": sum(n for n, _ in self.read), "num_written": sum(n for n, _ in self.written),
            "dtype_read": tuple(traced_name(d) for _, d in self.read),
            "dtype_written": tuple(traced_name(d) for _, d in self.written),
        }  # fmt: skip


def lookup(table: Operand, index: Operand, returned: int) -> Movement:
    """``returned`` elements of ``table`` copied out, as ``index`` says."""
    return Movement(
        read=((min(returned, table.elements), table.dtype), (index.elements, index.dtype)),
        written=((returned, table.dtype),),
    )


def _at(op: OpSignature, index: int, rank: int) -> int:
    """A recorded dim, counted from the front."""
    value = op.literal(index)
    if not isinstance(value, int) or not -rank <= value < rank:
        raise SignatureError(f"{op.name}: argument {index}, the dim, is {value!r}")
    return value % rank


def _replaced(shape: Shape, dim: int, size: int) -> int:
    """Elements of ``shape`` with ``dim`` resized."""
    return prod(size if i == dim else n for i, n in enumerate(shape))


@traced_as("aten::embedding", leaf_only=True, category="index")
def _embedding(op: OpSignature) -> Movement:
    """(table, indices, ...)."""
    table, indices = op.shape(0, rank=2), op.shape_or_scalar(1)
    return lookup(operand(op, 0), operand(op, 1), prod(indices) * table[1])


@traced_as("aten::_embedding_bag", "aten::_embedding_bag_forward_only", leaf_only=True, category="index")
def _embedding_bag(op: OpSignature) -> Movement:
    """(table, indices, offsets, scale_grad_by_freq, mode, sparse, weight per index, ...): one result row per offset.

    One operation per element looked up, its addition, and one more where it is weighted; rows are read at most once.
    """
    table, indices, bags = op.shape(0, rank=2), op.shape(1, rank=1), op.shape(2, rank=1)
    looked_up = indices[0] * table[1]
    weights = ((indices[0], op.dtype(6)),) if op.has(6) else ()
    return Movement(
        read=((min(looked_up, prod(table)), op.dtype(0)), (indices[0], op.dtype(1)), (bags[0], op.dtype(2)), *weights),
        written=((bags[0] * table[1], op.dtype(0)),),
        added=looked_up * (1 + len(weights)),
    )


@traced_as("aten::embedding_dense_backward", leaf_only=True, category="index")
def _embedding_dense_backward(op: OpSignature) -> Movement:
    """(dy, indices, rows of the table, ...): every row of the gradient is written, most of them with zeros."""
    dy, indices = op.shape(0), op.shape_or_scalar(1)
    rows = op.integer(2, "the number of rows")
    return Movement(
        read=((prod(dy), op.dtype(0)), (prod(indices), op.dtype(1))),
        written=((rows * dy[-1], op.dtype(0)),),
        added=prod(dy),
    )


@traced_as("aten::index_select", leaf_only=True, category="index")
def _index_select(op: OpSignature) -> Movement:
    """(x, dim, index)."""
    x, index = op.shape(0), op.shape_or_scalar(2)
    elements = _replaced(x, _at(op, 1, len(x)), prod(index))
    return lookup(operand(op, 0), operand(op, 2), elements)


def _picked(op: OpSignature, *, index: int) -> Movement:
    """One element of tensor 0 per index."""
    return lookup(operand(op, 0), operand(op, index), prod(op.shape_or_scalar(index)))


PICKING_OPS = (
    # (x, dim, index, ...), (x, index, ...)
    bind(_picked, "aten::gather", leaf_only=True, category="index", index=2),
    bind(_picked, *aten("take_along_dim take"), leaf_only=True, category="index", index=1),
)


@traced_as(
    *aten("scatter scatter_add scatter_reduce", "", "_"),
    leaf_only=True,
    category="index",
)  # fmt: skip
def _scatter(op: OpSignature) -> Movement:
    """(x, dim, index, source | value)."""
    n = prod(op.shape_or_scalar(2))
    adds = n if "_add" in op.name or "_reduce" in op.name else 0
    source = (n, op.dtype(3)) if op.has(3) else (0, None)
    return _put(op, ((n, op.dtype(2)), source), n, adds, in_place=op.name.endswith("_"))


def _put(op: OpSignature, read: tuple[tuple[int, DType | None], ...], n: int, adds: int, *, in_place: bool) -> Movement:
    """``n`` elements put into tensor 0, ``adds`` of them added to what is there: at most the whole of it is touched.

    Out of place the whole of it is copied as well.
    """
    whole = prod(op.shape_or_scalar(0))
    touched = min(n, whole) if in_place else whole
    kept = min(adds, whole) if in_place else whole
    return Movement(read=(*read, (kept, op.dtype(0))), written=((touched, op.dtype(0)),), added=adds)


@traced_as(
    "aten::index_add", "aten::index_add_", "aten::index_copy", "aten::index_copy_", "aten::index_fill_",
    leaf_only=True,
    category="index",
)  # fmt: skip
def _index_add(op: OpSignature) -> Movement:
    """(x, dim, index, source | value)."""
    x, index = op.shape(0), op.shape_or_scalar(2)
    n = _replaced(x, _at(op, 1, len(x)), prod(index))
    adds = n if "_add" in op.name else 0
    source = (n, op.dtype(3)) if op.has(3) else (0, None)
    return _put(op, (source, (prod(index), op.dtype(2))), n, adds, in_place=op.name.endswith("_"))


# One block column per row that is picked: at::native::vectorized_gather_kernel_launch, PyTorch 2.7 and later.
_ROW_GATHER = re.compile(r"vectorized_gather_kernel<(\d+), (\w+)>")
_GATHER_THREADS = 256


def _gathered_rows(op: OpSignature, launch: Launch) -> Movement | None:
    """Whole rows of x, one per index: their number is the grid's x, and its y has to fit a row's bytes."""
    x, dtype, kernel = op.shape(0), op.dtype(0), _ROW_GATHER.search(launch.kernel)
    index = _GATHER_INDEX.get(kernel[2]) if kernel else None
    if kernel is None or index is None or dtype is None or launch.grid is None or len(x) < 2 or x[0] < 2:
        return None
    row_bytes = prod(x[1:]) * dtype.width_bytes
    if launch.grid[1:] != (ceil(row_bytes / (_GATHER_THREADS * int(kernel[1]))), 1):
        return None
    picked = launch.grid[0]
    return lookup(operand(op, 0), Operand(shape=(picked,), dtype=index), picked * prod(x[1:]))


_GATHER_INDEX = {"long": DType.INT64, "int": DType.INT32}


@traced_as("aten::index", leaf_only=True, category="index", asks=("kernel", "grid", "gradient"))
def _index(op: OpSignature) -> Movement | None:
    """(x, list of index tensors): PyTorch up to 2.13 records no shapes of a list that may have gaps.

    Then the gradient of the result says how much was picked; the positions, of unknown rank, are left out.
    """
    if not op.has(1) and (gradient := gradient_of(op)) is not None:
        results = prod(gradient.shape(0))
        return Movement(read=((min(results, prod(op.shape(0))), op.dtype(0)),), written=((results, op.dtype(0)),))
    if not op.has(1) and (launch := launch_of(op)) is not None:
        return _gathered_rows(op, launch)
    n, looked_up = _indexed(op)
    return lookup(operand(op, 0), Operand(shape=(looked_up,), dtype=DType.INT64), n)


def _indexed(op: OpSignature) -> tuple[int, int]:
    """Elements of tensor 0 that the list of index tensors in slot 1 names, and the positions in that list."""
    x, indices = op.shape(0), op.shape_list(1)
    picked = broadcast(*(i for i in indices if i))
    n = prod(picked) * prod(x[len(indices) :]) * prod(s for s, i in zip(x, indices, strict=False) if not i)
    return n, sum(prod(i) for i in indices if i)


@traced_as("aten::index_put", "aten::index_put_", "aten::_index_put_impl_", leaf_only=True, category="index")
def _index_put(op: OpSignature) -> Movement:
    """(x, list of index tensors, values, accumulate, ...): the values' size where the list's shapes are unknown."""
    accumulates, in_place = op.literal(3) is True, op.name != "aten::index_put"
    if not op.has(1) and op.has(2):
        n = prod(op.shape(2))
        return _put(op, ((n, op.dtype(2)),), n, n if accumulates else 0, in_place=in_place)
    n, looked_up = _indexed(op)
    values = (prod(op.shape_or_scalar(2)), op.dtype(2))
    return _put(op, (values, (looked_up, DType.INT64)), n, n if accumulates else 0, in_place=in_place)


@traced_as("aten::masked_select", "aten::nonzero", leaf_only=True, category="index")
def _selected(op: OpSignature) -> None:
    """How much is selected is not recorded."""
    return


_CONCATENATIONS = (
    "aten::cat", "aten::concat", "aten::stack", "aten::_cat", "aten::hstack", "aten::vstack", "aten::_chunk_cat",
    "aten::block_diag",
)  # fmt: skip
# Backward nodes that put the gradients they are given together again: one tensor of as many elements. The last one is
# TorchRec's (torchrec/distributed/comm_ops.py).
_REASSEMBLING = re.compile(
    r"^(?:(?:Unsafe)?(?:SplitWithSizes|Split|Chunk|TensorSplit|Unbind)Backward\d*|All2All_Pooled_WaitBackward)$"
)


@traced_as(*_CONCATENATIONS, leaf_only=True, asks=("kernel", "gradient", "caller"))
def _cat(op: OpSignature) -> Movement:
    """(list of tensors, dim), or (result, list, dim) with ``out=``: every element read and written once.

    Element types of lists are not recorded: the kernel says the type, or the width. Sizes of long lists are not
    either: there those of the result, of its gradient, or of the gradients that a split's backward is given.
    """
    launch, gradient, caller = launch_of(op), gradient_of(op), caller_of(op)
    dtype, element_bytes = copied_type(launch.kernel) if launch else (None, None)
    if dtype is None and element_bytes is None:
        given = caller.dtype(0) if caller and _REASSEMBLING.match(caller.name) else None
        dtype = op.dtype(0) or (gradient.dtype(0) if gradient else given)
    return _moved(_concatenated(op, gradient), dtype, element_bytes)


def _concatenated(op: OpSignature, gradient: OpSignature | None) -> Iterable[Shape]:
    """Shapes of as many elements as the result has: of the first list of tensors among the arguments, else of the first
    tensor, else of the calls around it.
    """
    for index, slot in enumerate(op.shapes or ()):
        if slot and isinstance(slot[0], tuple):
            return op.shape_list(index)
    if op.has(0):
        return (op.shape(0),)
    if gradient is not None:
        return (gradient.shape(0),)
    caller = caller_of(op)
    if caller is not None and caller.name in _CONCATENATIONS:
        return _concatenated(caller, None)
    if caller is not None and _REASSEMBLING.match(caller.name):
        return tuple(caller.shape(i) for i in range(len(caller.shapes or ())) if caller.has(i))
    return op.shape_list(0)


@traced_as("aten::_foreach_copy_", leaf_only=True, category="multi_tensor_apply", asks=("kernel",))
def _foreach_copy(op: OpSignature) -> Movement:
    """(destinations, sources, non_blocking)."""
    launch, n = launch_of(op), sum(prod(s) for s in op.shape_list(0))
    written, read = copied_list_types(launch.kernel) if launch else (None, None)
    return Movement(read=((n, read),), written=((n, written),))


@traced_as("aten::split_with_sizes_copy", "aten::pixel_shuffle", leaf_only=True)
def _rearranged(op: OpSignature) -> Movement:
    return _moved((op.shape(0),), op.dtype(0))


def _moved(shapes: Iterable[Shape], dtype: DType | None, element_bytes: int | None = None) -> Movement:
    n = sum(prod(s) for s in shapes)
    return Movement(read=((n, dtype),), written=((n, dtype),), element_bytes=element_bytes)


@traced_as("aten::arange", "aten::linspace", leaf_only=True)
def _arange(op: OpSignature) -> Movement | None:
    """(start, end, step, ..., out): known where the numbers are."""
    numbers = [op.literal(i) for i in range(3)]
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in numbers) or not numbers[2]:
        return None
    start, end, step = numbers
    n = max(0, -int(-(end - start) // step)) if op.name == "aten::arange" else int(step)
    dtype = op.dtype(3) if op.dtype_text(3) not in (None, "Scalar") else scalar_type(op.literal(3))
    return Movement(read=(), written=((n, dtype),))


class Sort(ModelRecord, category="sort", engine="none", family="Sort"):
    """``x`` sorted along a dim, or its ``results`` largest taken, with their positions.

    Comparisons are no floating-point operations, so flops = 0. bytes = x read once, values and 8-byte positions
    written: what any algorithm must move; a radix sort passes over the data several times.
    """

    shape: Shape
    results: int
    dtype: DType | None = DType.FP32

    def moved(self) -> Moved:
        return ((prod(self.shape) + self.results, self.dtype), (self.results, DType.INT64))


@traced_as("aten::sort", "aten::argsort", "aten::msort", leaf_only=True)
def _sort(op: OpSignature) -> Sort:
    shape = op.shape(0)
    return Sort(shape=shape, results=prod(shape), dtype=op.dtype(0))


@traced_as("aten::topk", leaf_only=True)
def _topk(op: OpSignature) -> Sort:
    """(x, k, dim, ...)."""
    shape, k = op.shape(0), op.integer(1, "k")
    dim = _at(op, 2, len(shape)) if op.literal(2) is not None else len(shape) - 1
    return Sort(shape=shape, results=_replaced(shape, dim, k), dtype=op.dtype(0))


@traced_as("aten::nll_loss_forward", "aten::nll_loss", "aten::nll_loss2d_forward", leaf_only=True, category="index")
def _nll_loss(op: OpSignature) -> Movement:
    """(log-probabilities, targets, ...): one log-probability per target."""
    n = prod(op.shape_or_scalar(1))
    return Movement(read=((n, op.dtype(0)), (n, op.dtype(1))), written=((1, op.dtype(0)),), added=n)


@traced_as("aten::nll_loss_backward", "aten::nll_loss2d_backward", leaf_only=True, category="index")
def _nll_loss_backward(op: OpSignature) -> Movement:
    """(dy, log-probabilities, targets, ...): one element per target; zeros are filled by an op of its own."""
    n = prod(op.shape_or_scalar(2))
    return Movement(read=((n, op.dtype(2)),), written=((n, op.dtype(1)),))


@traced_as("aten::im2col", leaf_only=True)
def _im2col(op: OpSignature) -> Movement:
    """(x [b,c,h,w] or [c,h,w], kernel_size, dilation, padding, stride): a column of the kernel's size per position."""
    x, sizes = op.shape(0), [op.literal(i) for i in range(1, 5)]
    for i, size in enumerate(sizes, 1):
        if not isinstance(size, list) or len(size) != 2 or not all(isinstance(n, int) for n in size):
            raise SignatureError(f"{op.name}: argument {i} is {size!r}, not two sizes")
    kernel, dilation, padding, stride = sizes
    positions = prod(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, d, p, s in zip(x[-2:], kernel, dilation, padding, stride, strict=True)
    )
    return Movement(read=((prod(x), op.dtype(0)),), written=((prod(x[:-2]) * prod(kernel) * positions, op.dtype(0)),))


@traced_as("aten::unfold_backward", leaf_only=True)
def _unfold_backward(op: OpSignature) -> Movement:
    """(dy, sizes of x, ...): every element of dy is added where it came from."""
    sizes, n = op.literal(1), prod(op.shape(0))
    if not isinstance(sizes, list):
        raise SignatureError(f"{op.name}: argument 1, the sizes of the result, was not recorded")
    return Movement(read=((n, op.dtype(0)),), written=((prod(sizes), op.dtype(0)),), added=n)


REPEATED_ROWS = "rows that several indices name count each time"


class PooledLookup(ModelRecord, category="index", family="Embedding", inferred=True):
    """Rows of ``width`` elements, one per index of ``looked_up``, summed into ``bags``; ``weighted`` ones scaled first.

    flops = one addition per element, two with weights. bytes = a row per index, the indices and where bags begin read,
    the bags written. Which rows several indices name is not recorded: each counts, and all together at most the
    ``table_elements`` of the tables, so the bytes are at most those that came from HBM; None where the tables' size is
    not known.
    ``row_state``: FP32 elements that an optimizer fused with the gradient keeps per row.
    """

    looked_up: int
    width: float
    bags: int
    weighted: bool = False
    dtype: DType | None = DType.FP16
    dtype_out: DType | None = DType.FP32
    dtype_index: DType | None = DType.INT64
    row_state: float = 1
    assumed: str = ""
    table_elements: int | None = None

    @property
    def at_most(self) -> str:
        return REPEATED_ROWS if self.looked_up > 1 else ""

    @property
    def _rows(self) -> float:
        """Rows that are read, at most."""
        if self.table_elements is None or not self.width:
            return self.looked_up
        return min(self.looked_up, self.table_elements / self.width)

    def flops(self) -> float:
        return (1 + self.weighted) * self.looked_up * self.width

    def moved(self) -> Moved:
        return (
            (self._rows * self.width, self.dtype),
            (self.looked_up + self.bags + 1, self.dtype_index),
            (self.looked_up * self.weighted, DType.FP32),
            (self.bags * self.width, self.dtype_out),
        )

    def backward(self) -> PooledLookupBackward:
        """The gradients of the same look-ups, applied to the rows."""
        return with_fields_of(self, PooledLookupBackward)


class PooledLookupBackward(PooledLookup):
    """The gradient of every bag added up per row, and the row and its optimizer state updated.

    flops per looked-up element = 1 to add up, 2 for the sum of squares (with a state), 2 for the update; with weights 1
    to scale and 2 for their own gradient. bytes = the bags' gradients and the indices read, every row and its state
    read and written.
    Sorting the indices, which implementations do first, is not counted.
    """

    def flops(self) -> float:
        return (3 + 2 * (self.row_state > 0) + 3 * self.weighted) * self.looked_up * self.width

    def moved(self) -> Moved:
        return (
            (2 * self._rows * self.width, self.dtype),
            (self.looked_up + self.bags + 1, self.dtype_index),
            (2 * (self.row_state * self._rows + self.weighted * self.looked_up), DType.FP32),
            (self.bags * self.width, self.dtype_out),
        )
