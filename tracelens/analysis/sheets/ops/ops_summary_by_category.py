"""Kernel time by category of the launching op."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracelens.analysis.attribution.activity import DeviceActivity, Labels
from tracelens.analysis.sheets.context import SheetContext
from tracelens.analysis.sheets.distinct_calls import sorted_by, with_percent
from tracelens.analysis.sheets.modelled_calls import with_estimated_totals
from tracelens.analysis.sheets.shared_columns import CALLS, CATEGORY, DIRECT, ESTIMATED_TOTAL, PERCENTAGES
from tracelens.schema import column_set, sheet
from tracelens.units import NS_PER_US

TITLE = "ops_summary_by_category"
COLUMNS = column_set(CATEGORY, CALLS, DIRECT[-1], PERCENTAGES, ESTIMATED_TOTAL)


@sheet(TITLE, columns=COLUMNS, order=20, json=None)
def frame(context: SheetContext) -> pd.DataFrame:
    """Kernel time by category of the launching op; collectives are left out: see coll_analysis."""
    rows = by_category(context.launchers_and_unlinked, context.activity, context.event_category)
    return with_estimated_totals(rows, context.priced.modelled, "category")


def by_category(unique: pd.DataFrame, activity: DeviceActivity, category: Labels) -> pd.DataFrame:
    """By category: the calls that launched kernels of it, and these kernels' summed time. Collectives are left out."""
    counted = np.flatnonzero(~activity.collective)
    took = np.bincount(category.code[counted], activity.duration[counted], minlength=len(category.texts))
    frame = unique.groupby("category", sort=True).agg(operation_count=("operation_count", "sum")).reset_index()
    frame["direct_us_sum"] = frame["category"].map(dict(zip(category.texts, took / NS_PER_US, strict=True)))
    return with_percent(sorted_by(frame, "direct_us_sum"), "direct_us_sum")
