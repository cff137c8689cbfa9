"""Calls that move their bytes below the HBM rate, or are bound by something else than arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.analysis.findings.below_roofline import OTHERWISE, below_roofline
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding


@finding(
    "op_below_roofline: memory",
    Advice(
        sees="Calls that move their bytes below the HBM rate, or are bound by something else than arithmetic.",
        costs="The memory waits for the kernel: too few loads in flight, strided access, or too little work per "
        "launch.",
        remedy="fuse them with their neighbors (torch.compile), use contiguous inputs, or a fused kernel of the "
        "framework",
        is_general=True,
        wrong_when="They overlap with other work, which then bounds the step.",
        references=("Williams et al., Roofline, 2009, doi:10.1145/1498765.1498785",),
        command="tracelens report TRACE --backend tile",
    ),
)
def slow_memory(seen: Observed) -> Iterator[Candidate]:
    """Gain: kernel time above the roofline."""
    yield from below_roofline(seen, OTHERWISE)
