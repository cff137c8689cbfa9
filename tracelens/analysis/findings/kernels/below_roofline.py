"""Distinct calls that are slower than their roofline: what the rules on them share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tracelens.analysis.attribution.event_category import COPY
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import MIN_GAIN, Observed
from tracelens.analysis.findings.wording import counted, duration
from tracelens.analysis.reading.catalog import COMMUNICATION
from tracelens.analysis.verdict.summary import Said
from tracelens.analysis.work.limits import LAUNCH, SHORT_KERNEL_US
from tracelens.units import NS_PER_US

if TYPE_CHECKING:
    import pandas as pd

ATTENTION, COMPUTE, OTHERWISE = "attention", "compute", "memory"
#: Share of the roofline from which a call is as good as it gets.
_NEAR = 0.95
#: Lines of one kind.
_MOST = 6


def below_roofline(seen: Observed, kind: str) -> Iterator[Candidate]:
    """A candidate per distinct call; ``kind``: that it is attention, else what bounds it."""
    unified = seen.rows
    gains = unified["kernel_us_sum"] - unified["roofline_us"] * unified["operation_count"]
    counts = unified["wire_mb"].isna() & ~unified["category"].isin((*COMMUNICATION, COPY)) & ~_at_launch_floor(unified)
    counts &= ~(unified["roofline_us"] > _NEAR * unified["kernel_us_mean"])
    counts &= gains > MIN_GAIN * seen.window_ns / NS_PER_US
    counts &= _kinds(unified) == kind
    for index in gains[counts].sort_values(ascending=False, kind="stable").index[:_MOST]:
        row = unified.loc[index]
        calls, example = int(row["operation_count"]), int(row["example_row"])
        yield Candidate(
            why=f"{row['name']} {seen.shapes(example)}, {counted(calls, 'call')}: {_distance(row)}",
            claimed=seen.kernels(
                seen.events_of([index]),
                1 - row["_achievable_us"] / row["kernel_us_mean"],
                low=0.0,
                high=1 - row["roofline_us"] / row["kernel_us_mean"],
            ),
            computed="kernel time above what the tile model says is achievable, at most that above the roofline",
            figures=(Said(what="calls", value=calls, unit="count"), *_distance_figures(row)),
            evidence=seen.evidence([index]),
            op=str(row["name"]),
            row=example,
        )


def _kinds(rows: pd.DataFrame) -> pd.Series:
    """What decides the remedy: that a call is attention, or else what bounds it."""
    is_attention = rows["category"].astype(str).str.startswith(("SDPA", "InferenceAttention"))
    bound = (rows["roofline_bound"] == COMPUTE).map({True: COMPUTE, False: OTHERWISE})
    return bound.where(~is_attention, ATTENTION)


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
