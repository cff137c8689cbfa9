"""The GPU is idle while the host communicates (gloo, MPI, a barrier)."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.idle.host_time import COMMUNICATION


@finding(
    "idle: communication on the host",
    Advice(
        sees="The GPU is idle while the host communicates (gloo, MPI, a barrier).",
        costs="The host launches nothing until the other ranks have answered.",
        remedy="move it to the device's backend or off the critical path; fewer barriers and object collectives",
        wrong_when="The ranks must meet there, and another rank is late.",
    ),
)
def host_communication(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause."""
    yield from idle_of_cause(seen, COMMUNICATION)
