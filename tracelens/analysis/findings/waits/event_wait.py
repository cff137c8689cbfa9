"""The stream was told to wait for an event that came late."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.host.blocked_host import blocking_call_of
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.idle.idle_time import EVENT_WAIT


@finding(
    "idle: event wait",
    Advice(
        sees="The stream was told to wait for an event that came late.",
        costs="The stream may not go on before the event, and no other stream has work.",
        remedy="look for what the event waits for in idle_gaps and on the critical path: another stream, process "
        "or rank",
        wrong_when="The wait is wanted, as between a server's batches without requests.",
    ),
)
def event_wait(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause."""
    yield from idle_of_cause(seen, EVENT_WAIT, seen.idle_of(EVENT_WAIT) & (blocking_call_of(seen) < 0))
