"""Kernels were queued, and the GPU still paused between them."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.idle.idle_time import QUEUED


@finding(
    "idle: between queued kernels",
    Advice(
        sees="Kernels were queued, and the GPU still paused between them.",
        costs="Between two kernels the device drains, signals and fetches the next: a microsecond or more each time.",
        remedy="CUDA or HIP graphs, fused kernels, programmatic dependent launch",
        wrong_when="Clocks of the trace are coarse: gaps of a microsecond may be rounding.",
    ),
)
def between_kernels(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause."""
    yield from idle_of_cause(seen, QUEUED)
