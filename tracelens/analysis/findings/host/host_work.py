"""The GPU is idle while the launching thread runs Python or other code that launches nothing."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.host.before_first_launch import before_first_launch
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.idle.host_time import HOST_WORK


@finding(
    "idle: Python or other host work",
    Advice(
        sees="The GPU is idle while the launching thread runs Python or other code that launches nothing.",
        costs="One thread both prepares and launches: while it prepares, the device runs out of work.",
        remedy="see the longest gaps in idle_gaps, record with_stack=True; move this work ahead or to another thread",
        wrong_when="The trace holds no step loop: what lies before the first launch is set-up.",
    ),
)
def host_work(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause, but for that at the start of steps."""
    yield from idle_of_cause(seen, HOST_WORK, seen.idle_of(HOST_WORK) & ~before_first_launch(seen))
