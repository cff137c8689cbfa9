"""The longest gaps in which the device stood idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.analysis.sheets.shared_columns import CAUSE, START
from tracelens.schema import column_set, percent, sheet, text, us

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import SheetContext


COLUMNS = column_set(
    us("start_us", START),
    us("idle_us", "Length of the gap."),
    CAUSE,
    percent("percent_of_gap", "Share of the gap that has this cause, the largest of its causes."),
    us(
        "queue_empty_us",
        "Time until the host had launched something; for the rest of the gap, the device had work in its queue "
        "and waited.",
    ),
    text("kernel_before", "The device event that ended last.", width=60),
    text("kernel_after", "The device event that ended the gap.", width=60),
    text("op_after", "The op that launched it.", width=46),
)


@sheet("idle_gaps", columns=COLUMNS, order=60, json=40)
def frame(context: SheetContext) -> pd.DataFrame:
    """The longest gaps in which the GPU was idle, at most 100 of them."""
    return context.gaps.longest(context.recorded.table, context.recorded.tree)
