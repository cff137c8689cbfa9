"""The work of many perf models as arrays: what backends estimate from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tracelens.dtypes import DType
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import PerfModel
from tracelens.perf_models.compute_type import ComputeType


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkColumns:
    """One row per perf model, in the order given. NaN and None mean unknown.

    ``passes``: products in ``dtype`` that stand for one of the model's, where wider ones are emulated.
    """

    flops: npt.NDArray[np.float64]
    hbm_bytes: npt.NDArray[np.float64]
    wire_bytes: npt.NDArray[np.float64]
    engine: tuple[str, ...]
    dtype: tuple[DType | None, ...]
    models: tuple[PerfModel, ...]
    passes: npt.NDArray[np.float64]

    @classmethod
    def of(cls, models: Iterable[PerfModel], computed_in: Sequence[ComputeType | None] | None = None) -> WorkColumns:
        """The columns of ``models``. ``computed_in``: what products run in where it is not the model's own type."""
        rows = tuple(models)
        said = tuple(computed_in) if computed_in is not None else (None,) * len(rows)
        return cls(
            flops=_column(m.flops() for m in rows),
            hbm_bytes=_column(m.hbm_bytes() for m in rows),
            wire_bytes=_column(m.wire_bytes() for m in rows),
            engine=tuple(m.engine for m in rows),
            dtype=tuple(m.compute_dtype if p is None else p.dtype for m, p in zip(rows, said, strict=True)),
            models=rows,
            passes=np.array([1.0 if p is None else p.passes for p in said], dtype=np.float64),
        )

    def __len__(self) -> int:
        return len(self.models)

    def take(self, rows: Sequence[int]) -> WorkColumns:
        """Some of the rows, in the order given."""
        at = np.asarray(rows, dtype=np.intp)
        return WorkColumns(
            flops=self.flops[at],
            hbm_bytes=self.hbm_bytes[at],
            wire_bytes=self.wire_bytes[at],
            engine=tuple(self.engine[row] for row in rows),
            dtype=tuple(self.dtype[row] for row in rows),
            models=tuple(self.models[row] for row in rows),
            passes=self.passes[at],
        )


def _column(values: Iterable[float | None]) -> npt.NDArray[np.float64]:
    return np.array([np.nan if v is None else v for v in values], dtype=np.float64)
