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
from typing import Any, ClassVar

from tracelens.errors import SignatureError
from tracelens.perf_models.base import PerfModel, distinct_elements, total_bytes, traced_as_pattern
from tracelens.perf_models.conv import Conv, convolved
from tracelens.perf_models.gemm import GEMM
from tracelens.perf_models.surroundings import GRID, launch_of
from tracelens.types.dtypes import DType
from tracelens.types.records import Record
from tracelens.types.signature import OpSignature, Shape
from tracelens.types.units import BYTES_PER_MB

# Operations per element of the iteration space, by ATen op name. Moving data is 0. A transcendental function counts as
# the handful of operations its polynomial takes; the convention is the one of existing reports of this kind.
_MOVED = (
    "view _unsafe_view reshape permute transpose t expand expand_as unsqueeze squeeze slice select split "
    "split_with_sizes chunk narrow cat stack clone copy copy_ _to_copy to alias detach detach_ embedding index gather "
    "index_select arange full full_like zeros zeros_like ones empty constant_pad_nd unbind scalar_tensor lift_fresh "
    "repeat flip roll as_strided new_zeros iota fill new_empty new_full new_ones empty_like ones_like rand randn "
    "rand_like randn_like randint index_put index_put_ _unsafe_index scatter as_strided_scatter slice_scatter "
    "select_scatter tril triu one_hot nll_loss_forward sort argsort topk unfold transpose_copy squeeze_copy "
    "_unsafe_index_put lift_fresh_copy diagonal movedim contiguous flatten view_as_complex view_as_real eye linspace "
    "reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d "
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d pixel_shuffle pixel_unshuffle im2col "
    "inductor_seeds inductor_lookup_seed inductor_random inductor_randint _reshape_alias split_copy "
    "split_with_sizes_copy slice_backward select_backward embedding_dense_backward max_pool2d_with_indices_backward "
    "index_fill masked_scatter device_put scalar_tensor sym_size item _local_scalar_dense"
)
_ONE = (
    "add sub rsub mul neg abs relu where maximum minimum fmax fmin clamp clamp_min clamp_max eq ne lt le gt ge sum "
    "mean amax amin max min logical_and logical_or logical_not logical_xor bitwise_and bitwise_or masked_fill "
    "threshold_backward any all sign sgn floor ceil round trunc frac remainder fmod isnan isinf isfinite bitwise_not "
    "bitwise_xor bitwise_left_shift bitwise_right_shift __and__ __or__ hardtanh hardtanh_backward leaky_relu "
    "leaky_relu_backward relu6 native_dropout bernoulli cumsum cumprod scatter_add scatter_reduce index_add prod "
    "argmax argmin count_nonzero floor_divide square copysign signbit nan_to_num hypot "
    "mm addmm bmm baddbmm _scaled_mm _int_mm convolution max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d "
    "nll_loss_backward l1_loss"
)
# The products above run in kernels of their own: in a fused name they stand for the bias that was added here.
_TWO = (
    "pow rsqrt sqrt reciprocal div addcmul addcdiv linalg_vector_norm mse_loss mse_loss_backward lerp aminmax "
    "hardsigmoid hardsigmoid_backward smooth_l1_loss huber_loss"
)
_FOUR = (
    "exp log sigmoid silu sin cos tan asin acos atan atan2 sinh cosh tanh log1p log2 log10 exp2 expm1 erf erfc erfinv "
    "var_mean var std std_mean logsumexp sigmoid_backward tanh_backward log_sigmoid_forward log_sigmoid_backward "
    "_softmax_backward_data _log_softmax_backward_data hardswish hardswish_backward softplus softplus_backward elu "
    "elu_backward celu selu mish logaddexp prepare_softmax_online upsample_bilinear2d _upsample_bilinear2d_aa "
    "grid_sampler_2d binary_cross_entropy_with_logits"
)
_FIVE = (
    "_softmax softmax _log_softmax log_softmax native_layer_norm native_group_norm native_batch_norm "
    "_native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training "
    "_fused_rms_norm rms_norm silu_backward"
)
_NINE = "native_layer_norm_backward native_batch_norm_backward native_group_norm_backward _fused_rms_norm_backward"
# Ops that run in kernels of their own; in a fused name they say whose operands or results the kernel arranges.
_ELSEWHERE = (
    "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_fused_attention_overrideable _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention_backward "
    "_scaled_dot_product_cudnn_attention_backward _scaled_dot_product_fused_attention_overrideable_backward "
    "_scaled_dot_product_attention_math scaled_dot_product_attention _flash_attention_forward "
    "_flash_attention_backward _efficient_attention_forward _efficient_attention_backward flex_attention "
    "flex_attention_backward convolution_backward _grouped_mm _scaled_grouped_mm all_reduce "
    "all_gather_into_tensor reduce_scatter_tensor all_to_all_single wait_tensor"
)
FLOPS_PER_ELEMENT: dict[str, int] = {
    name: flops
    for flops, names in (
        (0, _MOVED),
        (0, _ELSEWHERE),
        (1, _ONE),
        (2, _TWO),
        (4, _FOUR),
        (5, _FIVE),
        (8, "gelu"),
        (9, _NINE),
        (10, "gelu_backward"),
    )
    for name in names.split()
}
# Of any of these names, which no look-up need be longer than.
_MOST_WORDS = max(name.count("_") for name in FLOPS_PER_ELEMENT) + 1
#: Ops that only place data somewhere else.
MOVES = frozenset(_MOVED.split())
# Ops that make a tensor of nothing.
_MADE = (
    "arange full full_like zeros zeros_like ones empty scalar_tensor new_zeros iota fill new_empty new_full new_ones "
    "empty_like ones_like rand randn rand_like randn_like randint eye linspace inductor_seeds inductor_random "
    "inductor_randint"
)
_OF_ONE_TENSOR = (
    "neg abs relu clamp clamp_min clamp_max sign sgn floor ceil round trunc frac isnan isinf isfinite bitwise_not "
    "logical_not hardtanh leaky_relu relu6 square rsqrt sqrt reciprocal exp log sigmoid silu sin cos tan tanh log1p "
    "log2 log10 exp2 expm1 erf erfc hardswish hardsigmoid softplus elu gelu mish nan_to_num"
)
MAKES, UNARY = frozenset(_MADE.split()), frozenset(_OF_ONE_TENSOR.split())
# Ops that write where an index says: into a tensor of any size.
_SCATTERED = (
    "index_put index_put_ _unsafe_index_put scatter scatter_add scatter_reduce index_add index_fill masked_scatter "
    "embedding_dense_backward max_pool2d_with_indices_backward"
)
SCATTERS = frozenset(_SCATTERED.split())
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


class FusedKernel(PerfModel, Record, frozen=True, kw_only=True):
    """A Triton kernel over one iteration space.

    flops = iterations * (sum over the fused ops), from the ops that the kernel's name lists; None when it lists one
    that the table lacks, as a user's kernel does. bytes = ``operands``, what the arguments say is moved at least;
    ``most`` where they leave open whether more is (``traffic``). ``recorded_flops`` and
    ``recorded_bytes`` are the compiler's own figures (``kernel_flop``, ``kernel_num_gb``; torch >= 2.4, where enabled),
    which win.
    """

    category: ClassVar[str] = "triton"
    inferred: ClassVar[bool] = True

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
    return _made(op, tensors, moved, ops=None, xnumel=None, rnumel=1)


def _made(
    op: OpSignature,
    tensors: tuple[Argument, ...],
    moved: KernelTraffic,
    *,
    ops: tuple[str, ...] | None,
    xnumel: int | None,
    rnumel: int,
) -> FusedKernel:
    gigabytes, flop = op.attribute("kernel_num_gb"), op.attribute("kernel_flop")
    return FusedKernel(
        ops=ops,
        xnumel=xnumel,
        rnumel=rnumel,
        operands=moved.least,
        most=moved.most,
        dtype=tensors[0].dtype,
        recorded_flops=int(flop) if isinstance(flop, int | float) and flop > 0 else None,
        recorded_bytes=int(gigabytes * 1e9) if isinstance(gigabytes, int | float) and gigabytes > 0 else None,
    )
