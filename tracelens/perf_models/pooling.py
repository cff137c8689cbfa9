"""Pooling over windows of images, and images sampled at the points of a grid, with their gradients."""

from __future__ import annotations

import re
from math import prod
from typing import ClassVar

from tracelens.dtypes import DType
from tracelens.errors import SignatureError
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import Like, Moved, PerfModel, aten, bind, traced_as
from tracelens.perf_models.surroundings import GRADIENT, KERNEL, gradient_of, launch_of
from tracelens.signature import OpSignature, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooling(PerfModel):
    """A maximum or a mean over windows of ``window`` elements: ``x`` to ``out``.

    flops = window per element of the result, unknown without ``window``; bytes = one read of x, one write of the
    result and, for ``indexed`` maxima, of 8-byte positions.
    """

    category: ClassVar[str] = "pooling"
    engine: ClassVar[str] = "vector"
    family: ClassVar[str | None] = "Pooling_fwd"

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingBackward(Pooling):
    """The gradient of x: dOut (and positions) read, dx written.

    flops = one addition per window element of a mean, one per result of an indexed maximum.
    """

    family: ClassVar[str | None] = "Pooling_bwd"

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


def _windowed(op: OpSignature, *, dims: int, dilated: bool) -> tuple[Shape, Shape, int]:
    """(x, kernel, stride, padding, [dilation,] ceil_mode): x, the result's shape, elements per window."""
    x = op.shape(0)
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


def _maxima(op: OpSignature, *, dims: int) -> Pooling:
    """Where the window was not recorded, the gradient has the result's shape; where the type was not, the kernel."""
    dtype, launch, gradient = op.dtype(0), launch_of(op), gradient_of(op)
    if dtype is None and launch is not None and (match := _MAXIMUM_OF.search(launch.kernel)):
        dtype = DType.parse(match[1])
    if gradient is not None and op.literal(1) is None:
        return Pooling(x=op.shape(0), out=gradient.shape(0), window=None, indexed=True, dtype=dtype)
    x, out, window = _windowed(op, dims=dims, dilated=True)
    return Pooling(x=x, out=out, window=window, indexed=True, dtype=dtype)


def _means(op: OpSignature, *, dims: int) -> Pooling:
    x, out, window = _windowed(op, dims=dims, dilated=False)
    return Pooling(x=x, out=out, window=window, dtype=op.dtype(0))


POOLING_OPS = (
    bind(_maxima, "aten::max_pool2d_with_indices", leaf_only=True, asks=(KERNEL, GRADIENT), dims=2),
    bind(_maxima, "aten::max_pool3d_with_indices", leaf_only=True, asks=(KERNEL, GRADIENT), dims=3),
    bind(_means, "aten::avg_pool2d", leaf_only=True, dims=2),
    bind(_means, "aten::avg_pool3d", leaf_only=True, dims=3),
)


@traced_as("aten::_adaptive_avg_pool2d", "aten::_adaptive_avg_pool3d", leaf_only=True)
def _adaptive(op: OpSignature) -> Pooling:
    """(x, output size): windows cover x once where the sizes divide; counted so."""
    x, size = op.shape(0), op.literal(1)
    if not isinstance(size, list | tuple):
        raise SignatureError(f"{op.name}: argument 1, the output size, was not recorded")
    out: Shape = (*x[: -len(size)], *size)
    return Pooling(x=x, out=out, window=max(1, prod(x) // max(1, prod(out))), dtype=op.dtype(0))


@traced_as("aten::max_pool2d_with_indices_backward", "aten::max_pool3d_with_indices_backward", leaf_only=True)
def _max_pool_backward(op: OpSignature) -> PoolingBackward:
    """(dOut, x, kernel, ...): whatever the window, each gradient goes to one element."""
    kernel = op.literal(2)
    window = None if kernel is None else prod(_sizes(op, 2, 3 if "3d" in op.name else 2))
    return PoolingBackward(x=op.shape(1), out=op.shape(0), window=window, indexed=True, dtype=op.dtype(0))


@traced_as("aten::avg_pool2d_backward", "aten::avg_pool3d_backward", leaf_only=True)
def _avg_pool_backward(op: OpSignature) -> PoolingBackward:
    """(dOut, x, kernel, ...)."""
    kernel = _sizes(op, 2, 2)
    return PoolingBackward(x=op.shape(1), out=op.shape(0), window=prod(kernel), dtype=op.dtype(0))


@traced_as("aten::_adaptive_avg_pool2d_backward", leaf_only=True)
def _adaptive_backward(op: OpSignature) -> PoolingBackward:
    """(dOut, x)."""
    out, x = op.shape(0), op.shape(1)
    return PoolingBackward(x=x, out=out, window=max(1, prod(x) // max(1, prod(out))), dtype=op.dtype(0))


# Values that one result is made of, by PyTorch's number of the interpolation: linear, nearest, cubic.
_TAPS = {2: {0: 4, 1: 1, 2: 16}, 3: {0: 8, 1: 1}}


@dataclass(frozen=True, slots=True, kw_only=True)
class GridSampler(PerfModel):
    """``results`` values, each the weighted sum of ``taps`` values of an image, at places that ``grid`` numbers say.

    flops = 2*taps - 1 per result; the weights, found once per place for all channels, are not counted. bytes = the
    image, at most as many of its values as are taken, and the grid read, the results written.
    """

    category: ClassVar[str] = "grid_sampler_fwd"

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


@dataclass(frozen=True, slots=True, kw_only=True)
class GridSamplerBackward(GridSampler):
    """The gradients of image and grid.

    flops = 2 per tap to scale and add up the image's, 2 per tap and dim for the grid's. bytes = results' gradient,
    image and grid read, both gradients written.
    """

    category: ClassVar[str] = "grid_sampler_bwd"

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
