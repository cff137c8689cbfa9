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
from tracelens.analysis.sheets import sheet_row
from tracelens.analysis.sheets.shared_columns import CAUSE, COMPLETE, DURATIONS, PATH_KIND, START, STEP_DURATION
from tracelens.analysis.verdict.summary import Unanswered
from tracelens.schema import GENERAL, column_set, count, flag, identifier, number, percent, sheet, text, us
from tracelens.trace.provenance import lacks_sync_events, no_runtime_calls, steps_advice, without
from tracelens.trace.table import Kind, TraceTable
from tracelens.types.units import NS_PER_US, US_PER_S

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import HostContext, SheetContext

INFERENCE_ITERATIONS_TITLE = "inference_iterations"
CRITICAL_PATH_TITLE = "critical_path"
IDLE_CAUSES_TITLE = "idle_causes"


STEP_TIMES_TITLE = "steps"
STEP_TIMES_COLUMNS = column_set(
    identifier("step", "Number of the step in the trace."),
    us("start_us", "Clock time of the trace."),
    us("duration_us", "From the start of the step to the start of the next; the last step ends with its host code and "
                      "device work."),
    us("busy_us", "Time in which device work launched in the step ran."),
    us("idle_us", "Duration - busy time."),
    count("device_events", "Kernels and copies launched in the step."),
    number(
        "energy_j", "Modelled energy of the device: of the step's kernels, and of idle time (docs/energy.md).",
        shape="#,##0.00", unit="J", optional=True,
    ),
    number("power_w", "Energy / duration.", shape="#,##0.0", unit="W", optional=True),
    number(
        "measured_j", "Energy of the device by samples of --power, else of the recording; empty with less than two.",
        shape="#,##0.00", unit="J", optional=True,
    ),
    COMPLETE,
    text(
        "begins_with",
        "host: the step begins with its first line of code. device: the host ran ahead, and the step begins when the "
        "device has finished earlier work. before the first step: work launched before profiling began; in no step.",
        width=20, number_format=GENERAL,
    ),
    us(
        "host_period_us",
        "From the start of the annotation to the start of the next; the last step ends with its launched work.",
    ),
    us(
        "host_work_us",
        "From the start of the annotation to the start of the next (the last: to its end), without calls that wait "
        "for the GPU.",
    ),
    us(
        "device_period_us",
        "From the first kernel of the step to that of the next (the last: to its end), on the stream with most "
        "events.",
    ),
    us("outside_us", "Device work of the step on other streams during a neighboring step; not in the busy time."),
    us(
        "left_out_us",
        "Idle time of a first step whose host waited for work launched before profiling began; not in the duration.",
    ),
    us(
        "recorded_us",
        "How long the step took by the profile (line Steps of XLA), which is its duration then; there, nothing is said "
        "of the host.",
        optional=True,
    ),
)  # fmt: skip


@sheet(INFERENCE_ITERATIONS_TITLE, order=76, json=20, columns=column_set(
    identifier("step", "Number of the engine step, from 0, as --steps takes it."),
    text("phase", "Prefill, decode or mixed, from the requests in the annotation of the step.", width=10),
    count("context_requests", "Requests in prefill."),
    count("context_tokens", "New tokens of these requests."),
    count("generation_requests", "Requests in decode."),
    count("generation_tokens", "New tokens of these requests."),
    count("padded_requests", "Batch size of the captured graph that ran."),
    count("past_tokens", "Tokens in the KV cache before the step, over all requests."),
    us("duration_us", STEP_DURATION),
    us("busy_us", "Time in which any device work of the step ran."),
    us("attention_us", "Time in which attention over the KV cache ran, including cache writes."),
    us("communication_us", "Time in which communication of the step ran."),
    count("tokens_s", "New tokens / duration."),
    count("device_events", "Kernels and copies."),
    COMPLETE,
    flag("steady", "TRUE: part of the steady window that --steps steady takes.", width=10),
))  # fmt: skip
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
    import pandas as pd

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
_HOST_TIME = "Duration of the call on the host."
_LATENCY = (
    "From the start of the call to the start of its first kernel, if the stream had no work left and no wait was just "
    "issued."
)
_QUEUE_DEPTH = (
    "Kernels launched on the stream and not finished when the call began, including those from before profiling."
)


def launch_overhead(table: TraceTable, activity: DeviceActivity, queued: Queue) -> pd.DataFrame | None:
    """One row per runtime or driver call that launches device work, and one for all; None without such calls.

    Queue depth: device events of the same stream that had been launched and were not finished when the call began. At
    depth 0 the queue was empty, and the time from the call's start to the start of its first device event is the
    launch latency, unless the stream had just been told to wait for something else. What was queued before the
    recording began counts; an event of which neither its own launch nor that of any later one of its stream was
    recorded counts in no queue.
    """
    import pandas as pd

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
        "host_us_sum": int(host_ns.sum()) / NS_PER_US,
        "host_us_mean": float(host_ns.mean()) / NS_PER_US,
        "host_us_median": float(np.median(host_ns)) / NS_PER_US,
        "host_us_max": int(host_ns.max()) / NS_PER_US,
        "launch_latency_us_median": float(np.median(latency)) / NS_PER_US,
        "launch_latency_us_mean": float(latency.mean()) / NS_PER_US,
        "launch_latency_us_max": float(latency.max()) / NS_PER_US,
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


SHEETS = (
    sheet_row(
        CRITICAL_PATH_TITLE, 14, 60,
        "Critical path of the typical step (the longest chain of work and launches to its end), by kind of work.",
        _critical_path,
        PATH_KIND,
        identifier("step", "Number of the typical step, whose path this is; empty: the whole window."),
        count("segments", "Segments of this kind on the path."),
        us("time_us", "Time on the path. With the row of the time not on the path, the column adds up to the step."),
        percent("percent_of_path", "Share of the path length."),
        percent("percent_of_step", "Share of the step time."),
    ),
    sheet_row(
        "inference_phases", 52, 10,
        "Prefill, decode and mixed steps of a serving engine, and its steady window.",
        lambda c: None if (steps := c.frames.get(INFERENCE_ITERATIONS_TITLE)) is None else by_phase(steps),
        text("phase", "Phase of the complete steps; the steady window has a row too.", width=18),
        count("steps", "Engine steps of the phase."),
        identifier("first_step", "Number of the first step."),
        identifier("last_step", "Number of the last step."),
        number("requests_mean", "Requests per step.", shape="#,##0.0"),
        number("tokens_mean", "New tokens per step.", shape="#,##0.0"),
        us("duration_us_median", STEP_DURATION),
        us("duration_us_min", STEP_DURATION),
        us("duration_us_max", STEP_DURATION),
        percent("busy_percent", "Share of the step time in which the device was busy."),
        percent("attention_percent", "Share of the busy time in attention over the KV cache."),
        count("tokens_s", "New tokens / time of the steps; for decode, generated tokens."),
    ),
    sheet_row(
        STEP_TIMES_TITLE, 50, None, "Of the whole file: all steps, also those outside of the scope.",
        _steps,
        STEP_TIMES_COLUMNS.values(),
    ),
    sheet_row(
        "phases", 54, 100,
        "GPU time of the forward pass, its recomputation by checkpointing, the backward pass and the optimizer.",
        lambda c: c.attribution.phases.frame(c.activity) if c.attribution.phases.has_backward else None,
        text(
            "phase",
            "Phase in which the host launched the work. backward: autograd engine. recompute: forward ops repeated by "
            "checkpointing. optimizer: inside Optimizer.step. forward: all else. Annotations marked (F), (B) and (W) "
            "take precedence; (W) is backward: weights, the weight gradients.",
            width=22,
        ),
        count("kernels", "Kernels and copies of the phase; each is in exactly one."),
        us("kernel_us", DURATIONS),
        us("busy_us", "Time in which any of them ran."),
        percent("percent_of_kernels", "Share of the kernel time."),
        percent("percent_of_forward", "Share of first and repeated runs together."),
    ),
    sheet_row(
        "recompute", 80, 110, "Ops that checkpointing repeated: first and repeated runs.",
        lambda c: c.attribution.phases.by_op(c.trace.table, c.activity) if c.attribution.phases.has_recompute else None,
        text("name", "Op that launched the work.", width=46),
        count("first_calls", "Calls in the forward pass."),
        us("first_us", DURATIONS),
        count("recompute_calls", "Calls that checkpointing repeated in the backward pass."),
        us("recompute_us", DURATIONS),
    ),
    sheet_row(
        "gpu_timeline", 10, None, "GPU time: computation, exposed communication, exposed copies, idle.",
        lambda c: c.timeline.frame(),
        text(
            "type",
            "Part of the window: computation + exposed_comm + exposed_memcpy + idle = total. Exposed communication "
            "overlaps no computation; exposed copies overlap neither.",
            width=24,
        ),
        us("time_us", "Time in which it ran; overlaps count once."),
        percent("percent_of_window", "Share of total_time."),
    ),
    sheet_row(
        IDLE_CAUSES_TITLE, 12, 30,
        "GPU idle time by cause, over the complete steps (without steps: the window of gpu_timeline).",
        lambda c: c.gaps.by_cause(),
        CAUSE,
        count("gaps", "Gaps with this cause, in which no stream of the device was busy."),
        us(
            "idle_us",
            "Idle time with this cause in the complete steps; without steps, the column adds up to idle_time of "
            "gpu_timeline.",
        ),
        us("idle_us_mean", "Mean idle time with this cause per gap."),
        us("idle_us_max", "Longest idle time with this cause in one gap."),
        percent("percent_of_idle", "Share of the idle time."),
        percent(
            "percent_of_window",
            "Share of the time of the complete steps; without steps, of total_time in gpu_timeline.",
        ),
    ),
    sheet_row(
        "idle_gaps", 140, 40, "Longest GPU idle gaps, at most 100.",
        lambda c: c.gaps.longest(c.recorded.table, c.recorded.tree),
        us("start_us", START),
        us("idle_us", "Length of the gap."),
        CAUSE,
        percent("percent_of_gap", "Share of the gap with this cause, its largest."),
        us(
            "queue_empty_us",
            "Part of the gap with an empty queue; in the rest the device had queued work and waited.",
        ),
        text("kernel_before", "Kernel or copy that ended last before the gap.", width=60),
        text("kernel_after", "Kernel or copy that ended the gap.", width=60),
        text("op_after", "Op that launched the kernel after the gap.", width=46),
    ),
    sheet_row(
        "critical_path_segments", 142, 70,
        "Segments of the critical path in order of time; at most the 300 longest.",
        lambda c: None if c.path is None else c.path.segments(c.recorded.table),
        us("start_us", START),
        us("time_us", "Length of the segment."),
        PATH_KIND,
        text("name", "Kernel that ran or waited to run; for host work, the op it led to.", width=60),
        identifier("stream", "Stream of the kernel; empty for host work."),
    ),
    sheet_row(
        "stream_overlap", 144, 90, "Time in which two streams were busy at once, by pair of streams.",
        lambda c: stream_overlap(c.recorded.table, c.activity),
        identifier("device_a", "Device of the first stream; -1: not recorded."),
        identifier("stream_a", "First stream."),
        identifier("device_b", "Device of the second stream; -1: not recorded."),
        identifier("stream_b", "Second stream."),
        us("busy_a_us", "Busy time of stream A."),
        us("busy_b_us", "Busy time of stream B."),
        us("both_us", "Time in which both streams were busy."),
        percent("percent_of_a", "Both busy / busy time of A."),
        percent("percent_of_b", "Both busy / busy time of B."),
    ),
    sheet_row(
        DEVICE_TIMELINE_TITLE, 78, 80,
        "Host cost of launches, and how often the device waited for them, by runtime or driver call.",
        lambda c: launch_overhead(c.recorded.table, c.activity, c.queued),
        text("launch_call", "Runtime or driver call; all: every call that launched device work.", width=32),
        count("launches", "Calls that launched device work."),
        count("kernels", "Kernels, copies and memsets launched."),
        us("host_us_sum", _HOST_TIME),
        us("host_us_mean", _HOST_TIME),
        us("host_us_median", _HOST_TIME),
        us("host_us_max", _HOST_TIME),
        us("launch_latency_us_median", _LATENCY),
        us("launch_latency_us_mean", _LATENCY),
        us("launch_latency_us_max", _LATENCY),
        number("queue_depth_mean", _QUEUE_DEPTH, shape="#,##0.0"),
        count("queue_depth_max", _QUEUE_DEPTH),
        percent("queue_empty_percent", "Share of the calls with queue depth 0."),
    ),
)  # fmt: skip
