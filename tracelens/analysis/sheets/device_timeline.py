"""Sheets of time: steps, phases, engine iterations, idle time, critical path, streams, launches; what they lack."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.analysis.attribution.activity import DeviceActivity, streams_of
from tracelens.analysis.grouping import Codes, by_number
from tracelens.analysis.idle.dependencies import MAX_EVENTS
from tracelens.analysis.idle.idle_time import NEVER, Queue
from tracelens.analysis.intervals import Covered, Floats, Ints
from tracelens.analysis.reading.engine_steps import by_phase, iterations
from tracelens.analysis.sheets import built_in, sheet_rows
from tracelens.analysis.verdict.summary import Unanswered
from tracelens.trace.provenance import lacks_sync_events, no_runtime_calls, steps_advice, without
from tracelens.trace.table import Kind, TraceTable
from tracelens.types.records import pd
from tracelens.types.units import NS_PER_US, US_PER_S

if TYPE_CHECKING:
    from tracelens.analysis.sheets.context import HostContext, SheetContext

INFERENCE_ITERATIONS_TITLE = "inference_iterations"
CRITICAL_PATH_TITLE = "critical_path"
IDLE_CAUSES_TITLE = "idle_causes"


STEP_TIMES_TITLE = "steps"


@built_in(INFERENCE_ITERATIONS_TITLE)
def inference_iterations_frame(context: SheetContext) -> pd.DataFrame | None:
    """Steps of a serving engine: requests, tokens and time."""
    engine = context.window.engine
    steps, step_of = engine.steps, engine.step_of
    if not len(steps):
        return None
    found = iterations(steps, engine.times, step_of, context.activity, context.event_category)
    return found[np.isin(np.arange(len(steps)), step_of)]


def _critical_path(context: SheetContext) -> pd.DataFrame | None:
    at = context.typical_step
    step = None if at is None else context.step_times.steps[at].number
    return None if context.path is None else context.path.by_kind(step)


#: Streams that are compared with each other: the busiest. Pairs grow with the square.
MAX_STREAMS = 32


def stream_overlap(table: TraceTable, activity: DeviceActivity) -> pd.DataFrame | None:
    """One row per pair of streams, those that share most time first; None where device work ran on a single stream.

    ``both_us`` is the time in which both were busy; ``percent_of_a`` and ``percent_of_b`` relate it to each one's own
    busy time.
    """
    streams, lane = streams_of(table, activity)
    if len(streams) < 2:
        return None
    covered = Covered(lane, activity.start, activity.end)
    busy = np.array([int((e - s).sum()) for s, e in map(covered.spans, range(len(streams)))], np.int64)
    kept = np.sort(np.lexsort((np.arange(len(streams)), -busy))[:MAX_STREAMS]).tolist()
    rows = []
    for position, a in enumerate(kept):
        for b in kept[position + 1 :]:
            few, many = sorted((a, b), key=lambda stream: len(covered.spans(stream)[0]))
            start, end = covered.spans(few)
            rows.append((a, b, int(covered.within(np.full(len(start), many), start, end).sum())))
    rows.sort(key=lambda row: (-row[2], row[0], row[1]))
    first, second, shared = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return pd.DataFrame(
        {
            "device_a": streams[first, 0],
            "stream_a": streams[first, 1],
            "device_b": streams[second, 0],
            "stream_b": streams[second, 1],
            "busy_a_us": busy[first] / NS_PER_US,
            "busy_b_us": busy[second] / NS_PER_US,
            "both_us": shared / NS_PER_US,
            "percent_of_a": 100 * shared / np.maximum(busy[first], 1),
            "percent_of_b": 100 * shared / np.maximum(busy[second], 1),
        }
    )


DEVICE_TIMELINE_TITLE = "launch_overhead"


def launch_overhead(table: TraceTable, activity: DeviceActivity, queued: Queue) -> pd.DataFrame | None:
    """One row per runtime or driver call that launches device work, and one for all; None without such calls.

    Queue depth: device events of the same stream that had been launched and were not finished when the call began. At
    depth 0 the queue was empty, and the time from the call's start to the start of its first device event is the
    launch latency, unless the stream had just been told to wait for something else. What was queued before the
    recording began counts; an event of which neither its own launch nor that of any later one of its stream was
    recorded counts in no queue.
    """
    place = queued.places(activity)
    launch = queued.launch[place]
    kind = table.kind[launch]
    events = np.flatnonzero((launch >= 0) & ((kind == Kind.RUNTIME) | (kind == Kind.DRIVER))).astype(np.int32)
    del kind
    if not len(events):
        return None
    # One entry per call: its first device event; a graph launch has many
    events = events[np.lexsort((activity.start[events], launch[events]))]
    opens = np.flatnonzero(np.concatenate(([True], np.diff(launch[events]) != 0)))
    first, kernels = events[opens], np.diff(np.append(opens, len(events))).astype(np.int32)
    at, call = place[first], launch[first]
    del events, opens, place, launch
    called = table.start_ns[call]
    depth = _queue_depth(queued, at, called)
    counts = (depth == 0) & ~queued.after_event[at] & ~queued.after_value[at]
    latency = np.where(counts, np.maximum(activity.start[first] - called, 0), -1)
    del at, first, called
    host, name = table.duration_ns[call], table.name[call]
    rows = [
        _launch_row(table.names[code], kernels[at], host[at], depth[at], latency[at]) for code, at in by_number(name)
    ]
    rows.sort(key=lambda row: (-row["host_us_sum"], row["launch_call"]))
    return pd.DataFrame([*rows, _launch_row("all", kernels, host, depth, latency)] if len(rows) > 1 else rows)


def _queue_depth(queued: Queue, first: Codes, called: Ints) -> Codes:
    """Unfinished events of the stream of each of the ``queued`` events at ``first`` when it was ``called``."""
    known = queued.called != NEVER
    own = queued.lane[first]
    depth: Codes = np.zeros(len(first), np.int32)
    at = np.flatnonzero(known)
    of_streams = {one: at[own_at] for one, own_at in by_number(queued.lane[at])}
    for one, mine in by_number(own):
        of_stream = of_streams.get(one, at[:0])
        depth[mine] = np.searchsorted(np.sort(queued.called[of_stream]), called[mine])
        depth[mine] -= np.searchsorted(np.sort(queued.events.end[of_stream]), called[mine], side="right")
    return np.maximum(depth, 0)


def _launch_row(name: str, kernels: Codes, host_ns: Ints, depth: Codes, latency_ns: Ints) -> dict[str, Any]:
    latency = latency_ns[latency_ns >= 0] if (latency_ns >= 0).any() else np.array([np.nan])
    return {
        "launch_call": name,
        "launches": len(depth),
        "kernels": int(kernels.sum()),
        **{f"host_us_{key}": float(getattr(np, key)(host_ns)) / NS_PER_US for key in ("sum", "mean", "median", "max")},
        **{
            f"launch_latency_us_{key}": float(getattr(np, key)(latency)) / NS_PER_US
            for key in ("median", "mean", "max")
        },
        "queue_depth_mean": float(depth.mean()),
        "queue_depth_max": int(depth.max()),
        "queue_empty_percent": 100 * float((depth == 0).mean()),
    }


def not_shown(table: TraceTable, shown: Container[str]) -> tuple[Unanswered, ...]:
    """What the sheets cannot show for want of a recording; ``shown``: titles of those that there are."""
    missing = list(not_recorded(table))
    if DEVICE_TIMELINE_TITLE not in shown:
        missing.append(Unanswered(question="launch overhead", because=no_runtime_calls(table)))
    if CRITICAL_PATH_TITLE not in shown:
        because = f"no step with 1 to {MAX_EVENTS:,} device events: {steps_advice(table)}"
        missing.append(Unanswered(question="the critical path", because=because))
    return tuple(missing)


def not_recorded(table: TraceTable) -> tuple[Unanswered, ...]:
    """What sheets lack the events for, whatever the work on the device."""
    missing = []
    if not table.has_stacks and not (table.kind == Kind.USER_ANNOTATION).any():
        because = without(table, "modules or record_function ranges", "with_stack=True")
        missing.append(Unanswered(question="time per nn.Module", because=because))
    if not len(table.allocations):
        because = without(table, "allocator events", "profile_memory=True")
        missing.append(Unanswered(question="memory over time", because=because))
    if lacks_sync_events(table):
        option = "experimental_config=torch.profiler._ExperimentalConfig(enable_cuda_sync_events=True)"
        missing.append(
            Unanswered(
                question="which event a stream waited for", because=without(table, "synchronization events", option)
            )
        )
    return tuple(missing)


def _steps(context: HostContext) -> pd.DataFrame:
    frame = context.step_times.sheet(int(context.recording.trace.table.start_ns.min()))
    if context.energy is not None:
        joules = _of_rows(frame, context.energy_of_steps.power_w)
        frame = frame.assign(energy_j=joules, power_w=joules / (frame["duration_us"].to_numpy(float) / US_PER_S))
    measured = context.measured_of_steps
    return frame if context.power_log is None else frame.assign(measured_j=_of_rows(frame, measured))


def _of_rows(steps: pd.DataFrame, values: Floats) -> Floats:
    """A value of each step for the rows of ``StepTimes.sheet``, whose first may be of no step."""
    return np.append(np.full(len(steps) - len(values), np.nan), values)


SHEETS = sheet_rows(
    {
        CRITICAL_PATH_TITLE: _critical_path,
        "inference_phases": lambda c: None if (s := c.frames.get(INFERENCE_ITERATIONS_TITLE)) is None else by_phase(s),
        STEP_TIMES_TITLE: _steps,
        "phases": lambda c: c.attribution.phases.frame(c.activity) if c.attribution.phases.has_backward else None,
        "recompute": lambda c: (
            p.by_op(c.trace.table, c.activity) if (p := c.attribution.phases).has_recompute else None
        ),
        "gpu_timeline": lambda c: c.timeline.frame(),
        IDLE_CAUSES_TITLE: lambda c: c.idle.gaps().by_cause(),
        "idle_gaps": lambda c: c.idle.gaps().longest(c.recorded.table, c.recorded.tree),
        "critical_path_segments": lambda c: None if c.path is None else c.path.segments(c.recorded.table),
        "stream_overlap": lambda c: stream_overlap(c.recorded.table, c.activity),
        DEVICE_TIMELINE_TITLE: lambda c: launch_overhead(c.recorded.table, c.activity, c.queued),
    }
)
