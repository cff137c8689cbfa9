"""``steps``: the steps of the trace."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tracelens.analysis.sheets import step_times
from tracelens.schema import TEXT, table

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.analyze import Analysis

_SHEET = step_times.COLUMNS
COLUMNS = {**_SHEET, "begins_with": replace(_SHEET["begins_with"], number_format=TEXT)}


@table("steps", columns=COLUMNS)
def steps(analysis: Analysis) -> pd.DataFrame | None:
    """A row per step, as sheet steps; work that was queued before the recording has a row without a number."""
    table = analysis.trace.table
    return analysis.step_times.sheet(int(table.start_ns.min())) if len(analysis.step_times) else None
