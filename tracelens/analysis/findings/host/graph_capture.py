"""The GPU is idle while the host captures a graph."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.idle.host_time import CAPTURE


@finding(
    "idle: graph capture",
    Advice(
        sees="The GPU is idle while the host captures a graph.",
        costs="Nothing runs on the device while its work is being recorded into a graph.",
        remedy="capture during warm-up and profile later steps",
        wrong_when="It happens once per run.",
    ),
)
def graph_capture(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause."""
    yield from idle_of_cause(seen, CAPTURE)
