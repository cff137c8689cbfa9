"""Sheets of ops: time by op, category and kernel, CPU ops, every distinct call with its work, and headroom."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from tracelens.analysis.attribution.activity import DeviceActivity, Labels
from tracelens.analysis.attribution.host_scopes import with_places
from tracelens.analysis.energy import EventEnergy
from tracelens.analysis.grouping import ByGroup, Codes, Spread, distinct_rows, first_of_each, numbered
from tracelens.analysis.idle.idle_time import BEFORE_RECORDING, CAUSES
from tracelens.analysis.intervals import Floats, Ints
from tracelens.analysis.loaded_trace import Trace
from tracelens.analysis.reading.catalog import OTHER
from tracelens.analysis.reading.op_readings import OpReadings
from tracelens.analysis.sheets import built_in, columns_of, priced_calls, sheet_rows
from tracelens.analysis.sheets.context import HostContext, SheetContext
from tracelens.backends.base import bound_name
from tracelens.trace.table import HOST_KINDS, Kind, RowColumn, TraceTable
from tracelens.types.signature import recorded_text
from tracelens.types.units import FLOPS_PER_GFLOP, NS_PER_US, TERA_PER_S_IN_PER_US

KERNEL_SUMMARY_TITLE = "kernel_summary"


OPS_SUMMARY_BY_CATEGORY_TITLE = "ops_summary_by_category"
CPU_OPS_TITLE, CPU_OPS_SUMMARY_TITLE = "cpu_ops_unique_args", "cpu_ops_summary"
UNIFIED_PERF_SUMMARY_TITLE, PERF_SUMMARY_TITLE, HEADROOM_TITLE = "unified_perf_summary", "ops", "headroom"


def _by_category(context: SheetContext) -> pd.DataFrame:
    activity, category = context.activity, context.event_category
    counted = np.flatnonzero(~activity.collective)
    took = np.bincount(category.code[counted], activity.duration[counted], minlength=len(category.texts))
    calls = context.launchers_and_unlinked.groupby("category", sort=True)
    frame = calls.agg(operation_count=("operation_count", "sum")).reset_index()
    frame["direct_us_sum"] = frame["category"].map(dict(zip(category.texts, took / NS_PER_US, strict=True)))
    if context.energy is not None:
        joules = context.energy.sums(category.code, len(category.texts)).power_w
        frame["energy_j"] = frame["category"].map(dict(zip(category.texts, joules, strict=True)))
    return priced_calls.with_estimated_totals(
        priced_calls.by_time(frame, "direct_us_sum"), context.priced.modelled, "category"
    )


def _by_name(context: SheetContext) -> pd.DataFrame:
    frame = context.launchers_and_unlinked.groupby("name", sort=True).agg(
        direct_us_sum=("direct_us_sum", "sum"),
        subtree_us_sum=("subtree_us_sum", "sum"),
        operation_count=("_calls", "sum"),
        categories=("category", lambda c: repr(sorted(set(c)))),
    )
    return priced_calls.with_estimated_totals(
        priced_calls.by_time(frame.reset_index(), "direct_us_sum"), context.priced.modelled, "name"
    )


KERNEL_SUMMARY_COLUMNS = columns_of("kernel_summary")


@built_in(KERNEL_SUMMARY_TITLE)
def kernel_summary_frame(context: SheetContext) -> pd.DataFrame:
    """Kernel time by kernel, launching op and stream, with collectives and unlinked kernels."""
    window_ns = context.timeline.total_ns
    return kernel_summary(context.trace.table, context.activity, context.event_category, window_ns, context.energy)


def kernel_summary(
    table: TraceTable, activity: DeviceActivity, category: Labels, total_ns: int, energy: EventEnergy | None = None
) -> pd.DataFrame:
    """One row per (parent op, kernel name, category, stream), collectives and unlinked kernels included."""
    parent = np.where(activity.op >= 0, table.name[activity.op], np.int32(-1))
    group = numbered(category.code, parent, activity.name, activity.stream)
    first = first_of_each(group)
    us = Spread(activity.duration_us(), ByGroup(group))
    columns = {
        "category": category[first].tolist(),
        "parent_op": [priced_calls.UNLINKED_NAME if c < 0 else table.names[c] for c in parent[first].tolist()],
        "kernel_name": [table.names[c] for c in activity.name[first].tolist()],
        "stream": activity.stream[first].astype(np.int64),
        "kernels": us.count,
        **{f"duration_us_{name}": getattr(us, name) for name in ("sum", "mean", "min", "max")},
        **({} if energy is None else {"energy_j": energy.sums(group, len(first)).power_w}),
        "percent_of_kernels": 100 * us.sum / (us.sum.sum() or 1),
        "percent_of_window": 100 * us.sum * NS_PER_US / (total_ns or 1),
    }
    return priced_calls.sorted_by(pd.DataFrame(columns), "duration_us_sum")


def short_kernels(activity: DeviceActivity, below_us: float = 10.0) -> Codes:
    """Positions of the events shorter than ``below_us``, collectives left out."""
    return np.flatnonzero((activity.duration < below_us * NS_PER_US) & ~activity.collective).astype(np.int32)


def _short_kernel_histogram(context: SheetContext) -> pd.DataFrame:
    us = context.activity.duration_us(short_kernels(context.activity))
    if not len(us):
        return pd.DataFrame({"bin_start_us": [], "bin_end_us": [], "kernels": []})
    count, edges = np.histogram(us, bins=100)
    return pd.DataFrame({"bin_start_us": edges[:-1], "bin_end_us": edges[1:], "kernels": count})


def _short_kernels_summary(context: SheetContext) -> pd.DataFrame:
    table, activity, total_ns = context.trace.table, context.activity, context.timeline.total_ns
    short = short_kernels(activity)
    op = activity.op[short]
    group = numbered(
        *(np.where(op >= 0, codes[op], -1) for codes in (table.name, table.signature)), activity.name[short]
    )
    first = first_of_each(group)
    us = pd.Series(activity.duration_us(short)).groupby(group).agg(["sum", "size", "mean"])
    signatures = [table.signature_of(r) if r >= 0 else None for r in op[first].tolist()]
    result = pd.DataFrame(
        {
            "parent_op": [priced_calls.UNLINKED_NAME if s is None else s.name for s in signatures],
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
    return priced_calls.sorted_by(result, "short_kernel_us_sum")


def _cpu_ops(context: HostContext) -> pd.DataFrame | None:
    """``host_us`` is with what the op called; ``cpu_tflops_s`` is the CPU's rate where a perf model knows the op."""
    if not context.options.cpu:
        return None
    trace, table = context.recorded, context.recorded.table
    rows: RowColumn = np.flatnonzero(table.kind == Kind.CPU_OP).astype(np.int32)
    rows = rows[context.in_scope(rows)]
    readings = OpReadings(table, context.recording.catalog, rows)
    group = priced_calls.Grouping(table, rows, np.full(len(rows), -1, np.int32))
    found = [readings.readings[c] for c in readings.code_of(rows[group.first]).tolist()]
    frame = priced_calls.identity_columns(table, group.example, [r.category or OTHER for r in found])
    frame["operation_count"] = np.bincount(group.of_call, minlength=len(found))
    columns = {"host_us": table.duration_ns[rows] / NS_PER_US, "host_self_us": self_ns(trace)[rows] / NS_PER_US}
    measured = priced_calls.statistics_of(columns, ByGroup(group.of_call), totals=tuple(columns))
    frame["example_row"] = group.example
    models = [None if r.leaf_only else r.model for r in found]
    known = [None if model is None else model.flops() for model in models]
    flops = np.array([np.nan if amount is None else amount for amount in known], float)
    frame["gflops"] = flops / FLOPS_PER_GFLOP
    frame["has_perf_model"] = [r.model is not None for r in found]
    mean = measured["host_us_mean"]
    rate = np.divide(flops, mean, out=np.full(len(mean), np.nan), where=mean > 0)
    return priced_calls.by_time(
        pd.DataFrame({**frame, **measured, "cpu_tflops_s": rate / TERA_PER_S_IN_PER_US}), "host_self_us_sum"
    )


def self_ns(trace: Trace) -> Ints:
    """Per table row: a host event's duration less that of the CPU ops directly below it on its thread; at least 0."""
    table, tree = trace.table, trace.tree
    own = np.where(table.is_of(HOST_KINDS), table.duration_ns, 0).astype(np.int64)
    rows = np.flatnonzero(table.kind == Kind.CPU_OP)
    parent = tree.op_parent[rows]
    below = parent >= 0
    np.subtract.at(own, parent[below], table.duration_ns[rows[below]])
    return np.maximum(own, 0)


def _cpu_ops_summary(context: HostContext) -> pd.DataFrame | None:
    unique = context.frames.get(CPU_OPS_TITLE)
    if unique is None:
        return None
    frame = unique.groupby("name", sort=True).agg(
        category=("category", "first"),
        operation_count=("operation_count", "sum"),
        host_us_sum=("host_us_sum", "sum"),
        host_self_us_sum=("host_self_us_sum", "sum"),
    )
    return priced_calls.by_time(frame.reset_index(), "host_self_us_sum")


UNIFIED_PERF_SUMMARY_COLUMNS = columns_of("unified_perf_summary")


_SHAPE = re.compile(r"\(\d[\d, ]*\)")
PERF_SUMMARY_COLUMNS = columns_of("ops")


def _unified(context: SheetContext) -> pd.DataFrame:
    rows, energy = context.priced.rows, context.energy
    return rows if energy is None else rows.assign(power_w=energy.rows.drawn.power_w, energy_j=energy.of_rows())


def _overview(context: SheetContext) -> pd.DataFrame:
    kernels = context.frames[KERNEL_SUMMARY_TITLE]
    return overview(context.frames[UNIFIED_PERF_SUMMARY_TITLE], float(kernels["duration_us_sum"].sum()))


def overview(rows: pd.DataFrame, gpu_us: float) -> pd.DataFrame:
    """``rows``: those of ``unified_perf_summary``, by keys; a figure that they lack is unknown. ``gpu_us``: of all
    kernels."""
    of_roofline = _figures(rows, "percent_of_roofline_mean")
    bounds = rows.get("roofline_bound", [None] * len(rows))
    return rows[[key for key in PERF_SUMMARY_COLUMNS if key in rows]].assign(
        shapes=np.array([tensor_shapes(dims) for dims in rows["input_dims"]], object),
        percent=100 * rows["kernel_us_sum"] / (gpu_us or 1.0),
        tflops_s_mean=rows["tflops_s_mean"].where(_figures(rows, "gflops") > 0),
        roofline_bound=pd.Series(
            [bound_name(each) if isinstance(each, str) else None for each in bounds], rows.index, object
        ),
        above_roofline_us=rows["kernel_us_sum"] * np.clip(1 - of_roofline / 100, 0, None),
        module=np.array([innermost_module(path) for path in rows.get("parent_module", [None] * len(rows))], object),
        line=np.array([calling_line(stack) for stack in rows.get("call_stack", [None] * len(rows))], object),
    )


def _figures(rows: pd.DataFrame, key: str) -> Floats:
    return rows[key].to_numpy(float) if key in rows else np.full(len(rows), np.nan)


def tensor_shapes(dims: object) -> str | None:
    """The recorded shapes without those of scalars and absent arguments; as it is where the calls of a row differ.

    >>> tensor_shapes("((1024,), (8944, 1024), (), ())")
    '(1024,), (8944, 1024)'
    """
    if dims == priced_calls.DIFFERENT:
        return priced_calls.DIFFERENT
    return ", ".join(_SHAPE.findall(dims)) or None if isinstance(dims, str) else None


def innermost_module(path: object) -> str | None:
    """
    >>> innermost_module("Model/DecoderLayer/Linear")
    'Linear'
    """
    return path.rpartition("/")[2] if isinstance(path, str) else None


def calling_line(stack: object) -> str | None:
    """The innermost frame outside PyTorch, else the innermost.

    >>> calling_line("torch/nn/modules/linear.py(124): forward <- model.py(150): attend <- train.py(9): step")
    'model.py(150): attend'
    """
    if not isinstance(stack, str):
        return None
    frames = stack.split(" <- ")
    return next((frame for frame in frames if not frame.startswith(("torch/", "<"))), frames[0])


#: What the device does while it does nothing.
IDLE_CATEGORY = "idle"


def _headroom(context: SheetContext) -> pd.DataFrame | None:
    priced, timeline, steps = context.priced, context.timeline, max(1, len(context.selected))
    if not timeline.total_ns:
        return None
    category, own = context.event_category, context.own_time[2]
    codes = distinct_rows(category.code, len(category.texts))
    sums = {"own_us": np.bincount(category.code, own)[codes]}
    mean = priced.rows["kernel_us_mean"].to_numpy(np.float64) if len(priced.rows) else np.zeros(0)
    known = np.zeros(0)
    for key, of_call in (("achievable_own_us", "_achievable_us"), ("roofline_own_us", "roofline_us")):
        least = priced.rows[of_call].to_numpy(np.float64) if of_call in priced.rows else np.full(len(mean), np.nan)
        # One more for events that are in no row
        share = np.append(np.divide(least, mean, out=np.full(len(mean), np.nan), where=mean > 0), np.nan)
        kept = np.where(np.isnan(share), 1.0, np.fmin(share, 1.0))
        sums[key] = np.bincount(category.code, own * kept[priced.row_of_event])[codes]
        known = ~np.isnan(share)
    found = pd.DataFrame({"category": [category.texts[code] for code in codes.tolist()], **sums})
    known_ns = np.bincount(category.code, own * known[priced.row_of_event])[codes]
    found["known_percent"] = 100 * known_ns / np.maximum(sums["own_us"], 1)
    # Who waits for work that was not recorded is not idle
    stays = float(context.idle_parts.by_cause[CAUSES.index(BEFORE_RECORDING)])
    idle = {"category": IDLE_CATEGORY, "own_us": timeline.idle_ns, "achievable_own_us": stays, "roofline_own_us": stays}
    found = pd.concat([found, pd.DataFrame([{**idle, "known_percent": np.nan}])], ignore_index=True)
    found["percent_of_step"] = 100 * found["own_us"] / timeline.total_ns
    found["headroom_us"] = found["own_us"] - found["achievable_own_us"]
    found = found[(found["own_us"] > 0)].sort_values(["headroom_us", "category"], ascending=[False, True])
    for key in (*sums, "headroom_us"):
        found[key] /= NS_PER_US * steps
    shown = ["category", *sums, "headroom_us", "percent_of_step", "known_percent"]
    return found[shown].reset_index(drop=True)


SHEETS = sheet_rows(
    {
        OPS_SUMMARY_BY_CATEGORY_TITLE: _by_category,
        "ops_summary": _by_name,
        "short_kernel_histogram": _short_kernel_histogram,
        "short_kernels_summary": _short_kernels_summary,
        CPU_OPS_TITLE: _cpu_ops,
        CPU_OPS_SUMMARY_TITLE: _cpu_ops_summary,
        UNIFIED_PERF_SUMMARY_TITLE: _unified,
        PERF_SUMMARY_TITLE: _overview,
        HEADROOM_TITLE: _headroom,
        "ops_unique_args": lambda c: with_places(
            c.priced.launchers, c.trace.tree, (a := c.attribution).phases, a.repeated
        ),
    }
)
