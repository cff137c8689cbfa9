"""Sheets of CPU ops by their own time on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.attribution.activity import Bools
from tracelens.analysis.intervals import Ints
from tracelens.analysis.reading.catalog import OTHER, Catalog
from tracelens.analysis.reading.op_readings import OpReadings
from tracelens.analysis.sheets import distinct_calls
from tracelens.analysis.sheets import shared_columns as shared
from tracelens.analysis.sheets.distinct_calls import sorted_by, with_percent
from tracelens.analysis.sheets.shared_columns import CALLS, CATEGORY, NAME, PERCENTAGES
from tracelens.schema import TOTALED, column_set, number, sheet, statistics, us
from tracelens.trace.table import HOST_KINDS, Kind, RowColumn
from tracelens.units import FLOPS_PER_GFLOP, NS_PER_US, TERA_PER_S_IN_PER_US

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.loaded_trace import Trace
    from tracelens.analysis.sheets.context import HostContext


CPU_OPS_TITLE = "cpu_ops_unique_args"
SELF = "Time in the op itself, without the ops it called on its thread."
TOTAL = "From the op's start on the host to its end, what it called included."
CPU_OPS_COLUMNS = column_set(
    shared.NAME, shared.CATEGORY, shared.PROCESS, shared.ARGUMENTS, shared.CALLS,
    statistics(TOTALED, us("host_self_us", SELF)),
    statistics(TOTALED, us("host_us", TOTAL)),
    shared.EXAMPLE, shared.GFLOPS,
    number(
        "cpu_tflops_s", "Arithmetic over the op's mean total CPU time.", unit="1e12 operations per second"
    ),
    shared.HAS_PERF_MODEL, shared.PERCENTAGES,
)  # fmt: skip


@sheet(CPU_OPS_TITLE, columns=CPU_OPS_COLUMNS, order=82, json=None)
def cpu_ops_frame(context: HostContext) -> pd.DataFrame | None:
    """CPU ops by distinct call, by their own time on the host."""
    if not context.options.cpu:
        return None
    return cpu_ops_unique_args(context.recorded, context.recording.catalog, context.in_scope)


def cpu_ops_unique_args(
    trace: Trace, catalog: Catalog, in_scope: Callable[[RowColumn], Bools] | None = None
) -> pd.DataFrame:
    """One row per distinct CPU op call: host_us (with what it called), host_self_us, and FLOPs over its total time.

    ``in_scope``: which calls count; None for all. Self time leaves out ops called on the same thread. ``cpu_tflops_s``
    is the CPU's rate where a perf model knows the op.
    """
    import pandas as pd

    table = trace.table
    rows: RowColumn = np.flatnonzero(table.kind == Kind.CPU_OP).astype(np.int32)
    if in_scope is not None:
        rows = rows[in_scope(rows)]
    own = self_ns(trace)
    readings = OpReadings(table, catalog, rows)
    group = distinct_calls.Grouping(table, rows, np.full(len(rows), -1, np.int32))
    code = readings.code_of(rows[group.first])
    found = [readings.readings[c] for c in code.tolist()]
    frame = distinct_calls.identity(table, group.example, [r.category or OTHER for r in found])
    frame["operation_count"] = np.bincount(group.of_call, minlength=len(frame))
    columns = {"host_us": table.duration_ns[rows] / NS_PER_US, "host_self_us": own[rows] / NS_PER_US}
    measured = distinct_calls.statistics(columns, group.of_call, totals=tuple(columns))
    frame["example_row"] = group.example
    flops = np.array([np.nan if r.model is None or r.leaf_only else _known(r.model.flops()) for r in found], float)
    frame["gflops"] = flops / FLOPS_PER_GFLOP
    frame["has_perf_model"] = [r.model is not None for r in found]
    frame = pd.concat([frame, measured], axis=1)
    mean = frame["host_us_mean"].to_numpy()
    frame["cpu_tflops_s"] = (
        np.divide(flops, mean, out=np.full(len(mean), np.nan), where=mean > 0) / TERA_PER_S_IN_PER_US
    )
    return distinct_calls.with_percent(distinct_calls.sorted_by(frame, "host_self_us_sum"), "host_self_us_sum")


def self_ns(trace: Trace) -> Ints:
    """Per table row: a host event's duration less that of the CPU ops directly below it on its thread; at least 0."""
    table, tree = trace.table, trace.tree
    own = np.where(table.is_of(HOST_KINDS), table.duration_ns, 0).astype(np.int64)
    rows = np.flatnonzero(table.kind == Kind.CPU_OP)
    parent = tree.op_parent[rows]
    below = parent >= 0
    np.subtract.at(own, parent[below], table.duration_ns[rows[below]])
    return np.maximum(own, 0)


def _known(value: float | None) -> float:
    return float("nan") if value is None else float(value)


CPU_OPS_SUMMARY_TITLE = "cpu_ops_summary"
CPU_OPS_SUMMARY_COLUMNS = column_set(
    NAME, CATEGORY, CALLS, us("host_self_us_sum", SELF),
    us("host_us_sum", TOTAL), PERCENTAGES,
)  # fmt: skip


@sheet(CPU_OPS_SUMMARY_TITLE, columns=CPU_OPS_SUMMARY_COLUMNS, order=80, json=None)
def cpu_ops_summary_frame(context: HostContext) -> pd.DataFrame | None:
    """CPU ops by name, by their own time on the host."""
    unique = context.frames.get(CPU_OPS_TITLE)
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
