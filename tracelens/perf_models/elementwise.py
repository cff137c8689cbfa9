"""Operations on every element of tensors or lists: pointwise, copies, dropout, quantization, optimizer steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import ceil, prod
from typing import Any, ClassVar

from tracelens.errors import SignatureError
from tracelens.perf_models.base import (
    ModelRecord,
    Moved,
    Shown,
    Slot,
    aten,
    bind,
    distinct_elements,
    number,
    recorded_as,
    recorded_call,
    scalar_type,
    traced_as,
    traced_name,
)
from tracelens.perf_models.surroundings import KERNEL, filled_type, launch_of, list_type
from tracelens.types.dtypes import DType
from tracelens.types.records import Record
from tracelens.types.signature import OpSignature, Shape


class Operand(Record, frozen=True, kw_only=True):
    """A tensor that an operation reads or writes. ``dtype`` and ``stride`` are None when not recorded.

    A ``number`` is a Python scalar in a tensor's place: it costs no memory traffic.
    """

    shape: Shape
    dtype: DType | None
    stride: Shape | None = None
    number: bool = False

    @property
    def elements(self) -> int:
        """Distinct elements in memory: a dim of stride 0 repeats one."""
        if self.number:
            return 0
        return distinct_elements(self.shape, self.stride)


def broadcast(*shapes: Shape) -> Shape:
    """The shape that ``shapes`` broadcast to. SignatureError when they do not.

    >>> broadcast((8, 1, 3), (5, 1), ())
    (8, 5, 3)
    """
    rank = max((len(s) for s in shapes), default=0)
    out = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, start=rank - len(shape)):
            if size != 1 and out[i] not in (1, size):
                raise SignatureError(f"shapes {[list(s) for s in shapes]} do not broadcast")
            out[i] = out[i] if size == 1 else size
    return tuple(out)


class Elementwise(ModelRecord, category="elementwise", family="Elementwise"):
    """``shape`` is computed element by element from ``inputs`` into ``outputs``.

    flops = flops_per_element per element of ``shape``: 1 for arithmetic, comparisons and functions of one argument
    alike, 0 for copies and fills. bytes = one read of each input, one write of each output; an element that a stride
    of 0 or broadcasting repeats is read once.
    """

    shape: Shape
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    flops_per_element: int = 1

    def flops(self) -> int:
        return self.flops_per_element * prod(self.shape)

    def moved(self) -> Moved:
        return tuple((o.elements, o.dtype) for o in (*self.inputs, *self.outputs))

    @property
    def compute_dtype(self) -> DType | None:
        """That of the first floating-point operand, else of the first operand."""
        dtypes = [o.dtype for o in (*self.inputs, *self.outputs)]
        return next((d for d in dtypes if d is not None and d.is_floating), dtypes[0] if dtypes else None)

    def parameters(self) -> dict[str, Any]:
        return {
            "op_shape": self.shape,
            "dtype_in": tuple(traced_name(o.dtype) for o in self.inputs),
            "dtype_out": tuple(traced_name(o.dtype) for o in self.outputs),
        }


class UnaryElementwise(Elementwise, family="UnaryElementwise"):
    """One tensor in, one of the same shape out."""

    def parameters(self) -> dict[str, Any]:
        (read,), (written,) = self.inputs, self.outputs
        resampled = {} if read.shape in ((), self.shape) else {"input_shape": read.shape, "output_shape": self.shape}
        return {
            "op_shape": self.shape, "dtype_in_out": (traced_name(read.dtype), traced_name(written.dtype)),
            "stride_input": read.stride, "stride_output": written.stride, **resampled,
        }  # fmt: skip


class BinaryElementwise(Elementwise, family="BinaryElementwise"):
    """Two tensors in, one of their broadcast shape out; a Python number counts as a tensor of no bytes."""

    def parameters(self) -> dict[str, Any]:
        (a, b), (written,) = self.inputs, self.outputs
        return {
            "shape_in1": a.shape, "shape_in2": b.shape,
            "dtype_in1_in2_out": tuple(traced_name(o.dtype) for o in (a, b, written)),
            "stride_input1": a.stride, "stride_input2": b.stride, "stride_output": written.stride,
        }  # fmt: skip


def operand(op: OpSignature, index: int) -> Operand:
    """Slot ``index`` of a recorded call: a tensor, 0-dim ones included, or a number. SignatureError for a list."""
    if op.shapes is not None and index < len(op.shapes) and not op.shapes[index]:
        number = op.dtype_text(index) in (None, "Scalar")
        return Operand(shape=(), dtype=op.dtype(index), stride=(), number=number)
    return Operand(shape=op.shape(index), dtype=op.dtype(index), stride=op.stride(index))


def promoted(operands: Sequence[Operand]) -> DType | None:
    """The element type of a result, as torch promotes; None when an operand's is unknown.

    A 0-dim tensor counts only where its kind is higher than that of every sized one; a number keeps the others' type.
    Among 0-dim tensors alone the first of the highest kind decides: the others may be Python numbers, which some
    traces record as 0-dim tensors.
    """
    tensors = [o for o in operands if not o.number]
    known = [(o.dtype, bool(o.shape)) for o in tensors if o.dtype is not None]
    if not tensors or len(known) < len(tensors):
        return None
    highest = max(_kind(dtype) for dtype, _ in known)
    sized = [dtype for dtype, is_sized in known if is_sized and _kind(dtype) == highest]
    if not sized:
        return next(dtype for dtype, _ in known if _kind(dtype) == highest)
    if {DType.BF16, DType.FP16} <= set(sized):
        sized.append(DType.FP32)
    return max(sized, key=lambda d: d.bits)


def _kind(dtype: DType) -> int:
    """0 bool, 1 integer, 2 floating, 3 complex."""
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating else 0 if dtype is DType.BOOL else 1


def unary(
    op: OpSignature, *, flops: int = 1, dtype_out: DType | None = None, out: int | None = None
) -> UnaryElementwise:
    """A function of the first tensor alone, into tensor ``out``, else a dense one of its shape (in place: itself)."""
    read = operand(op, 0)
    in_place = op.name.endswith("_")
    written = (
        operand(op, out)
        if out is not None
        else Operand(shape=read.shape, dtype=dtype_out or read.dtype, stride=read.stride if in_place else None)
    )
    return UnaryElementwise(shape=read.shape, inputs=(read,), outputs=(written,), flops_per_element=flops)


def binary(
    op: OpSignature, *, a: int = 0, b: int = 1, out: int | None = None, dtype_out: DType | None = None
) -> BinaryElementwise:
    """A function of slots ``a`` and ``b``, tensors or numbers; in place into ``a``, else into ``out`` or a new one."""
    left, right = operand(op, a), operand(op, b)
    shape = broadcast(left.shape, right.shape)
    if out is not None and op.has(out):
        written = operand(op, out)
    elif op.name.endswith("_"):
        written = left
    else:
        written = Operand(shape=shape, dtype=dtype_out or promoted((left, right)))
    return BinaryElementwise(shape=shape, inputs=(left, right), outputs=(written,))


#: Operations per element of ``activation(left) * right``, by the name that every library gives such an op.
_GATED_FLOPS = {"silu_and_mul": 5, "gelu_and_mul": 8, "gelu_tanh_and_mul": 10, "silu_and_mul_quant": 6}


def gated(op: OpSignature, out: int = 0, x: int = 1) -> UnaryElementwise:
    """``activation(left half of x) * right half``, into ``out``; the op's name says which activation."""
    written, read = operand(op, out), operand(op, x)
    if prod(read.shape) != 2 * prod(written.shape):
        raise SignatureError(
            f"{op.name}: input {x} should be twice as wide as {list(written.shape)}, the trace recorded "
            f"{list(read.shape)}"
        )
    return UnaryElementwise(
        shape=written.shape,
        inputs=(read,),
        outputs=(written,),
        flops_per_element=_GATED_FLOPS[op.name.rpartition("::")[2]],
    )


def pointwise(
    op: OpSignature, *, reads: tuple[int, ...], flops: int = 1, typed_by: tuple[int, ...] | None = None
) -> Elementwise:
    """A function of slots, in place into the first, else into a new tensor of the type of those ``typed_by``."""
    read = {slot: operand(op, slot) for slot in reads}
    shape = broadcast(*(o.shape for o in read.values()))
    dtype = promoted([read[slot] for slot in typed_by or reads])
    written = read[reads[0]] if op.name.endswith("_") else Operand(shape=shape, dtype=dtype)
    return Elementwise(shape=shape, inputs=tuple(read.values()), outputs=(written,), flops_per_element=flops)


@traced_as(
    *aten("clamp_min clamp_max", "", "_"),
    *aten("sigmoid rsqrt silu neg pow"),
)  # fmt: skip
@traced_as(
    *aten(
        "abs exp exp2 expm1 log log2 log10 log1p sqrt reciprocal sin cos tan asin acos atan sinh cosh tanh erf "
        "erfc erfinv ceil floor round trunc frac sign relu clamp hardtanh hardswish hardsigmoid leaky_relu elu "
        "mish gelu nan_to_num triu tril threshold sgn",
        "", "_",
    ),
    *aten(
        "sigmoid_ rsqrt_ silu_ neg_ pow_ square relu6 celu selu softplus log_sigmoid log_sigmoid_forward "
        "bitwise_not rsub positive logit conj_physical asinh acosh atanh hardshrink softshrink lgamma"
    ),
    leaf_only=True,
)  # fmt: skip
def _unary(op: OpSignature) -> UnaryElementwise | BinaryElementwise:
    """A second tensor is the result's (``out=``), but for ops that take a number or another operand there."""
    if op.name.removesuffix("_") in _OF_TWO and op.has(1) and op.has(0):
        return binary(op, out=2)
    return unary(op, out=_last_tensor(op))


_OF_TWO = frozenset({"aten::pow", "aten::clamp_min", "aten::clamp_max", "aten::clamp", "aten::rsub"})


def _last_tensor(op: OpSignature) -> int | None:
    """The last slot after the first that holds a tensor: where an op of one tensor was given ``out=``."""
    return next((i for i in range(len(op.shapes or ()) - 1, 0, -1) if op.has(i)), None)


@traced_as(
    "aten::logical_not", "aten::isnan", "aten::isinf", "aten::isfinite", "aten::signbit", "aten::isneginf",
    "aten::isposinf",
    leaf_only=True,
)  # fmt: skip
def _unary_predicate(op: OpSignature) -> UnaryElementwise:
    return unary(op, dtype_out=DType.BOOL, out=_last_tensor(op))


@traced_as("aten::div", "aten::div_")
def _div(op: OpSignature) -> BinaryElementwise:
    """(a, b[, rounding_mode | out]): integers divide to the default floating type."""
    result = promoted((operand(op, 0), operand(op, 1)))
    real = result is None or result.is_floating or result.is_complex
    return binary(op, out=2, dtype_out=None if real or op.literal(2) else DType.FP32)


OPS_OF_TWO = (
    # (a, b, alpha, out), and without alpha
    bind(binary, *aten("add", "", "_"), out=3),
    bind(binary, *aten("mul", "", "_"), out=2),
    # (a, b, ...)
    bind(binary, *aten("sigmoid_backward threshold_backward")),
    bind(
        binary,
        *aten("sub remainder bitwise_and bitwise_or bitwise_xor", "", "_"),
        *aten(
            "true_divide floor_divide fmod maximum minimum fmax fmin atan2 xlogy bitwise_left_shift "
            "bitwise_right_shift __and__ __or__ tanh_backward gelu_backward silu_backward hardswish_backward "
            "hardsigmoid_backward hardtanh_backward leaky_relu_backward softplus_backward mish_backward prelu "
            "_prelu_kernel multiply logaddexp logit_backward log_sigmoid_backward eq_ ne_ lt_ le_ gt_ ge_"
        ),
        leaf_only=True,
    ),
    # (grad, alpha, scale, input_scale, is_result, self_or_result)
    bind(binary, "aten::elu_backward", leaf_only=True, b=5),
    bind(
        binary, *aten("eq ne lt le gt ge logical_and logical_or logical_xor isclose"), leaf_only=True,
        dtype_out=DType.BOOL,
    ),
)  # fmt: skip
POINTWISE_OPS = (
    # (condition, a, b)
    bind(pointwise, "aten::where", leaf_only=True, reads=(0, 1, 2), typed_by=(1, 2)),
    # (x, mask, value)
    bind(pointwise, *aten("masked_fill", "", "_"), leaf_only=True, reads=(0, 1), typed_by=(0,), flops=0),
    # (grad, mask, scale)
    bind(pointwise, *aten("native_dropout_backward _masked_scale"), leaf_only=True, reads=(0, 1), typed_by=(0,)),
    # x + value * a * b, a + weight * (b - a): three operations per element
    bind(pointwise, *aten("addcmul addcdiv lerp", "", "_"), leaf_only=True, reads=(0, 1, 2), flops=3),
    # The element-by-element part, two operations; the reduction that follows is an op of its own.
    bind(
        pointwise,
        *aten("mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits"),
        leaf_only=True, reads=(0, 1), flops=2,
    ),
    # (grad, x, target, ...): the gradient is 0-dim when the loss was reduced
    bind(
        pointwise, *aten("mse_loss_backward l1_loss_backward smooth_l1_loss_backward"), leaf_only=True,
        reads=(0, 1, 2), flops=2,
    ),
)  # fmt: skip


@traced_as("aten::copy_")
@traced_as("aten::copy", leaf_only=True)
def _copy(op: OpSignature) -> UnaryElementwise:
    """(destination, source, non_blocking): the source may broadcast and have another type."""
    written, read = operand(op, 0), operand(op, 1)
    return UnaryElementwise(shape=written.shape, inputs=(read,), outputs=(written,), flops_per_element=0)


@traced_as("aten::clone", "aten::contiguous", "aten::_reshape_alias_copy", "aten::reshape", "aten::repeat",
           "aten::flip", "aten::roll", "aten::_conj_physical", leaf_only=True)  # fmt: skip
def _duplicate(op: OpSignature) -> UnaryElementwise:
    """The copy that these make when they make one. ``repeat`` writes more; its size is in ``C1``."""
    model = unary(op, flops=0)
    times = op.literal(1) if op.name == "aten::repeat" else None
    if not isinstance(times, list | tuple) or not times:
        return model
    (read,) = model.inputs
    shape = tuple(n * k for n, k in zip((1,) * (len(times) - len(read.shape)) + read.shape, times, strict=True))
    return _moved(read, shape, flops=0)


@traced_as("aten::to", "aten::_to_copy", leaf_only=True)
def _convert(op: OpSignature) -> UnaryElementwise | None:
    """The destination's type is in a slot that differs between overloads; None where it is not plain."""
    number = op.literal(1)
    if not isinstance(number, int) or isinstance(number, bool):
        return None
    return unary(op, flops=0, dtype_out=scalar_type(number))


@traced_as("aten::fill_", "aten::fill", "aten::zero_", "aten::zero", leaf_only=True, asks=("kernel",))
def _fill(op: OpSignature) -> Elementwise:
    """The kernel says the type where the op does not."""
    model, launch = _written(op), launch_of(op)
    (written,) = model.outputs
    if launch is None or written.dtype is not None:
        return model
    return replace(model, outputs=(replace(written, dtype=filled_type(launch.kernel)),))


@traced_as(
    *aten("normal_ uniform_ random_ bernoulli_ exponential_ geometric_ log_normal_ cauchy_"),
    leaf_only=True,
)  # fmt: skip
def _written(op: OpSignature) -> Elementwise:
    """Random numbers, written only."""
    written = operand(op, 0)
    return Elementwise(shape=written.shape, inputs=(), outputs=(written,), flops_per_element=0)


@traced_as("aten::native_dropout", "aten::_fused_dropout", leaf_only=True)
def _dropout(op: OpSignature) -> Elementwise:
    """Writes the result and a mask of one byte per element."""
    read = operand(op, 0)
    mask = Operand(shape=read.shape, dtype=DType.BOOL)
    written = Operand(shape=read.shape, dtype=read.dtype)
    return Elementwise(shape=read.shape, inputs=(read,), outputs=(written, mask), flops_per_element=1)


@traced_as("aten::replication_pad1d", "aten::replication_pad2d", "aten::replication_pad3d",
           "aten::reflection_pad1d", "aten::reflection_pad2d", "aten::constant_pad_nd")  # fmt: skip
def _pad(op: OpSignature) -> UnaryElementwise:
    """(x, pairs of padding, innermost dim first)."""
    read, pairs = operand(op, 0), op.literal(1)
    if not isinstance(pairs, list | tuple) or len(pairs) % 2 or len(pairs) > 2 * len(read.shape):
        raise SignatureError(f"{op.name}: argument 1, the padding, was not recorded")
    shape = list(read.shape)
    for i in range(len(pairs) // 2):
        shape[-1 - i] += pairs[2 * i] + pairs[2 * i + 1]
    return _moved(read, tuple(shape))


@traced_as("aten::upsample_nearest1d", "aten::upsample_nearest2d", "aten::upsample_nearest3d",
           "aten::upsample_bilinear2d", "aten::upsample_bicubic2d", "aten::upsample_linear1d")  # fmt: skip
def _upsample(op: OpSignature) -> UnaryElementwise:
    """(x, output size, ...)."""
    read, size = operand(op, 0), op.literal(1)
    if not isinstance(size, list | tuple) or len(size) != len(read.shape) - 2:
        raise SignatureError(f"{op.name}: argument 1, the output size, was not recorded")
    return _moved(read, (*read.shape[:2], *size))


@traced_as(*(f"aten::upsample_{kind}_backward" for kind in ("nearest1d", "nearest2d", "nearest3d", "bilinear2d",
                                                            "bicubic2d", "linear1d", "trilinear3d")))  # fmt: skip
def _upsample_backward(op: OpSignature) -> UnaryElementwise:
    """(dy, output size, input size, ...): an addition per element of dy."""
    read, shape = operand(op, 0), op.literal(2)
    if not isinstance(shape, list | tuple) or len(shape) != len(read.shape):
        raise SignatureError(f"{op.name}: argument 2, the input size, was not recorded")
    written = Operand(shape=tuple(shape), dtype=read.dtype)
    return UnaryElementwise(shape=read.shape, inputs=(read,), outputs=(written,))


@traced_as("aten::glu")
def _glu(op: OpSignature) -> UnaryElementwise:
    """(x, dim): ``a * sigmoid(b)`` of the halves of x along dim; a sigmoid of four operations, as in SiLU's gate."""
    read, dim = operand(op, 0), op.integer(1)
    shape = list(read.shape)
    shape[dim] //= 2
    return _moved(read, tuple(shape), flops=5)


@traced_as("aten::glu_backward")
def _glu_backward(op: OpSignature) -> Elementwise:
    """(dy, x, dim): ``dy * s`` and ``dy * a * s * (1 - s)`` of s = sigmoid(b): a sigmoid and five operations more."""
    dy, x = operand(op, 0), operand(op, 1)
    written = Operand(shape=x.shape, dtype=x.dtype)
    return Elementwise(shape=dy.shape, inputs=(dy, x), outputs=(written,), flops_per_element=9)


def _moved(read: Operand, shape: Shape, flops: int = 1) -> UnaryElementwise:
    """``read`` resampled to ``shape``: so many operations per element written."""
    written = Operand(shape=shape, dtype=read.dtype)
    return UnaryElementwise(shape=shape, inputs=(read,), outputs=(written,), flops_per_element=flops)


@recorded_as("aten::add")
def _recorded_add(model: BinaryElementwise) -> OpSignature:
    a, b = (
        Slot(dtype="Scalar") if each.number else Slot.tensor(each.shape, each.dtype, each.stride)
        for each in model.inputs
    )
    return recorded_call("aten::add", a, b, number(1))


#: Values that share one E8M0 scale: OCP Microscaling Formats (MX) v1.0, section 5.1.
MX_GROUP = 32


class GroupQuant(ModelRecord, category="GroupQuant", family="GroupQuant_fwd"):
    """``elements`` scaled to a narrow type, ``scale_elements`` scales found on the way.

    flops = 2 per element, its group's maximum and its scaling; bytes = one read, one write of the narrow values, one
    write of the scales. None where one of their types or the number of scales was not recorded.
    """

    shown: ClassVar[Shown | None] = {
        "num_elems": "elements", "num_scales": "scale_elements", "dtype_in_out": ("dtype", "dtype_out"),
        "dtype_scale": "dtype_scale",
    }  # fmt: skip

    elements: int
    scale_elements: int | None
    dtype: DType | None
    dtype_out: DType | None
    dtype_scale: DType | None = DType.FP32

    def flops(self) -> int:
        return 2 * self.elements

    def moved(self) -> Moved | None:
        if self.scale_elements is None:
            return None
        return ((self.elements, self.dtype), (self.elements, self.dtype_out), (self.scale_elements, self.dtype_scale))


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


class MultiTensor(ModelRecord, category="multi_tensor_apply", family="MultiTensor", stream="optimizer"):
    """An elementwise update of ``tensors`` tensors with ``elements`` elements in all.

    flops = flops_per_element each; bytes = ``reads`` tensors read and ``writes`` written per element, plus
    ``results`` further elements. A trace does not record the element type of a tensor list: the kernel's name says it,
    else ``dtype`` and the bytes are None. Lists of other types than the first, as FP32 moments, are counted like it.
    """

    shown: ClassVar[Shown | None] = {
        "num_tensors": "tensors", "num_elems": "elements", "dtype": "dtype", "reads_per_elem": "reads",
        "writes_per_elem": "writes",
    }  # fmt: skip

    tensors: int
    elements: int
    flops_per_element: int
    reads: int
    writes: int
    results: int = 0
    dtype: DType | None = DType.FP32

    def flops(self) -> int:
        return self.flops_per_element * self.elements

    def moved(self) -> Moved:
        return (((self.reads + self.writes) * self.elements + self.results, self.dtype),)


def _lists(op: OpSignature, *, flops: int, reads: int, writes: int, results: bool = False) -> MultiTensor:
    """Operations, reads and writes per element of the first list; ``results``: and one written per tensor."""
    shapes, launch = op.shape_list(0), launch_of(op)
    return MultiTensor(
        tensors=len(shapes),
        elements=sum(prod(s) for s in shapes),
        flops_per_element=flops,
        reads=reads,
        writes=writes,
        results=len(shapes) if results else 0,
        dtype=op.dtype(0) or (list_type(launch.kernel) if launch else None),
    )


@traced_as(
    *aten(
        "_foreach_add _foreach_sub _foreach_mul _foreach_div _foreach_maximum _foreach_minimum _foreach_clamp_min "
        "_foreach_clamp_max _foreach_pow", "", "_",
    ),
    leaf_only=True,
    asks=(KERNEL,),
)  # fmt: skip
def _foreach_binary(op: OpSignature) -> MultiTensor:
    """(tensors, tensors | number[s], ...): a second list has the shapes of the first."""
    second = op.dtype_text(1) == "TensorList" or (op.has(1) and op.shapes and isinstance(op.shapes[1][0], tuple))
    return _lists(op, flops=1, reads=2 if second else 1, writes=1)


@traced_as("aten::_foreach_lerp", "aten::_foreach_lerp_", leaf_only=True, asks=(KERNEL,))
def _foreach_lerp(op: OpSignature) -> MultiTensor:
    """``a + weight * (b - a)``: three operations, two lists read (the weight may be a third)."""
    return _lists(op, flops=3, reads=3 if op.dtype_text(2) == "TensorList" else 2, writes=1)


def _row(names: str, *suffixes: str, **counts: Any) -> partial[MultiTensor]:
    return bind(_lists, *aten(names, *suffixes), leaf_only=True, asks=(KERNEL,), **counts)


FUSED_UPDATES = (
    _row(
        "_foreach_sqrt _foreach_neg _foreach_abs _foreach_exp _foreach_log _foreach_reciprocal _foreach_sigmoid "
        "_foreach_rsqrt _foreach_sign _foreach_round _foreach_floor _foreach_ceil _foreach_tanh",
        *("", "_"), flops=1, reads=1, writes=1,
    ),
    _row("_foreach_zero_", flops=0, reads=0, writes=1),
    # x + value * a * b: three operations, three lists read
    _row("_foreach_addcmul _foreach_addcdiv", "", "_", flops=3, reads=3, writes=1),
    # a square and a sum per element
    _row("_foreach_norm", flops=2, reads=1, writes=0, results=True),
    _row("_foreach_max", flops=1, reads=1, writes=0, results=True),
    # a comparison and a product per element
    _row("_amp_foreach_non_finite_check_and_unscale_", flops=2, reads=1, writes=1),
    # Parameters, gradients and both moments are read, all but the gradients written. Per element: 2 for weight decay,
    # 3 and 4 for the moments, 2 for their bias corrections, a root, an addition, a division, a product, a difference.
    _row("_fused_adam_ _fused_adamw_", flops=15, reads=4, writes=3),
    # (parameters, gradients, sums of squares, ...): 2 for weight decay, 2 for the sums, 4 for the step
    _row("_fused_adagrad_", flops=8, reads=3, writes=2),
)  # fmt: skip


@traced_as("aten::_fused_sgd_", leaf_only=True, asks=(KERNEL,))
def _fused_sgd(op: OpSignature) -> MultiTensor:
    """(parameters, gradients, momenta, ...): 2 for weight decay, 2 for the step, 2 with momentum."""
    momentum = op.has(2)
    return _lists(op, flops=6 if momentum else 4, reads=3 if momentum else 2, writes=2 if momentum else 1)
