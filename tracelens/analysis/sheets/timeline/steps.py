"""The steps of the trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.analysis.sheets.shared_columns import COMPLETE
from tracelens.schema import GENERAL, column_set, count, identifier, sheet, text, us

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import HostContext


TITLE = "steps"
COLUMNS = column_set(
    identifier("step", "step", "Number of the step in the trace."),
    us("start_us", "start (µs)", "On the trace's own clock."),
    us(
        "duration_us", "duration (µs)",
        "From its start to the next step's, the last to the end of its host code and device work.",
    ),
    us("busy_us", "busy (µs)", "Union of the device events that were launched in it."),
    us("idle_us", "idle (µs)", "The rest of its duration."),
    count("device_events", "device events", "Kernels and copies that were launched in it."),
    COMPLETE,
    text(
        "begins_with", "begins with",
        "host: its first line of code. device: the host ran ahead, and the step begins when the device has "
        "finished earlier work. before the first step: work queued before the recording, in no step.",
        20, number_format=GENERAL,
    ),
    us(
        "host_period_us", "host period (µs)",
        "From the start of its annotation to the next step's, of the last to the end of what it launched.",
    ),
    us(
        "device_period_us", "device period (µs)",
        "From its first kernel to the next step's, of the last to its end, on the stream with most events.",
    ),
    us(
        "outside_us", "beside neighbors (µs)",
        "Its device work on other streams during a neighboring step; in no busy time.",
    ),
    us(
        "left_out_us", "left out (µs)",
        "Idle time of a first step whose host waited for work from before the recording; not in the duration.",
    ),
)  # fmt: skip


@sheet(TITLE, columns=COLUMNS, order=58, json=None)
def frame(context: HostContext) -> pd.DataFrame:
    """Of the whole file: its steps, also those that the report is not of."""
    return context.step_times.sheet(int(context.recording.trace.table.start_ns.min()))
