"""One step of a trace or of a ``report.json`` as a projection takes it: its time, and what ran in it how long."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.analysis.reading.catalog import Catalog
from tracelens.analysis.sheets import perf_summary
from tracelens.analysis.sheets.coll_analysis import collective_models, collective_rows
from tracelens.backends.measured import MeasuredCall, MeasuredStep
from tracelens.calibration.measurements import signature_of
from tracelens.extensions import load_extension
from tracelens.files.data_table import COUNT, TIME
from tracelens.files.documents import REPORT, expected, json_of, report_ops
from tracelens.units import NS_PER_US

if TYPE_CHECKING:
    from tracelens.analysis.analyze import Analysis


def report_step(path: Path) -> MeasuredStep:
    """The mean step of a ``report.json``; the whole window where no steps were marked. NCCL's collectives are not in
    it. InputError for other files.
    """
    document = json_of(path, REPORT)
    with expected(path, REPORT):
        marked, busy = document["step"] or {}, document["busy"]
        steps = COUNT.count(marked.get("count") or 1, f"{path}: step.count")
        step_us = TIME.of(marked.get("time_us") or busy["total_us"], f"{path}: step.time_us")
        bundled = [load_extension(name) for name in document["extensions"] if str(name).isidentifier()]
        catalog = Catalog(bundled)
        calls = []
        for op in report_ops(document):
            inside = op.get("per_step", {"count": op["operation_count"] / steps})
            if op["kernel_us_mean"] and op.get("name") and inside["count"]:
                time_us = inside["us"] / inside["count"] if "us" in inside else op["kernel_us_mean"]
                name, model = op["name"], catalog.read(signature_of(op)).model
                calls.append(
                    MeasuredCall(name=str(name), model=model, count=float(inside["count"]), time_us=float(time_us))
                )
        return MeasuredStep(step_us=step_us, idle_us=float(busy["idle"]) * step_us, calls=tuple(calls))


def trace_step(analysis: Analysis) -> MeasuredStep:
    """The mean step of an analyzed trace; the whole window where no steps were marked."""
    steps = len(analysis.complete_steps) or 1
    catalog, calls = Catalog(analysis.extensions), []
    ops = analysis.frames.get(perf_summary.UNIFIED_PERF_SUMMARY_TITLE)
    if ops is not None and "example_row" in ops:
        columns = (ops[name] for name in ("example_row", "name", "operation_count", "kernel_us_mean"))
        for row, name, count, mean in zip(*columns, strict=True):
            known = row == row and row >= 0 and mean > 0
            model = catalog.read(analysis.trace.table.signature_of(int(row))).model if known else None
            if known:
                calls.append(MeasuredCall(name=str(name), model=model, count=count / steps, time_us=float(mean)))
    collectives = collective_rows(analysis.trace.table, analysis.trace.tree, analysis.activity)
    if len(collectives):
        columns = (collectives[name] for name in ("collective", "operation_count", "duration_us_mean"))
        for model, name, count, mean in zip(collective_models(collectives, stride=1), *columns, strict=True):
            calls.append(MeasuredCall(name=str(name), model=model, count=count / steps, time_us=float(mean)))
    timeline = analysis.timeline
    return MeasuredStep(
        step_us=timeline.total_ns / NS_PER_US / steps, idle_us=timeline.idle_ns / NS_PER_US / steps, calls=tuple(calls)
    )
