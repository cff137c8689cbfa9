"""The tables that SQL sees of one trace: calls, collectives, counters, kernels, memory, ops, ranges, steps, the trace;
of each its columns and the function that makes it.

Cells that were not determined are NULL; times are µs, on the clock that begins with the trace's first event.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracelens.analysis.attribution.steps import step_of_events
from tracelens.analysis.attribution.window import in_steps
from tracelens.analysis.sheets import coll_analysis, columns_of, device_memory, device_timeline, perf_summary
from tracelens.files.sql import typed
from tracelens.registry import Registry
from tracelens.schema import TEXT, table
from tracelens.trace.rewriting import events as events_of_file
from tracelens.trace.table import DEVICE_KINDS, Kind
from tracelens.types.units import NS_PER_US

if TYPE_CHECKING:
    import numpy.typing as npt

    from tracelens.analysis.analyze import Analysis


@table("calls", columns=columns_of("sql.calls"))
def calls(analysis: Analysis) -> pd.DataFrame:
    """Op calls in scope, nested calls included."""
    trace = analysis.trace
    made = trace.ops().rename(columns={"row": "call"})
    made = made[in_steps(trace.table, made["call"].to_numpy(), analysis.step_times, analysis.selected_steps)]
    rows = made["call"].to_numpy()
    parent = trace.tree.op_parent[rows]
    lanes = np.array([f"{process}/{thread}" for process, thread in trace.table.lanes] or [""], object)
    made["parent"] = np.where(parent < 0, np.nan, parent)
    made["thread"] = lanes[trace.table.lane[rows]]
    return made


@table("collectives", columns=columns_of(coll_analysis.TITLE))
def collectives(analysis: Analysis) -> pd.DataFrame | None:
    """Distinct collectives (group, kind, type, sizes, stream), as sheet coll_analysis."""
    return analysis.frames.get(coll_analysis.TITLE)


@table("counters", columns=columns_of("sql.counters"))
def counters(analysis: Analysis) -> pd.DataFrame | None:
    """Values of counter tracks (phase C of JSON traces) over the whole recording."""
    trace = analysis.trace.table
    if not trace.counts_by_phase.get("C"):
        return None
    first_us = int(trace.start_ns.min()) / NS_PER_US if len(trace) else 0.0
    rows = [
        (str(event.get("pid")), event.get("name"), series, event["ts"] - first_us, value)
        for _, event in events_of_file(trace, np.zeros(len(trace), np.bool_))
        if event.get("ph") == "C" and isinstance(event.get("ts"), int | float) and isinstance(event.get("args"), dict)
        for series, value in event["args"].items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return pd.DataFrame(rows, columns=list(columns_of("sql.counters")))


@table("kernels", columns=columns_of("sql.kernels"))
def kernels(analysis: Analysis) -> pd.DataFrame:
    """Kernels, copies and memsets in scope."""
    events, trace = analysis.activity, analysis.trace.table
    names = np.array(trace.names, object)
    linked = events.op >= 0
    gap = np.where(events.gap_before < 0, np.nan, events.gap_before / NS_PER_US)
    return pd.DataFrame(
        {
            "kernel": events.rows,
            "kernel_name": names[events.name],
            "category": analysis.event_category.tolist(),
            "parent_op": pd.Series(names[trace.name[events.op]]).where(linked),
            "call": _or_null(np.where(linked & (trace.kind[events.op] == Kind.CPU_OP), events.op, -1)),
            "step": _or_null(analysis.step_numbers),
            "device": _or_null(trace.device[events.rows]),
            "stream": _or_null(events.stream),
            "start_us": (events.start - int(trace.start_ns.min())) / NS_PER_US,
            "duration_us": events.duration_us(),
            "gap_before_us": gap,
            "is_communication": events.communication,
            "is_memcpy": events.memcpy,
        }
    )


def _or_null(numbers: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """-1 as NULL."""
    return np.where(numbers < 0, np.nan, numbers)


@table("memory", columns=columns_of("memory_timeline"))
def memory(analysis: Analysis) -> pd.DataFrame | None:
    """Allocated and reserved memory over time, at most 1000 points per device (profile_memory=True)."""
    trace = analysis.trace
    return device_memory.memory_timeline(trace.table, trace.tree)


@table("ops", columns=perf_summary.UNIFIED_PERF_SUMMARY_COLUMNS)
def ops(analysis: Analysis) -> pd.DataFrame | None:
    """Distinct op calls: times, FLOPs, bytes, rates and roofline, as sheet unified_perf_summary."""
    return analysis.frames.get(perf_summary.UNIFIED_PERF_SUMMARY_TITLE)


_KIND_WORDS = {
    Kind.USER_ANNOTATION: "annotation", Kind.GPU_USER_ANNOTATION: "device annotation", Kind.RUNTIME: "runtime",
    Kind.DRIVER: "driver", Kind.SYNC: "synchronization", Kind.OVERHEAD: "profiler overhead", Kind.OTHER: "other",
}  # fmt: skip


@table("ranges", columns=columns_of("sql.ranges"))
def ranges(analysis: Analysis) -> pd.DataFrame:
    """Annotations, NVTX ranges and host calls in scope: what is neither an op (calls) nor a Python function."""
    trace, tree, times = analysis.trace.table, analysis.trace.tree, analysis.step_times
    rows = trace.rows_of(_KIND_WORDS)
    rows = rows[in_steps(trace, rows, times, analysis.selected_steps)]
    is_known = np.zeros(len(trace) + 1, np.bool_)
    is_known[rows] = True
    parent = np.array(tree.parent[rows], np.int64)
    while (other := (parent >= 0) & ~is_known[parent]).any():
        parent[other] = tree.parent[parent[other]]
    lasted = np.zeros(len(trace), np.int64)
    device = trace.rows_of(DEVICE_KINDS)
    lasted[device] = trace.duration_ns[device]
    numbers = np.array([step.number for step in times.steps] + [-1], np.int64)
    lanes = np.array([f"{process}/{thread}" for process, thread in trace.lanes] or [""], object)
    words = np.array([_KIND_WORDS.get(kind, "") for kind in Kind], object)
    return pd.DataFrame(
        {
            "range": rows,
            "kind": words[trace.kind[rows]],
            "name": np.array(trace.names, object)[trace.name[rows]],
            "category": np.array(trace.categories, object)[trace.category[rows]],
            "thread": lanes[trace.lane[rows]],
            "parent": _or_null(parent),
            "call": _or_null(np.array(tree.op_parent[rows], np.int64)),
            "step": _or_null(numbers[step_of_events(list(times.steps), trace.start_ns[rows])]),
            "start_us": (trace.start_ns[rows] - (int(trace.start_ns.min()) if len(trace) else 0)) / NS_PER_US,
            "duration_us": trace.duration_ns[rows] / NS_PER_US,
            "kernel_us": np.where(tree.position[rows] >= 0, tree.subtree_sum(lasted)[rows] / NS_PER_US, np.nan),
        }
    )


_SHEET = columns_of(device_timeline.STEP_TIMES_TITLE)
STEP_TABLE_COLUMNS = {**_SHEET, "begins_with": replace(_SHEET["begins_with"], number_format=TEXT)}


@table("steps", columns=STEP_TABLE_COLUMNS)
def steps(analysis: Analysis) -> pd.DataFrame | None:
    """Steps, as sheet steps; work launched before profiling began has a row without a number."""
    return analysis.frames.get(device_timeline.STEP_TIMES_TITLE) if len(analysis.step_times) else None


@table("traces", columns=columns_of("sql.traces"))
def traces(analysis: Analysis) -> pd.DataFrame:
    """The trace itself: one row."""
    trace, began = analysis.trace.table, None
    if trace.began_ns is not None:
        began = str(np.datetime64(trace.began_ns // NS_PER_US, "us"))
    span_ns = int((trace.start_ns + trace.duration_ns).max()) - int(trace.start_ns.min()) if len(trace) else 0
    return pd.DataFrame({"began": [began], "span_us": [span_ns / NS_PER_US], "events": [trace.events_total]})


@cache
def built_in_tables() -> Registry:
    """Every table by its name in SQL."""
    return Registry.collect("table", [sys.modules[__name__]])


class Tables(Mapping[str, pd.DataFrame]):
    """The tables of an analysis by name, each made when first asked for."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._made: dict[str, pd.DataFrame] = {}

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self._made:
            claim = built_in_tables()[name]
            self._made[name] = typed(claim.target(self._analysis), claim.options["columns"])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(built_in_tables())

    def __len__(self) -> int:
        return len(built_in_tables())
