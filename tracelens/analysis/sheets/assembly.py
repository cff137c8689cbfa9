"""The views of a trace beside its ops: idle time, the critical path, launches, streams, modules, stacks, memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.analysis.attribution.host_calls import host_calls
from tracelens.analysis.attribution.launch_queue import queue
from tracelens.analysis.attribution.per_step import Counted
from tracelens.analysis.attribution.steps import StepTimes, complete_steps, typical_step
from tracelens.analysis.loaded_trace import Trace
from tracelens.analysis.page.step_idle import StepIdle, step_idle
from tracelens.analysis.sheets.call_stacks import call_stacks
from tracelens.analysis.sheets.critical_path import MAX_EVENTS, critical_path
from tracelens.analysis.sheets.device_memory import memory_summary, memory_timeline
from tracelens.analysis.sheets.idle import IdleTime
from tracelens.analysis.sheets.launches import launch_overhead
from tracelens.analysis.sheets.modules import modules
from tracelens.analysis.sheets.recompute import Phases
from tracelens.analysis.sheets.stream_overlap import stream_overlap
from tracelens.analysis.verdict.summary import Unanswered
from tracelens.trace.table import Kind, TraceTable

if TYPE_CHECKING:
    import pandas as pd


def not_recorded(table: TraceTable) -> tuple[Unanswered, ...]:
    """The views that a trace lacks the events for, and what to set when it is recorded again."""
    missing = []
    if not table.has_stacks and not (table.kind == Kind.USER_ANNOTATION).any():
        because = "neither modules nor record_function ranges were recorded: pass with_stack=True to the profiler"
        missing.append(Unanswered(question="time per nn.Module", because=because))
    if not len(table.allocations):
        because = "no allocator events were recorded: pass profile_memory=True to the profiler"
        missing.append(Unanswered(question="memory over time", because=because))
    if "cudaStreamWaitEvent" in table.names and not len(table.event_waits):
        because = (
            "no synchronization records: pass "
            "experimental_config=torch.profiler._ExperimentalConfig(enable_cuda_sync_events=True) to the profiler"
        )
        missing.append(Unanswered(question="which event a stream waited for", because=because))
    return tuple(missing)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Views:
    """Frames by sheet name, and what could not be shown for want of a recording; ``idle``: of the typical step."""

    frames: dict[str, pd.DataFrame]
    idle: StepIdle
    missing: tuple[Unanswered, ...]


def views(
    trace: Trace,
    opened: Trace,
    activity: DeviceActivity,
    everything: DeviceActivity,
    counted: Counted,
    times: StepTimes,
    selected: Sequence[int],
    step_stem: str,
    phase: Phases,
) -> Views:
    """All views of ``activity``, the analyzed device events; ``everything``: those of the whole file.

    Idle time is that of ``counted``, what figures per step are made of. The critical path is that of the typical one of
    the ``selected`` steps (none: of all), or of the window where there are none. ``opened``: ``trace`` with the ops of
    captured graphs. ``phase``: of each device event of ``activity``.
    """
    table, tree = trace.table, trace.tree
    host = host_calls(table, tree)
    queued = queue(table, tree, host, everything)
    idle = IdleTime(table, tree, host, counted.activity, queued, counted.timeline.spans)
    gaps = idle.gaps()
    found: dict[str, pd.DataFrame | None]
    found = {"idle_causes": gaps.by_cause(), "idle_gaps": gaps.longest(table, tree)}
    # As long as the device events, and what follows makes columns of its own
    del gaps
    path_window, step = counted.timeline.window, None
    if candidates := complete_steps(times, selected):
        at = typical_step(times, candidates)
        path_window, step = (int(times.start_ns[at]), int(times.end_ns[at])), times.steps[at].number
    path = critical_path(table, tree, host, everything, idle, path_window)
    found |= {
        "critical_path": None if path is None else path.by_kind(step),
        "critical_path_segments": None if path is None else path.segments(table),
    }
    whole = np.array(path_window[:1], np.int64), np.array(path_window[1:], np.int64)
    idle_in_step = step_idle(idle.within(whole), path_window)
    del host, idle
    found |= {
        "launch_overhead": launch_overhead(table, activity, queued),
        "stream_overlap": stream_overlap(table, activity),
        "phases": phase.frame(activity) if phase.has_backward else None,
        "recompute": phase.by_op(opened.table, activity) if phase.has_recompute else None,
        "modules": modules(opened.table, opened.tree, activity, phase, step_stem),
        "call_stacks": call_stacks(opened.table, opened.tree, activity),
        "memory": memory_summary(table, tree),
        "memory_timeline": memory_timeline(table, tree),
    }
    missing = list(not_recorded(table))
    if found["launch_overhead"] is None:
        missing.append(
            Unanswered(
                question="launch overhead",
                because="no runtime calls were recorded: add ProfilerActivity.CPU to activities",
            )
        )
    if path is None:
        missing.append(
            Unanswered(
                question="the critical path",
                because=f"no step with 1 to {MAX_EVENTS:,} device events: call profiler.step() once per iteration",
            )
        )
    frames = {name: frame for name, frame in found.items() if frame is not None}
    return Views(frames=frames, idle=idle_in_step, missing=tuple(missing))
