"""What every distinct call with a perf model does, and how long that should take."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tracelens.analysis.reading.op_readings import OpReadings
from tracelens.analysis.work.limits import Limits
from tracelens.backends.base import EstimateTable
from tracelens.perf_models.work_columns import WorkColumns

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Work:
    """The work and the estimate of every reading, evaluated once per distinct signature."""

    def __init__(
        self,
        readings: OpReadings,
        estimate: Callable[[WorkColumns], EstimateTable] | None,
        chosen: Callable[[WorkColumns], EstimateTable] | None = None,
        limits: Limits | None = None,
        expect: Callable[[WorkColumns], EstimateTable] | None = None,
    ) -> None:
        self.readings = readings
        known = [r for r in readings.readings if r.model is not None]
        models = [r.model for r in known if r.model is not None]
        self.columns = WorkColumns.of(models, [r.computed_in for r in known])
        #: Of the device, None where it is not known.
        self.limits = limits
        self.estimates = estimate(self.columns) if estimate is not None and models else None
        #: What the backend that the caller chose says is achievable, beside the roofline.
        self.achievable = chosen(self.columns) if chosen is not None and models else None
        #: The same, or what the tile model says where the caller chose none.
        self.expected = self.achievable or (expect(self.columns) if expect is not None and models else None)
        self.position = np.cumsum(readings.modelled) - 1
        self.position[~readings.modelled] = -1

    def take(self, values: Floats, position: Ints) -> Floats:
        """``values`` at ``position``; NaN where there is no model."""
        if not len(values):
            return np.full(len(position), np.nan)
        return np.where(position >= 0, values[np.maximum(position, 0)], np.nan)
