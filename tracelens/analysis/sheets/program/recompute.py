"""Ops that checkpointing ran again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.analysis.sheets.shared_columns import DURATIONS
from tracelens.schema import column_set, count, sheet, text, us

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import SheetContext


COLUMNS = column_set(
    text("name", "The op that launched the work.", width=46),
    count("first_calls", "Calls in the forward pass."),
    us("first_us", DURATIONS),
    count("recompute_calls", "Calls that checkpointing repeated during the backward pass."),
    us("recompute_us", DURATIONS),
)


@sheet("recompute", columns=COLUMNS, order=65, json=110)
def frame(context: SheetContext) -> pd.DataFrame | None:
    """Ops that checkpointing ran again: first runs beside repeated ones."""
    phases = context.attribution.phases
    return phases.by_op(context.trace.table, context.activity) if phases.has_recompute else None
