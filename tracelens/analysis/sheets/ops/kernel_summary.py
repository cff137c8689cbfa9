"""Kernel time by launching op, kernel and stream."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracelens.analysis.attribution.activity import DeviceActivity, Labels
from tracelens.analysis.factorize import first_of_each, numbered
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
    us = pd.Series(activity.duration_us()).groupby(group).agg(["sum", "count", "mean", "min", "max"])
    keys = {
        "parent_category": category[first].tolist(),
        "parent_op": [UNLINKED_NAME if c < 0 else table.names[c] for c in parent[first].tolist()],
        "kernel_name": [table.names[c] for c in activity.name[first].tolist()],
        "stream": activity.stream[first].astype(np.int64),
    }
    frame = pd.concat([pd.DataFrame(keys), us.add_prefix("kernel_us_")], axis=1)
    total = frame["kernel_us_sum"].sum()
    frame["percent_of_kernels"] = 100 * frame["kernel_us_sum"] / total if total else 0.0
    frame["percent_of_total"] = 100 * frame["kernel_us_sum"] * NS_PER_US / total_ns if total_ns else 0.0
    return sorted_by(frame, "kernel_us_sum")
