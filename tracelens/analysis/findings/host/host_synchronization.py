"""The GPU is idle after the host waited for it: .item(), a blocking copy, a synchronize."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.idle.host_time import SYNCHRONIZATION


@finding(
    "idle: blocking copy or synchronization",
    Advice(
        sees="The GPU is idle after the host waited for it: .item(), a blocking copy, a synchronize.",
        costs="After the wait the queue is empty, and the device idles until the host has launched again.",
        remedy="keep the value on the device, log every N steps, non_blocking=True with pinned memory",
        wrong_when="The host needs the value to decide what comes next.",
    ),
)
def host_synchronization(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause."""
    yield from idle_of_cause(seen, SYNCHRONIZATION)
