"""The GPU's queue is empty while the host launches: kernels are shorter than their launches."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.idle.host_time import LAUNCH_BOUND


@finding(
    "idle: launch-bound",
    Advice(
        sees="The GPU's queue is empty while the host launches: kernels are shorter than their launches.",
        costs="Every launch costs the host some microseconds, in eager mode tens with dispatch and Python.",
        remedy="CUDA or HIP graphs, torch.compile(mode='reduce-overhead'), fused kernels, a larger batch",
        wrong_when="The profiler itself slows the host down: compare the step time without it.",
    ),
)
def launch_bound(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause."""
    yield from idle_of_cause(seen, LAUNCH_BOUND)
