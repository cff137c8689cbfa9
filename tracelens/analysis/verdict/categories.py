"""Device time by category of op, with achieved rates and the distance from the roofline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracelens.analysis.analyze import Analysis
from tracelens.analysis.attribution.event_category import COLLECTIVES, COPY
from tracelens.analysis.attribution.side_by_side import at_a_time
from tracelens.analysis.intervals import union_by_group
from tracelens.analysis.sheets.ops import coll_analysis, copies, cpu_ops_unique_args, unified_perf_summary
from tracelens.analysis.sheets.ops.coll_analysis import with_bus_rate
from tracelens.analysis.sheets.ops.copies import with_rate
from tracelens.analysis.verdict.summary import LEAST_KNOWN, CategoryRow
from tracelens.analysis.work.expert_exchange import EVERY_ROW
from tracelens.units import NS_PER_US, TERA_PER_S_IN_PER_US

Floats = npt.NDArray[np.float64]

_PER_CALL = (
    "roofline_us", "gflops", "wire_mb", "expected_remote_mb", "hbm_mb", "percent_of_peak", "kernel_us_mean",
)  # fmt: skip


def categories(analysis: Analysis, divisor: int) -> tuple[CategoryRow, ...]:
    """Kernels' summed time by category, and the share of the window in which one of them at least ran."""
    unified, activity, category = (
        analysis.frames[unified_perf_summary.TITLE],
        analysis.activity,
        analysis.event_category,
    )
    total_us = analysis.timeline.total_ns / NS_PER_US or 1.0
    rated = {
        str(name): _category_row(str(name), frame, divisor, total_us) for name, frame in unified.groupby("category")
    }
    took = np.bincount(category.code, activity.duration, minlength=len(category.texts)) / NS_PER_US
    start, end = (np.clip(time, *analysis.timeline.window) for time in (activity.start, activity.end))
    busy = union_by_group(category.code, start, end, len(category.texts)) / NS_PER_US
    together = at_a_time(activity, analysis.trace.table, category.code, len(category.texts))
    rows = [
        replace(
            _over_time_taken(rated[category.texts[code]], float(together[code]))
            if category.texts[code] in rated
            else CategoryRow(name=category.texts[code], time_us=0.0, share=0.0),
            time_us=float(took[code]) / divisor,
            share=float(busy[code]) / total_us,
        )
        for code in np.unique(category.code).tolist()
    ]
    if "copies" in analysis.frames:
        rows = [
            with_rate(row, analysis.frames[copies.TITLE], analysis.device) if row.name == COPY else row for row in rows
        ]
    collectives = analysis.frames[coll_analysis.TITLE]
    rows = [with_bus_rate(row, collectives) if row.name == COLLECTIVES else row for row in rows]
    return tuple(sorted(rows, key=lambda r: (-r.time_us, r.name)))


def cpu_categories(analysis: Analysis, divisor: int) -> tuple[CategoryRow, ...]:
    """By the CPU ops' own time; shares are of all of it."""
    unique = analysis.frames[cpu_ops_unique_args.TITLE]
    own = unique.groupby("category")["host_self_us_sum"].sum()
    total = float(own.sum()) or 1.0
    rows = [
        CategoryRow(name=str(name), time_us=float(us) / divisor, share=float(us) / total) for name, us in own.items()
    ]
    return tuple(sorted(rows, key=lambda r: (-r.time_us, r.name)))


def _over_time_taken(row: CategoryRow, together: float) -> CategoryRow:
    """Rates of kernels of which so many ran at a time: what they reached together."""
    rates = ("tflops_s", "hbm_tb_s", "wire_tb_s", "of_roofline", "of_peak")
    known = {key: value * together for key in rates if (value := getattr(row, key)) is not None}
    return replace(row, **known)


def _category_row(name: str, frame: pd.DataFrame, divisor: int, total_us: float) -> CategoryRow:
    count, time = (frame[key].to_numpy(np.float64) for key in ("operation_count", "kernel_us_sum"))
    took, per = time > 0, {key: frame[key].to_numpy(np.float64) for key in _PER_CALL}

    def ratio(per_call: Floats) -> float | None:
        known = took & ~np.isnan(per_call)
        measured = time[known].sum()
        return float((per_call * count)[known].sum() / measured) if measured > LEAST_KNOWN * time.sum() else None

    def rate(per_call: Floats) -> float | None:
        per_us = ratio(per_call)
        return None if per_us is None else per_us / TERA_PER_S_IN_PER_US

    is_known = frame["work_at_most"].isna().to_numpy(bool)
    of_roofline = ratio(np.where(is_known, per["roofline_us"], np.nan))
    bound = None
    if of_roofline is not None:
        bounds = (frame["roofline_us"] * count).groupby(frame["roofline_bound"]).sum()
        bound = str(bounds.idxmax()) if len(bounds) else None
    tflops = rate(per["gflops"] * 1e9)
    every_row = frame["remote_from"].eq(EVERY_ROW).to_numpy(bool)
    leaves = np.where(frame["rows_from"].notna() & ~every_row, per["expected_remote_mb"], per["wire_mb"])
    wire = rate(leaves * 1e6)
    backends = sorted({backend for backend in frame["backend"].tolist() if isinstance(backend, str)})
    return CategoryRow(
        name=name,
        time_us=float(time.sum()) / divisor,
        flops_share=float(time[~np.isnan(per["gflops"])].sum() / time.sum()) if time.sum() else None,
        share=float(time.sum()) / total_us,
        tflops_s=tflops or None,
        hbm_tb_s=rate(per["hbm_mb"] * 1e6),
        wire_tb_s=wire,
        wire_at_most=wire is not None and bool((every_row & took).any()),
        bound=bound,
        of_roofline=of_roofline,
        of_peak=ratio(np.where(is_known, per["percent_of_peak"] / 100 * per["kernel_us_mean"], np.nan)),
        work_at_most=not is_known[took].all(),
        backend=", ".join(backends) or None,
    )
