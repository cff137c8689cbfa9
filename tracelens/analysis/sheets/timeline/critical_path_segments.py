"""The segments of the critical path in order of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.analysis.sheets.shared_columns import PATH_KIND, START
from tracelens.schema import column_set, identifier, sheet, text, us

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import SheetContext


COLUMNS = column_set(
    us("start_us", START),
    us("time_us", "Length of the segment."),
    PATH_KIND,
    text("name", "The kernel that ran or was waiting to run; for host work, the op it led to.", width=60),
    identifier("stream", "Stream of the kernel; empty for host work."),
)


@sheet("critical_path_segments", columns=COLUMNS, order=61, json=70)
def frame(context: SheetContext) -> pd.DataFrame | None:
    """The segments of the critical path in order of time; at most the 300 longest."""
    return None if context.path is None else context.path.segments(context.recorded.table)
