"""The GPU waits for a copy between host and device."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.idle.idle_time import COPY_ENGINE


@finding(
    "idle: copy engine busy",
    Advice(
        sees="The GPU waits for a copy between host and device.",
        costs="Work that needs the data cannot begin, and no other work was queued.",
        remedy="start the copy earlier on a stream of its own, with pinned memory",
        wrong_when="The path itself is full: see the sheet copies.",
    ),
)
def copy_engine(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause."""
    yield from idle_of_cause(seen, COPY_ENGINE)
