"""Kernel time by launching op, kernel and stream."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracelens.analysis.attribution.activity import DeviceActivity, Labels
from tracelens.analysis.factorize import first_of_each, numbered
from tracelens.analysis.group_figures import ByGroup, Spread
from tracelens.analysis.sheets.context import SheetContext
from tracelens.analysis.sheets.distinct_calls import UNLINKED_NAME, sorted_by
from tracelens.analysis.sheets.shared_columns import KERNEL, OF_TOTAL, PARENT, STREAM
from tracelens.schema import column_set, count, percent, sheet, statistics, text, us
from tracelens.trace.table import TraceTable
from tracelens.units import NS_PER_US

TITLE = "kernel_summary"
_DURATION = us("kernel_us", "Kernel duration (µs)_{}", "Durations of the kernels.")
COLUMNS = column_set(
    text("parent_category", "Parent op category", "Category of the op that launched the kernel.", 20),
    PARENT, KERNEL, STREAM,
    statistics(("sum",), _DURATION),
    statistics(("count",), count("kernel_us", "Kernel duration (µs)_{}", "")),
    statistics(("mean", "min", "max"), _DURATION),
    percent("percent_of_kernels", "Percent of kernels time (%)", "Share of all kernel durations."),
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
        "parent_category": category[first].tolist(),
        "parent_op": [UNLINKED_NAME if c < 0 else table.names[c] for c in parent[first].tolist()],
        "kernel_name": [table.names[c] for c in activity.name[first].tolist()],
        "stream": activity.stream[first].astype(np.int64),
        **{f"kernel_us_{name}": getattr(us, name) for name in ("sum", "count", "mean", "min", "max")},
        "percent_of_kernels": 100 * us.sum / (us.sum.sum() or 1),
        "percent_of_total": 100 * us.sum * NS_PER_US / (total_ns or 1),
    }
    return sorted_by(pd.DataFrame(columns), "kernel_us_sum")
