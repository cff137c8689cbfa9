"""Kernel time by launching op, kernel and stream."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracelens.analysis.attribution.activity import DeviceActivity, Labels
from tracelens.analysis.grouping import ByGroup, Spread, first_of_each, numbered
from tracelens.analysis.sheets.context import SheetContext
from tracelens.analysis.sheets.distinct_calls import UNLINKED_NAME, sorted_by
from tracelens.analysis.sheets.shared_columns import KERNEL, OF_TOTAL, PARENT, STREAM
from tracelens.schema import column_set, count, percent, sheet, statistics, text, us
from tracelens.trace.table import TraceTable
from tracelens.units import NS_PER_US

TITLE = "kernel_summary"
_DURATION = us("duration_us", "Durations of the kernels.")
COLUMNS = column_set(
    text("category", "Category of the op that launched the kernel.", width=20),
    PARENT, KERNEL, STREAM,
    statistics(("sum",), _DURATION),
    count("kernels", "Number of kernels."),
    statistics(("mean", "min", "max"), _DURATION),
    percent("percent_of_kernels", "Share of all kernel durations."),
    OF_TOTAL,
)  # fmt: skip


@sheet(TITLE, columns=COLUMNS, order=50, json=None)
def frame(context: SheetContext) -> pd.DataFrame:
    """Kernel time by launching op, kernel and stream; collectives and unlinked kernels included."""
    return kernel_summary(context.trace.table, context.activity, context.event_category, context.timeline.total_ns)


def kernel_summary(table: TraceTable, activity: DeviceActivity, category: Labels, total_ns: int) -> pd.DataFrame:
    """One row per (parent op, kernel name, category, stream), collectives and unlinked kernels included."""
    parent = np.where(activity.op >= 0, table.name[activity.op], np.int32(-1))
    group = numbered(category.code, parent, activity.name, activity.stream)
    first = first_of_each(group)
    us = Spread(activity.duration_us(), ByGroup(group))
    columns = {
        "category": category[first].tolist(),
        "parent_op": [UNLINKED_NAME if c < 0 else table.names[c] for c in parent[first].tolist()],
        "kernel_name": [table.names[c] for c in activity.name[first].tolist()],
        "stream": activity.stream[first].astype(np.int64),
        "kernels": us.count,
        **{f"duration_us_{name}": getattr(us, name) for name in ("sum", "mean", "min", "max")},
        "percent_of_kernels": 100 * us.sum / (us.sum.sum() or 1),
        "percent_of_window": 100 * us.sum * NS_PER_US / (total_ns or 1),
    }
    return sorted_by(pd.DataFrame(columns), "duration_us_sum")
