"""Kernel time by name of the launching op."""

from __future__ import annotations

import pandas as pd

from tracelens.analysis.sheets import shared_columns as shared
from tracelens.analysis.sheets.context import SheetContext
from tracelens.analysis.sheets.distinct_calls import sorted_by, with_percent
from tracelens.analysis.sheets.modelled_calls import with_estimated_totals
from tracelens.schema import column_set, sheet, text

COLUMNS = column_set(
    shared.NAME, shared.DIRECT[-1], shared.SUBTREE[-1], shared.CALLS,
    text("categories", "Categories of the op's calls.", width=30), shared.PERCENTAGES, shared.ESTIMATED_TOTAL,
)  # fmt: skip


@sheet("ops_summary", columns=COLUMNS, order=30, json=None)
def frame(context: SheetContext) -> pd.DataFrame:
    """Kernel time by name of the launching op; collectives are left out: see coll_analysis."""
    return with_estimated_totals(by_name(context.launchers_and_unlinked), context.priced.modelled, "name")


def by_name(unique: pd.DataFrame) -> pd.DataFrame:
    """Rows of distinct calls added up by name."""
    frame = unique.groupby("name", sort=True).agg(
        direct_us_sum=("direct_us_sum", "sum"),
        subtree_us_sum=("subtree_us_sum", "sum"),
        operation_count=("_calls", "sum"),
        categories=("category", lambda c: repr(sorted(set(c)))),
    )
    frame = frame.reset_index()
    return with_percent(sorted_by(frame, "direct_us_sum"), "direct_us_sum")
