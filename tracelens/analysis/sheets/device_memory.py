"""Sheets of device memory: copies, hardware counters, and what the allocators held, over time and by line."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.analysis.attribution.calls import LAUNCH, copied_bytes, launch_floor_us
from tracelens.analysis.grouping import Codes, by_number, first_of_each, last_begun, numbered
from tracelens.analysis.intervals import Floats, Ints, union_ns
from tracelens.analysis.sheets import built_in, columns_of, sheet_rows
from tracelens.analysis.verdict.summary import LEAST_KNOWN, CategoryRow
from tracelens.hardware import HardwareSpec
from tracelens.perf_models.base import total_bytes
from tracelens.perf_models.gemm import GEMM
from tracelens.perf_models.kernels import CopyPath, copy_path
from tracelens.trace.table import DramSamples, Kind, TraceTable
from tracelens.trace.tree import OpTree
from tracelens.types.units import BYTES_PER_MB, GB_PER_S_IN_BYTES_PER_US, NS_PER_US, TERA_PER_S_IN_PER_US

if TYPE_CHECKING:
    from tracelens.analysis.sheets.context import SheetContext
    from tracelens.trace.reading.counter_files import CountedKernels

COPIES_TITLE = "copies"
KERNEL_COUNTERS_TITLE = "kernel_counters"


#: The launching op of copies whose launch was not recorded, or was no op's.
NO_OP = "(no op)"


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
    """Per copy between memories the share of its time needed at its path's peak rate; NaN where unknown."""
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
    """The category of copies with the rates of most of its time; many small copies are bound by their launches."""
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
# Shares of a sample's time.
_BUSY = ("tensor_percent", "sm_active_percent")
# Device events at one time, on average: what is above was made up, and its parts would not fit in memory.
_MOST_AT_ONCE = 64


@built_in("measured_hbm")
def measured_hbm_frame(context: SheetContext) -> pd.DataFrame | None:
    """HBM traffic by kernel, measured (PM sampling, GPU metrics of Nsight Systems) and predicted by perf models."""
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
    """One row per kernel alone in samples of the ``window`` (None: all); ``bytes_per_ns``: by perf model, or NaN."""
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
    sampled = frame["sampled_us"].where(frame["sampled_us"] > 0)
    for key in _BUSY:
        frame[key] /= sampled
    return frame


def _total(values: pd.Series[float]) -> float:
    """The sum, unknown where one of the values is."""
    return float(values.sum(skipna=False))


def _of_device(
    table: TraceTable, activity: DeviceActivity, samples: DramSamples, device: int, bytes_per_ns: Floats,
    window: tuple[int, int] | None,
) -> pd.DataFrame | None:  # fmt: skip
    """A row per sample of a device."""
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
            **{key: getattr(samples, key)[at] * (end - start) / NS_PER_US for key in _BUSY},
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
    0: "cpu", 1: "cuda", 6: "cuda", 9: "xla", 12: "xpu", 13: "mps", 15: "hpu", 19: "mtia", 20: "privateuse1",
}  # fmt: skip


def memory_summary(table: TraceTable, tree: OpTree) -> pd.DataFrame | None:
    """One row per device: its peak, when that was and in which op; None without allocator events.

    Amounts are what the allocator says of the whole device where it says so (``Total Allocated``), else the sum of the
    recorded allocations, which leaves out what was there before the recording.
    """
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
    row = np.append(order, -1)[last_begun(table.lane[order], table.start_ns[order], lane, time)]
    while len(closed := np.flatnonzero((row >= 0) & (table.ends_ns(row) < time))):
        row[closed] = tree.op_parent[row[closed]]
    return row


def names_of(table: TraceTable, rows: Ints) -> list[str | None]:
    return [table.name_of(row) if row >= 0 else None for row in rows.tolist()]


#: Points of the timeline per device: of every stretch of time the event with most memory in it.
MAX_POINTS = 1000


def memory_timeline(table: TraceTable, tree: OpTree) -> pd.DataFrame | None:
    """Allocated and reserved memory over time, at most ``MAX_POINTS`` per device; None without allocator events."""
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
    return order[np.append(np.flatnonzero(np.diff(stretch[order])), len(held) - 1)]


@built_in(KERNEL_COUNTERS_TITLE)
def kernel_counters_frame(context: SheetContext) -> pd.DataFrame | None:
    """Hardware counters of --counters by op call and kernel, and the counted kernels that were not joined."""
    if not context.options.counters:
        return None
    events, group, first = _counted_events(context)
    counted = _CountedGroups(len(first))
    left = counted.add(context, events, group)
    rows = [*_joined_rows(context, group, first, counted), *left]
    return pd.DataFrame(rows, columns=["_row", *columns_of(KERNEL_COUNTERS_TITLE)]) if rows else None


def _counted_events(context: SheetContext) -> tuple[Ints, Codes, Codes]:
    """(device events by launch, the group of each by op call and name, the first event of each group)."""
    table, activity = context.trace.table, context.activity
    launch = context.trace.tree.launch[activity.rows]
    launched = np.where(launch >= 0, table.start_ns[launch], activity.start)
    events: Ints = np.lexsort((activity.start, launched)).astype(np.int64)
    group = numbered(context.priced.row_of_event[events], activity.name[events])
    return events, group, first_of_each(group)


class _CountedGroups:
    """Counters by group of launches, summed over launches and files."""

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self.counted = np.zeros(groups, np.int64)
        #: Of the first launch of each: how it was joined, its grid, its op.
        self.first: dict[int, tuple[str, str, str | None]] = {}
        self._stalls: dict[int, dict[str, float]] = {}
        self._stalled: Counter[int] = Counter()
        #: Of each figure its sums, and over how many launches.
        self._sums: dict[str, Floats] = defaultdict(lambda: np.zeros((2, groups)))

    def add(self, context: SheetContext, events: Ints, group: Codes) -> list[dict[str, object]]:
        """Adds every file; the launches that are not joined, as rows of the sheet."""
        from tracelens.trace.reading.counter_files import RecordedKernels, joined

        table, activity = context.trace.table, context.activity
        rows = activity.rows[events]
        left: dict[tuple[str, str, str, str | None], int] = {}
        kernels = np.flatnonzero(table.kind[rows] == Kind.KERNEL)

        def sizes(event: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
            args = table.args(int(rows[kernels[event]]))
            found = args.get("grid"), args.get("block")
            grid, block = (tuple(each) if isinstance(each, list | tuple) and len(each) == 3 else () for each in found)
            is_known = grid and block and all(isinstance(n, int) and 0 < n < 2**40 for n in (*grid, *block))
            return (grid, block) if is_known else None

        recorded = RecordedKernels(
            names=table.names, name=table.name[rows[kernels]].astype(np.int64),
            device=table.device[rows[kernels]].astype(np.int64), target=group[kernels].astype(np.int64), sizes=sizes,
        )  # fmt: skip
        for file in context.options.counters:
            target, how = joined(file, recorded)
            self._add(file, target, how)
            for key, launches in Counter(
                (file.name[at], _sizes_text(file.grid[at].tolist()), how[at], file.op[at])
                for at in np.flatnonzero(target < 0).tolist()
            ).items():
                left[key] = max(left.get(key, 0), launches)
        keys = ("kernel_name", "grid", "not_joined", "counted_op")
        return [
            dict(zip(keys, key, strict=True)) | {"counted": n, "recorded": 0, "_row": -1} for key, n in left.items()
        ]

    def _add(self, file: CountedKernels, target: Ints, how: list[str]) -> None:
        at = np.flatnonzero(target >= 0)
        self.counted = np.maximum(self.counted, np.bincount(target[at], minlength=self._groups))
        for key, values in file.figures.items():
            known = at[~np.isnan(values[at])]
            weights = (values[known], np.ones(len(known)))
            self._sums[key] += [np.bincount(target[known], each, self._groups) for each in weights]
        for launch in at.tolist():
            goal, reason = int(target[launch]), file.stall[launch]
            if goal not in self.first:
                self.first[goal] = how[launch], _sizes_text(file.grid[launch].tolist()), file.op[launch]
            if reason is not None:
                of_reason = self._stalls.setdefault(goal, {})
                of_reason[reason] = of_reason.get(reason, 0.0) + float(file.stall_percent[launch])
                self._stalled[goal] += 1

    def mean(self, key: str) -> Floats:
        """Mean of a figure over the launches of each group that have it; NaN without."""
        total, times = self._sums[key]
        return np.divide(total, times, out=np.full(self._groups, np.nan), where=times > 0)

    def stall(self, group: int) -> tuple[str | None, float]:
        """The reason that warps of a group waited most for, and its mean share in percent."""
        of_reason = self._stalls.get(group, {})
        if not of_reason:
            return None, np.nan
        reason = max(of_reason, key=lambda name: (of_reason[name], name))
        return reason, of_reason[reason] / self._stalled[group]


def _sizes_text(sizes: list[int]) -> str:
    """``(9, 32, 1)``, or a total; empty where not counted."""
    return "" if not sizes[0] else str(sizes[0]) if not sizes[1] else f"({sizes[0]}, {sizes[1]}, {sizes[2]})"


#: Figures of a launch that the sheet shows as they are.
_SHOWN_FIGURES = ("l2_hit_percent", "hbm_percent", "tensor_percent", "vector_percent", "occupancy_percent",
                  "sm_active_percent", "shared_memory_percent", "bank_conflict_percent", "waves_per_sm")  # fmt: skip
_OF_CALL = ("input_dims", "category", "gflops")


def _joined_rows(
    context: SheetContext, group: Codes, first: Codes, counted: _CountedGroups
) -> Iterator[dict[str, object]]:
    """A row per op call and kernel with counters, the one that took most time first."""
    table, activity, priced = context.trace.table, context.activity, context.priced
    events = _counted_events(context)[0]
    recorded = np.bincount(group, minlength=len(first))
    kernel_us = np.bincount(group, activity.duration_us(events), len(first))
    row_of = priced.row_of_event[events[first]]
    means = {
        key: counted.mean(key) for key in (*_SHOWN_FIGURES, "hbm_bytes", "hbm_read_bytes", "l2_bytes", "duration_us")
    }
    wanted = (*_OF_CALL, "name", "hbm_mb", "percent_of_roofline_mean", "roofline_bound", "operation_count")
    calls = {key: priced.rows[key].tolist() for key in wanted}
    of_call = _bytes_of_calls(row_of, recorded, means["hbm_bytes"], calls["operation_count"])
    kernels_of = np.bincount(row_of[row_of >= 0], minlength=len(calls["name"]) + 1)
    at = np.flatnonzero(counted.counted > 0)
    for goal in at[np.argsort(-kernel_us[at], kind="stable")].tolist():
        row, stall, (how, grid, counted_op) = int(row_of[goal]), counted.stall(goal), counted.first[goal]
        model = {key: values[row] if row >= 0 else None for key, values in calls.items()}
        model_mb = model["hbm_mb"] or 0.0
        over = of_call[row] / (model_mb * BYTES_PER_MB) if model_mb > 0 else np.nan
        figures: dict[str, object] = {key: float(means[key][goal]) for key in _SHOWN_FIGURES}
        figures |= {
            "measured_over_model": over, "stall_reason": stall[0], "stall_percent": stall[1],
            "percent_of_roofline": model["percent_of_roofline_mean"], "roofline_bound": model["roofline_bound"],
        }  # fmt: skip
        if row >= 0 and kernels_of[row] == 1 and recorded[goal] == model["operation_count"]:
            figures["read_again"] = _operand_read_again(context, row, float(means["hbm_read_bytes"][goal]))
        yield {
            "op": model["name"], "kernel_name": table.names[int(activity.name[events[first[goal]]])],
            "_row": row, "counted_op": counted_op, "grid": grid,
            "counted": int(counted.counted[goal]), "recorded": int(recorded[goal]),
            "joined_by": how, "kernel_us_mean": kernel_us[goal] / recorded[goal],
            "counted_us_mean": means["duration_us"][goal], **{key: model[key] for key in _OF_CALL},
            "model_mb": model["hbm_mb"], "hbm_mb": means["hbm_bytes"][goal] / BYTES_PER_MB,
            "l2_mb": means["l2_bytes"][goal] / BYTES_PER_MB, **figures, "why": why_below_roofline(figures),
        }  # fmt: skip


#: The smaller operand of a product may have been read once by each die (MI300X has 8) with a cache of its own.
_DIES = 8


def _operand_read_again(context: SheetContext, row: int, read_bytes: float) -> str | None:
    """``A (134 MB) 4.0 times``: the operand of a product that alone explains what was read; None where another may.

    It is larger than the L2, half of which holds the other one, and what is read beyond once each is more than half of
    it even if every die reads the other one by itself.
    """
    priced, device = context.priced, context.recording.device
    code = priced.work.readings.code_of(priced.rows["example_row"].to_numpy(np.int64)[[row]])[0]
    model = priced.work.readings.readings[int(code)].model if code >= 0 else None
    cache = None if device is None else device.l2_mib
    if not isinstance(model, GEMM) or cache is None:
        return None
    operands = zip("AB", model.moved()[:2], strict=True)
    sizes = [(total_bytes(moved, first=model.dtype) or 0.0, name) for name, moved in operands]
    (small, _), (large, name) = sorted(sizes)
    fits = 0 < small <= cache * 2**20 / 2 and large > cache * 2**20
    if not fits or not read_bytes - large - _DIES * small > large / 2:
        return None
    return f"{name} ({large / BYTES_PER_MB:.0f} MB) {(read_bytes - small) / large:.1f} times"


def _bytes_of_calls(row_of: Codes, recorded: Ints, hbm_bytes: Floats, calls: list[int]) -> Floats:
    """Counted HBM bytes of one call of each row, of all its kernels; NaN unless all were counted."""
    linked = np.flatnonzero(row_of >= 0)
    total = np.bincount(row_of[linked], (hbm_bytes * recorded)[linked], len(calls) + 1)
    found: Floats = total[: len(calls)] / np.maximum(np.array(calls, np.float64), 1)
    found[~np.isin(np.arange(len(calls)), row_of)] = np.nan
    return found


#: What two counters must say together before they explain a kernel (judgement, as no data to fit them are at hand): a
#: kernel near its roofline needs no reason; HBM bytes beyond the model's, and L2 hits that are few; shares of warp
#: cycles, of warps, and of how busy a pipe is.
_NEAR_PERCENT, _MUCH_MORE, _FEW_HITS_PERCENT = 95, 1.5, 50
_WAITS_PERCENT, _CONFLICTS_PERCENT, _FEW_WARPS_PERCENT, _IDLE_PERCENT, _BUSY_PERCENT = 30, 20, 25, 60, 80
_OF_SHARED_MEMORY = {"short_scoreboard", "mio_throttle", "lds_issue"}


def why_below_roofline(figures: Mapping[str, Any]) -> str | None:
    """What two independent counters of a kernel say of its distance from the roofline; None where no two agree."""
    if not figures["percent_of_roofline"] or not figures["percent_of_roofline"] < _NEAR_PERCENT:
        return None
    return next(
        filter(None, (rule(figures) for rule in (_small_grid, _read_again, _shared_memory, _latency, _pipe))), None
    )


def _small_grid(seen: Mapping[str, Any]) -> str | None:
    waves, active = seen["waves_per_sm"], seen["sm_active_percent"]
    if not (waves < 1 and active <= _IDLE_PERCENT):
        return None
    return (
        f"the grid is {waves:.2f} of what the device runs at a time, and its multiprocessors have work {active:.0f} % "
        "of the time: too few blocks"
    )


def _read_again(seen: Mapping[str, Any]) -> str | None:
    over, hits, busy = seen["measured_over_model"], seen["l2_hit_percent"], seen["hbm_percent"]
    read = seen.get("read_again") or "data more than once"
    is_bound = busy >= _IDLE_PERCENT or (np.isnan(busy) and seen["roofline_bound"] == "memory")
    if not (over >= _MUCH_MORE and hits <= _FEW_HITS_PERCENT and is_bound):
        return None
    return f"the L2 hits {hits:.0f} % and HBM moves {over:.1f} times the model's bytes: it reads {read}"


def _shared_memory(seen: Mapping[str, Any]) -> str | None:
    conflicts, busy = seen["bank_conflict_percent"], seen["shared_memory_percent"]
    if seen["stall_reason"] not in _OF_SHARED_MEMORY or not seen["stall_percent"] >= _WAITS_PERCENT:
        return None
    waits = f"waits for shared memory: {seen['stall_percent']:.0f} % of warp cycles ({seen['stall_reason']})"
    if conflicts >= _CONFLICTS_PERCENT:
        return f"{waits}, and bank conflicts are {conflicts:.0f} % of its accesses"
    return f"{waits}, and the pipe to it is {busy:.0f} % busy" if busy >= _IDLE_PERCENT else None


def _latency(seen: Mapping[str, Any]) -> str | None:
    is_waiting = seen["stall_reason"] == "long_scoreboard" and seen["stall_percent"] >= _WAITS_PERCENT
    if not (is_waiting and seen["occupancy_percent"] <= _FEW_WARPS_PERCENT and seen["hbm_percent"] < _IDLE_PERCENT):
        return None
    return (
        f"waits for global memory: {seen['stall_percent']:.0f} % of warp cycles (long_scoreboard), occupancy is "
        f"{seen['occupancy_percent']:.0f} % and the HBM {seen['hbm_percent']:.0f} % busy: too few warps hide latency"
    )


def _pipe(seen: Mapping[str, Any]) -> str | None:
    busy, pipe = max((seen[f"{pipe}_percent"], pipe) for pipe in ("tensor", "vector"))
    is_waiting = seen["stall_reason"] == "math_pipe_throttle" and seen["stall_percent"] >= _WAITS_PERCENT
    if not (is_waiting and busy >= _BUSY_PERCENT):
        return None
    return (
        f"the {pipe} pipe is {busy:.0f} % busy and warps wait for it {seen['stall_percent']:.0f} % of their cycles: it "
        "computes more than the model counts, or in a slower type"
    )


@built_in("memory_blocks")
def memory_blocks_frame(context: SheetContext) -> pd.DataFrame | None:
    """Of the whole run: memory at the peak and in the --memory-snapshot, by allocating line."""
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


SHEETS = sheet_rows(
    {
        COPIES_TITLE: lambda c: f if len(f := copies(c.trace.table, c.activity, c.recording.device)) else None,
        "memory": lambda c: memory_summary(c.recorded.table, c.recorded.tree),
        "memory_timeline": lambda c: memory_timeline(c.recorded.table, c.recorded.tree),
    }
)
