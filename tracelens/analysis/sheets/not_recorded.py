"""What a trace lacks the events for, and what to set when it is recorded again."""

from __future__ import annotations

from collections.abc import Container

from tracelens.analysis.idle.longest_path import MAX_EVENTS
from tracelens.analysis.sheets.timeline import critical_path, launch_overhead
from tracelens.analysis.verdict.summary import Unanswered
from tracelens.trace.lacks import STEPS_ADVICE
from tracelens.trace.table import Kind, TraceTable


def not_shown(table: TraceTable, shown: Container[str]) -> tuple[Unanswered, ...]:
    """What the sheets cannot show for want of a recording; ``shown``: titles of those that there are."""
    missing = list(not_recorded(table))
    if launch_overhead.TITLE not in shown:
        because = "no runtime calls were recorded: add ProfilerActivity.CPU to activities"
        missing.append(Unanswered(question="launch overhead", because=because))
    if critical_path.TITLE not in shown:
        because = f"no step with 1 to {MAX_EVENTS:,} device events: {STEPS_ADVICE}"
        missing.append(Unanswered(question="the critical path", because=because))
    return tuple(missing)


def not_recorded(table: TraceTable) -> tuple[Unanswered, ...]:
    """What sheets lack the events for, whatever the work on the device."""
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
