"""The matrix work that a trace's calls with a perf model did."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.calls import Calls
from tracelens.analysis.grouping import Codes
from tracelens.analysis.reading.op_readings import OpReadings
from tracelens.dtypes import DType
from tracelens.lazy.records import dataclass
from tracelens.perf_models.attention.sdpa import SDPA, SDPABackward

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExecutedWork:
    """What the trace's calls with a perf model did: matrix FLOPs by step (one entry over all without steps).

    ``dtype`` is the type that most of them are computed in. ``attention``: (table row, model) of forward attention.
    """

    flops_by_step: Floats
    dtype: DType | None
    attention: tuple[tuple[int, SDPA], ...]


def executed_work(calls: Calls, readings: OpReadings, step_of_event: Codes | None, steps: int) -> ExecutedWork:
    """Over calls that do not contain one another, without FLOPs that are an upper bound; ``step_of_event``: of the
    events that calls index, -1 for none; None without steps.
    """
    code = readings.code_of(calls.row)
    models = [reading.model for reading in readings.readings]
    matrix = [m if m is not None and m.engine == "matrix" and not m.at_most else None for m in models]
    flops = np.array([0.0, *((m.flops() or 0) if m is not None else 0 for m in matrix)])
    modelled = np.where(calls.kernel_name < 0, code, -1)
    step = np.zeros(len(code), np.int32) if step_of_event is None else step_of_event[calls.first_event]
    total = np.zeros(max(1, steps))
    np.add.at(total, step[step >= 0], flops[modelled[step >= 0] + 1])
    forward = np.array([isinstance(m, SDPA) and not isinstance(m, SDPABackward) for m in models] + [False], bool)
    attention = np.flatnonzero(forward[modelled])
    return ExecutedWork(
        flops_by_step=total,
        dtype=_most_computed_in(readings, flops[1:] * np.bincount(modelled + 1, minlength=len(flops))[1:]),
        attention=tuple(
            (int(calls.row[call]), model)
            for call in attention.tolist()
            if isinstance(model := models[int(code[call])], SDPA)
        ),
    )


def _most_computed_in(readings: OpReadings, flops: Floats) -> DType | None:
    """The type of most matrix ``flops``, of each reading all its calls'; None without any."""
    by_type: dict[DType, float] = {}
    for reading, total in zip(readings.readings, flops.tolist(), strict=True):
        dtype = reading.compute_dtype
        if reading.model is not None and reading.model.engine == "matrix" and dtype is not None:
            by_type[dtype] = by_type.get(dtype, 0.0) + total
    return max(by_type, key=lambda d: (by_type[d], d.label)) if any(by_type.values()) else None
