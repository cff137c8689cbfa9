"""Where the device's time went in the window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.schema import column_set, percent, sheet, text, us

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import SheetContext


COLUMNS = column_set(
    text(
        "type", "Part of the window. computation + exposed_comm + exposed_memcpy + idle = total; "
        "exposed: nothing before it in this list ran at the same time.",
        width=24,
    ),
    us("time_us", "Interval union."),
    percent("percent_of_window", "Share of total_time."),
)  # fmt: skip


@sheet("gpu_timeline", columns=COLUMNS, order=10, json=None)
def frame(context: SheetContext) -> pd.DataFrame:
    """Where the device's time went in the window."""
    return context.timeline.frame()
