"""What the recorded arguments of a kernel that Inductor generated say: how often it iterates, and what it moves.

Inductor passes tensors that are updated in place, then those only read, then those only written; then sizes that
dynamic shapes need (``ks0``, ``ks1``, an offset of random numbers), and last the sizes of its iteration space:
``[znumel, [ynumel,]] xnumel`` and, of reductions, ``r0_numel [, r1_numel]``
(``torch/_inductor/codegen/common.py``, ``KernelArgs.python_argdefs``; ``simd.py``, ``SIMDKernel``). Newer versions
leave sizes out that are constant.
"""

from __future__ import annotations

import math

from tracelens.dtypes import DType
from tracelens.errors import SignatureError
from tracelens.lazy.patterns import lazy_pattern
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import distinct_elements, total_bytes
from tracelens.perf_models.generated.fused_names import MAKES, MOVES, PRODUCTS, SCATTERS, UNARY
from tracelens.perf_models.surroundings import launch_of
from tracelens.signature import OpSignature, Shape

#: The tile sizes that a kernel was compiled with, one per dim of its iteration space but for persistent reductions'.
TILES = "kernel_kwargs"
_PARALLEL_TILE = lazy_pattern(r"\b[XYZ]BLOCK=")
_REDUCED_TILE = lazy_pattern(r"\bR(?:\d_)?BLOCK=")
_MOST_DIMS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """A tensor argument; ``elements`` are the distinct ones in memory."""

    shape: Shape
    elements: int
    dtype: DType | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Iterations:
    """``results`` points, each over ``reduced`` elements; where not ``recorded``, what the tensors make likely."""

    results: int
    reduced: int = 1
    recorded: bool = True

    @property
    def total(self) -> int:
        return self.results * self.reduced


def arguments(op: OpSignature) -> tuple[Argument, ...]:
    """The tensors among the recorded arguments. SignatureError where there is none."""
    if op.shapes is None:
        raise SignatureError(f"{op.name}: the trace has no shapes (record_shapes=True was not set)")
    found = [i for i in range(len(op.shapes)) if op.has(i) and not isinstance(op.shapes[i][0], tuple)]
    if not found:
        raise SignatureError(f"{op.name}: no tensor was recorded")
    return tuple(
        Argument(shape=op.shape(i), elements=distinct_elements(op.shape(i), op.stride(i)), dtype=op.dtype(i))
        for i in found
    )


def iterations(op: OpSignature, tensors: tuple[Argument, ...], *, reduces: bool) -> Iterations:
    """The iteration space of a pointwise kernel or, where it ``reduces``, of a reduction.

    SignatureError where the recorded sizes do not say it.
    """
    sizes = [v for i in range(len(op.shapes or ())) if not op.has(i) and isinstance(v := op.literal(i), int)]
    sizes = [size for size in sizes if not isinstance(size, bool)]
    if not sizes:
        return _of_tensors(op, tensors, reduces)
    if reduces:
        return _reduction(op, sizes, tensors)
    return Iterations(results=math.prod(sizes[-_pointwise_dims(op, sizes, tensors) :]))


def _pointwise_dims(op: OpSignature, sizes: list[int], tensors: tuple[Argument, ...]) -> int:
    """How many of the last ``sizes`` span the iteration space: as many as tiles, else as fit a tensor written."""
    tiles = op.attribute(TILES)
    if isinstance(tiles, str) and (dims := len(_PARALLEL_TILE.findall(tiles))):
        return min(dims, len(sizes))
    ends = {tensors[0].elements, tensors[-1].elements}
    for dims in range(1, min(_MOST_DIMS, len(sizes)) + 1):
        if math.prod(sizes[-dims:]) in ends:
            return dims
    if len(sizes) == 1:
        return 1
    if (launch := launch_of(op)) is not None and launch.grid is not None:
        return min(len(sizes), 1 + sum(blocks > 1 for blocks in launch.grid[1:]))
    raise SignatureError(f"{op.name}: which of the sizes {sizes} span the iteration space was not recorded")


def _reduction(op: OpSignature, sizes: list[int], tensors: tuple[Argument, ...]) -> Iterations:
    tiles = op.attribute(TILES)
    reduced = max(1, len(_REDUCED_TILE.findall(tiles))) if isinstance(tiles, str) else 1
    if len(sizes) > reduced:
        return Iterations(results=sizes[-1 - reduced], reduced=math.prod(sizes[-reduced:]))
    most = max(t.elements for t in tensors)
    if sizes[-1] <= 0 or most % sizes[-1]:
        raise SignatureError(f"{op.name}: of its sizes only {sizes} were recorded")
    is_results = any(t.elements == sizes[-1] for t in tensors[1:])
    results = sizes[-1] if is_results else most // sizes[-1]
    return Iterations(results=results, reduced=most // max(results, 1))


def _of_tensors(op: OpSignature, tensors: tuple[Argument, ...], reduces: bool) -> Iterations:
    """Where no size was recorded: a pointwise kernel writes its last tensor, or its first where the last broadcasts."""
    first, last = tensors[0], tensors[-1]
    if reduces:
        raise SignatureError(f"{op.name}: no iteration size was recorded")
    broadcast = last.elements < first.elements and first.shape[-len(last.shape) :] == last.shape
    return Iterations(results=(first if broadcast else last).elements, recorded=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """(elements, type) moved: at least, and at most where the arguments leave it open; None where they do not."""

    least: tuple[tuple[int, DType | None], ...]
    most: tuple[tuple[int, DType | None], ...] | None = None


def traffic(tensors: tuple[Argument, ...], space: Iterations, ops: tuple[str, ...] | None, *, reduces: bool) -> Traffic:
    """What a kernel over ``space`` moves of its ``tensors``.

    One load or store per iteration and tensor: a slice of a large tensor counts as far as the iterations go. How many
    slices of one tensor are loaded is not recorded, so the whole is the most. A tensor updated in place is read and
    written.
    """
    rows = {i: n for i in range(len(tensors)) if (n := _looked_up(tensors, i)) is not None}
    least, most = [], []
    for i, tensor in enumerate(tensors):
        whole = rows.get(i, tensor.elements)
        moved = min(whole, space.total) if space.recorded else whole
        least.append((moved, tensor.dtype))
        most.append((whole if _may_be_sliced(ops) else moved, tensor.dtype))
    updates = updates_first(tensors, space, ops, reduces=reduces)
    if updates is not False:
        most.append(most[0])
    if updates:
        least.append(least[0])
    return Traffic(least=tuple(least), most=None if total_bytes(*least) == total_bytes(*most) else tuple(most))


_LOOKS_UP = frozenset({"embedding", "gather", "index", "index_select", "_unsafe_index"})


def _may_be_sliced(ops: tuple[str, ...] | None) -> bool:
    """A look-up reads one element per iteration, and a slice that is only moved as well."""
    return ops is None or not (_LOOKS_UP & set(ops) or set(ops) <= MOVES)


def _looked_up(tensors: tuple[Argument, ...], table: int) -> int | None:
    """Elements read of a table of rows: as many rows as an integer tensor has positions, where a result shows them."""
    shape = tensors[table].shape
    if len(shape) != 2:
        return None
    for i, positions in enumerate(tensors):
        if i == table or positions.dtype not in (DType.INT64, DType.INT32) or positions.elements >= shape[0]:
            continue
        read = positions.elements * shape[1]
        if any(t.elements == read and t.shape[-1] == shape[1] for j, t in enumerate(tensors) if j not in (i, table)):
            return read
    return None


def updates_first(
    tensors: tuple[Argument, ...], space: Iterations, ops: tuple[str, ...] | None, *, reduces: bool
) -> bool | None:
    """Whether the first tensor is updated in place; None where the recorded arguments do not say.

    Only the last tensors are written alone. So where the last cannot hold a result, the first one does. A product's
    flat result that the kernel reads as a view, and the second operand of a gated activation, are no results either.
    """
    first, last = tensors[0], tensors[-1]
    if not _may_hold_result(first, space, reduces):
        return False
    if len(tensors) == 1:
        return None if ops is None else not set(ops) <= MAKES
    if ops is not None and SCATTERS & set(ops):
        return None
    if not _may_hold_result(last, space, reduces):
        return True
    return None if ops is None else _ops_update_first(tensors, space, ops, reduces=reduces)


def _ops_update_first(
    tensors: tuple[Argument, ...], space: Iterations, ops: tuple[str, ...], *, reduces: bool
) -> bool | None:
    """What the ops say where the first tensor and the last could both hold a result."""
    first, last = tensors[0], tensors[-1]
    if last.elements == first.elements and len(first.shape) > len(last.shape) and _reads_product(ops):
        return True
    arithmetic = set(ops) - MOVES
    full = sum(t.elements >= space.total for t in tensors)
    if full == 2 and not reduces:
        if arithmetic <= UNARY:
            return False
        if "mul" in arithmetic and len(arithmetic) == 2 and arithmetic & {"silu", "gelu"}:
            return first.elements == last.elements == space.total
    return None


def _may_hold_result(tensor: Argument, space: Iterations, reduces: bool) -> bool:
    """A kernel writes an element per iteration or, of a reduction, per result; into a part of a larger tensor too."""
    return tensor.elements >= space.total or (reduces and tensor.elements == space.results)


def _reads_product(ops: tuple[str, ...]) -> bool:
    return "_unsafe_view" in ops or ("view" in ops and bool(PRODUCTS & set(ops)))
