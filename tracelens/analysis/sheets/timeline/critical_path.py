"""The longest chain of work and launches that led to the end of the typical step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.analysis.sheets.shared_columns import PATH_KIND
from tracelens.schema import column_set, count, identifier, percent, sheet, us

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import SheetContext


TITLE = "critical_path"
COLUMNS = column_set(
    PATH_KIND,
    identifier("step", "Number of the typical step, whose path this is; empty: the whole window."),
    count("segments", "Segments of the path of this kind."),
    us("time_us", "Time on the path; with the time not on the path, the column adds up to the step."),
    percent("percent_of_path", "Share of the path's length."),
    percent("percent_of_step", "Share of the step's time."),
)


@sheet(TITLE, columns=COLUMNS, order=14, json=60)
def frame(context: SheetContext) -> pd.DataFrame | None:
    """The longest chain of work and launches that led to the end of the typical step, by kind of work."""
    if context.path is None:
        return None
    at = context.typical_step
    return context.path.by_kind(None if at is None else context.step_times.steps[at].number)
