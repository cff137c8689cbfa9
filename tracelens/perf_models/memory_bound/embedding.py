"""Look-ups in large embedding tables, pooled into bags, and their gradient fused with the optimizer."""

from __future__ import annotations

from dataclasses import fields
from typing import ClassVar

from tracelens.dtypes import DType
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import PerfModel, total_bytes

REPEATED_ROWS = "rows that several indices name count each time"


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledLookup(PerfModel):
    """Rows of ``width`` elements, one per index of ``looked_up``, summed into ``bags``; ``weighted`` ones scaled first.

    flops = one addition per element, two with weights. bytes = a row per index, the indices and where bags begin read,
    the bags written. Which rows several indices name is not recorded: each counts, and all together at most the
    ``table_elements`` of the tables, so the bytes are at most those that came from HBM; None where the tables' size is
    not known.
    ``row_state``: FP32 elements that an optimizer fused with the gradient keeps per row.
    """

    category: ClassVar[str] = "index"
    family: ClassVar[str | None] = "Embedding"
    inferred: ClassVar[bool] = True

    looked_up: int
    width: float
    bags: int
    weighted: bool = False
    dtype: DType | None = DType.FP16
    dtype_out: DType | None = DType.FP32
    dtype_index: DType | None = DType.INT64
    row_state: float = 1
    assumed: str = ""
    table_elements: int | None = None

    @property
    def at_most(self) -> str:
        return REPEATED_ROWS if self.looked_up > 1 else ""

    @property
    def _rows(self) -> float:
        """Rows that are read, at most."""
        if self.table_elements is None or not self.width:
            return self.looked_up
        return min(self.looked_up, self.table_elements / self.width)

    def flops(self) -> float:
        return (1 + self.weighted) * self.looked_up * self.width

    def hbm_bytes(self) -> int | float | None:
        return total_bytes(
            (self._rows * self.width, self.dtype),
            (self.looked_up + self.bags + 1, self.dtype_index),
            (self.looked_up * self.weighted, DType.FP32),
            (self.bags * self.width, self.dtype_out),
        )

    def backward(self) -> PooledLookupBackward:
        """The gradients of the same look-ups, applied to the rows."""
        return PooledLookupBackward(**{f.name: getattr(self, f.name) for f in fields(PooledLookup)})


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledLookupBackward(PooledLookup):
    """The gradient of every bag added up per row, and the row and its optimizer state updated.

    flops per looked-up element = 1 to add up, 2 for the sum of squares (with a state), 2 for the update; with weights 1
    to scale and 2 for their own gradient. bytes = the bags' gradients and the indices read, every row and its state
    read and written.
    Sorting the indices, which implementations do first, is not counted.
    """

    def flops(self) -> float:
        return (3 + 2 * (self.row_state > 0) + 3 * self.weighted) * self.looked_up * self.width

    def hbm_bytes(self) -> int | float | None:
        return total_bytes(
            (2 * self._rows * self.width, self.dtype),
            (self.looked_up + self.bags + 1, self.dtype_index),
            (2 * (self.row_state * self._rows + self.weighted * self.looked_up), DType.FP32),
            (self.bags * self.width, self.dtype_out),
        )
