"""Idle time of the device by cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.analysis.sheets.shared_columns import CAUSE
from tracelens.schema import column_set, count, percent, sheet, us

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import SheetContext


TITLE = "idle_causes"
COLUMNS = column_set(
    CAUSE,
    count("gaps", "Gaps with this cause, in which no stream of the device was busy."),
    us(
        "idle_us",
        "Time of this cause in the complete steps; without steps the column adds up to idle_time of gpu_timeline.",
    ),
    us("idle_us_mean", "Mean time of this cause in a gap."),
    us("idle_us_max", "Longest time of this cause in one gap."),
    percent("percent_of_idle", "Share of all idle time."),
    percent(
        "percent_of_window",
        "Share of the complete steps' time; without steps, of total_time of gpu_timeline.",
    ),
)


@sheet(TITLE, columns=COLUMNS, order=12, json=30)
def frame(context: SheetContext) -> pd.DataFrame:
    """Idle time of the device by cause, over the complete steps (without steps: the window of gpu_timeline)."""
    return context.gaps.by_cause()
