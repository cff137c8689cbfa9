"""Forward ops that checkpointing runs again, although memory is left."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracelens.analysis.attribution.host_scopes import PHASES, RECOMPUTE
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.findings.wording import size
from tracelens.analysis.verdict.summary import Said
from tracelens.units import BYTES_PER_GIB, BYTES_PER_MB, NS_PER_US

#: Share of the device's memory that must be free at the peak.
_FREE = 0.25


@finding(
    "recomputation",
    Advice(
        sees="Forward ops run again in the backward pass, and much of the device's memory is free at the peak.",
        costs="Checkpointing pays with time for memory that the step does not need.",
        remedy="checkpoint fewer layers, or only attention (selective recomputation)",
        wrong_when="Other processes share the device, or a longer sequence or larger batch is to come.",
        references=("Korthikanti et al., Reducing Activation Recomputation, 2022, arXiv:2205.05198",),
        command="tracelens project --help",
    ),
)
def recomputation(seen: Observed) -> Iterator[Candidate]:
    """Gain: the repeated ops whose results fit into the free memory: at most half of the bytes that they move."""
    phases, memory, device = seen.context.attribution.phases, seen.context.frames.get("memory"), seen.device
    if not phases.has_recompute or memory is None or device is None or device.hbm is None:
        return
    peaks = memory.loc[memory["device"] != "cpu", ["peak_mb", "peak_reserved_mb"]].max(axis=1)
    if device.hbm.nominal_gib is None or peaks.empty:
        return
    capacity_mb, peak_mb = device.hbm.nominal_gib * BYTES_PER_GIB / BYTES_PER_MB, float(peaks.max())
    free_mb = capacity_mb - peak_mb
    repeated = seen.context.activity.rows[phases.phase == PHASES.index(RECOMPUTE)]
    events = np.flatnonzero(np.isin(seen.activity.rows, repeated))
    if free_mb < _FREE * capacity_mb or not len(events):
        return
    moved = np.append(np.nan_to_num(seen.column("hbm_mb") / seen.column("kernels_per_call")), 0.0)
    rows = seen.row_of_event[events]
    kept_mb = float(moved[rows].sum()) / 2 / seen.steps
    time_us = float(seen.activity.duration[events].sum()) / NS_PER_US
    ranked = np.argsort(-np.bincount(rows[rows >= 0]), kind="stable")[:5]
    yield Candidate(
        why=f"recomputation takes {seen.share_text(time_us)} to run forward ops again, while {size(free_mb)} of "
        f"{size(capacity_mb)} are free at the peak",
        claimed=seen.kernels(events, min(1.0, free_mb / kept_mb) if kept_mb else 1.0, low=0.0, spares_launches=True),
        computed="the time of the repeated ops, as far as half of the bytes that they move fits into the free memory",
        certainty="low",
        figures=(
            seen.gpu_share(time_us),
            Said(what="free at the peak", value=free_mb, unit="MB"),
            Said(what="memory of the device", value=capacity_mb, unit="MB"),
        ),
        evidence=seen.evidence(ranked),
        row=seen.example_of(ranked[0]) if len(ranked) else None,
    )
