"""What a trace lacks the events for, and what to set when it is recorded again."""

from __future__ import annotations

from collections.abc import Container

from tracelens.analysis.idle.dependencies import MAX_EVENTS
from tracelens.analysis.sheets import device_timeline
from tracelens.analysis.sheets.timeline import critical_path
from tracelens.analysis.verdict.summary import Unanswered
from tracelens.trace.lacks import lacks_sync_events, no_runtime_calls, steps_advice, without
from tracelens.trace.table import Kind, TraceTable


def not_shown(table: TraceTable, shown: Container[str]) -> tuple[Unanswered, ...]:
    """What the sheets cannot show for want of a recording; ``shown``: titles of those that there are."""
    missing = list(not_recorded(table))
    if device_timeline.TITLE not in shown:
        missing.append(Unanswered(question="launch overhead", because=no_runtime_calls(table)))
    if critical_path.TITLE not in shown:
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
