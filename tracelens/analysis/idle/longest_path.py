"""The critical path through one step: the longest chain of host work, launches, kernels and waits that led to its end.

A chain goes along what is known to come first: calls of a thread in their order, a launch before its kernel, kernels of
a stream in their order, a recorded event before the stream or the host that waits for it, work on the device before the
call that waits for it. Time of a chain counts where somebody worked in it, and where something that was ready took no
longer to start than is usual; it does not count where the chain only waited. So a chain is never longer than the step,
and as the kernels of a stream are one, the longest is at least as long as the busiest stream was busy.

While the device is idle, the whole step waits: such time is on the path, under the cause that idle time has everywhere.

A host that never rests makes a chain as long as the step, also beside a device that is never idle. Of chains of nearly
the same length the one with less host work is taken: less host work would not shorten such a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.attribution.activity import Bools, DeviceActivity
from tracelens.analysis.attribution.host_calls import HostCalls
from tracelens.analysis.idle.dependencies import (
    CALLS,
    COMMUNICATION,
    COMPUTATION,
    COPY,
    IDLE,
    KINDS,
    OUTSIDE,
    Device,
    Edges,
    Threads,
    host_waits,
    inferred_waits,
    recorded_waits,
)
from tracelens.analysis.idle.idle_time import CAUSES, IdleTime
from tracelens.analysis.intervals import Ints, Spans, idle_within, intersections
from tracelens.lazy.records import dataclass
from tracelens.trace.table import DEVICE_KINDS, Kind, TraceTable
from tracelens.trace.tree import OpTree
from tracelens.units import NS_PER_US

if TYPE_CHECKING:
    import pandas as pd

#: What the table of kinds calls the rest of the step.
REST = "not on the path"
#: Device events of a step beyond which no path is looked for: the search visits them one by one.
MAX_EVENTS = 50_000
#: A chain with host work is taken if it is longer than others by more than one part in so many of that work.
HOST_TIE = 20
#: Segments that the sheet lists; the kinds count all of them.
MAX_SEGMENTS = 300


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CriticalPath:
    """The path's segments in order of time; times in ns on the trace's clock.

    ``window_ns``: the step's time, of which the path is a part. ``kind`` indexes ``KINDS``. ``row``: table row of the
    kernel that ran, or was to run; of host work the call that it led to, -1 where there is none.
    ``busiest_stream_ns``: union of the device events of the stream with most of it.
    """

    window_ns: int
    start: Ints
    length: Ints
    kind: Ints
    row: Ints
    busiest_stream_ns: int

    @property
    def length_ns(self) -> int:
        return int(self.length.sum())

    def by_kind(self, step: int | None) -> pd.DataFrame:
        """One row per kind on the path, the longest first, then the rest of the step; together the step's time.

        ``step``: its number, None for a window that is none.
        """
        import pandas as pd

        total = np.zeros(len(KINDS), np.int64)
        np.add.at(total, self.kind, self.length)
        count = np.bincount(self.kind, minlength=len(KINDS))
        shown = [i for i in sorted(range(len(KINDS)), key=lambda i: (-total[i], KINDS[i])) if count[i]]
        length = np.append(total[shown], self.window_ns - self.length_ns)
        return pd.DataFrame(
            {
                "kind": [*(KINDS[i] for i in shown), REST],
                "step": pd.array([step] * len(length), "Int64"),
                "segments": pd.array([*count[shown].tolist(), None], "Int64"),
                "time_us": length / NS_PER_US,
                "percent_of_path": np.append(100 * total[shown] / max(self.length_ns, 1), np.nan),
                "percent_of_step": 100 * length / max(self.window_ns, 1),
            }
        )

    def segments(self, table: TraceTable, *, most: int = MAX_SEGMENTS) -> pd.DataFrame:
        """The ``most`` longest segments in order of time; ``start_us`` counts from the trace's first event."""
        import pandas as pd

        kept = np.sort(np.lexsort((self.start, -self.length))[:most])
        rows = self.row[kept].tolist()
        on_device = [row >= 0 and Kind(int(table.kind[row])) in DEVICE_KINDS for row in rows]
        streams = [int(table.stream[row]) if device else None for row, device in zip(rows, on_device, strict=True)]
        return pd.DataFrame(
            {
                "start_us": (self.start[kept] - int(table.start_ns.min())) / NS_PER_US,
                "time_us": self.length[kept] / NS_PER_US,
                "kind": [KINDS[i] for i in self.kind[kept].tolist()],
                "name": [table.name_of(row) if row >= 0 else None for row in rows],
                "stream": pd.array(streams, "Int64"),
            }
        )


def critical_path(
    table: TraceTable,
    tree: OpTree,
    host: HostCalls,
    everything: DeviceActivity,
    idle: IdleTime,
    spans: Spans,
) -> CriticalPath | None:
    """The longest path to the last device event in ``spans``, or to another stream's last where that is longer.

    ``spans``: the step, or its parts in order of time where something is left out of it. All of that time in which
    ``idle`` has a cause and no event of the path ran is on the path, also before its first.

    None without device events in the window, or with more than ``MAX_EVENTS``. What a stream waited for is known where
    the trace has synchronization records; else a kernel that starts later than a launch takes, on a stream that had
    nothing to do, is taken to wait for the event of another stream that ended last.
    """
    window = int(spans[0][0]), int(spans[1][-1])
    inside: Bools = (everything.start < window[1]) & (everything.end > window[0])
    if not inside.any() or inside.sum() > MAX_EVENTS:
        return None
    device = Device(table, tree, everything.select(inside), window)
    threads = Threads(table, host, device, window)
    edges = Edges(device, threads)
    edges.add_streams()
    edges.add_threads()
    recorded = recorded_waits(table, device)
    edges.add_launches(device.ready(recorded, window[0]))
    edges.add_stream_waits(recorded)
    edges.add_stream_waits(inferred_waits(device, {target for _, target in recorded}, window[0]))
    edges.add_host_waits(host_waits(table, device, threads))
    return _longest(edges, tree, idle, spans)


def _longest(edges: Edges, tree: OpTree, idle: IdleTime, spans: Spans) -> CriticalPath:
    """The longest path, as ``critical_path`` says where it ends."""
    source, target, length, kind, row = edges.columns
    window_ns = int((spans[1] - spans[0]).sum())
    busiest = edges.device.busiest_ns(int(spans[0][0]))
    by_host = np.isin(kind, [KINDS.index(CALLS), KINDS.index(OUTSIDE)])
    at = _on_longest(edges, source, target, length - by_host * (length // HOST_TIE), busiest)
    walk = _Walk(edges, source[at], target[at], length[at], kind[at], row[at])
    start, length, kind, row = walk.segments(idle, spans)
    op = np.where(row >= 0, tree.op_parent[row], -1).astype(np.int64)
    return CriticalPath(
        window_ns=window_ns,
        start=start,
        length=length,
        kind=kind,
        row=np.where(op >= 0, op, row),
        busiest_stream_ns=busiest,
    )


def _on_longest(edges: Edges, source: Ints, target: Ints, length: Ints, busiest: int) -> Ints:
    """The edges of the longest path, in order of time."""
    n, position = len(edges.device.start), edges.position
    forward = np.flatnonzero(position[source] < position[target])
    kept = forward[np.argsort(position[target[forward]], kind="stable")]
    best, via = [0] * len(edges.time), [-1] * len(edges.time)
    steps = zip(kept.tolist(), source[kept].tolist(), target[kept].tolist(), length[kept].tolist(), strict=True)
    for edge, one, other, weight in steps:
        reached = best[one] + weight
        if reached > best[other] or via[other] < 0:
            best[other], via[other] = reached, edge
    ends = np.array(edges.device.bounds[1:]) - 1 + n
    reached_at = np.array(best)[ends]
    last = int(ends[np.lexsort((reached_at, edges.time[ends]))[-1]])
    if best[last] < busiest:
        last = int(ends[np.lexsort((edges.time[ends], reached_at))[-1]])
    path = []
    while via[last] >= 0:
        path.append(via[last])
        last = int(source[path[-1]])
    return np.array(path[::-1], np.int64)


class _Walk:
    """The edges of one path, in order of time."""

    def __init__(self, edges: Edges, source: Ints, target: Ints, length: Ints, kind: Ints, row: Ints) -> None:
        self._edges = edges
        self._source, self._length, self._kind, self._row = source, length, kind, row
        self._start, self._end = edges.time[source], edges.time[target]

    def segments(self, idle: IdleTime, spans: Spans) -> tuple[Ints, Ints, Ints, Ints]:
        """(start, length, kind, row) in order of time: idle time where no event of the path ran, and the rest."""
        ran = np.isin(self._kind, [KINDS.index(kind) for kind in (COMPUTATION, COMMUNICATION, COPY)])
        parts = idle.within(idle_within(self._start[ran], self._end[ran], spans))
        at, start, end = intersections((self._start, self._end), idle_within(parts.start, parts.end, spans))
        # What is ready starts within the first of it, and then only waits
        until = np.minimum(end, (self._start + self._length)[at])
        kind, on_thread = self._kind[at], self._kind[at] == KINDS.index(CALLS)
        lane = self._edges.threads.lane[self._source[at[on_thread]] - 2 * len(self._edges.device.start)]
        in_calls, outside = until - start, np.zeros(len(at), np.int64)
        in_calls[on_thread], outside[on_thread] = self._edges.threads.spent(lane, start[on_thread], end[on_thread])
        pieces = (
            (parts.start, start, start + in_calls),
            (parts.end - parts.start, in_calls, outside),
            (parts.cause + KINDS.index(f"{IDLE}{CAUSES[0]}"), kind, np.full(len(at), KINDS.index(OUTSIDE))),
            (parts.row, self._row[at], self._row[at]),
        )
        columns = [np.concatenate(piece).astype(np.int64) for piece in pieces]
        shown = np.flatnonzero(columns[1] > 0)
        order = shown[np.argsort(columns[0][shown], kind="stable")]
        return columns[0][order], columns[1][order], columns[2][order], columns[3][order]
