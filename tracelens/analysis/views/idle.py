"""Why the device stood idle: every gap in the union of device events gets exactly one cause, in whole nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracelens.analysis.activity import Bools, DeviceActivity
from tracelens.analysis.intervals import Ints, idle_spans
from tracelens.analysis.numbering import numbered
from tracelens.analysis.views.host_calls import HostCalls
from tracelens.trace.table import Kind, RowColumn, TraceTable
from tracelens.trace.tree import OpTree
from tracelens.units import NS_PER_US

if TYPE_CHECKING:
    import pandas as pd

DATA_LOADING = "data loading"
COMMUNICATION = "communication on the host"
SYNCHRONIZATION = "synchronization"
HOST_WORK = "host work outside of ops"
LAUNCH_BOUND = "launch-bound"
QUEUED = "between queued kernels"
UNKNOWN = "unknown"
#: Every cause, in the order in which they are tried; ``QUEUED`` and ``UNKNOWN`` need no look at the host.
CAUSES = (UNKNOWN, QUEUED, DATA_LOADING, COMMUNICATION, SYNCHRONIZATION, HOST_WORK, LAUNCH_BOUND)
#: Gaps that the sheet of single gaps lists; the causes count all of them.
MAX_GAPS = 100
# Gaps whose cause is looked for at a time: the dozen columns made on the way stay small.
_BLOCK = 100_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IdleGaps:
    """The gaps of a window in order of time; ``cause`` indexes ``CAUSES``.

    ``row``: table row of the device event that ended the gap, -1 where the recording ended first. ``before``: row of
    the one that ran last, -1 for a gap at the window's start. ``window_ns``: length of the window.
    """

    start: Ints
    end: Ints
    cause: npt.NDArray[np.int8]
    row: RowColumn
    before: RowColumn
    window_ns: int

    @property
    def total_ns(self) -> int:
        return int((self.end - self.start).sum())

    def by_cause(self) -> pd.DataFrame:
        """One row per cause that occurs, the longest first; ``idle_us`` adds up to the window's idle time."""
        import pandas as pd

        n = len(CAUSES)
        length = self.end - self.start
        idle, longest = np.zeros(n, np.int64), np.zeros(n, np.int64)
        np.add.at(idle, self.cause, length)
        np.maximum.at(longest, self.cause, length)
        gaps = np.bincount(self.cause, minlength=n)
        shown = [i for i in sorted(range(n), key=lambda i: (-idle[i], CAUSES[i])) if gaps[i]]
        total = self.total_ns
        return pd.DataFrame(
            {
                "cause": [CAUSES[i] for i in shown],
                "gaps": gaps[shown],
                "idle_us": idle[shown] / NS_PER_US,
                "mean_us": idle[shown] / NS_PER_US / gaps[shown],
                "max_us": longest[shown] / NS_PER_US,
                "percent_of_idle": 100 * idle[shown] / total if total else idle[shown] * 0.0,
                "percent_of_window": 100 * idle[shown] / self.window_ns if self.window_ns else idle[shown] * 0.0,
            }
        )

    def longest(self, table: TraceTable, tree: OpTree, *, most: int = MAX_GAPS) -> pd.DataFrame:
        """The ``most`` longest gaps; ``start_us`` counts from the trace's first event."""
        import pandas as pd

        length = self.end - self.start
        order = np.lexsort((self.start, -length))[:most]
        base = int(table.start_ns.min()) if len(table) else 0
        after, before = self.row[order].tolist(), self.before[order].tolist()
        op = [int(tree.op[row]) if row >= 0 else -1 for row in after]
        return pd.DataFrame(
            {
                "start_us": (self.start[order] - base) / NS_PER_US,
                "idle_us": length[order] / NS_PER_US,
                "cause": [CAUSES[i] for i in self.cause[order].tolist()],
                "kernel_before": [table.name_of(row) if row >= 0 else None for row in before],
                "kernel_after": [table.name_of(row) if row >= 0 else None for row in after],
                "op_after": [table.name_of(row) if row >= 0 else None for row in op],
            }
        )


def idle_gaps(
    table: TraceTable,
    tree: OpTree,
    host: HostCalls,
    activity: DeviceActivity,
    everything: DeviceActivity,
    window: tuple[int, int],
) -> IdleGaps:
    """The gaps of ``activity`` in ``window`` and their causes; ``everything``: also what lies outside of the window.

    The device event that ends a gap decides, and its launch. Without one: ``unknown``. Launched before the gap began,
    or by a call (a graph) that had started other kernels: ``between queued kernels``. Otherwise the host was late, and
    what the process was doing from the gap's start to the launch says why, the first that holds: in data loading, or
    in ops of torch.distributed, for at least half of the gap; in a call that waits for the device, which kept it from
    launching ahead; outside of all recorded calls for at least half of the gap; else in ops and launches.
    """
    start, end = idle_spans(activity.start, activity.end, *window)
    by_end = np.argsort(activity.end, kind="stable").astype(np.int32)
    last = np.searchsorted(activity.end[by_end], start, side="right")
    before = np.append(np.int32(-1), activity.rows[by_end])[last]
    del by_end, last
    by_start = np.argsort(everything.start, kind="stable").astype(np.int32)
    next_one = np.append(by_start, np.int32(-1))[np.searchsorted(everything.start[by_start], end)]
    del by_start
    row = np.append(everything.rows, np.int32(-1))[next_one]
    launch = np.append(tree.launch[everything.rows], np.int32(-1))[next_one]
    continues = np.append(_first_starts(tree, everything), np.iinfo(np.int64).max)[next_one] < end
    del next_one
    cause = np.zeros(len(start), np.int8)
    for low in range(0, len(start), _BLOCK):
        part = slice(low, low + _BLOCK)
        cause[part] = _causes(table, host, launch[part], continues[part], start[part], end[part])
    return IdleGaps(start=start, end=end, cause=cause, row=row, before=before, window_ns=window[1] - window[0])


def _causes(
    table: TraceTable, host: HostCalls, launch: RowColumn, continues: Bools, start: Ints, end: Ints
) -> npt.NDArray[np.int64]:
    """The causes of gaps, by the launch of the event that ended each and whether it had started others before."""
    is_call = (launch >= 0) & np.isin(table.kind[np.maximum(launch, 0)], (Kind.RUNTIME, Kind.DRIVER))
    called = np.where(launch >= 0, table.start_ns[np.maximum(launch, 0)], end)
    # Of a launch that is known only as its op, the op's start is all that is known
    returned = called + np.where(is_call, table.duration_ns[np.maximum(launch, 0)], 0)
    queued = (launch >= 0) & ((returned <= start) | continues)
    length = end - start
    late_end = np.clip(called, start, end)
    process = np.where(launch >= 0, host.process[table.lane[np.maximum(launch, 0)]] if len(table) else 0, -1)

    return np.select(
        [
            launch < 0,
            queued,
            2 * host.loads.within(process, start, late_end) >= length,
            2 * host.communicates.within(process, start, late_end) >= length,
            host.waits.within(process, start, late_end) > 0,
            2 * (late_end - start - host.calls.within(process, start, late_end)) >= length,
        ],
        range(len(CAUSES) - 1),
        len(CAUSES) - 1,
    )


def _first_starts(tree: OpTree, everything: DeviceActivity) -> Ints:
    """When the first device event of each one's launch started."""
    launch = numbered(tree.launch[everything.rows])
    first = np.full(int(launch.max(initial=-1)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, launch, everything.start)
    return first[launch]
