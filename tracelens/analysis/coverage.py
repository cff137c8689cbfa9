"""What share of the device time a report can speak about. Printed before any verdict."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.activity import Bools, DeviceActivity, Labels
from tracelens.analysis.calls import Calls, OpReadings
from tracelens.analysis.catalog import OTHER
from tracelens.analysis.summary import Coverage
from tracelens.trace.table import TraceTable


def coverage(
    table: TraceTable, activity: DeviceActivity, unified: Calls, readings: OpReadings, categories: Labels
) -> Coverage:
    """Shares of the summed duration of all device events, communication included in the denominator.

    perf_model: in rows whose perf model says FLOPs or bytes; categorised: of a category that is not ``other``
    (``categories``: of every event); unlinked: no recorded launch; communication: by kernel name, or because the op
    communicates.
    """
    duration = activity.duration
    total = int(duration.sum())

    def share(mask: Bools) -> float | None:
        return float(duration[mask].sum() / total) if total else None

    code = readings.code_of(unified.row)
    call_has_model = np.zeros(len(unified.row), bool)
    inside = (code >= 0) & (unified.kernel_name < 0)
    call_has_model[inside] = readings.with_work[code[inside]]
    modelled = np.zeros(len(activity), bool)
    unlinked = activity.op < 0
    modelled[unified.events] = call_has_model[unified.call_of_event]
    return Coverage(
        perf_model=share(modelled),
        categorised=share(~categories.are(OTHER)),
        unlinked=share(unlinked),
        communication=share(activity.communication),
        shapes=table.has_shapes,
        stacks=table.has_stacks,
    )
