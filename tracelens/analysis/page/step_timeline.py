"""What every stream and every thread did during one step: rectangles to draw."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.analyze import Analysis
from tracelens.analysis.attribution.activity import streams_of
from tracelens.analysis.attribution.steps import typical_step
from tracelens.analysis.grouping import Codes
from tracelens.analysis.intervals import Ints
from tracelens.analysis.page.step_rectangles import HostLanes, ShownEvents, StepIdle, host_lanes, rectangles
from tracelens.lazy.records import dataclass

MAX_RECTS = 4000
#: Steps that are drawn beside the typical one, each with a part of its rectangles.
MAX_STEPS, _OTHER_SHARE = 8, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A stream of a device; -1 where not recorded."""

    device: int
    stream: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTimeline:
    """One rectangle per device event, or per run of short ones, lane by lane in order of start.

    ``step`` is the step's number, None when the window is everything analyzed; ``duration_ns`` the window's length,
    ``events`` how many device events lie in it. Of each rectangle: ``lane`` (index into ``lanes``), ``start_ns`` and
    ``end_ns`` from the window's start and within it, ``kernel_ns`` (sum of its events' whole durations), ``count`` of
    events, and ``event`` (index into the analysis' activity): the longest of them. Events shorter than
    ``merged_below_ns`` were merged with their neighbors; 0 when none had to be. ``idle``: when nothing ran in the
    window, and why; None for other steps than the typical one. ``host``: what the threads did meanwhile;
    ``launch_ns``: when the event was launched, from the window's start, 0 where ``host.launched_in`` is -1.
    """

    step: int | None
    duration_ns: int
    events: int
    merged_below_ns: int
    lanes: tuple[Lane, ...]
    lane: Codes
    start_ns: Ints
    end_ns: Ints
    kernel_ns: Ints
    count: Ints
    event: Ints
    launch_ns: Ints
    idle: StepIdle | None = None
    host: HostLanes | None = None


def step_timelines(analysis: Analysis, *, max_rects: int = MAX_RECTS) -> list[StepTimeline]:
    """The typical step first, then the other complete ones in order, at most ``MAX_STEPS``; none without device work.

    Of more steps the fastest and the slowest are among those drawn.
    """
    shown = ShownEvents.of(analysis.trace.table)
    typical = step_timeline(analysis, shown=shown, max_rects=max_rects)
    if typical is None or typical.step is None:
        return [] if typical is None else [typical]
    number, time = [each.number for each in analysis.step_times.steps], analysis.step_times.duration_ns
    others = [step for step in analysis.complete_steps if number[step] != typical.step]
    if len(others) > MAX_STEPS:
        by_time = sorted(others, key=lambda step: (int(time[step]), step))
        others = sorted(list(dict.fromkeys((by_time[0], by_time[-1], *others)))[:MAX_STEPS])
    drawn = (step_timeline(analysis, step, shown=shown, max_rects=max_rects // _OTHER_SHARE) for step in others)
    return [typical, *(each for each in drawn if each is not None)]


def step_timeline(
    analysis: Analysis, step: int | None = None, *, shown: ShownEvents | None = None, max_rects: int = MAX_RECTS
) -> StepTimeline | None:
    """The ``step`` at this position; else the complete one whose time is nearest the median of those analyzed (the
    first of equals), or where nothing ran in it, or without steps, everything analyzed.

    None without device work. ``shown``: of the host, made here where it is not handed over.
    """
    activity, table, tree = analysis.activity, analysis.trace.table, analysis.trace.tree
    found_window = _window(analysis) if step is None else _window_of(analysis, step)
    if not len(activity) or found_window is None:
        return None
    number, first, last, inside = found_window
    found, lane = streams_of(table, activity.select(inside))
    order = np.lexsort((activity.end[inside], activity.start[inside], lane))
    events, lane = inside[order], lane[order]
    start = np.maximum(activity.start[events] - first, 0)
    end = np.minimum(activity.end[events], last) - first
    group, below = rectangles(start, end, lane, last - first, max_rects)
    starts = np.flatnonzero(np.concatenate(([True], np.diff(group) != 0)))
    length = activity.duration[events]
    idle = analysis.step_idle
    longest = events[np.lexsort((-length, group))[starts]]
    launch = tree.launch[activity.rows[longest]]
    launch = np.where(table.start_ns[launch] >= first, launch, np.int32(-1))
    shown = ShownEvents.of(table) if shown is None else shown
    host = host_lanes(shown, tree, (first, last), launch, max_rects=max_rects)
    launched = np.where(launch >= 0, table.start_ns[launch] - first, 0)
    return StepTimeline(
        step=number,
        duration_ns=last - first,
        events=len(events),
        merged_below_ns=below,
        lanes=tuple(Lane(device=d, stream=s) for d, s in found.tolist()),
        lane=lane[starts],
        start_ns=start[starts],
        end_ns=np.maximum.reduceat(end, starts),
        kernel_ns=np.add.reduceat(length, starts),
        count=np.bincount(group).astype(np.int64),
        event=longest,
        launch_ns=launched if host is None else np.where(host.launched_in >= 0, launched, 0),
        host=host,
        idle=idle if idle is not None and idle.window == (first, last) else None,
    )


def _window(analysis: Analysis) -> tuple[int | None, int, int, Ints] | None:
    """(number of the step, start, end, its events)."""
    if candidates := analysis.complete_steps:
        found = _window_of(analysis, typical_step(analysis.step_times, candidates))
        if found is not None:
            return found
    activity = analysis.activity
    if not len(activity):
        return None
    first, last = int(activity.start.min()), int(activity.end.max())
    return None, first, max(last, first + 1), np.arange(len(activity))


def _window_of(analysis: Analysis, step: int) -> tuple[int | None, int, int, Ints] | None:
    """None where nothing ran in the step."""
    times, activity = analysis.step_times, analysis.activity
    first, last = int(times.start_ns[step]), int(times.end_ns[step])
    inside = np.flatnonzero((activity.start < last) & ((activity.end > first) | (activity.start >= first)))
    return (times.steps[step].number, first, last, inside) if len(inside) else None
