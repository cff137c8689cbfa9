"""Triton kernels with recorded arguments: what torch.compile fused or made from its templates, and users' own.

Their recorded arguments say how often a kernel iterates and what it moves. Inductor passes tensors that are updated in
place, then those only read, then those only written; then sizes that dynamic shapes need (``ks0``, ``ks1``, an offset
of random numbers), and last the sizes of its iteration space:
``[znumel, [ynumel,]] xnumel`` and, of reductions, ``r0_numel [, r1_numel]``
(``torch/_inductor/codegen/common.py``, ``KernelArgs.python_argdefs``; ``simd.py``, ``SIMDKernel``). Newer versions
leave sizes out that are constant.
"""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

import orjson

from tracelens.errors import SignatureError
from tracelens.perf_models.base import ModelRecord, distinct_elements, total_bytes, traced_as_pattern
from tracelens.perf_models.conv import Conv, convolved
from tracelens.perf_models.gemm import GEMM
from tracelens.perf_models.surroundings import GRID, launch_of
from tracelens.types.dtypes import DType
from tracelens.types.records import Record
from tracelens.types.signature import OpSignature, Shape
from tracelens.types.units import BYTES_PER_MB

_OPS = orjson.loads(Path(__file__).with_name("inductor_ops.json").read_bytes())
#: Ops that only place data somewhere else; that make a tensor of nothing; that take one tensor; that write where an
#: index says, into a tensor of any size.
MOVES, MAKES, UNARY, SCATTERS = (frozenset(_OPS[kind]) for kind in ("moves", "makes", "unary", "scatters"))
#: Operations per element of the iteration space, by ATen op name. Moving data is 0. A transcendental function counts as
#: the handful of operations its polynomial takes; the convention is the one of existing reports of this kind. Products
#: run in kernels of their own: in a fused name they stand for the bias that was added (1); so does what runs
#: ``elsewhere``, and says whose operands or results the kernel arranges (0).
FLOPS_PER_ELEMENT: dict[str, int] = dict.fromkeys((*_OPS["moves"], *_OPS["elsewhere"]), 0) | {
    name: int(flops) for flops, names in _OPS["flops_per_element"].items() for name in names
}
# Of any of these names, which no look-up need be longer than.
_MOST_WORDS = max(name.count("_") for name in FLOPS_PER_ELEMENT) + 1
#: Products, which leave a flat result that a fused kernel reads as a view of more dims.
PRODUCTS = frozenset({"mm", "addmm", "_scaled_mm", "_int_mm"})
_PREFIX = re.compile(r"^triton_(?:poi|red|per|spl)_fused_(?P<ops>.*?)(?:_\d+)?$")


def fused_ops(name: str) -> tuple[str, ...] | None:
    """The ATen ops in a kernel's name; None when a part is not in the table.

    >>> fused_ops("triton_poi_fused__unsafe_view_mul_silu_2")
    ('_unsafe_view', 'mul', 'silu')
    """
    match = _PREFIX.match(name)
    if match is None:
        return None
    words = match["ops"].split("_")
    ops: list[str] = []
    start = 0
    while start < len(words):
        for end in range(min(start + _MOST_WORDS, len(words)), start, -1):
            op = "_".join(words[start:end])
            if op in FLOPS_PER_ELEMENT:
                ops.append(op)
                start = end
                break
        else:
            return None
    return tuple(ops)


#: The tile sizes that a kernel was compiled with, one per dim of its iteration space but for persistent reductions'.
TILES = "kernel_kwargs"
_PARALLEL_TILE = re.compile(r"\b[XYZ]BLOCK=")
_REDUCED_TILE = re.compile(r"\bR(?:\d_)?BLOCK=")
_MOST_DIMS = 3


class Argument(Record, frozen=True, kw_only=True):
    """A tensor argument; ``elements`` are the distinct ones in memory."""

    shape: Shape
    elements: int
    dtype: DType | None


class Iterations(Record, frozen=True, kw_only=True):
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
        # Where no size was recorded: a pointwise kernel writes its last tensor, or its first where the last
        # broadcasts
        first, last = tensors[0], tensors[-1]
        if reduces:
            raise SignatureError(f"{op.name}: no iteration size was recorded")
        broadcast = last.elements < first.elements and first.shape[-len(last.shape) :] == last.shape
        return Iterations(results=(first if broadcast else last).elements, recorded=False)
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


class KernelTraffic(Record, frozen=True, kw_only=True):
    """(elements, type) moved: at least, and at most where the arguments leave it open; None where they do not."""

    least: tuple[tuple[int, DType | None], ...]
    most: tuple[tuple[int, DType | None], ...] | None = None


def traffic(
    tensors: tuple[Argument, ...], space: Iterations, ops: tuple[str, ...] | None, *, reduces: bool
) -> KernelTraffic:
    """What a kernel over ``space`` moves of its ``tensors``.

    One load or store per iteration and tensor: a slice of a large tensor counts as far as the iterations go. How many
    slices of one tensor are loaded is not recorded, so the whole is the most. A tensor updated in place is read and
    written.
    """
    # A look-up reads one element per iteration, and a slice that is only moved as well.
    may_be_sliced = ops is None or not (_LOOKS_UP & set(ops) or set(ops) <= MOVES)
    rows = {i: n for i in range(len(tensors)) if (n := _looked_up(tensors, i)) is not None}
    least, most = [], []
    for i, tensor in enumerate(tensors):
        whole = rows.get(i, tensor.elements)
        moved = min(whole, space.total) if space.recorded else whole
        least.append((moved, tensor.dtype))
        most.append((whole if may_be_sliced else moved, tensor.dtype))
    updates = updates_first(tensors, space, ops, reduces=reduces)
    if updates is not False:
        most.append(most[0])
    if updates:
        least.append(least[0])
    return KernelTraffic(least=tuple(least), most=None if total_bytes(*least) == total_bytes(*most) else tuple(most))


_LOOKS_UP = frozenset({"embedding", "gather", "index", "index_select", "_unsafe_index"})


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
    reads_product = "_unsafe_view" in ops or ("view" in ops and bool(PRODUCTS & set(ops)))
    if last.elements == first.elements and len(first.shape) > len(last.shape) and reads_product:
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


#: The attribute that says which compiler made a kernel.
BACKEND, TRITON = "kernel_backend", "triton"


class FusedKernel(ModelRecord, category="triton", inferred=True):
    """A Triton kernel over one iteration space.

    flops = iterations * (sum over the fused ops), from the ops that the kernel's name lists; None when it lists one
    that the table lacks, as a user's kernel does. bytes = ``operands``, what the arguments say is moved at least;
    ``most`` where they leave open whether more is (``traffic``). ``recorded_flops`` and
    ``recorded_bytes`` are the compiler's own figures (``kernel_flop``, ``kernel_num_gb``; torch >= 2.4, where enabled),
    which win.
    """

    ops: tuple[str, ...] | None
    xnumel: int | None
    rnumel: int = 1
    operands: tuple[tuple[int, DType | None], ...] = ()
    most: tuple[tuple[int, DType | None], ...] | None = None
    dtype: DType | None = None
    recorded_flops: int | None = None
    recorded_bytes: int | None = None

    def flops(self) -> int | None:
        if self.recorded_flops is not None:
            return self.recorded_flops
        if self.ops is None or self.xnumel is None:
            return None
        return self.xnumel * self.rnumel * sum(FLOPS_PER_ELEMENT[op] for op in self.ops)

    def hbm_bytes(self) -> int | float | None:
        return self.recorded_bytes if self.recorded_bytes is not None else total_bytes(*self.operands)

    def parameters(self) -> dict[str, Any]:
        fused = None if self.ops is None else ", ".join(f"aten.{op}" for op in self.ops)
        most = None if self.most is None or self.recorded_bytes is not None else total_bytes(*self.most)
        at_most = {} if most is None else {"hbm_mb_at_most": most / BYTES_PER_MB}
        return {"fused_ops": fused, "xnumel": self.xnumel, "rnumel": self.rnumel, **at_most}


@traced_as_pattern(r"^triton_(poi|red|per|spl)_fused", asks=(GRID,))
def _inductor(op: OpSignature) -> FusedKernel:
    """Tensors, sizes of dynamic shapes, then the sizes of the iteration space."""
    tensors, ops = arguments(op), fused_ops(op.name)
    reduces = not op.name.startswith("triton_poi")
    space = iterations(op, tensors, reduces=reduces)
    if space.total <= 0:
        raise SignatureError(f"{op.name}: an iteration space of {space.results} x {space.reduced} was recorded")
    moved = traffic(tensors, space, ops, reduces=reduces)
    return _made(op, tensors, moved, ops=ops, xnumel=space.results, rnumel=space.reduced)


@traced_as_pattern(r"^triton_tem_fused\w*?_(addmm|baddbmm|bmm|mm)(_|$)", category=FusedKernel.category)
def _template_product(op: OpSignature) -> GEMM:
    """Inductor's own matrix product: A [(b,) m, k], B [(b,) k, n] and the result, which is the last tensor."""
    *operands, out = arguments(op)
    *batch, m, n = out.shape if len(out.shape) > 1 else (0, 0)
    for a, b in itertools.permutations(operands, 2):
        x, w = a.shape, b.shape
        if len(x) == len(w) == len(out.shape) and x[-2] == m and w[-1] == n and x[-1] == w[-2] and [*x[:-2]] == batch:
            return GEMM(b=math.prod(batch), m=m, n=n, k=x[-1], dtype=a.dtype, dtype_b=b.dtype, dtype_out=out.dtype)
    raise SignatureError(f"{op.name}: no two tensors multiply to the last one")


@traced_as_pattern(r"^triton_tem_fused\w*?_convolution(_|$)", category=FusedKernel.category)
def _template_convolution(op: OpSignature) -> Conv:
    """Inductor's own convolution: x [b, c, ...], weight [k, c / groups, ...] and the result, which is the last tensor.

    Stride and padding are compiled in: the result's size stands for them.
    """
    *operands, out = arguments(op)
    for x, w in itertools.permutations(operands, 2):
        fits = len(x.shape) == len(w.shape) == len(out.shape) > 2
        if fits and out.shape[:2] == (x.shape[0], w.shape[0]) and w.shape[1] and x.shape[1] % w.shape[1] == 0:
            return convolved(x.shape, w.shape, out.shape, (x.dtype, w.dtype, out.dtype))
    raise SignatureError(f"{op.name}: no two tensors convolve to the last one")


@traced_as_pattern(r"^triton_for_fused")
def compiled_kernel(op: OpSignature) -> FusedKernel:
    """A Triton kernel of which no size is known: a user's own in a compiled region, whose name says nothing, or one
    pointwise kernel over many tensors. Its FLOPs only where recorded.
    """
    tensors = arguments(op)
    moved = KernelTraffic(least=tuple((t.elements, t.dtype) for t in tensors))
    return _made(op, tensors, moved, ops=None, xnumel=None)


def _made(op: OpSignature, tensors: tuple[Argument, ...], moved: KernelTraffic, **fields: Any) -> FusedKernel:
    """A kernel that moves so much, with what the compiler recorded of it; ``fields`` are FusedKernel's others."""
    gigabytes, flop = op.attribute("kernel_num_gb"), op.attribute("kernel_flop")
    return FusedKernel(
        **fields,
        operands=moved.least,
        most=moved.most,
        dtype=tensors[0].dtype,
        recorded_flops=int(flop) if isinstance(flop, int | float) and flop > 0 else None,
        recorded_bytes=int(gigabytes * 1e9) if isinstance(gigabytes, int | float) and gigabytes > 0 else None,
    )
