"""A trace for Perfetto: its events, and beside each kernel what it achieved, by what it is bound and how far it is."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from typing import Any

import numpy as np

from tracelens.analysis.analyze import Analysis
from tracelens.analysis.sheets import perf_summary
from tracelens.trace.rewriting import microseconds, rewrite

#: Arguments of an event: (name shown in Perfetto, column of ``unified_perf_summary``).
_SHOWN = (
    ("TFLOPS/s", "tflops_s_mean"),
    ("HBM TB/s", "hbm_tb_s_mean"),
    ("bound by", "roofline_bound"),
    ("% of roofline", "percent_of_roofline_mean"),
)
#: Rates that are tracks of their own, as counters.
_COUNTERS = ("TFLOPS/s", "HBM TB/s", "% of roofline")
#: The process of our tracks, which no recorded one has: Kineto's are numbers of processes and devices.
_PID = "tracelens"


def write_perfetto(analysis: Analysis, path: str | PathLike[str]) -> int:
    """Writes ``path`` (gzip when it ends in ``.gz``), whole or not at all; returns how many events it has.

    A rate of a kernel is that of its op call's row, the mean of such calls; what is not known is left out.
    """
    table, activity = analysis.trace.table, analysis.activity
    row_of = np.full(len(table), -1, np.int64)
    if analysis.row_of_event is not None:
        row_of[activity.rows] = analysis.row_of_event
    said = _said(analysis)

    def edit(row: int, event: dict[str, Any]) -> dict[str, Any] | None:
        if row < 0 or row_of[row] < 0:
            return event
        recorded = event.get("args")
        return {**event, "args": {**(recorded if isinstance(recorded, dict) else {}), **said[row_of[row]]}}

    return rewrite(table, path, edit, added=(*_findings(analysis), *_counters(analysis, said)))


def _said(analysis: Analysis) -> list[dict[str, Any]]:
    """Arguments by row of the sheet."""
    rows = analysis.frames[perf_summary.UNIFIED_PERF_SUMMARY_TITLE]
    said: list[dict[str, Any]] = [{"category (tracelens)": str(name)} for name in rows["category"]]
    for name, key in _SHOWN:
        for at, value in enumerate(rows.get(key, ())):
            if value is not None and value == value:
                said[at][name] = value if isinstance(value, str) else round(float(value), 3)
    return said


def _counters(analysis: Analysis, said: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rates of what runs, zero where nothing does or its rate is unknown; of kernels at a time the first one's."""
    activity, rows = analysis.activity, analysis.row_of_event
    if rows is None:
        return
    order = np.lexsort((activity.end, activity.start))
    for name in _COUNTERS:
        free = None
        for at in order.tolist():
            value = said[rows[at]].get(name) if rows[at] >= 0 else None
            start, end = int(activity.start[at]), int(activity.end[at])
            if value is None or (free is not None and start < free):
                continue
            for time, shown in ((start, value), (end, 0)):
                yield {"ph": "C", "pid": _PID, "name": name, "ts": microseconds(time), "args": {name: shown}}
            free = end


def _findings(analysis: Analysis) -> Iterator[dict[str, Any]]:
    """A track for each finding, over the whole window: findings speak of many places of it."""
    first = int(analysis.activity.start.min()) if len(analysis.activity) else 0
    last = int(analysis.activity.end.max()) if len(analysis.activity) else 0
    yield {"ph": "M", "pid": _PID, "name": "process_name", "args": {"name": "tracelens: rates and findings"}}
    for number, finding in enumerate(analysis.findings, 1):
        yield {"ph": "M", "pid": _PID, "tid": number, "name": "thread_name", "args": {"name": f"finding {number}"}}
        yield {
            "ph": "X", "pid": _PID, "tid": number, "cat": "finding", "name": finding.why,
            "ts": microseconds(first), "dur": microseconds(last - first),
            "args": {"gain ms": None if finding.gain_us is None else finding.gain_us / 1000, "try": finding.remedy},
        }  # fmt: skip
