"""What to look at first: the ops, exposed communication, copies and idle time with most to gain."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from tracelens.analysis.analyze import Analysis
from tracelens.analysis.attribution.event_category import COPY
from tracelens.analysis.reading.catalog import COMMUNICATION
from tracelens.analysis.sheets.ops import copies, unified_perf_summary
from tracelens.analysis.sheets.ops.copies import exposed_copies
from tracelens.analysis.sheets.timeline import idle_causes
from tracelens.analysis.verdict.advice import advice, slow_communication
from tracelens.analysis.verdict.idle_findings import counted, duration, idle_findings, percent
from tracelens.analysis.verdict.remedies import remedy
from tracelens.analysis.verdict.summary import Finding, Said
from tracelens.analysis.work.limits import LAUNCH, SHORT_KERNEL_US
from tracelens.units import NS_PER_US

#: Share of the window below which a possible gain is not worth a line.
MIN_GAIN = 0.005


def findings(analysis: Analysis, divisor: int, step_us: float | None) -> tuple[Finding, ...]:
    """At most ten, largest gain first. A gain is what the estimate would save, an upper bound."""
    unified = analysis.frames[unified_perf_summary.TITLE]
    patterns = advice(analysis, divisor)
    findings = list(patterns.findings)
    gain = _possible_gains(unified) / divisor
    spoken_of = _at_launch_floor(unified) | patterns.rows
    worthwhile = gain[(gain * divisor > MIN_GAIN * analysis.timeline.total_ns / NS_PER_US) & ~spoken_of]
    for index in worthwhile.sort_values(ascending=False, kind="stable").index[:6]:
        row = unified.loc[index]
        calls = counted(int(row["operation_count"]), "call")
        findings.append(
            Finding(
                id="op_below_roofline",
                kind=_kind(row),
                op=str(row["name"]),
                gain_us=float(gain[index]),
                certainty="medium",
                why=f"{row['name']} {_dims(analysis, row)}, {calls}: {_distance(row)}",
                time_us=float(row["kernel_us_sum"]) / divisor,
                figures=(Said(what="calls", value=int(row["operation_count"]), unit="count"), *_distance_figures(row)),
            )
        )
    timeline = analysis.timeline
    if timeline.exposed_comm_ns:
        findings.append(_exposed_communication(analysis, divisor))
    activity = analysis.activity
    if "copies" in analysis.frames:
        findings += exposed_copies(activity, analysis.frames[copies.TITLE], timeline.total_ns, divisor)
    findings += idle_findings(analysis.frames[idle_causes.TITLE], divisor)
    short = (activity.duration < SHORT_KERNEL_US * NS_PER_US) & ~activity.communication & ~activity.between_memories
    short &= ~patterns.events
    if short.sum() > 100 and activity.duration[short].sum() > 0.02 * timeline.total_ns:
        findings.append(
            Finding(
                id="short_kernels",
                op=None,
                gain_us=float(activity.duration[short].sum()) / NS_PER_US / divisor,
                certainty="low",
                why=f"{int(short.sum()):,} kernels under {SHORT_KERNEL_US:.0f} µs, mostly launch",
                time_us=float(activity.duration[short].sum()) / NS_PER_US / divisor,
                figures=(
                    Said(what="short kernels", value=int(short.sum()), unit="count"),
                    Said(what="short: below", value=SHORT_KERNEL_US, unit="us"),
                ),
            )
        )
    # Kernels that ran beside each other add up to more than can be gained: the window, or the step
    window_us = timeline.total_ns / NS_PER_US / divisor
    most = window_us if step_us is None else min(window_us, step_us)
    findings = [replace(f, kind=f.kind or f.id, remedy=remedy(f.kind or f.id)) for f in findings]
    findings = [f if f.gain_us is None else replace(f, gain_us=min(f.gain_us, most)) for f in findings]
    findings.sort(key=lambda f: (-(f.gain_us or 0.0), f.id, f.op or "", f.why))
    return tuple(findings[:10])


def _kind(row: pd.Series) -> str:
    """What decides the remedy of an op below its roofline: that it is attention, or else what bounds it."""
    is_attention = str(row["category"]).startswith(("SDPA", "InferenceAttention"))
    return f"op_below_roofline: {'attention' if is_attention else row['roofline_bound']}"


def _exposed_communication(analysis: Analysis, divisor: int) -> Finding:
    share = analysis.timeline.exposed_comm_ns / analysis.timeline.total_ns
    reasons = slow_communication(analysis, divisor)
    exposed_us = analysis.timeline.exposed_comm_ns / NS_PER_US / divisor
    return Finding(
        id="exposed_communication",
        op=None,
        gain_us=exposed_us,
        certainty="low",
        why="; ".join([f"exposed communication: {percent(share)}", *(text for text, _ in reasons)]),
        time_us=exposed_us,
        figures=(
            Said(what="share of the time", value=share, unit="share"),
            *(said for _, figures in reasons for said in figures),
        ),
    )


def _possible_gains(unified: pd.DataFrame) -> pd.Series:
    """Measured less estimated time (µs) of every row; NaN for communication and copies, whose exposed part counts."""
    gains = unified["kernel_us_sum"] - unified["roofline_us"] * unified["operation_count"]
    return gains.where(unified["wire_mb"].isna() & ~unified["category"].isin((*COMMUNICATION, COPY)))


def _at_launch_floor(rows: pd.DataFrame) -> pd.Series:
    """Calls of short kernels whose work takes less than their launches: no faster kernel helps, only fewer of them."""
    per_kernel = rows["kernel_us_mean"] / rows["kernels_per_call"]
    return (rows["roofline_bound"] == LAUNCH) & (per_kernel <= SHORT_KERNEL_US)


def _distance(row: pd.Series) -> str:
    """How far a row is from its roofline."""
    if row["roofline_bound"] == LAUNCH:
        return f"{duration(row['kernel_us_mean'])} each, {row['roofline_us']:.1f} µs is the launch floor"
    return f"{100 * row['roofline_us'] / row['kernel_us_mean']:.0f} % of the {row['roofline_bound']} roofline"


def _distance_figures(row: pd.Series) -> tuple[Said, ...]:
    roofline_us, kernel_us = float(row["roofline_us"]), float(row["kernel_us_mean"])
    if row["roofline_bound"] == LAUNCH:
        each, floor = ("kernel time of a call", kernel_us), ("launch floor", roofline_us)
        return tuple(Said(what=what, value=value, unit="us") for what, value in (each, floor))
    return (Said(what="of the roofline", value=roofline_us / kernel_us, unit="share"),)


def _dims(analysis: Analysis, row: pd.Series) -> str:
    """The shapes of the tensors of a call, as far as they fit."""
    shapes = analysis.trace.table.signature_of(int(row["example_row"])).shapes or ()
    text = ", ".join(str(shape) for shape in shapes if shape)
    return text if len(text) <= 40 else text[:39] + "…"
