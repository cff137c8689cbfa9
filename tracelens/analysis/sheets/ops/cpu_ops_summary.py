"""CPU ops by name, by their own time on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.analysis.sheets import cpu_ops
from tracelens.analysis.sheets.distinct_calls import sorted_by, with_percent
from tracelens.analysis.sheets.shared_columns import CALLS, CATEGORY, NAME, PERCENTAGES
from tracelens.schema import column_set, sheet, us

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import HostContext


TITLE = "cpu_ops_summary"
COLUMNS = column_set(
    NAME, CATEGORY, CALLS, us("host_self_us_sum", cpu_ops.SELF),
    us("host_us_sum", cpu_ops.TOTAL), PERCENTAGES,
)  # fmt: skip


@sheet(TITLE, columns=COLUMNS, order=80, json=None)
def frame(context: HostContext) -> pd.DataFrame | None:
    """CPU ops by name, by their own time on the host."""
    unique = context.frames.get(cpu_ops.TITLE)
    return None if unique is None else cpu_ops_summary(unique)


def cpu_ops_summary(unique: pd.DataFrame) -> pd.DataFrame:
    """By name: calls, total and self time (us)."""
    frame = unique.groupby("name", sort=True).agg(
        category=("category", "first"),
        operation_count=("operation_count", "sum"),
        host_us_sum=("host_us_sum", "sum"),
        host_self_us_sum=("host_self_us_sum", "sum"),
    )
    return with_percent(sorted_by(frame.reset_index(), "host_self_us_sum"), "host_self_us_sum")
