"""Manifold-constrained hyper-connections: ``n`` residual streams of ``c`` channels, mixed before and after a layer."""

from __future__ import annotations

from typing import ClassVar

from tracelens.dtypes import DType
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import PerfModel, total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperConnection(PerfModel):
    """``tokens`` rows of ``streams`` residual streams with ``channels`` each; ``dtype`` is theirs."""

    category: ClassVar[str] = "mHC"
    family: ClassVar[str | None] = "mHC_fwd"

    tokens: int
    streams: int
    channels: int
    dtype: DType | None

    @property
    def _streams(self) -> int:
        """Elements of all streams."""
        return self.tokens * self.streams * self.channels

    @property
    def _layer(self) -> int:
        """Elements of one layer's input or output."""
        return self.tokens * self.channels


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperConnectionPost(HyperConnection):
    """Every stream becomes a mix of all streams and the layer's output.

    flops = 2*t*n*c*(n + 1); bytes = streams and layer output read, streams written; the n*(n + 1) coefficients per
    token are left out.
    """

    def flops(self) -> int:
        return 2 * self._streams * (self.streams + 1)

    def hbm_bytes(self) -> int | float | None:
        return total_bytes((2 * self._streams + self._layer, self.dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperConnectionCoefficients(HyperConnection):
    """The coefficients of the next mix: a GEMM of the flattened streams with ``outputs`` columns, and their square sum.

    flops = 2*t*outputs*n*c, the square sum left out; bytes = streams and weight read, FP32 coefficients and sums
    written. ``dtype_weight`` is the weight's type.
    """

    engine: ClassVar[str] = "matrix"

    outputs: int
    dtype_weight: DType | None

    def flops(self) -> int:
        return 2 * self.outputs * self._streams

    def hbm_bytes(self) -> int | float | None:
        return total_bytes(
            (self._streams, self.dtype),
            (self.outputs * self.streams * self.channels, self.dtype_weight),
            (self.tokens * (self.outputs + 1), DType.FP32),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperConnectionPre(HyperConnection):
    """The layer's input: a weighted sum of the streams, RMS-normalized.

    flops = 2*t*n*c + 5*t*c; bytes = streams and norm weight read, layer input written.
    """

    def flops(self) -> int:
        return 2 * self._streams + 5 * self._layer

    def hbm_bytes(self) -> int | float | None:
        return total_bytes((self._streams + self._layer + self.channels, self.dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperConnectionPostPre(HyperConnectionCoefficients):
    """One layer's ``HyperConnectionPost`` and the next one's ``HyperConnectionCoefficients`` in one op.

    flops = their sum; bytes = streams, layer output and weight read, streams, coefficients and sums written.
    """

    def flops(self) -> int:
        return 2 * self._streams * (self.streams + 1) + 2 * self.outputs * self._streams

    def hbm_bytes(self) -> int | float | None:
        return total_bytes(
            (2 * self._streams + self._layer, self.dtype),
            (self.outputs * self.streams * self.channels, self.dtype_weight),
            (self.tokens * (self.outputs + 1), DType.FP32),
        )
