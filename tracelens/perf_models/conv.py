"""What works on images and signals: convolution and its gradients, pooling, grid sampling, Fourier transforms."""

from __future__ import annotations

import re
from dataclasses import replace
from math import log2, prod
from typing import Any, ClassVar

from tracelens.errors import SignatureError
from tracelens.perf_models.base import (
    Like,
    ModelRecord,
    Moved,
    Shown,
    Slot,
    aten,
    bind,
    number,
    recorded_as,
    recorded_call,
    resolved,
    traced_as,
    with_fields_of,
)
from tracelens.perf_models.surroundings import (
    CALLER,
    FOLLOWER,
    GRADIENT,
    KERNEL,
    caller_of,
    follower_of,
    gradient_of,
    launch_of,
)
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature, Shape

# Strides and paddings that are looked for.
_MOST_STRIDE = 64


class Conv(ModelRecord, category="CONV_fwd", engine="matrix"):
    """N-dimensional convolution of ``x[b, c_in, ...]`` with ``w[c_out, c_in / groups, ...]``.

    A ``transposed`` one has ``w[c_in, c_out / groups, ...]``.
    flops = 2 * prod(w[1:]) * numel(out), transposed 2 * prod(w[1:]) * numel(x); one more per output for the bias.
    bytes = one read of x, w and bias, one write of the output.
    ``stride``, ``padding``, ``dilation`` and ``output_padding`` have one entry per spatial dim.
    ``dtype`` is x's; w and the output are like it unless said otherwise.
    """

    shown: ClassVar[Shown | None] = {
        "convNd": "function", "input_shape": "x", "filter_shape": "w", "dtype_input_weight": ("dtype", "dtype_w"),
        "input_stride": "stride_x", "weight_stride": "stride_w", "bias": "bias", "stride": "stride",
        "padding": "padding", "dilation": "dilation", "transposed_conv": "transposed",
        "output_padding": "output_padding", "groups": "groups",
    }  # fmt: skip

    x: Shape
    w: Shape
    bias: bool = False
    stride: Shape
    padding: Shape
    dilation: Shape
    transposed: bool = False
    output_padding: Shape
    groups: int = 1
    dtype: DType | None = DType.BF16
    dtype_w: DType | Like | None = Like.FIRST
    dtype_out: DType | Like | None = Like.FIRST
    stride_x: Shape | None = None
    stride_w: Shape | None = None

    @property
    def out(self) -> Shape:
        channels = self.w[1] * self.groups if self.transposed else self.w[0]
        dims = zip(self.x[2:], self.w[2:], self.stride, self.padding, self.dilation, self.output_padding, strict=True)
        if self.transposed:
            return (self.x[0], channels, *((x - 1) * s - 2 * p + d * (k - 1) + o + 1 for x, k, s, p, d, o in dims))
        return (self.x[0], channels, *((x + 2 * p - d * (k - 1) - 1) // s + 1 for x, k, s, p, d, _ in dims))

    @property
    def product_flops(self) -> int:
        """Multiplications and additions of the products alone, without bias; the same for each gradient."""
        return 2 * prod(self.w[1:]) * prod(self.x if self.transposed else self.out)

    @property
    def bias_elements(self) -> int:
        """One per output channel where there is a bias, else 0."""
        return self.out[1] if self.bias else 0

    def flops(self) -> int:
        return self.product_flops + (prod(self.out) if self.bias else 0)

    def moved(self) -> Moved:
        return (
            (prod(self.x), self.dtype),
            (prod(self.w) + self.bias_elements, self.dtype_w),
            (prod(self.out), self.dtype_out),
        )

    def backward(self) -> ConvBackward:
        return with_fields_of(self, ConvBackward, output_mask=(True, True, self.bias))

    @property
    def function(self) -> str:
        """``conv2d`` of two spatial dims."""
        return f"conv{len(self.x) - 2}d"


class ConvBackward(Conv, category="CONV_bwd"):
    """The gradients of a ``Conv`` that ``output_mask`` (x, w, bias) asks for.

    flops = those of the forward's products for each of x and w, plus one per output for the bias. bytes: dOut and w
    read, dx written; dOut and x read, dw written; the bias gradient is written (its sum shares a read of dOut, unless
    it is all that is asked for).
    """

    output_mask: tuple[bool, bool, bool] = (True, True, False)

    def flops(self) -> int:
        of_x, of_w, of_bias = self.output_mask
        return self.product_flops * (of_x + of_w) + (prod(self.out) if of_bias else 0)

    def moved(self) -> Moved:
        of_x, of_w, of_bias = self.output_mask
        reads_of_out = max(of_x + of_w, int(of_bias))
        return (
            (prod(self.x) * (of_x + of_w), self.dtype),
            (prod(self.w) * (of_x + of_w) + (self.out[1] if of_bias else 0), self.dtype_w),
            (prod(self.out) * reads_of_out, self.dtype_out),
        )


def _lengths(op: OpSignature, index: int | None, dims: int, *, default: int) -> Shape:
    """A recorded per-dimension argument; one entry stands for all dims, an absent slot for ``default``."""
    value = op.literal(index) if index is not None else default
    if value is None:
        raise SignatureError(f"{op.name}: argument {index} was not recorded")
    entries = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not all(isinstance(v, int) for v in entries) or len(entries) not in (1, dims):
        raise SignatureError(f"{op.name}: argument {index} is {value!r}, not {dims} numbers")
    return entries if len(entries) == dims else entries * dims


def conv_of(
    op: OpSignature,
    *,
    x: int = 0,
    w: int = 1,
    bias: int | None = 2,
    stride: int,
    padding: int,
    dilation: int | None,
    groups: int | None,
    transposed: bool = False,
    output_padding: int | None = None,
) -> Conv:
    """Conv of recorded slots: ``x``, ``w`` and ``bias`` are tensors, the others scalars."""
    shape_x, shape_w = op.shape(x), op.shape(w)
    dims = len(shape_x) - 2
    if dims < 1 or len(shape_w) != len(shape_x):
        raise SignatureError(f"{op.name}: cannot convolve {list(shape_x)} with {list(shape_w)}")
    count = op.integer(groups, "the number of groups") if groups is not None else 1
    return Conv(
        x=shape_x,
        w=shape_w,
        bias=bias is not None and op.has(bias),
        stride=_lengths(op, stride, dims, default=1),
        padding=_lengths(op, padding, dims, default=0),
        dilation=_lengths(op, dilation, dims, default=1),
        transposed=transposed,
        output_padding=_lengths(op, output_padding, dims, default=0),
        groups=count,
        dtype=op.dtype(x),
        dtype_w=op.dtype(w),
        stride_x=op.stride(x),
        stride_w=op.stride(w),
    )


def convolved(x: Shape, w: Shape, out: Shape, dtypes: tuple[DType | None, DType | None, DType | None]) -> Conv:
    """Conv of x, w and the result, whose size stands for stride and padding; ``dtypes`` are those of the three."""
    fits = len(x) == len(w) == len(out) > 2 and out[:2] == (x[0], w[0]) and w[1] and x[1] % w[1] == 0
    dims = [_step(*sizes) for sizes in zip(x[2:], w[2:], out[2:], strict=True)] if fits else [None]
    found = [dim for dim in dims if dim is not None]
    if len(found) < len(dims):
        raise SignatureError("no stride and padding lead to the recorded result")
    stride, padding = zip(*found, strict=True)
    return Conv(
        x=x,
        w=w,
        stride=stride,
        padding=padding,
        dilation=(1,) * len(dims),
        output_padding=(0,) * len(dims),
        groups=x[1] // w[1],
        dtype=dtypes[0],
        dtype_w=dtypes[1],
        dtype_out=dtypes[2],
    )


def _step(size: int, kernel: int, results: int) -> tuple[int, int] | None:
    """Stride and padding by which a kernel makes so many results of a dim with least left over; None without any."""
    found = [
        ((size + 2 * padding - kernel) % stride, padding, stride)
        for stride in range(1, _MOST_STRIDE)
        for padding in range(min(kernel, _MOST_STRIDE))
        if (size + 2 * padding - kernel) // stride + 1 == results
    ]
    if not found:
        return None
    _, padding, stride = min(found)
    return stride, padding


def _conv_or_by_its_result(op: OpSignature, *, bias: int | None = 2, **slots: Any) -> Conv:
    """``conv_of``; where no numbers were recorded, the size of the result stands for stride and padding.

    PyTorch before 1.12 records none: then the result's gradient shows its size. Before 1.8 nothing leads to the
    gradient: then the first input of the op that follows, where it can be the result.
    """
    if op.scalars is not None and any(op.scalars):
        return conv_of(op, bias=bias, **slots)
    result = gradient_of(op) or follower_of(op)
    if result is None:
        raise SignatureError(f"{op.name}: neither stride nor padding was recorded, nor the size of the result")
    forward = convolved(op.shape(0), op.shape(1), result.shape(0), (op.dtype(0), op.dtype(1), result.dtype(0)))
    return replace(forward, bias=bias is not None and op.has(bias))


def _depthwise(op: OpSignature, **slots: Any) -> Conv:
    """One group per channel of x."""
    model = conv_of(op, groups=None, **slots)
    return replace(model, groups=model.x[1])


def _with_flag(op: OpSignature, *, transposed: int, **slots: Any) -> Conv:
    return conv_of(op, transposed=bool(op.integer(transposed)), **slots)


def _gradients(op: OpSignature, *, stride: int) -> ConvBackward:
    """From (dOut, x, w, ...), argument ``stride`` and those behind it as in ``aten::convolution``, then a mask."""
    mask = op.literal(stride + 6)
    if not isinstance(mask, list | tuple) or len(mask) != 3:
        raise SignatureError(f"{op.name}: argument {stride + 6}, the output mask, was not recorded")
    forward = _with_flag(
        op, x=1, w=2, bias=None, stride=stride, padding=stride + 1, dilation=stride + 2, transposed=stride + 3,
        output_padding=stride + 4, groups=stride + 5,
    )  # fmt: skip
    of_x, of_w, of_bias = (bool(asked) for asked in mask)
    changed = {"bias": of_bias, "dtype_out": op.dtype(0), "output_mask": (of_x, of_w, of_bias)}
    return with_fields_of(forward, ConvBackward, **changed)


@recorded_as("aten::convolution")
def _recorded_convolution(model: Conv) -> OpSignature:
    dtype_w = resolved(model.dtype_w, model.dtype)
    stride, padding, dilation, output_padding = (
        Slot(dtype="ScalarList", scalar=str(list(sizes)))
        for sizes in (model.stride, model.padding, model.dilation, model.output_padding)
    )
    return recorded_call(
        "aten::convolution",
        Slot.tensor(model.x, model.dtype, model.stride_x),
        Slot.tensor(model.w, dtype_w, model.stride_w),
        Slot.tensor((model.out[1],), dtype_w) if model.bias else Slot(),
        *(stride, padding, dilation, number(model.transposed), output_padding, number(model.groups)),
    )


def _one_gradient(op: OpSignature, *, of_x: bool) -> ConvBackward:
    """(size of x, dOut, w, ...), or (size of w, dOut, x, ...), called by (x, dOut, w, ...)."""
    caller = caller_of(op)
    if caller is None or not caller.name.endswith("convolution_backward"):
        raise SignatureError(f"{op.name}: the size of the gradient was not recorded, nor the op that calls it")
    x, out, w = (caller.shape(slot) for slot in range(3))
    if (op.shape(1), op.shape(2)) != (out, w if of_x else x):
        raise SignatureError(f"{op.name}: the op that calls it has other tensors")
    forward = convolved(x, w, out, (caller.dtype(0), caller.dtype(2), caller.dtype(1)))
    return with_fields_of(forward, ConvBackward, output_mask=(of_x, not of_x, False))


_AROUND = (GRADIENT, FOLLOWER)
#: By where each op has its arguments; x, w and bias come first but where a row says otherwise.
CONVOLUTIONS = (
    # (x, w, bias, stride, padding, dilation, transposed, output_padding, groups)
    bind(
        _with_flag, *aten("convolution convolution_overrideable"),
        stride=3, padding=4, dilation=5, transposed=6, output_padding=7, groups=8,
    ),
    bind(
        _with_flag, "aten::_convolution", leaf_only=True,
        stride=3, padding=4, dilation=5, transposed=6, output_padding=7, groups=8,
    ),
    bind(
        _conv_or_by_its_result, *aten("miopen_convolution miopen_depthwise_convolution mkldnn_convolution"),
        asks=_AROUND, padding=3, stride=4, dilation=5, groups=6,
    ),
    bind(
        _conv_or_by_its_result, "aten::cudnn_convolution", asks=_AROUND,
        bias=None, padding=2, stride=3, dilation=4, groups=5,
    ),
    # (x, w, kernel_size, bias, stride, padding)
    bind(
        _conv_or_by_its_result, *aten("thnn_conv2d_forward _slow_conv2d_forward"), asks=_AROUND,
        bias=3, stride=4, padding=5, dilation=None, groups=None,
    ),
    bind(
        _conv_or_by_its_result, "aten::thnn_conv2d", leaf_only=True,
        bias=3, stride=4, padding=5, dilation=None, groups=None,
    ),
    bind(conv_of, *aten("cudnn_convolution_relu miopen_convolution_relu"), stride=3, padding=4, dilation=5, groups=6),
    bind(conv_of, *aten("conv1d conv2d conv3d"), leaf_only=True, stride=3, padding=4, dilation=5, groups=6),
    bind(
        conv_of, *aten("conv_transpose1d conv_transpose2d conv_transpose3d"), leaf_only=True,
        stride=3, padding=4, output_padding=5, groups=6, dilation=7, transposed=True,
    ),
    bind(
        conv_of, "aten::miopen_convolution_transpose",
        padding=3, output_padding=4, stride=5, dilation=6, groups=7, transposed=True,
    ),
    bind(
        conv_of, "aten::cudnn_convolution_transpose",
        bias=None, padding=2, output_padding=3, stride=4, dilation=5, groups=6, transposed=True,
    ),
    # (x, w, kernel_size, bias, stride, padding, dilation)
    bind(
        _depthwise, *aten("_conv_depthwise2d conv_depthwise3d"), leaf_only=True,
        bias=3, stride=4, padding=5, dilation=6,
    ),
    # (dOut, x, w, bias_sizes, stride, ...), without the sizes in the other one
    bind(_gradients, "aten::convolution_backward", stride=4),
    bind(_gradients, "aten::convolution_backward_overrideable", stride=3),
    bind(
        _one_gradient, *aten("cudnn_convolution miopen_convolution miopen_depthwise_convolution mkldnn_convolution",
        "_backward_input"), asks=(CALLER,), of_x=True,
    ),
    bind(
        _one_gradient, *aten("cudnn_convolution miopen_convolution miopen_depthwise_convolution", "_backward_weight"),
        "aten::mkldnn_convolution_backward_weights", asks=(CALLER,), of_x=False,
    ),
)  # fmt: skip


class FourierTransform(ModelRecord, category="FFT"):
    """``batch`` transforms of ``points`` points each.

    flops = 5 * n * log2(n) per complex transform, half of that from or to real numbers: the convention of FFTW's
    benchmarks, whatever algorithm ran. bytes = one read, one write; a transform that does not fit on the chip makes
    several passes.
    """

    shown: ClassVar[Shown | None] = {
        "batch": "batch", "points": "points", "real": "is_real", "dtype_in_out": ("dtype", "dtype_out")
    }  # fmt: skip

    batch: int
    points: int
    is_real: bool
    read: int
    written: int
    dtype: DType | None
    dtype_out: DType | None

    def flops(self) -> float:
        whole = 5 * self.batch * self.points * log2(max(self.points, 1))
        return whole / 2 if self.is_real else whole

    def moved(self) -> Moved:
        return ((self.read, self.dtype), (self.written, self.dtype_out))

    @property
    def compute_dtype(self) -> DType | None:
        """The type of a number's parts."""
        return _REAL.get(self.dtype, self.dtype)


_REAL: dict[DType | None, DType] = {DType.COMPLEX64: DType.FP32, DType.COMPLEX128: DType.FP64}
_COMPLEX: dict[DType | None, DType] = {DType.FP32: DType.COMPLEX64, DType.FP64: DType.COMPLEX128}


def _transform(op: OpSignature, *, reads_real: bool = False, gives_real: bool = False) -> FourierTransform:
    """(x, dims, normalization, then from real numbers whether one side is kept, n/2 + 1 of the last dim's results; to
    real numbers the size of the result's last dim).
    """
    x, dims, dtype, said = op.shape(0), _dims(op), op.dtype(0), op.literal(3)
    n, last = prod(x), x[dims[-1]]
    points, written, dtype_out = prod(x[d] for d in dims), n, dtype
    if reads_real:
        written, dtype_out = n // max(last, 1) * (last if said is False else last // 2 + 1), _COMPLEX.get(dtype)
    if gives_real:
        if not isinstance(said, int) or isinstance(said, bool) or said <= 0:
            raise SignatureError(f"{op.name}: argument 3, the size of the last dim, is {said!r}")
        points, written, dtype_out = prod(x[d] for d in dims[:-1]) * said, n // max(last, 1) * said, _REAL.get(dtype)
    return FourierTransform(
        batch=(written if gives_real else n) // max(points, 1), points=points, is_real=reads_real or gives_real,
        read=n, written=written, dtype=dtype, dtype_out=dtype_out,
    )  # fmt: skip


TRANSFORMS = (
    bind(_transform, "aten::_fft_c2c"),
    bind(_transform, "aten::_fft_r2c", reads_real=True),
    bind(_transform, "aten::_fft_c2r", gives_real=True),
)


def _dims(op: OpSignature) -> list[int]:
    rank, dims = len(op.shape(0)), op.literal(1)
    if not isinstance(dims, list) or not dims or not all(isinstance(d, int) and -rank <= d < rank for d in dims):
        raise SignatureError(f"{op.name}: argument 1, the dims, is {dims!r}")
    return dims


class Pooling(ModelRecord, category="pooling", family="Pooling_fwd"):
    """A maximum or a mean over windows of ``window`` elements: ``x`` to ``out``.

    flops = window per element of the result, unknown without ``window``; bytes = one read of x, one write of the
    result and, for ``indexed`` maxima, of 8-byte positions.
    """

    x: Shape
    out: Shape
    window: int | None
    indexed: bool = False
    dtype: DType | None = DType.BF16

    def flops(self) -> int | None:
        return None if self.window is None else self.window * prod(self.out)

    def moved(self) -> Moved:
        results = prod(self.out)
        return ((prod(self.x) + results, self.dtype), (results if self.indexed else 0, DType.INT64))


class PoolingBackward(Pooling, family="Pooling_bwd"):
    """The gradient of x: dOut (and positions) read, dx written.

    flops = one addition per window element of a mean, one per result of an indexed maximum.
    """

    def flops(self) -> int | None:
        return prod(self.out) if self.indexed else Pooling.flops(self)


def _sizes(op: OpSignature, index: int, dims: int, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
    value = op.literal(index)
    if value is None or value == []:
        if default is None:
            raise SignatureError(f"{op.name}: argument {index} was not recorded")
        return default
    sizes = tuple(value) if isinstance(value, list | tuple) else (value,)
    return sizes * dims if len(sizes) == 1 else sizes


def _window_dims(op: OpSignature) -> int:
    """2 of ``avg_pool2d``."""
    return 3 if "pool3d" in op.name else 2


def _windowed(op: OpSignature, *, dilated: bool) -> tuple[Shape, Shape, int]:
    """(x, kernel, stride, padding, [dilation,] ceil_mode): x, the result's shape, elements per window."""
    x, dims = op.shape(0), _window_dims(op)
    kernel = _sizes(op, 1, dims)
    stride = _sizes(op, 2, dims, default=kernel)
    padding = _sizes(op, 3, dims, default=(0,) * dims)
    dilation = _sizes(op, 4, dims, default=(1,) * dims) if dilated else (1,) * dims
    up = op.literal(5 if dilated else 4) is True
    out = []
    for n, k, s, p, d in zip(x[-dims:], kernel, stride, padding, dilation, strict=True):
        span = n + 2 * p - d * (k - 1) - 1
        size = (-(-span // s) if up else span // s) + 1
        if up and (size - 1) * s >= n + p:  # a window must start inside the input or its left padding
            size -= 1
        out.append(size)
    return x, (*x[:-dims], *out), prod(kernel)


# max_pool_forward_nchw, max_pool_forward_nhwc (aten/src/ATen/native/cuda/DilatedMaxPool2d.cu)
_MAXIMUM_OF = re.compile(r"\bmax_pool_forward_n\w+<([\w: ]+?)[,>]")


def _maxima(op: OpSignature) -> Pooling:
    """Where the window was not recorded, the gradient has the result's shape; where the type was not, the kernel."""
    dtype, launch, gradient = op.dtype(0), launch_of(op), gradient_of(op)
    if dtype is None and launch is not None and (match := _MAXIMUM_OF.search(launch.kernel)):
        dtype = DType.parse(match[1])
    if gradient is not None and op.literal(1) is None:
        return Pooling(x=op.shape(0), out=gradient.shape(0), window=None, indexed=True, dtype=dtype)
    x, out, window = _windowed(op, dilated=True)
    return Pooling(x=x, out=out, window=window, indexed=True, dtype=dtype)


def _means(op: OpSignature) -> Pooling:
    x, out, window = _windowed(op, dilated=False)
    return Pooling(x=x, out=out, window=window, dtype=op.dtype(0))


def _window_gradient(op: OpSignature, *, indexed: bool) -> PoolingBackward:
    """(dOut, x, kernel, ...): each gradient of a maximum goes to one element, whatever the window."""
    window = None if indexed and op.literal(2) is None else prod(_sizes(op, 2, _window_dims(op)))
    return PoolingBackward(x=op.shape(1), out=op.shape(0), window=window, indexed=indexed, dtype=op.dtype(0))


POOLING_OPS = (
    bind(_maxima, *aten("max_pool2d_with_indices max_pool3d_with_indices"), leaf_only=True, asks=(KERNEL, GRADIENT)),
    bind(_means, *aten("avg_pool2d avg_pool3d"), leaf_only=True),
    bind(
        _window_gradient, *aten("max_pool2d_with_indices max_pool3d_with_indices", "_backward"), leaf_only=True,
        indexed=True,
    ),
    bind(_window_gradient, *aten("avg_pool2d avg_pool3d", "_backward"), leaf_only=True, indexed=False),
)  # fmt: skip


@traced_as("aten::_adaptive_avg_pool2d", "aten::_adaptive_avg_pool3d", leaf_only=True)
def _adaptive(op: OpSignature) -> Pooling:
    """(x, output size): windows cover x once where the sizes divide; counted so."""
    x, size = op.shape(0), op.literal(1)
    if not isinstance(size, list | tuple):
        raise SignatureError(f"{op.name}: argument 1, the output size, was not recorded")
    out: Shape = (*x[: -len(size)], *size)
    return Pooling(x=x, out=out, window=max(1, prod(x) // max(1, prod(out))), dtype=op.dtype(0))


@traced_as("aten::_adaptive_avg_pool2d_backward", leaf_only=True)
def _adaptive_backward(op: OpSignature) -> PoolingBackward:
    """(dOut, x)."""
    out, x = op.shape(0), op.shape(1)
    return PoolingBackward(x=x, out=out, window=max(1, prod(x) // max(1, prod(out))), dtype=op.dtype(0))


# Values that one result is made of, by PyTorch's number of the interpolation: linear, nearest, cubic.
_TAPS = {2: {0: 4, 1: 1, 2: 16}, 3: {0: 8, 1: 1}}


class GridSampler(ModelRecord, category="grid_sampler_fwd"):
    """``results`` values, each the weighted sum of ``taps`` values of an image, at places that ``grid`` numbers say.

    flops = 2*taps - 1 per result; the weights, found once per place for all channels, are not counted. bytes = the
    image, at most as many of its values as are taken, and the grid read, the results written.
    """

    image: int
    grid: int
    results: int
    taps: int
    dims: int = 2
    dtype: DType | None = DType.FP32
    dtype_grid: DType | Like | None = Like.FIRST

    def flops(self) -> int:
        return (2 * self.taps - 1) * self.results

    def _read(self) -> int:
        return min(self.image, self.taps * self.results)

    def moved(self) -> Moved:
        return ((self._read() + self.results, self.dtype), (self.grid, self.dtype_grid))


class GridSamplerBackward(GridSampler, category="grid_sampler_bwd"):
    """The gradients of image and grid.

    flops = 2 per tap to scale and add up the image's, 2 per tap and dim for the grid's. bytes = results' gradient,
    image and grid read, both gradients written.
    """

    def flops(self) -> int:
        return 2 * self.taps * (1 + self.dims) * self.results

    def moved(self) -> Moved:
        return ((self._read() + self.image + self.results, self.dtype), (2 * self.grid, self.dtype_grid))


def _sampled(op: OpSignature, *, image: int, grid: int, mode: int, kind: type[GridSampler]) -> GridSampler:
    """Slots of an image [n,c,..] and a grid [n,..,dims], and of the interpolation; cuDNN's is linear."""
    x, places = op.shape(image), op.shape(grid)
    dims = len(x) - 2
    how = 0 if "cudnn" in op.name else op.literal(mode)
    taps = _TAPS.get(dims, {}).get(how) if isinstance(how, int) else None
    if taps is None or places[-1] != dims:
        raise SignatureError(f"{op.name}: {len(x)} dims, a grid {list(places)} and interpolation {how!r}")
    return kind(
        image=prod(x),
        grid=prod(places),
        results=prod(places[:-1]) * x[1],
        taps=taps,
        dims=dims,
        dtype=op.dtype(image),
        dtype_grid=op.dtype(grid),
    )


GRID_SAMPLERS = (
    bind(
        _sampled, *aten("grid_sampler_2d grid_sampler_3d cudnn_grid_sampler"), kind=GridSampler, image=0, grid=1,
        mode=2,
    ),
    # (gradient, image, grid, interpolation, ...)
    bind(
        _sampled, *aten("grid_sampler_2d_backward grid_sampler_3d_backward"), kind=GridSamplerBackward, image=1, grid=2,
        mode=3,
    ),
    # (image, grid, gradient)
    bind(_sampled, "aten::cudnn_grid_sampler_backward", kind=GridSamplerBackward, image=0, grid=1, mode=2),
)  # fmt: skip
