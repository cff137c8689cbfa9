"""What every stream did during one step: rectangles to draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracelens.analysis.analyze import Analysis
from tracelens.analysis.attribution.activity import streams_of
from tracelens.analysis.attribution.steps import typical_step
from tracelens.analysis.factorize import Codes
from tracelens.analysis.intervals import Ints
from tracelens.analysis.page.rectangles import rectangles
from tracelens.analysis.page.step_idle import StepIdle

MAX_RECTS = 4000


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
    window, and why.
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
    idle: StepIdle | None = None


def step_timeline(analysis: Analysis, *, max_rects: int = MAX_RECTS) -> StepTimeline | None:
    """The complete step whose time is nearest the median of those analyzed (the first of equals).

    Where nothing ran in it, or without steps, everything analyzed; None without device work.
    """
    activity = analysis.activity
    if not len(activity):
        return None
    step, first, last, inside = _window(analysis)
    found, lane = streams_of(analysis.trace.table, activity.select(inside))
    order = np.lexsort((activity.end[inside], activity.start[inside], lane))
    events, lane = inside[order], lane[order]
    start = np.maximum(activity.start[events] - first, 0)
    end = np.minimum(activity.end[events], last) - first
    group, below = rectangles(start, end, lane, last - first, max_rects)
    starts = np.flatnonzero(np.concatenate(([True], np.diff(group) != 0)))
    length = activity.duration[events]
    idle = analysis.step_idle
    return StepTimeline(
        step=step,
        duration_ns=last - first,
        events=len(events),
        merged_below_ns=below,
        lanes=tuple(Lane(device=d, stream=s) for d, s in found.tolist()),
        lane=lane[starts],
        start_ns=start[starts],
        end_ns=np.maximum.reduceat(end, starts),
        kernel_ns=np.add.reduceat(length, starts),
        count=np.bincount(group).astype(np.int64),
        event=events[np.lexsort((-length, group))[starts]],
        idle=idle if idle is not None and idle.window == (first, last) else None,
    )


def _window(analysis: Analysis) -> tuple[int | None, int, int, Ints]:
    """(number of the step, start, end, its events)."""
    times, activity = analysis.step_times, analysis.activity
    if candidates := analysis.complete_steps:
        step = typical_step(times, candidates)
        first, last = int(times.start_ns[step]), int(times.end_ns[step])
        inside = np.flatnonzero((activity.start < last) & ((activity.end > first) | (activity.start >= first)))
        if len(inside):
            return times.steps[step].number, first, last, inside
    first, last = int(activity.start.min()), int(activity.end.max())
    return None, first, max(last, first + 1), np.arange(len(activity))
