"""The figures of a step, recorded or replayed, as a report has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

import numpy as np

from tracelens.analysis.attribution.activity import DeviceActivity, Timeline, timeline_of
from tracelens.analysis.attribution.host_time import host_calls
from tracelens.analysis.attribution.steps import typical_step
from tracelens.analysis.attribution.window import Window
from tracelens.analysis.idle.dependencies import KINDS, critical_path
from tracelens.analysis.idle.idle_time import CAUSES, IdleTime, queue
from tracelens.analysis.intervals import Spans
from tracelens.analysis.loaded_trace import Trace
from tracelens.lazy.records import dataclass
from tracelens.units import NS_PER_US
from tracelens.whatif.subject import Subject


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
