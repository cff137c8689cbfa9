"""The queue was empty; this is the time from the launch to the start of the kernel."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.idle.idle_time import LATENCY


@finding(
    "idle: launch latency",
    Advice(
        sees="The queue was empty; this is the time from the launch to the start of the kernel.",
        costs="A launch takes microseconds to reach the device, which queued work would hide.",
        remedy="CUDA or HIP graphs, fewer and longer kernels",
        wrong_when="The queue is rarely empty: then nothing is gained.",
    ),
)
def launch_latency(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause."""
    yield from idle_of_cause(seen, LATENCY)
