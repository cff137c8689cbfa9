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
    identifier("step", "Number of the step in the trace."),
    us("start_us", "On the trace's own clock."),
    us(
        "duration_us", "From its start to the next step's, the last to the end of its host code and device work.",
    ),
    us("busy_us", "Union of the device events that were launched in it."),
    us("idle_us", "The rest of its duration."),
    count("device_events", "Kernels and copies that were launched in it."),
    COMPLETE,
    text(
        "begins_with",
        "host: its first line of code. device: the host ran ahead, and the step begins when the device has "
        "finished earlier work. before the first step: work queued before the recording, in no step.",
        width=20, number_format=GENERAL,
    ),
    us(
        "host_period_us",
        "From the start of its annotation to the next step's, of the last to the end of what it launched.",
    ),
    us(
        "host_work_us",
        "From the start of its annotation to the next step's, of the last to the annotation's end, without calls that "
        "wait for the GPU.",
    ),
    us(
        "device_period_us",
        "From its first kernel to the next step's, of the last to its end, on the stream with most events.",
    ),
    us(
        "outside_us", "Its device work on other streams during a neighboring step; in no busy time.",
    ),
    us(
        "left_out_us",
        "Idle time of a first step whose host waited for work from before the recording; not in the duration.",
    ),
)  # fmt: skip


@sheet(TITLE, columns=COLUMNS, order=58, json=None)
def frame(context: HostContext) -> pd.DataFrame:
    """Of the whole file: its steps, also those that the report is not of."""
    return context.step_times.sheet(int(context.recording.trace.table.start_ns.min()))
