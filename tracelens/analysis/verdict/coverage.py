"""What share of the device time a report can speak about. Printed before any verdict."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.attribution.activity import Bools, DeviceActivity, Labels
from tracelens.analysis.attribution.calls import Calls
from tracelens.analysis.reading.catalog import OTHER
from tracelens.analysis.reading.op_readings import OpReadings
from tracelens.analysis.verdict.summary import Coverage
from tracelens.analysis.work.copied_bytes import copied_bytes
from tracelens.trace.table import TraceTable


def coverage(
    table: TraceTable, activity: DeviceActivity, unified: Calls, readings: OpReadings, categories: Labels
) -> Coverage:
    """Shares of the summed duration of all device events, communication included in the denominator.

    perf_model: in rows whose perf model says FLOPs or bytes, or copies of known size; flops: in rows of known FLOPs,
    those of pure data movement and communication being none; categorised: of a category that is not ``other``
    (``categories``: of every event); unlinked: no recorded launch; communication: by kernel name, or because the op
    communicates.
    """
    duration = activity.duration
    total = int(duration.sum())

    def share(mask: Bools) -> float | None:
        return float(duration[mask].sum() / total) if total else None

    code = np.where(unified.kernel_name < 0, readings.code_of(unified.row), np.int32(-1))
    models = [reading.model for reading in readings.readings]
    says_work = np.append(readings.with_work, False)
    says_flops = np.array([m is not None and m.flops() is not None for m in models] + [False], bool)
    modelled = ~np.isnan(copied_bytes(table, activity))
    unlinked = activity.op < 0
    modelled[unified.events] |= says_work[code][unified.call_of_event]
    computed = activity.communication | activity.memcpy
    computed[unified.events] |= says_flops[code][unified.call_of_event]
    return Coverage(
        perf_model=share(modelled),
        flops=share(computed),
        categorised=share(~categories.are(OTHER)),
        unlinked=share(unlinked),
        communication=share(activity.communication),
        shapes=table.has_shapes,
        stacks=table.has_stacks,
    )
