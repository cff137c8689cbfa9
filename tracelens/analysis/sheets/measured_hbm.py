"""Traffic of device memory as the hardware counted it (CUPTI's PM sampling), next to what perf models say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.schema import column_set, count, mb, number, sheet, text, us
from tracelens.trace.table import DramSamples, TraceTable
from tracelens.units import BYTES_PER_MB, NS_PER_US, TERA_PER_S_IN_PER_US

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import SheetContext


Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
#: Rows of samples in which not one kernel alone ran.
SEVERAL, NOTHING = "(several kernels)", "(no kernel)"
# A sample whose successor is further away than this many usual distances had successors that were lost.
_LOST_BEYOND = 1.5
# Device events at one time, on average: what is above was made up, and its parts would not fit in memory.
_MOST_AT_ONCE = 64
_PER_S = "TB/s (1e12 bytes per second), HBM"

COLUMNS = column_set(
    text("kernel_name", "The only kernel that ran in the samples of this row.", width=60),
    count("samples", "Samples of the hardware's counters."),
    us("sampled_us", "Duration of these samples."),
    us("kernel_us", "Time of device events within them, added up."),
    mb("read_mb", "HBM: measured, read.", optional=True),
    mb("written_mb", "HBM: measured, written.", optional=True),
    mb("measured_mb", "HBM: measured, read and written."),
    mb("model_mb", "HBM: as perf models say, each call's bytes spread over its kernels' time. "
       "Empty where a device event has no perf model."),
    number("measured_tb_s", "HBM: measured bytes over kernel time.", unit=_PER_S),
    number("model_tb_s", "HBM: the models' bytes over kernel time.", unit=_PER_S),
    number("measured_over_model", "Below 1: caches held data, or the model counts too much; "
           "above 1: data moved more often than once, or the model counts too little.", shape="0.00"),
)  # fmt: skip


@sheet("measured_hbm", columns=COLUMNS, order=69, json=160)
def frame(context: SheetContext) -> pd.DataFrame | None:
    """Measured traffic of device memory by kernel, beside the models' (PM sampling's dram__bytes_* counters)."""
    samples = context.recorded.table.dram_samples
    if not len(samples):
        return None
    priced, table, activity = context.priced, context.trace.table, context.activity
    rate = np.append(priced.rows["hbm_tb_s_mean"].to_numpy(np.float64), np.nan)[priced.row_of_event]
    window = context.timeline.window if context.selected else None
    return measured_hbm(table, activity, samples, rate * TERA_PER_S_IN_PER_US / NS_PER_US, window)


def measured_hbm(
    table: TraceTable, activity: DeviceActivity, samples: DramSamples, bytes_per_ns: Floats,
    window: tuple[int, int] | None = None,
) -> pd.DataFrame | None:  # fmt: skip
    """One row per kernel that some samples hold alone; ``bytes_per_ns``: by perf model, per event, NaN without.

    ``window``: (start, end) of the samples that count; None for all.
    """
    import pandas as pd

    parts = [
        _of_device(table, activity, samples, device, bytes_per_ns, window)
        for device in sorted({pid for pid, _ in table.lanes if isinstance(pid, int)})
    ]
    every = pd.concat([part for part in parts if part is not None] or [pd.DataFrame()])
    if every.empty:
        return None
    frame = every.groupby("kernel_name", sort=False).agg(_total).reset_index()
    frame = frame.sort_values("kernel_us", ascending=False, kind="stable", ignore_index=True)
    busy = frame["kernel_us"].where(frame["kernel_us"] > 0) * TERA_PER_S_IN_PER_US / BYTES_PER_MB
    frame["measured_tb_s"], frame["model_tb_s"] = frame["measured_mb"] / busy, frame["model_mb"] / busy
    frame["measured_over_model"] = frame["measured_mb"] / frame["model_mb"].where(frame["model_mb"] > 0)
    return frame


def _total(values: pd.Series[float]) -> float:
    """The sum, unknown where one of the values is."""
    return float(values.sum(skipna=False))


def _of_device(
    table: TraceTable, activity: DeviceActivity, samples: DramSamples, device: int, bytes_per_ns: Floats,
    window: tuple[int, int] | None,
) -> pd.DataFrame | None:  # fmt: skip
    """A row per sample of a device."""
    import pandas as pd

    pid = np.array([pid == device for pid, _ in table.lanes], np.bool_)
    at = np.flatnonzero(pid[samples.lane])
    at = at[np.argsort(samples.time_ns[at], kind="stable")]
    if window is not None:
        at = at[(samples.time_ns[at] >= window[0]) & (samples.time_ns[at] < window[1])]
    start = samples.time_ns[at]
    distance = np.diff(start)
    if not len(distance):
        return None
    usual = int(np.median(distance))
    end = start + np.append(np.where(distance > _LOST_BEYOND * usual, usual, distance), usual)
    found = _overlaps(table, activity, device, start, end)
    if found is None:
        return None
    event, sample, overlap = found
    size = len(start)
    return pd.DataFrame(
        {
            "kernel_name": _ran_in(table, activity.name[event], sample, size),
            "samples": 1,
            "sampled_us": (end - start) / NS_PER_US,
            "kernel_us": np.bincount(sample, overlap, size) / NS_PER_US,
            "read_mb": samples.read_bytes[at] / BYTES_PER_MB,
            "written_mb": samples.written_bytes[at] / BYTES_PER_MB,
            "measured_mb": samples.moved_bytes[at] / BYTES_PER_MB,
            "model_mb": np.bincount(sample, overlap * bytes_per_ns[event], size) / BYTES_PER_MB,
        }
    )


def _ran_in(table: TraceTable, name: npt.NDArray[np.integer], sample: Ints, samples: int) -> list[str]:
    """What ran in each sample, by the names of the events that are in some."""
    least, most = np.full(samples, 2**31), np.full(samples, -1)
    np.minimum.at(least, sample, name)
    np.maximum.at(most, sample, name)
    return [
        NOTHING if high < 0 else SEVERAL if low != high else table.names[low]
        for low, high in zip(least.tolist(), most.tolist(), strict=True)
    ]


def _overlaps(
    table: TraceTable, activity: DeviceActivity, device: int, start: Ints, end: Ints
) -> tuple[Ints, Ints, Floats] | None:
    """(event, sample, ns) of every device event's part in every sample; None where far too many events overlap."""
    there = np.isin(table.device[activity.rows], (device, -1)) & (activity.end > activity.start)
    events = np.flatnonzero(there)
    first = np.searchsorted(end, activity.start[events], side="right")
    counts = np.maximum(np.searchsorted(start, activity.end[events], side="left") - first, 0)
    if counts.sum() > _MOST_AT_ONCE * (len(events) + len(start)):
        return None
    event = np.repeat(events, counts)
    sample = np.arange(len(event)) - np.repeat(np.cumsum(counts) - counts - first, counts)
    overlap = np.minimum(activity.end[event], end[sample]) - np.maximum(activity.start[event], start[sample])
    kept = overlap > 0
    return event[kept], sample[kept], overlap[kept].astype(np.float64)
