"""Memory over time, where the trace has the allocators' events (``profile_memory=True``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.intervals import Ints
from tracelens.analysis.sheets.device_memory import by_device, held_after, names_of, op_at
from tracelens.analysis.sheets.shared_columns import HELD, RESERVED, START, memory_mb
from tracelens.schema import column_set, sheet, text, us
from tracelens.trace.table import TraceTable
from tracelens.trace.tree import OpTree
from tracelens.units import BYTES_PER_MB, NS_PER_US

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import SheetContext


#: Points of the timeline per device: of every stretch of time the event with most memory in it.
MAX_POINTS = 1000

COLUMNS = column_set(
    text("device", "Name as in torch.device.", width=14),
    us("at_us", START),
    memory_mb("allocated_mb", HELD),
    memory_mb("reserved_mb", RESERVED),
    memory_mb("change_mb", "Size of the allocation; negative for a release."),
    text("parent_op", "The innermost op that was open on the thread.", width=46),
)


@sheet("memory_timeline", columns=COLUMNS, order=68, json=150)
def frame(context: SheetContext) -> pd.DataFrame | None:
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
