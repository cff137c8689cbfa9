"""The replayed step: its figures, and the trace with events at their new times."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import field, replace

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity, Timeline, timeline_of
from tracelens.analysis.attribution.host_time import host_calls
from tracelens.analysis.attribution.steps import typical_step
from tracelens.analysis.attribution.window import Window
from tracelens.analysis.idle.dependencies import KINDS, critical_path
from tracelens.analysis.idle.dependency_replay import Bools, Changes, DependencyReplay, NewTimes
from tracelens.analysis.idle.idle_time import CAUSES, IdleTime, queue
from tracelens.analysis.intervals import Ints, Spans
from tracelens.analysis.loaded_trace import Trace
from tracelens.lazy.records import dataclass
from tracelens.trace.narrow_columns import Column
from tracelens.trace.table import Kind, RowColumn, TraceTable
from tracelens.units import NS_PER_US
from tracelens.whatif.plan import Subject


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """Times in us per step, the mean of the complete ones; of the whole window without steps.

    ``compute_us``, ``communication_us``, ``copies_us`` and ``idle_us`` add up to ``step_us``; communication and copies
    are what nothing else covers. ``idle``: by cause. ``bound_by``: the critical path through the typical step, by kind.
    """

    step_us: float
    compute_us: float
    communication_us: float
    copies_us: float
    idle_us: float
    idle: Mapping[str, float] = field(default_factory=dict)
    bound_by: Mapping[str, float] = field(default_factory=dict)


def step_figures(subject: Subject, trace: Trace) -> StepFigures:
    """``trace``: the subject's own, or one with the same rows at other times."""
    window, timeline = _window(subject, trace)
    table, tree = trace.table, trace.tree
    steps = max(len(window.complete_steps), 1)
    host = host_calls(table, tree)
    activity = _activity(subject, window)
    queued = queue(table, tree, host, activity)
    idle = IdleTime(table, tree, host, activity.select(window.inside), queued, timeline.spans)
    causes = idle.gaps().idle
    path = critical_path(table, tree, host, activity, idle, _typical(window, timeline))
    bound = np.zeros(len(KINDS), np.int64)
    if path is not None:
        np.add.at(bound, path.kind, path.length)
    parts = (timeline.computation_ns, timeline.exposed_comm_ns, timeline.exposed_memcpy_ns, timeline.idle_ns)
    compute, communication, copies, none = (ns / steps / NS_PER_US for ns in parts)
    return StepFigures(
        step_us=_step_ns(window, timeline) / NS_PER_US,
        compute_us=compute,
        communication_us=communication,
        copies_us=copies,
        idle_us=none,
        idle={CAUSES[i]: int(causes[i]) / steps / NS_PER_US for i in np.argsort(-causes, kind="stable") if causes[i]},
        bound_by={KINDS[i]: int(bound[i]) / NS_PER_US for i in np.argsort(-bound, kind="stable") if bound[i]},
    )


def _window(subject: Subject, trace: Trace) -> tuple[Window, Timeline]:
    window = Window.of_file(replace(subject.recording, trace=trace), subject.options)
    window = replace(window, selected=subject.window.selected)
    activity = _activity(subject, window)
    chosen = window.complete_steps
    if not chosen:
        return window, window.timeline(activity)
    times = window.times
    span = int(times.start_ns[chosen[0]]), int(times.end_ns[chosen[-1]])
    return window, timeline_of(activity.select(window.inside), span, times.left_out)


def _activity(subject: Subject, window: Window) -> DeviceActivity:
    """The window's events with what the subject's ops say of them."""
    own = subject.activity
    at = np.searchsorted(own.rows, window.activity.rows)
    return replace(window.activity, communication=own.communication[at])


def _step_ns(window: Window, timeline: Timeline) -> float:
    chosen = window.complete_steps
    return float(window.times.duration_ns[chosen].mean()) if chosen else float(timeline.total_ns)


def _typical(window: Window, timeline: Timeline) -> Spans:
    if not window.complete_steps:
        return timeline.spans
    return window.times.spans(typical_step(window.times, window.complete_steps))
