"""The GPU waits in a collective until another rank arrives."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.idle.idle_time import ANOTHER_RANK


@finding(
    "idle: another rank",
    Advice(
        sees="The GPU waits in a collective until another rank arrives.",
        costs="A collective is done when its last rank is: all others wait for it.",
        remedy="see which rank is late with `tracelens collectives` and why with its own report",
        wrong_when="All ranks are late in turn: then the load is uneven from step to step.",
        command="tracelens collectives FOLDER",
    ),
)
def another_rank(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause."""
    yield from idle_of_cause(seen, ANOTHER_RANK)
