"""Distinct calls that are slower than their roofline: what the rules on them share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from tracelens.analysis.attribution.event_category import COPY
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import MIN_GAIN, Observed
from tracelens.analysis.findings.wording import counted, duration
from tracelens.analysis.reading.catalog import COMMUNICATION
from tracelens.analysis.verdict.summary import Said
from tracelens.analysis.work.limits import LAUNCH, SHORT_KERNEL_US
from tracelens.units import NS_PER_US

ATTENTION, COMPUTE, OTHERWISE = "attention", "compute", "memory"
#: Share of the roofline from which a call is as good as it gets.
_NEAR = 0.95
_KEYS = (
    "name", "category", "roofline_us", "roofline_bound", "kernel_us_mean", "_achievable_us", "kernels_per_call",
    "operation_count", "example_row",
)  # fmt: skip
#: Lines of one kind.
_MOST = 6


def below_roofline(seen: Observed, kind: str) -> Iterator[Candidate]:
    """A candidate per distinct call; ``kind``: that it is attention, else what bounds it."""
    roofline_us = seen.column("roofline_us")
    gains = seen.column("kernel_us_sum") - roofline_us * seen.column("operation_count")
    with np.errstate(invalid="ignore"):
        large = (gains > MIN_GAIN * seen.window_ns / NS_PER_US) & ~(roofline_us > _NEAR * seen.column("kernel_us_mean"))
    found = np.flatnonzero(large & np.isnan(seen.column("wire_mb").astype(np.float64)))
    found = found[np.argsort(-gains[found], kind="stable")]
    calls_found = ((index, {key: seen.column(key)[index] for key in _KEYS}) for index in found.tolist())
    for index, row in itertools.islice((each for each in calls_found if _kind(each[1]) == kind), _MOST):
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


def _kind(row: dict[str, Any]) -> str | None:
    """What decides the remedy: that a call is attention, or else what bounds it.

    None of what only moves data elsewhere, and of short kernels whose work takes less than their launches: no faster
    kernel helps there, only fewer of them.
    """
    if row["category"] in COMMUNICATION or row["category"] == COPY:
        return None
    if row["roofline_bound"] == LAUNCH and row["kernel_us_mean"] / row["kernels_per_call"] <= SHORT_KERNEL_US:
        return None
    if str(row["category"]).startswith(("SDPA", "InferenceAttention")):
        return ATTENTION
    return COMPUTE if row["roofline_bound"] == COMPUTE else OTHERWISE


def _distance(row: dict[str, Any]) -> str:
    """How far a row is from its roofline."""
    if row["roofline_bound"] == LAUNCH:
        return f"{duration(row['kernel_us_mean'])} each, {row['roofline_us']:.1f} µs is the launch floor"
    return f"{100 * row['roofline_us'] / row['kernel_us_mean']:.0f} % of the {row['roofline_bound']} roofline"


def _distance_figures(row: dict[str, Any]) -> tuple[Said, ...]:
    roofline_us, kernel_us = float(row["roofline_us"]), float(row["kernel_us_mean"])
    if row["roofline_bound"] == LAUNCH:
        each, floor = ("kernel time of a call", kernel_us), ("launch floor", roofline_us)
        return tuple(Said(what=what, value=value, unit="us") for what, value in (each, floor))
    return (Said(what="of the roofline", value=roofline_us / kernel_us, unit="share"),)
