"""Copies between a device and the host, or another device: what they moved, how fast, and what their path allows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.analysis.grouping import Codes, first_of_each, numbered
from tracelens.analysis.intervals import union_ns
from tracelens.analysis.sheets.shared_columns import DURATIONS, memory_mb
from tracelens.analysis.verdict.summary import LEAST_KNOWN, CategoryRow
from tracelens.analysis.work.known_work import LAUNCH, copied_bytes, launch_floor_us
from tracelens.hardware import HardwareSpec
from tracelens.lazy.records import dataclass
from tracelens.perf_models.kernels import CopyPath, copy_path
from tracelens.schema import column_set, count, number, percent, sheet, text, us
from tracelens.trace.table import TraceTable
from tracelens.units import BYTES_PER_MB, GB_PER_S_IN_BYTES_PER_US, TERA_PER_S_IN_PER_US

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import SheetContext


Floats = npt.NDArray[np.float64]

#: The launching op of copies whose launch was not recorded, or was no op's.
NO_OP = "(no op)"


TITLE = "copies"
COLUMNS = column_set(
    text("parent_op", "The op that launched the copies.", width=46),
    text("direction", "HtoD: host to device; DtoH: device to host; PtoP: to another device.", width=10),
    text(
        "host_memory",
        "Pinned or pageable (the driver then copies twice, and the call waits), according to the copy's name; "
        "unknown where the name does not say; empty between devices.",
        width=14,
    ),
    count("copies", "Number of copies."),
    us("duration_us_sum", DURATIONS),
    memory_mb("copied_mb", "Bytes copied; empty where no copy recorded them."),
    number("gb_s", "Bytes over time, of the copies whose bytes were recorded.", shape="#,##0.00", unit="GB/s"),
    text(
        "path",
        "Link of the copies: C2C (to the CPU of the same package) or PCIe to the host; the devices' own link, "
        "else PCIe, between devices.",
        width=8,
    ),
    number(
        "path_gb_s",
        "Peak of that link in one direction, from the device file; between devices, of one pair of them.",
        shape="#,##0.0",
        unit="GB/s",
    ),
    percent("percent_of_path_peak", "Achieved rate over the path's peak."),
)


@sheet(TITLE, columns=COLUMNS, order=63, json=50)
def frame(context: SheetContext) -> pd.DataFrame | None:
    """Copies between the device and the host or another device, beside what their path allows."""
    found = copies(context.trace.table, context.activity, context.recording.device)
    return found if len(found) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRate:
    """What copies go over, and the peak of one direction."""

    name: str
    gb_s: float


def path_rate(device: HardwareSpec | None, path: CopyPath) -> PathRate | None:
    """To the host: the link to the CPU of the same package, else PCIe. To another device: their own link, else PCIe.

    A link between devices is rated by what one pair of them has, where the device file knows that.
    """
    if device is None:
        return None
    if path.host_memory is None and device.link is not None:
        return PathRate(name="link", gb_s=device.link.p2p_gb_s or device.link.gb_s)
    if path.host_memory is not None and device.c2c_gb_s is not None:
        return PathRate(name="C2C", gb_s=device.c2c_gb_s)
    return None if device.pcie_gb_s is None else PathRate(name="PCIe", gb_s=device.pcie_gb_s)


def only_copies_ns(activity: DeviceActivity) -> int:
    """Time in which the device did nothing but copies between memories."""
    copies = activity.between_memories
    if not copies.any():
        return 0
    others = ~copies
    return union_ns(activity.start, activity.end) - union_ns(activity.start[others], activity.end[others])


def at_rate_of_path(table: TraceTable, activity: DeviceActivity, device: HardwareSpec | None) -> Floats:
    """Of each copy between memories, in their order, the share of its time that its path takes at its peak; NaN where
    the bytes or the path are not known.
    """
    at = np.flatnonzero(activity.between_memories)
    if not len(at):
        return np.zeros(0)
    paths, code = _paths(table, activity.name[at])
    rates = [path_rate(device, path) for path in paths]
    gb_s = np.array([np.nan if rate is None else rate.gb_s for rate in rates])[code]
    peak_us = copied_bytes(table, activity)[at] / (gb_s * GB_PER_S_IN_BYTES_PER_US)
    took_us = activity.duration_us(at)
    share: Floats = np.divide(peak_us, took_us, out=np.full(len(at), np.nan), where=took_us > 0)
    return np.minimum(share, 1.0, dtype=np.float64)


def copies(table: TraceTable, activity: DeviceActivity, device: HardwareSpec | None) -> pd.DataFrame:
    """One row per launching op, direction and kind of host memory, by time. Rates are of the copies of known size."""
    import pandas as pd

    at = np.flatnonzero(activity.between_memories)
    if not len(at):
        return pd.DataFrame()
    paths, path_code = _paths(table, activity.name[at])
    op = activity.op[at]
    op_name = np.where(op >= 0, table.name[op], np.int32(-1))
    group = numbered(op_name, path_code)
    first, us, moved = first_of_each(group), activity.duration_us(at), copied_bytes(table, activity)[at]
    known, n = ~np.isnan(moved), len(first)
    total, took = (np.bincount(group[known], values[known], minlength=n) for values in (moved, us))
    gb_s = np.divide(total, took, out=np.full(n, np.nan), where=took > 0) / GB_PER_S_IN_BYTES_PER_US
    rates = [path_rate(device, path) for path in paths]
    of_row = path_code[first]
    peak = np.array([np.nan if rate is None else rate.gb_s for rate in rates])[of_row]
    frame = pd.DataFrame(
        {
            "parent_op": [NO_OP if code < 0 else table.names[code] for code in op_name[first].tolist()],
            "direction": [paths[code].direction for code in of_row.tolist()],
            "host_memory": np.array([path.host_memory for path in paths], object)[of_row],
            "copies": np.bincount(group),
            "duration_us_sum": np.bincount(group, us),
            "copied_mb": np.where(np.bincount(group[known], minlength=n) > 0, total / BYTES_PER_MB, np.nan),
            "gb_s": gb_s,
            "path": np.array([None if rate is None else rate.name for rate in rates], object)[of_row],
            "path_gb_s": peak,
            "percent_of_path_peak": 100 * gb_s / peak,
        }
    )
    keys = ["duration_us_sum", "parent_op", "direction", "host_memory"]
    return frame.sort_values(keys, ascending=[False, True, True, True], ignore_index=True)


def _paths(table: TraceTable, names: Codes) -> tuple[list[CopyPath], Codes]:
    """The paths of these copies, and each copy's among them."""
    path_of = {code: copy_path(table.names[code]) for code in np.unique(names).tolist()}
    paths = sorted({p for p in path_of.values() if p is not None}, key=lambda p: (p.direction, p.host_memory or ""))
    number = {code: paths.index(p) for code, p in path_of.items() if p is not None}
    return paths, np.array([number[code] for code in names.tolist()], np.int32)


def with_rate(row: CategoryRow, frame: pd.DataFrame, device: HardwareSpec | None) -> CategoryRow:
    """The category of copies with what ``copies`` says of most of its time.

    A copy takes at least a launch, so many small ones are bound by that.
    """
    known = frame[frame["gb_s"] > 0]
    took_us = known["copied_mb"] * BYTES_PER_MB / (known["gb_s"] * GB_PER_S_IN_BYTES_PER_US)
    most_us = LEAST_KNOWN * frame["duration_us_sum"].sum()
    if not took_us.sum() > most_us:
        return row
    bytes_per_us = float(known["copied_mb"].sum() * BYTES_PER_MB / took_us.sum())
    rated = replace(row, wire_tb_s=bytes_per_us / TERA_PER_S_IN_PER_US)
    has_path = known["path_gb_s"].notna()
    known, took_us = known[has_path], took_us[has_path]
    if device is None or not took_us.sum() > most_us:
        return rated
    at_peak_us = known["copied_mb"] * BYTES_PER_MB / (known["path_gb_s"] * GB_PER_S_IN_BYTES_PER_US)
    of_known = took_us / known["duration_us_sum"]
    floor_us = (known["copies"] * of_known * launch_floor_us(device)).clip(upper=took_us)
    bound = known["path"].where(at_peak_us >= floor_us, LAUNCH)
    least_us = at_peak_us.clip(lower=floor_us)
    return replace(
        rated,
        bound=str(least_us.groupby(bound).sum().idxmax()),
        of_roofline=float(least_us.sum() / took_us.sum()),
        of_peak=float(at_peak_us.sum() / took_us.sum()),
    )
