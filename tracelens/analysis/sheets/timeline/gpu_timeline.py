"""Where the device's time went in the window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.schema import column_set, ms, percent, sheet, text

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import SheetContext


COLUMNS = column_set(
    text(
        "type", "type",
        "Part of the window. computation + exposed_comm + exposed_memcpy + idle = total; "
        "exposed: nothing before it in this list ran at the same time.",
        24,
    ),
    ms("time_ms", "time ms", "Interval union."),
    percent("percent", "percent", "Share of total_time."),
)  # fmt: skip


@sheet("gpu_timeline", columns=COLUMNS, order=10, json=None)
def frame(context: SheetContext) -> pd.DataFrame:
    """Where the device's time went in the window."""
    return context.timeline.frame()
