"""What is said of steps, in words and in the lines below the table of categories."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.analysis.summary import CategoryRow, Steps, Summary
from tracelens.report.figures import shown_ms

#: Share of the window from which the lines below the table are worth showing.
_LEAST = 0.0005


def step_range(steps: Steps) -> str:
    """The shortest and the longest of several steps: ``mean of 3: 18.6 to 19.0 ms``."""
    if steps.shortest_us is None or steps.longest_us is None:
        return f"mean of {steps.count}"
    return f"mean of {steps.count}: {shown_ms(steps.shortest_us)} to {shown_ms(steps.longest_us)} ms"


def step_notes(steps: Steps) -> Iterator[str]:
    """How far the steps lie apart, which clock they are taken from, what was recorded but is in none of them."""
    if steps.spread is not None:
        yield step_range(steps)
    if steps.on_device and steps.host_us is not None:
        which = "" if steps.on_device == steps.count else f" of {steps.on_device} of {steps.count} steps"
        yield f"timed on the device: the host ran ahead{which}, with {shown_ms(steps.host_us)} ms a step"
    if steps.skipped_us:
        yield f"without {shown_ms(steps.skipped_us)} ms idle after the host had waited for work from before recording"
    if steps.before_events:
        yield (
            f"before the first step: {steps.before_events:,} device events, {shown_ms(steps.before_us)} ms, queued "
            "before recording began; in no step"
        )


def rest_of_window(summary: Summary) -> Iterator[CategoryRow]:
    """What the categories lack of the step, or of the window: time that several shared, and idle time."""
    busy = summary.busy
    if busy is None or not busy.total_us:
        return
    steps = 1 if summary.steps is None else summary.steps.count
    shared = busy.busy * busy.total_us / steps - sum(row.time_us for row in summary.categories)
    share = busy.busy - sum(row.share for row in summary.categories)
    if max(-share, -shared * steps / busy.total_us) >= _LEAST:
        yield CategoryRow(name="(at the same time)", time_us=shared, share=share)
    yield CategoryRow(name="(idle)", time_us=busy.idle * busy.total_us / steps, share=busy.idle)
