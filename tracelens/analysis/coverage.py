"""What share of the device time a report can speak about. Printed before any verdict."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.activity import Bools, DeviceActivity
from tracelens.analysis.calls import Calls, OpReadings
from tracelens.analysis.catalog import OTHER
from tracelens.analysis.summary import Coverage
from tracelens.trace.table import TraceTable


def coverage(
    table: TraceTable, activity: DeviceActivity, unified: Calls, readings: OpReadings, categories: list[str]
) -> Coverage:
    """Shares of the summed duration of all device events, communication included in the denominator.

    perf_model: in rows with a perf model; categorised: in rows whose category is not ``other`` (collectives count as
    categorised, unlinked kernels by their name); unlinked: no recorded launch; communication: by kernel name.
    ``activity`` is all of it; ``unified.events`` index the events that are no collectives.
    """
    duration = activity.duration
    total = int(duration.sum())

    def share(mask: Bools) -> float | None:
        return float(duration[mask].sum() / total) if total else None

    rest = np.flatnonzero(~activity.collective)
    code = readings.code_of(unified.row)
    call_has_model = np.zeros(len(unified.row), bool)
    inside = (code >= 0) & (unified.kernel_name < 0)
    call_has_model[inside] = readings.modelled[code[inside]]
    call_definite = np.array([c != OTHER for c in categories], bool)
    modelled = np.zeros(len(activity), bool)
    definite = activity.collective.copy()
    unlinked = activity.op < 0
    definite |= unlinked & (activity.category != OTHER)
    modelled[rest[unified.events]] = call_has_model[unified.call_of_event] if len(call_has_model) else False
    definite[rest[unified.events]] |= call_definite[unified.call_of_event] if len(call_definite) else False
    return Coverage(
        perf_model=share(modelled),
        categorised=share(definite),
        unlinked=share(unlinked),
        communication=share(activity.communication),
        shapes=table.has_shapes,
        stacks=table.has_stacks,
    )
