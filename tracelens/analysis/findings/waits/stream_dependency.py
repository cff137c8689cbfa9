"""One stream waited for the end of another one's work."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.idle.idle_time import STREAM_DEPENDENCY


@finding(
    "idle: stream dependency",
    Advice(
        sees="One stream waited for the end of another one's work.",
        costs="Streams that wait for each other run one after the other.",
        remedy="start the other stream's work earlier, or split it so that the waiting part comes first",
        wrong_when="The order is the program's own.",
    ),
)
def stream_dependency(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause."""
    yield from idle_of_cause(seen, STREAM_DEPENDENCY)
