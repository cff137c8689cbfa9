"""A trace whose events happen at other times, or not at all."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracelens.analysis.idle.dependency_replay import Bools, Changes, DependencyReplay, NewTimes
from tracelens.analysis.intervals import Ints
from tracelens.analysis.loaded_trace import Trace
from tracelens.trace.columns import Column
from tracelens.trace.table import Kind, RowColumn, TraceTable


class Clock:
    """From recorded to new times, lane by lane (threads and streams): between two known points time runs evenly.

    A lane without known points has the clock of the one with most of them in its process, else of the one with most.
    """

    def __init__(self, table: TraceTable, replay: DependencyReplay, times: NewTimes) -> None:
        threads, device = replay.threads, replay.device
        stream_lane = table.lane[device.rows]
        lane = np.concatenate((threads.lane, stream_lane, stream_lane))
        old = np.concatenate((threads.time, device.start, device.end))
        new = np.concatenate((times.reached, times.start, times.done))
        order = np.lexsort((new, old, lane))
        self._base = int(old.min()) if len(old) else 0
        self._points: dict[int, tuple[Ints, Ints]] = {}
        for part in np.split(order, np.flatnonzero(np.diff(lane[order])) + 1) if len(order) else ():
            last = np.append(np.diff(old[part]) > 0, True)
            later = np.maximum.accumulate(new[part])
            self._points[int(lane[part[0]])] = old[part][last] - self._base, later[last] - self._base
        self._lane_of = self._stand_ins(table, threads.lane)

    def _stand_ins(self, table: TraceTable, anchored: Ints) -> npt.NDArray[np.int64]:
        """The lane whose clock each lane has; -1 where there is none at all."""
        counts = np.bincount(anchored, minlength=len(table.lanes))
        busiest: dict[object, int] = {}
        for lane in np.argsort(-counts, kind="stable").tolist():
            if counts[lane]:
                busiest.setdefault(table.lanes[lane][0], lane)
        default = next(iter(busiest.values()), -1)
        return np.array(
            [lane if lane in self._points else busiest.get(pid, default) for lane, (pid, _) in enumerate(table.lanes)]
        )

    def at(self, lane: npt.NDArray[np.integer], *times: Ints) -> tuple[Ints, ...]:
        """The new time of each point (lane, recorded time), of each column of recorded times."""
        results = tuple(time.copy() for time in times)
        source = self._lane_of[lane]
        for one in sorted(set(self._lane_of[self._lane_of >= 0].tolist())):
            at = np.flatnonzero(source == one)
            for time, result in zip(times, results, strict=True) if len(at) else ():
                result[at] = self._of_lane(one, time[at])
        return results

    def moment(self, lane: int, time: int) -> int:
        """The new time of one point."""
        source = int(self._lane_of[lane])
        if source < 0:
            return time
        old, new = self._points[source]
        # The points around it alone: what lies between two of them depends on no other
        after = min(max(int(np.searchsorted(old, time - self._base, "right")), 1), len(old))
        near = slice(after - 1, after + 1)
        return int(_on_points(np.array([time - self._base], np.int64), old[near], new[near])[0]) + self._base

    def _of_lane(self, lane: int, time: Ints) -> Ints:
        old, new = self._points[lane]
        return _on_points(time - self._base, old, new) + self._base


def _on_points(moment: Ints, old: Ints, new: Ints) -> Ints:
    inside: Ints = np.rint(np.interp(moment, old, new)).astype(np.int64)
    before, after = moment < old[0], moment > old[-1]
    inside[before] = moment[before] + new[0] - old[0]
    inside[after] = moment[after] + new[-1] - old[-1]
    return inside


def retimed(
    trace: Trace, replay: DependencyReplay, changes: Changes, times: NewTimes, gone: RowColumn
) -> tuple[Trace, Clock]:
    """The trace at its new times, and the clock of what is no row of it.

    Removed device events and the host rows that are ``gone`` are rows of no kind that means anything.
    """
    table = trace.table
    clock = Clock(table, replay, times)
    start, end = clock.at(table.lane[:], table.start_ns, table.start_ns + table.duration_ns)
    rows = replay.device.rows
    start[rows] = times.start
    end[rows] = times.start + np.rint(changes.length).astype(np.int64)
    kind = table.kind.copy()
    kind[removed_rows(replay, changes, gone, len(table))] = Kind.OTHER
    new = replace(table, kind=kind, start_ns=start, duration_ns=Column(np.maximum(end - start, 0), np.int64))
    tree = copy.copy(trace.tree)
    tree.table = new
    return Trace(table=new, tree=tree), clock


def removed_rows(replay: DependencyReplay, changes: Changes, gone: RowColumn, rows: int) -> Bools:
    """Which rows of the table are not there any more."""
    removed = np.zeros(rows, bool)
    removed[replay.device.rows[changes.removed]] = True
    removed[gone] = True
    return removed
