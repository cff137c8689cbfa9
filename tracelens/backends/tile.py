"""The tile model: what each compute unit does, tile by tile, with constants fitted per device and precision."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, ClassVar

import numpy as np

from tracelens.backends.base import Backend, EstimateTable, Floats, backend
from tracelens.backends.column_batch import PRICED, Basis, ColumnBatch
from tracelens.backends.roofline_and_tile import Roofline
from tracelens.backends.system import System
from tracelens.backends.tiles import pricer_of
from tracelens.hardware import HardwareSpec
from tracelens.perf_models.work_columns import WorkColumns


@backend("tile")
class Tile(Backend):
    """What the pricer of an operation's family says; None for a family without one.

    A device without constants for the family and precision has no answer either: a chain asks the next backend.
    Estimates never beat the data sheet's peak, and grow with every dimension (``docs/estimation.md`` lists what was
    measured not to).
    """

    name: ClassVar[str] = "tile"

    def estimate_many(self, columns: WorkColumns, system: System) -> EstimateTable:
        """One row per row of ``columns``."""
        filled = _priced(columns, system.device)
        # The data sheet's time of what each model says it computes and moves, a bias or a wide C included.
        least, known = Roofline().estimate_many(columns, system).peak_us, np.isfinite(filled["time_us"])
        for field in ("time_us", "peak_us"):
            filled[field] = np.where(known, np.fmax(filled[field], least), np.nan)
        bound = np.where(filled["compute_us"] >= filled["memory_us"], "compute", "memory").tolist()
        each = known.tolist()
        matrix_rate = [k and engine == "matrix" for k, engine in zip(each, columns.engine, strict=True)]
        return EstimateTable(
            **filled,
            wire_us=np.where(known, 0.0, np.nan),
            bound=tuple(b if k else None for b, k in zip(bound, each, strict=True)),
            rate_basis=tuple("achievable" if k else None for k in matrix_rate),
            backend=tuple(self.name if k else None for k in each),
        )

    def estimate_batch(self, batch: ColumnBatch, system: System) -> EstimateTable:
        """One row per row of ``batch``, without an object each. The bound is the larger of computing and memory."""
        found, rows = batch.price(system.device), len(batch)
        if found is None:
            return EstimateTable.unanswered(rows)
        return EstimateTable(
            **{field: getattr(found, field) for field in PRICED},
            wire_us=np.zeros(rows),
            bound=tuple(np.where(found.compute_us >= found.memory_us, "compute", "memory").tolist()),
            rate_basis=("achievable",) * rows,
            backend=(self.name,) * rows,
        )

    def measured_as(self, work: WorkColumns | ColumnBatch, system: System) -> Basis:
        """Whose constants price the rows of a column batch; of perf models, which may be several calls, unknown."""
        return work.measured_as(system.device) if isinstance(work, ColumnBatch) else Basis.unknown(len(work))


def _priced(columns: WorkColumns, device: HardwareSpec) -> dict[str, Floats]:
    """The columns of ``Priced``, NaN where no pricer has an answer."""
    asked: dict[Any, list[int]] = defaultdict(list)
    for row, model in enumerate(columns.models):
        kind: Any = type(model)
        claim = pricer_of(kind)
        if claim is not None:
            asked[claim.target].append(row)
    filled = {field: np.full(len(columns), np.nan) for field in PRICED}
    for price, rows in asked.items():
        found = price(columns.take(rows), device)
        for field, values in filled.items():
            values[rows] = getattr(found, field)
    return filled
