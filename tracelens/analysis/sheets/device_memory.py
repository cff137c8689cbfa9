"""Sheets of device memory: copies and what their path allows, traffic as the hardware counted it, what the
allocators held over time and by the line that allocated it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.analysis.attribution.calls import LAUNCH, copied_bytes, launch_floor_us
from tracelens.analysis.grouping import Codes, by_number, first_of_each, numbered
from tracelens.analysis.intervals import Floats, Ints, union_ns
from tracelens.analysis.sheets import sheet_row
from tracelens.analysis.sheets.shared_columns import DURATIONS, HELD, RESERVED, START
from tracelens.analysis.verdict.summary import LEAST_KNOWN, CategoryRow
from tracelens.hardware import HardwareSpec
from tracelens.perf_models.kernels import CopyPath, copy_path
from tracelens.schema import column_set, count, flag, mb, number, percent, sheet, text, us
from tracelens.trace.table import DramSamples, Kind, TraceTable
from tracelens.trace.tree import OpTree
from tracelens.types.units import BYTES_PER_MB, GB_PER_S_IN_BYTES_PER_US, NS_PER_US, TERA_PER_S_IN_PER_US

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import SheetContext


#: The launching op of copies whose launch was not recorded, or was no op's.
NO_OP = "(no op)"


COPIES_TITLE = "copies"
COPIES_COLUMNS = column_set(
    text("parent_op", "Op that launched the copies.", width=46),
    text("direction", "HtoD: host to device. DtoH: device to host. PtoP: device to device.", width=10),
    text(
        "host_memory",
        "Pinned or pageable, from the name of the copy; unknown if the name does not say, empty between devices. A "
        "pageable copy is copied twice by the driver and blocks the caller.",
        width=14,
    ),
    count("copies", "Number of copies."),
    us("duration_us_sum", DURATIONS),
    mb("copied_mb", "Bytes copied; empty if no copy recorded them."),
    number("gb_s", "Bytes / duration of the copies with recorded bytes.", shape="#,##0.00", unit="GB/s"),
    text(
        "path",
        "Link of the copies: PCIe or C2C (CPU in the same package) to the host; the link between the devices, else "
        "PCIe.",
        width=8,
    ),
    number(
        "path_gb_s",
        "Peak of the link in one direction, from the device file; between devices, of one pair.",
        shape="#,##0.0",
        unit="GB/s",
    ),
    percent("percent_of_path_peak", "Bandwidth / peak of the link."),
)  # fmt: skip


@sheet(COPIES_TITLE, columns=COPIES_COLUMNS, order=70, json=50)
def copies_frame(context: SheetContext) -> pd.DataFrame | None:
    """Copies between the device and the host or another device, against the peak of their link."""
    found = copies(context.trace.table, context.activity, context.recording.device)
    return found if len(found) else None


def path_rate(device: HardwareSpec | None, path: CopyPath) -> tuple[str | None, float]:
    """What copies go over, and the peak (GB/s) of one direction; (None, NaN) where that is not known.

    To the host: the link to the CPU of the same package, else PCIe. To another device: their own link, else PCIe. A
    link between devices is rated by what one pair of them has, where the device file knows that.
    """
    if device is not None and path.host_memory is None and device.link is not None:
        return "link", device.link.p2p_gb_s or device.link.gb_s
    if device is not None and path.host_memory is not None and device.c2c_gb_s is not None:
        return "C2C", device.c2c_gb_s
    return (None, np.nan) if device is None or device.pcie_gb_s is None else ("PCIe", device.pcie_gb_s)


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
    gb_s = np.array([path_rate(device, path)[1] for path in paths])[code]
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
    peak = np.array([gb_s for _, gb_s in rates])[of_row]
    frame = pd.DataFrame(
        {
            "parent_op": [NO_OP if code < 0 else table.names[code] for code in op_name[first].tolist()],
            "direction": [paths[code].direction for code in of_row.tolist()],
            "host_memory": np.array([path.host_memory for path in paths], object)[of_row],
            "copies": np.bincount(group),
            "duration_us_sum": np.bincount(group, us),
            "copied_mb": np.where(np.bincount(group[known], minlength=n) > 0, total / BYTES_PER_MB, np.nan),
            "gb_s": gb_s,
            "path": np.array([name for name, _ in rates], object)[of_row],
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


#: Rows of samples in which not one kernel alone ran.
SEVERAL, NOTHING = "(several kernels)", "(no kernel)"
# A sample whose successor is further away than this many usual distances had successors that were lost.
_LOST_BEYOND = 1.5
# Device events at one time, on average: what is above was made up, and its parts would not fit in memory.
_MOST_AT_ONCE = 64

MEASURED_HBM_COLUMNS = column_set(
    text("kernel_name", "Only kernel that ran in these samples.", width=60),
    count("samples", "Samples of the hardware counters."),
    us("sampled_us", "Duration of these samples."),
    us("kernel_us", "Sum of the kernel and copy durations within the samples."),
    mb("read_mb", "HBM reads, measured.", optional=True),
    mb("written_mb", "HBM writes, measured.", optional=True),
    mb("measured_mb", "HBM reads and writes, measured."),
    mb(
        "model_mb",
        "HBM traffic that the perf models predict, spread over the kernel time of each call. Empty if a kernel has no "
        "perf model.",
    ),
    number("measured_tb_s", "Measured HBM traffic / kernel time.", unit="TB/s"),
    number("model_tb_s", "HBM traffic of the perf models / kernel time.", unit="TB/s"),
    number(
        "measured_over_model",
        "Below 1: caches held data, or the model counts too much. Above 1: data moved more than once, or the model "
        "counts too little.",
        shape="0.00",
    ),
)  # fmt: skip


@sheet("measured_hbm", columns=MEASURED_HBM_COLUMNS, order=66, json=160)
def measured_hbm_frame(context: SheetContext) -> pd.DataFrame | None:
    """HBM traffic by kernel, measured (dram__bytes_* counters of PM sampling) and predicted by perf models."""
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


# c10/core/DeviceType.h, with the names that torch.device takes. Devices of ROCm are "cuda" there too.
_DEVICE_TYPES = {
    0: "cpu",
    1: "cuda",
    6: "cuda",
    9: "xla",
    12: "xpu",
    13: "mps",
    15: "hpu",
    19: "mtia",
    20: "privateuse1",
}


def memory_summary(table: TraceTable, tree: OpTree) -> pd.DataFrame | None:
    """One row per device: its peak, when that was and in which op; None without allocator events.

    Amounts are what the allocator says of the whole device where it says so (``Total Allocated``), else the sum of the
    recorded allocations, which leaves out what was there before the recording.
    """
    import pandas as pd

    events = table.allocations
    if not len(events):
        return None
    base = int(table.start_ns.min()) if len(table) else int(events.time_ns.min())
    rows, peaks = [], []
    for name, at in by_device(table):
        held, reserved = held_after(table, at), events.reserved[at]
        peak = int(held.argmax())
        peaks.append(at[peak])
        rows.append(
            {
                "device": name,
                "allocations": int((events.bytes[at] > 0).sum()),
                "releases": int((events.bytes[at] < 0).sum()),
                "allocated_mb_sum": int(np.maximum(events.bytes[at], 0).sum()) / BYTES_PER_MB,
                "first_mb": int(held[0] - events.bytes[at[0]]) / BYTES_PER_MB,
                "peak_mb": int(held[peak]) / BYTES_PER_MB,
                "last_mb": int(held[-1]) / BYTES_PER_MB,
                "peak_reserved_mb": int(reserved.max()) / BYTES_PER_MB if reserved.max() > 0 else np.nan,
                "peak_at_us": (int(events.time_ns[at[peak]]) - base) / NS_PER_US,
                "peak_op": None,  # of all devices at once
                "counts_from_start": bool((events.allocated[at] < 0).any()),
            }
        )
    ops = names_of(table, op_at(table, tree, np.array(peaks)))
    return pd.DataFrame([{**row, "peak_op": op} for row, op in zip(rows, ops, strict=True)])


def by_device(table: TraceTable) -> list[tuple[str, Ints]]:
    """(device, its events in order of time); the CPU last."""
    events = table.allocations
    found = []
    of_kind = numbered(events.device_type == 0, events.device_type, events.device)
    for _, at in by_number(of_kind):
        kind, index = int(events.device_type[at[0]]), int(events.device[at[0]])
        name = _DEVICE_TYPES.get(kind, f"device type {kind}")
        found.append(
            (name if kind == 0 or index < 0 else f"{name}:{index}", at[np.argsort(events.time_ns[at], kind="stable")])
        )
    return found


def held_after(table: TraceTable, at: Ints) -> Ints:
    """Bytes in use after each event."""
    events = table.allocations
    recorded = events.allocated[at]
    return recorded if (recorded >= 0).all() else np.cumsum(events.bytes[at])


def op_at(table: TraceTable, tree: OpTree, at: Ints) -> Ints:
    """Row of the innermost op that was open on the thread of each allocator event, -1 where none was."""
    lane, time = table.allocations.lane[at], table.allocations.time_ns[at]
    order = tree.order[table.kind[tree.order] == Kind.CPU_OP]
    found = np.full(len(at), -1, np.int64)
    ops_of = {one: order[at] for one, at in by_number(table.lane[order])}
    for one, here in by_number(lane):
        ops = ops_of.get(one, order[:0])
        begun = np.searchsorted(table.start_ns[ops], time[here], side="right") - 1
        row = np.where(begun >= 0, np.append(ops, -1)[begun], -1)
        while len(closed := np.flatnonzero((row >= 0) & (table.ends_ns(row) < time[here]))):
            row[closed] = tree.op_parent[row[closed]]
        found[here] = row
    return found


def names_of(table: TraceTable, rows: Ints) -> list[str | None]:
    return [table.name_of(row) if row >= 0 else None for row in rows.tolist()]


#: Points of the timeline per device: of every stretch of time the event with most memory in it.
MAX_POINTS = 1000

MEMORY_TIMELINE_COLUMNS = column_set(
    text("device", "Name as in torch.device.", width=14),
    us("at_us", START),
    mb("allocated_mb", HELD),
    mb("reserved_mb", RESERVED),
    mb("change_mb", "Size of the allocation; negative for a release."),
    text("parent_op", "Innermost op that ran on the thread.", width=46),
)  # fmt: skip


def memory_timeline(table: TraceTable, tree: OpTree) -> pd.DataFrame | None:
    """Allocated and reserved memory over time, at most ``MAX_POINTS`` per device; None without allocator events."""
    import pandas as pd

    events = table.allocations
    if not len(events):
        return None
    base = int(table.start_ns.min()) if len(table) else int(events.time_ns.min())
    names, parts = list[str](), []
    for name, at in by_device(table):
        held = held_after(table, at)
        kept = _highest_of_each(held, MAX_POINTS)
        names += [name] * len(kept)
        parts.append((at[kept], held[kept]))
    chosen, allocated = (np.concatenate(part) for part in zip(*parts, strict=True))
    reserved = events.reserved[chosen]
    return pd.DataFrame(
        {
            "device": names,
            "at_us": (events.time_ns[chosen] - base) / NS_PER_US,
            "allocated_mb": allocated / BYTES_PER_MB,
            "reserved_mb": np.where(reserved > 0, reserved / BYTES_PER_MB, np.nan),
            "change_mb": events.bytes[chosen] / BYTES_PER_MB,
            "parent_op": names_of(table, op_at(table, tree, chosen)),
        }
    )


def _highest_of_each(held: Ints, most: int) -> Ints:
    """Positions of at most ``most`` events: the largest of each of as many stretches of equal count."""
    if len(held) <= most:
        return np.arange(len(held))
    stretch = np.arange(len(held)) * most // len(held)
    order = np.lexsort((-np.arange(len(held)), held, stretch))
    kept: Ints = order[np.append(np.flatnonzero(np.diff(stretch[order])), len(held) - 1)]
    return kept


MEMORY_BLOCKS_COLUMNS = column_set(
    text("device", "Name as in torch.device; ROCm devices are also cuda.", width=14),
    text("held_by", "Innermost Python lines outside PyTorch that allocated the blocks.", width=70),
    mb("peak_mb", "Memory at the highest point of the recorded history."),
    mb("end_mb", "Memory in the snapshot. The rows of a device add up to its reserved memory."),
    count("blocks", "Blocks in the snapshot."),
    mb("largest_mb", "Largest of these blocks."),
)  # fmt: skip


@sheet("memory_blocks", columns=MEMORY_BLOCKS_COLUMNS, order=64, json=170)
def memory_blocks_frame(context: SheetContext) -> pd.DataFrame | None:
    """Of the whole run: memory at the peak and in the --memory-snapshot, by allocating line."""
    import pandas as pd

    rows = [
        {
            "device": f"cuda:{memory.device}",
            "held_by": stack,
            "peak_mb": memory.peak_bytes[stack] / BYTES_PER_MB,
            "end_mb": memory.end_bytes[stack] / BYTES_PER_MB,
            "blocks": memory.blocks[stack],
            "largest_mb": memory.largest_bytes[stack] / BYTES_PER_MB,
        }
        for memory in context.options.memory_snapshot or ()
        for stack in sorted(
            {*memory.peak_bytes, *memory.end_bytes}, key=lambda s: (-memory.peak_bytes[s], -memory.end_bytes[s], s)
        )
        if memory.peak_bytes[stack] or memory.end_bytes[stack]
    ]
    return pd.DataFrame(rows) if rows else None


SHEETS = (
    sheet_row(
        "memory", 74, 140,
        "Of the whole file: allocated memory by device, with the time and op of the peak.",
        lambda c: memory_summary(c.recorded.table, c.recorded.tree),
        text("device", "Name as in torch.device; ROCm devices are also cuda.", width=14),
        count("allocations", "Recorded allocations."),
        count("releases", "Recorded releases."),
        mb("allocated_mb_sum", "Sum of the allocation sizes."),
        mb("first_mb", HELD),
        mb("peak_mb", HELD),
        mb("last_mb", HELD),
        mb("peak_reserved_mb", RESERVED),
        us("peak_at_us", START),
        text("peak_op", "Innermost op that ran at the peak.", width=46),
        flag(
            "counts_from_start",
            "TRUE: no totals were recorded; amounts add up the recorded events from 0.",
            width=10,
        ),
    ),
    sheet_row(
        "memory_timeline", 148, 150,
        "Of the whole file: memory over time, at most 1000 points per device (the highest of each stretch of events).",
        lambda c: memory_timeline(c.recorded.table, c.recorded.tree),
        MEMORY_TIMELINE_COLUMNS.values(),
    ),
)  # fmt: skip
