"""Short kernels by launching op and kernel."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.analysis.grouping import first_of_each, numbered
from tracelens.analysis.sheets.context import SheetContext
from tracelens.analysis.sheets.distinct_calls import UNLINKED_NAME, sorted_by
from tracelens.analysis.sheets.ops.short_kernel_histogram import short_kernels
from tracelens.analysis.sheets.shared_columns import DIMS, KERNEL, OF_TOTAL, PARENT, SCALARS, STRIDES
from tracelens.schema import column_set, count, sheet, statistics, us
from tracelens.signature import recorded_text
from tracelens.trace.table import TraceTable
from tracelens.units import NS_PER_US

_SHORT = "Kernels below the threshold for short ones (10 µs)."
COLUMNS = column_set(
    PARENT, DIMS, STRIDES, SCALARS, KERNEL,
    count("short_kernel_count", _SHORT),
    statistics(("sum", "mean"), us("short_kernel_us", _SHORT)),
    OF_TOTAL,
)  # fmt: skip


@sheet("short_kernels_summary", columns=COLUMNS, order=56, json=None)
def frame(context: SheetContext) -> pd.DataFrame:
    """Short kernels by launching op and kernel: where launches cost more than work."""
    return short_kernels_summary(context.trace.table, context.activity, context.timeline.total_ns)


def short_kernels_summary(
    table: TraceTable, activity: DeviceActivity, total_ns: int, below_us: float = 10.0
) -> pd.DataFrame:
    """Kernels shorter than ``below_us`` by launching op call and kernel name."""
    short = short_kernels(activity, below_us)
    op = activity.op[short]
    group = numbered(
        *(np.where(op >= 0, codes[op], -1) for codes in (table.name, table.signature)), activity.name[short]
    )
    first = first_of_each(group)
    us = pd.Series(activity.duration_us(short)).groupby(group).agg(["sum", "size", "mean"])
    signatures = [table.signature_of(r) if r >= 0 else None for r in op[first].tolist()]
    result = pd.DataFrame(
        {
            "parent_op": [UNLINKED_NAME if s is None else s.name for s in signatures],
            "input_dims": [None if s is None else recorded_text(s.shapes) for s in signatures],
            "input_strides": [None if s is None else recorded_text(s.strides) for s in signatures],
            "concrete_inputs": [None if s is None else recorded_text(s.scalars) for s in signatures],
            "kernel_name": [table.names[c] for c in activity.name[short[first]].tolist()],
        },
        dtype=object,
    )
    for key, figure in (("us_sum", "sum"), ("count", "size"), ("us_mean", "mean")):
        result[f"short_kernel_{key}"] = us[figure]
    result["percent_of_window"] = 100 * result["short_kernel_us_sum"] * NS_PER_US / total_ns if total_ns else 0.0
    return sorted_by(result, "short_kernel_us_sum")
