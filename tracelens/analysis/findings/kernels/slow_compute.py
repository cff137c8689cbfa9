"""Calls that compute below the peak rate of their precision."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.analysis.findings.below_roofline import COMPUTE, below_roofline
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding


@finding(
    "op_below_roofline: compute",
    Advice(
        sees="Calls that compute below the peak rate of their precision.",
        costs="The matrix units wait: for operands, for a last wave of few blocks, or as the kernel's tiles do "
        "not fit.",
        remedy="another kernel (max-autotune, a tuned GEMM library), padded dims, larger M, or a narrower precision",
        is_general=True,
        wrong_when="The achievable time (--backend tile) is near the measured one: the peak is out of its reach.",
        references=("Williams et al., Roofline, 2009, doi:10.1145/1498765.1498785",),
        command="tracelens report TRACE --backend tile",
    ),
)
def slow_compute(seen: Observed) -> Iterator[Candidate]:
    """Gain: kernel time above the roofline."""
    yield from below_roofline(seen, COMPUTE)
