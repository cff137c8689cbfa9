"""What is said of steps, in words and in the lines below the table of categories."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tracelens.analysis.verdict.summary import STEPS, WHOLE_FILE, CategoryRow, Scope, Steps, Summary
from tracelens.report.figures import shown_ms

#: Share of the window from which the lines below the table are worth showing.
_LEAST = 0.0005
#: Lines of the table that are no category.
AT_ONCE, IDLE = "(at the same time)", "(idle)"


def step_range(steps: Steps) -> str:
    """The shortest and the longest of several steps: ``mean of 3: 18.6 to 19.0 ms``."""
    if steps.shortest_us is None or steps.longest_us is None:
        return f"mean of {steps.count}"
    return f"mean of {steps.count}: {shown_ms(steps.shortest_us)} to {shown_ms(steps.longest_us)} ms"


def step_notes(steps: Steps) -> Iterator[str]:
    """How far the steps lie apart, and whose clock they follow."""
    clock = [] if steps.spread is None else [step_range(steps)]
    if steps.on_device and steps.host_us is not None:
        which = "" if steps.on_device == steps.count else f" in {steps.on_device} of {steps.count}"
        clock.append(f"host ahead of the GPU{which} ({shown_ms(steps.host_us)} ms of host time)")
    if clock:
        yield ", ".join(clock)


def excluded_text(summary: Summary) -> str:
    """What of the file the report does not speak of, and how long it took; empty where it speaks of all."""
    parts = [f"{shown_ms(part.time_us)} ms of GPU work {part.why}" for part in summary.scope.excluded]
    if summary.steps is not None and summary.steps.unseen_us:
        parts.append(f"{shown_ms(summary.steps.unseen_us)} ms of earlier GPU work that was not recorded")
    if summary.steps is not None and summary.steps.skipped_us:
        parts.append(f"{shown_ms(summary.steps.skipped_us)} ms in which the GPU idles as the recording begins")
    return f"excluded: {'; '.join(parts)}" if parts else ""


def counts_of(summary: Summary) -> str:
    """What the counts in findings are of, where it is more than the step that their gains are of."""
    steps = summary.steps
    return f" (counts: all {steps.count} steps)" if steps is not None and steps.count > 1 else ""


def steps_text(steps: Steps) -> str:
    """How many steps the figures per step are the mean of: ``3 complete steps``."""
    return f"{steps.count} complete step{'s' if steps.count != 1 else ''}"


def scope_text(scope: Scope, *, numbers: bool = True) -> str:
    """What a report speaks of: ``3 steps (ProfilerStep 3-5)``, without ``numbers`` ``3 steps (ProfilerStep)``."""
    if scope.kind != STEPS:
        return WHOLE_FILE
    named = " ".join(filter(None, (scope.named, scope.numbers if numbers else "")))
    return f"{scope.count} step{'s' if scope.count != 1 else ''}" + (f" ({named})" if named else "")


def lines_of_window(summary: Summary) -> list[CategoryRow]:
    """The categories by the time in which they ran, then what several did at the same time (negative), and idle time.

    Times and shares add up to the step or the window.
    """
    busy = summary.busy
    if busy is None or not busy.total_us:
        return list(summary.categories)
    step_us = busy.total_us / (1 if summary.steps is None else summary.steps.count)
    shares = [(row, row.share) for row in summary.categories]
    shared = busy.busy - sum(share for _, share in shares)
    if -shared >= _LEAST:
        shares.append((CategoryRow(name=AT_ONCE, time_us=0.0, share=shared), shared))
    shares.append((CategoryRow(name=IDLE, time_us=0.0, share=busy.idle), busy.idle))
    return [replace(row, time_us=share * step_us) for row, share in shares]
