"""Images sampled at the points of a grid."""

from __future__ import annotations

from math import prod
from typing import ClassVar, TypeVar

from tracelens.dtypes import DType
from tracelens.errors import SignatureError
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import Like, PerfModel, resolved, total_bytes, traced_as
from tracelens.signature import OpSignature

Kind = TypeVar("Kind", bound="GridSampler")
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

    def hbm_bytes(self) -> int | float | None:
        return total_bytes(
            (self._read() + self.results, self.dtype), (self.grid, resolved(self.dtype_grid, self.dtype))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GridSamplerBackward(GridSampler):
    """The gradients of image and grid.

    flops = 2 per tap to scale and add up the image's, 2 per tap and dim for the grid's. bytes = results' gradient,
    image and grid read, both gradients written.
    """

    category: ClassVar[str] = "grid_sampler_bwd"

    def flops(self) -> int:
        return 2 * self.taps * (1 + self.dims) * self.results

    def hbm_bytes(self) -> int | float | None:
        return total_bytes(
            (self._read() + self.image + self.results, self.dtype),
            (2 * self.grid, resolved(self.dtype_grid, self.dtype)),
        )


@traced_as("aten::grid_sampler_2d", "aten::grid_sampler_3d", "aten::cudnn_grid_sampler")
def _grid_sampler(op: OpSignature) -> GridSampler:
    """(image [n,c,..], grid [n,..,dims], interpolation, ...); cuDNN's is linear."""
    return _sampled(op, 0, 1, 2, GridSampler)


@traced_as("aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward")
def _grid_sampler_backward(op: OpSignature) -> GridSamplerBackward:
    """(gradient, image, grid, interpolation, ...)."""
    return _sampled(op, 1, 2, 3, GridSamplerBackward)


@traced_as("aten::cudnn_grid_sampler_backward")
def _cudnn_backward(op: OpSignature) -> GridSamplerBackward:
    """(image, grid, gradient)."""
    return _sampled(op, 0, 1, 2, GridSamplerBackward)


def _sampled(op: OpSignature, image: int, grid: int, mode: int, kind: type[Kind]) -> Kind:
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
