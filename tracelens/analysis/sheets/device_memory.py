"""Sheets of device memory: what the allocators held over time, and by the line that allocated it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.intervals import Ints
from tracelens.analysis.sheets.shared_columns import HELD, RESERVED, START, memory_mb
from tracelens.schema import column_set, count, flag, sheet, text, us
from tracelens.trace.table import Kind, TraceTable
from tracelens.trace.tree import OpTree
from tracelens.units import BYTES_PER_MB, NS_PER_US

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import SheetContext


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


DEVICE_MEMORY_COLUMNS = column_set(
    text("device", "Name as in torch.device; ROCm devices are cuda too.", width=14),
    count("allocations", "Recorded allocations."),
    count("releases", "Recorded releases."),
    memory_mb("allocated_mb_sum", "Sizes of the allocations, added up."),
    memory_mb("first_mb", HELD),
    memory_mb("peak_mb", HELD),
    memory_mb("last_mb", HELD),
    memory_mb("peak_reserved_mb", RESERVED),
    us("peak_at_us", START),
    text("peak_op", "The innermost op that was open when the peak was reached.", width=46),
    flag(
        "counts_from_start",
        "TRUE: totals were not recorded; amounts add up the recorded events from 0.",
        width=10,
    ),
)


@sheet("memory", columns=DEVICE_MEMORY_COLUMNS, order=67, json=140)
def device_memory_frame(context: SheetContext) -> pd.DataFrame | None:
    """Of the whole file: what the allocators handed out, by device: the peak, its time and its op."""
    return memory_summary(context.recorded.table, context.recorded.tree)


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
    rows = []
    for name, at in by_device(table):
        held, reserved = held_after(table, at), events.reserved[at]
        peak = int(held.argmax())
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
                "peak_op": names_of(table, op_at(table, tree, at[peak : peak + 1]))[0],
                "counts_from_start": bool((events.allocated[at] < 0).any()),
            }
        )
    return pd.DataFrame(rows)


def by_device(table: TraceTable) -> list[tuple[str, Ints]]:
    """(device, its events in order of time); the CPU last."""
    events = table.allocations
    devices = np.unique(np.stack((events.device_type, events.device), axis=1), axis=0).tolist()
    found = []
    for kind, number in sorted(devices, key=lambda pair: (pair[0] == 0, pair)):
        at = np.flatnonzero((events.device_type == kind) & (events.device == number))
        name = _DEVICE_TYPES.get(kind, f"device type {kind}")
        found.append(
            (name if kind == 0 or number < 0 else f"{name}:{number}", at[np.argsort(events.time_ns[at], kind="stable")])
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
    for one in np.unique(lane).tolist():
        ops = order[table.lane[order] == one]
        here = np.flatnonzero(lane == one)
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
    memory_mb("allocated_mb", HELD),
    memory_mb("reserved_mb", RESERVED),
    memory_mb("change_mb", "Size of the allocation; negative for a release."),
    text("parent_op", "The innermost op that was open on the thread.", width=46),
)


@sheet("memory_timeline", columns=MEMORY_TIMELINE_COLUMNS, order=68, json=150)
def memory_timeline_frame(context: SheetContext) -> pd.DataFrame | None:
    """Of the whole file: memory over time, at most 1000 points per device: of every stretch of events the highest."""
    return memory_timeline(context.recorded.table, context.recorded.tree)


def memory_timeline(table: TraceTable, tree: OpTree) -> pd.DataFrame | None:
    """Allocated and reserved memory over time, at most ``MAX_POINTS`` per device; None without allocator events."""
    import pandas as pd

    events = table.allocations
    if not len(events):
        return None
    base = int(table.start_ns.min()) if len(table) else int(events.time_ns.min())
    parts = []
    for name, at in by_device(table):
        held = held_after(table, at)
        kept = _highest_of_each(held, MAX_POINTS)
        chosen = at[kept]
        reserved = events.reserved[chosen]
        parts.append(
            pd.DataFrame(
                {
                    "device": name,
                    "at_us": (events.time_ns[chosen] - base) / NS_PER_US,
                    "allocated_mb": held[kept] / BYTES_PER_MB,
                    "reserved_mb": np.where(reserved > 0, reserved / BYTES_PER_MB, np.nan),
                    "change_mb": events.bytes[chosen] / BYTES_PER_MB,
                    "parent_op": names_of(table, op_at(table, tree, chosen)),
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def _highest_of_each(held: Ints, most: int) -> Ints:
    """Positions of at most ``most`` events: the largest of each of as many stretches of equal count."""
    if len(held) <= most:
        return np.arange(len(held))
    stretch = np.arange(len(held)) * most // len(held)
    order = np.lexsort((-np.arange(len(held)), held, stretch))
    kept: Ints = order[np.append(np.flatnonzero(np.diff(stretch[order])), len(held) - 1)]
    return kept


MEMORY_BLOCKS_COLUMNS = column_set(
    text("device", "Name as in torch.device; ROCm devices are cuda too.", width=14),
    text("held_by", "Innermost Python lines outside PyTorch that allocated the blocks.", width=70),
    memory_mb("peak_mb", "When the blocks held most, of what the snapshot's history recorded."),
    memory_mb("end_mb", "In the snapshot. A device's rows add up to what it reserved."),
    count("blocks", "Blocks in the snapshot."),
    memory_mb("largest_mb", "The largest of these blocks."),
)


@sheet("memory_blocks", columns=MEMORY_BLOCKS_COLUMNS, order=70, json=170)
def memory_blocks_frame(context: SheetContext) -> pd.DataFrame | None:
    """Of the whole run: what held device memory at the peak and in the --memory-snapshot, by the allocating line."""
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
