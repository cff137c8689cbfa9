"""Fourier transforms."""

from __future__ import annotations

from math import log2, prod
from typing import Any, ClassVar

from tracelens.dtypes import DType
from tracelens.errors import SignatureError
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import PerfModel, total_bytes, traced_as, traced_name
from tracelens.signature import OpSignature


@dataclass(frozen=True, slots=True, kw_only=True)
class FourierTransform(PerfModel):
    """``batch`` transforms of ``points`` points each.

    flops = 5 * n * log2(n) per complex transform, half of that from or to real numbers: the convention of FFTW's
    benchmarks, whatever algorithm ran. bytes = one read, one write; a transform that does not fit on the chip makes
    several passes.
    """

    category: ClassVar[str] = "FFT"
    engine: ClassVar[str] = "vector"

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

    def hbm_bytes(self) -> int | float | None:
        return total_bytes((self.read, self.dtype), (self.written, self.dtype_out))

    @property
    def compute_dtype(self) -> DType | None:
        """The type of a number's parts."""
        return _REAL.get(self.dtype, self.dtype) if self.dtype is not None else None

    def parameters(self) -> dict[str, Any]:
        return {
            "batch": self.batch, "points": self.points, "real": self.is_real,
            "dtype_in_out": (traced_name(self.dtype), traced_name(self.dtype_out)),
        }  # fmt: skip


_REAL = {DType.COMPLEX64: DType.FP32, DType.COMPLEX128: DType.FP64}
_COMPLEX = {real: number for number, real in _REAL.items()}


@traced_as("aten::_fft_c2c")
def _complex(op: OpSignature) -> FourierTransform:
    """(x, dims, normalization, forward)."""
    x, dims = op.shape(0), _dims(op)
    points = prod(x[d] for d in dims)
    n = prod(x)
    return FourierTransform(
        batch=n // max(points, 1), points=points, is_real=False, read=n, written=n, dtype=op.dtype(0),
        dtype_out=op.dtype(0),
    )  # fmt: skip


@traced_as("aten::_fft_r2c")
def _from_real(op: OpSignature) -> FourierTransform:
    """(x, dims, normalization, onesided): one side keeps n/2 + 1 of the last dim's results."""
    x, dims = op.shape(0), _dims(op)
    points, n, last = prod(x[d] for d in dims), prod(x), x[dims[-1]]
    kept = last // 2 + 1 if op.literal(3) is not False else last
    dtype = op.dtype(0)
    return FourierTransform(
        batch=n // max(points, 1), points=points, is_real=True, read=n, written=n // max(last, 1) * kept, dtype=dtype,
        dtype_out=_COMPLEX.get(dtype) if dtype is not None else None,
    )  # fmt: skip


@traced_as("aten::_fft_c2r")
def _to_real(op: OpSignature) -> FourierTransform:
    """(x, dims, normalization, size of the result's last dim)."""
    x, dims, last = op.shape(0), _dims(op), op.literal(3)
    if not isinstance(last, int) or isinstance(last, bool) or last <= 0:
        raise SignatureError(f"{op.name}: argument 3, the size of the last dim, is {last!r}")
    n = prod(x)
    written = n // max(x[dims[-1]], 1) * last
    points = prod(x[d] for d in dims[:-1]) * last
    dtype = op.dtype(0)
    return FourierTransform(
        batch=written // max(points, 1), points=points, is_real=True, read=n, written=written, dtype=dtype,
        dtype_out=_REAL.get(dtype) if dtype is not None else None,
    )  # fmt: skip


def _dims(op: OpSignature) -> list[int]:
    rank, dims = len(op.shape(0)), op.literal(1)
    if not isinstance(dims, list) or not dims or not all(isinstance(d, int) and -rank <= d < rank for d in dims):
        raise SignatureError(f"{op.name}: argument 1, the dims, is {dims!r}")
    return [d % rank for d in dims]
