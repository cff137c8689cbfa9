"""Attention below its roofline."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.analysis.findings.below_roofline import ATTENTION, below_roofline
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding


@finding(
    "op_below_roofline: attention",
    Advice(
        sees="Attention below its roofline.",
        costs="The kernel neither keeps the matrix units busy nor the memory.",
        remedy="another attention backend (FlashAttention, cuDNN, AITER, FlashInfer), or a head size its kernels "
        "prefer",
        is_general=True,
        wrong_when="Short sequences or a decode step: the kernel is then bound by its start or by reading the cache.",
        references=("Williams et al., Roofline, 2009, doi:10.1145/1498765.1498785",),
        command="tracelens report TRACE --backend tile",
    ),
)
def slow_attention(seen: Observed) -> Iterator[Candidate]:
    """Gain: kernel time above the roofline."""
    yield from below_roofline(seen, ATTENTION)
