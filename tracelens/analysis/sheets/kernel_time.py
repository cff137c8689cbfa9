"""Sheets of kernel time by launching op, category and kernel, and of short kernels."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracelens.analysis.attribution.activity import DeviceActivity, Labels
from tracelens.analysis.attribution.host_scopes import with_places
from tracelens.analysis.grouping import ByGroup, Codes, Spread, first_of_each, numbered
from tracelens.analysis.sheets import shared_columns as shared
from tracelens.analysis.sheets.context import SheetContext
from tracelens.analysis.sheets.distinct_calls import UNLINKED_NAME, sorted_by, with_percent
from tracelens.analysis.sheets.priced_calls import with_estimated_totals
from tracelens.analysis.sheets.shared_columns import (
    CALLS,
    CATEGORY,
    DIMS,
    DIRECT,
    ESTIMATED_TOTAL,
    KERNEL,
    OF_TOTAL,
    PARENT,
    PERCENTAGES,
    SCALARS,
    STREAM,
    STRIDES,
)
from tracelens.schema import column_set, count, percent, sheet, statistics, text, us
from tracelens.signature import recorded_text
from tracelens.trace.table import TraceTable
from tracelens.units import NS_PER_US

OPS_SUMMARY_BY_CATEGORY_TITLE = "ops_summary_by_category"
OPS_SUMMARY_BY_CATEGORY_COLUMNS = column_set(CATEGORY, CALLS, DIRECT[-1], PERCENTAGES, ESTIMATED_TOTAL)


@sheet(OPS_SUMMARY_BY_CATEGORY_TITLE, columns=OPS_SUMMARY_BY_CATEGORY_COLUMNS, order=20, json=None)
def ops_summary_by_category_frame(context: SheetContext) -> pd.DataFrame:
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


OPS_SUMMARY_COLUMNS = column_set(
    shared.NAME, shared.DIRECT[-1], shared.SUBTREE[-1], shared.CALLS,
    text("categories", "Categories of the op's calls.", width=30), shared.PERCENTAGES, shared.ESTIMATED_TOTAL,
)  # fmt: skip


@sheet("ops_summary", columns=OPS_SUMMARY_COLUMNS, order=30, json=None)
def ops_summary_frame(context: SheetContext) -> pd.DataFrame:
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


OPS_UNIQUE_ARGS_COLUMNS = column_set(
    shared.NAME, shared.CATEGORY, shared.PROCESS, shared.ARGUMENTS, shared.CALLS, shared.DIRECT, shared.SUBTREE,
    shared.EXAMPLE, shared.KERNELS_BEHIND, shared.PLACES, shared.PERCENTAGES,
)  # fmt: skip


@sheet("ops_unique_args", columns=OPS_UNIQUE_ARGS_COLUMNS, order=40, json=None)
def ops_unique_args_frame(context: SheetContext) -> pd.DataFrame:
    """Kernel time by distinct call: name, shapes, types, strides and scalars of the op; without collectives."""
    return with_places(
        context.priced.launchers, context.trace.tree, context.attribution.phases, context.attribution.repeated
    )


KERNEL_SUMMARY_TITLE = "kernel_summary"
_DURATION = us("duration_us", "Durations of the kernels.")
KERNEL_SUMMARY_COLUMNS = column_set(
    text("category", "Category of the op that launched the kernel.", width=20),
    PARENT, KERNEL, STREAM,
    statistics(("sum",), _DURATION),
    count("kernels", "Number of kernels."),
    statistics(("mean", "min", "max"), _DURATION),
    percent("percent_of_kernels", "Share of all kernel durations."),
    OF_TOTAL,
)  # fmt: skip


@sheet(KERNEL_SUMMARY_TITLE, columns=KERNEL_SUMMARY_COLUMNS, order=50, json=None)
def kernel_summary_frame(context: SheetContext) -> pd.DataFrame:
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


SHORT_KERNEL_HISTOGRAM_COLUMNS = column_set(
    us("bin_start_us", "Shortest duration."),
    us("bin_end_us", "Longest duration."),
    count("kernels", "Kernels of such a duration."),
)


@sheet("short_kernel_histogram", columns=SHORT_KERNEL_HISTOGRAM_COLUMNS, order=54, json=None)
def short_kernel_histogram_frame(context: SheetContext) -> pd.DataFrame:
    """How many short kernels there are, by duration."""
    return short_kernel_histogram(context.activity)


def short_kernels(activity: DeviceActivity, below_us: float) -> Codes:
    """Positions of the events shorter than ``below_us``, collectives left out."""
    return np.flatnonzero((activity.duration < below_us * NS_PER_US) & ~activity.collective).astype(np.int32)


def short_kernel_histogram(activity: DeviceActivity, below_us: float = 10.0, bins: int = 100) -> pd.DataFrame:
    """Kernels shorter than ``below_us`` in equal bins between the shortest and the longest of them."""
    us = activity.duration_us(short_kernels(activity, below_us))
    if not len(us):
        return pd.DataFrame({"bin_start_us": [], "bin_end_us": [], "kernels": []})
    count, edges = np.histogram(us, bins=bins)
    return pd.DataFrame({"bin_start_us": edges[:-1], "bin_end_us": edges[1:], "kernels": count})


_SHORT = "Kernels below the threshold for short ones (10 µs)."
KERNEL_TIME_COLUMNS = column_set(
    PARENT, DIMS, STRIDES, SCALARS, KERNEL,
    count("short_kernel_count", _SHORT),
    statistics(("sum", "mean"), us("short_kernel_us", _SHORT)),
    OF_TOTAL,
)  # fmt: skip


@sheet("short_kernels_summary", columns=KERNEL_TIME_COLUMNS, order=56, json=None)
def kernel_time_frame(context: SheetContext) -> pd.DataFrame:
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
