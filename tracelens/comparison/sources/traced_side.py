"""A trace reduced to one side of a comparison."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from tracelens.analysis.attribution.activity import DeviceActivity, Timeline
from tracelens.analysis.attribution.host_time import host_calls
from tracelens.analysis.attribution.steps import typical_step
from tracelens.analysis.attribution.window import Attribution, Window, attribute
from tracelens.analysis.grouping import first_of_each, numbered
from tracelens.analysis.idle.idle_time import CAUSES, IdleTime, queue
from tracelens.analysis.intervals import Ints, Spans
from tracelens.analysis.loaded_trace import Options, Trace
from tracelens.analysis.reading.recording import Recording
from tracelens.comparison.compared import IDLE
from tracelens.comparison.sides import UNKNOWN_DEVICE, Call, Rates, Recorded
from tracelens.comparison.sources.moments import Moments, exclusive
from tracelens.comparison.traced_side import units_of
from tracelens.errors import NothingToAnalyzeError
from tracelens.lazy.records import dataclass


def recorded_ranks(trace: Trace, options: Options) -> list[Recorded]:
    """The ranks of a file, mostly one. Errors as ``analyze``."""
    first = Recording.of(trace, replace(options, cpu=False))
    found = [_recorded(first, options)]
    for number in first.merged.numbers[1:] if first.merged is not None else ():
        # One that ran nothing on a device has no step to compare
        with suppress(NothingToAnalyzeError):
            found.append(recorded(trace, replace(options, rank=number)))
    return found


def recorded(trace: Trace, options: Options) -> Recorded:
    """The complete steps of one rank, all of it without steps, as one side has them. Errors as ``analyze``."""
    return _recorded(Recording.of(trace, replace(options, cpu=False)), options)


def _recorded(recording: Recording, options: Options) -> Recorded:
    window = Window.of(recording, options)
    attribution = attribute(recording, window, options)
    steps = _Steps.of(window, attribution.activity)
    table = recording.trace.table
    calls, category = attribution.unified, attribution.event_category
    units = units_of(recording, window.stem, steps.activity, attribution.readings, (calls, category))
    kernels, kernel = np.unique(steps.activity.name, return_inverse=True)
    found = Recorded(
        source=table.source,
        calls=units.calls,
        rates=units.rates,
        call=units.call,
        step=steps.of_event[units.first],
        kernel_ns=units.kernel_ns,
        piece_unit=units.of_event[steps.moments.event],
        piece_step=steps.of_window[steps.moments.window],
        piece_ns=steps.moments.ns,
        durations_ns=steps.durations_ns,
        event_unit=units.of_event,
        event_kernel=kernel.astype(np.int64),
        event_ns=steps.activity.duration,
        kernel_names=tuple(table.names[code] for code in kernels.tolist()),
        repeats=np.ones(len(units.call)),
        typical=steps.typical,
        rank=table.rank if recording.merged is None else recording.merged.chosen,
        device=None if recording.device is None else recording.device.name,
        device_label=_device_label(recording),
        torch=_version(recording),
        has_steps=bool(window.selected),
    )
    return _with_idle(found, recording, attribution, steps)


def _with_idle(found: Recorded, recording: Recording, attribution: Attribution, steps: _Steps) -> Recorded:
    """With a unit per step and cause of idle time."""
    table, tree = recording.recorded.table, recording.recorded.tree
    if not steps.durations_ns.sum():
        return found
    host = host_calls(table, tree)
    queued = queue(table, tree, host, attribution.everything)
    idle = IdleTime(table, tree, host, steps.activity, queued, steps.windows).within(steps.windows)
    step = np.searchsorted(steps.starts, idle.start, side="right") - 1
    group = numbered(idle.cause, step)
    first = first_of_each(group)
    causes, call = np.unique(idle.cause[first], return_inverse=True)
    ns = np.bincount(group, idle.end - idle.start, minlength=len(first)).astype(np.int64)
    unit = len(found.call) + np.arange(len(first))
    return replace(
        found,
        calls=(*found.calls, *(Call(name=CAUSES[c], category=IDLE) for c in causes.tolist())),
        rates=(*found.rates, *(Rates() for _ in causes)),
        call=np.concatenate((found.call, len(found.calls) + call)),
        step=np.concatenate((found.step, step[first])),
        kernel_ns=np.concatenate((found.kernel_ns, np.zeros(len(first), np.int64))),
        repeats=np.concatenate((found.repeats, np.ones(len(first)))),
        piece_unit=np.concatenate((found.piece_unit, unit)),
        piece_step=np.concatenate((found.piece_step, step[first])),
        piece_ns=np.concatenate((found.piece_ns, ns)),
    )


def _device_label(recording: Recording) -> str:
    if recording.device is not None:
        return recording.device.label
    properties = recording.trace.table.used_device()
    return (properties.name if properties else None) or UNKNOWN_DEVICE


def _version(recording: Recording) -> str | None:
    metadata = recording.trace.table.metadata
    version = metadata.get("pytorch_version") or metadata.get("torch_version")
    return version if isinstance(version, str) else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Steps:
    """The steps that are compared, or one window: their events, and to which of these every moment belongs."""

    activity: DeviceActivity
    of_event: Ints
    windows: Spans
    of_window: Ints
    durations_ns: Ints
    timeline: Timeline
    starts: Ints
    moments: Moments
    typical: int

    @classmethod
    def of(cls, window: Window, activity: DeviceActivity) -> _Steps:
        chosen, times = window.complete_steps, window.times
        if not chosen:
            timeline = window.timeline(activity)
            starts, durations = np.array([timeline.start_ns], np.int64), np.array([timeline.total_ns], np.int64)
            return cls._made(activity, np.zeros(len(activity), np.int64), durations, timeline, starts)
        made = cls._made(
            activity,
            window.step_of.astype(np.int64) - chosen[0],
            times.duration_ns[chosen],
            window.timeline(activity),
            times.start_ns[chosen],
        )
        return replace(made, typical=typical_step(times, chosen) - chosen[0])

    @classmethod
    def _made(
        cls, activity: DeviceActivity, of_event: Ints, durations: Ints, timeline: Timeline, starts: Ints
    ) -> _Steps:
        opens, closes = timeline.spans
        # The spans of the window, cut where a step begins within one
        later = starts[1:]
        span = np.maximum(np.searchsorted(opens, later, side="left") - 1, 0)
        inner = np.unique(later[(later > opens[span]) & (later < closes[span])])
        begin = np.sort(np.concatenate((opens, inner)))
        end = np.sort(np.concatenate((inner, closes)))
        return cls(
            activity=activity,
            of_event=of_event,
            windows=(begin, end),
            of_window=np.searchsorted(starts, begin, side="right") - 1,
            durations_ns=durations,
            timeline=timeline,
            starts=starts,
            moments=exclusive(activity, (begin, end)),
            typical=0,
        )
