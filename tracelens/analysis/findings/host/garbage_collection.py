"""The GPU is idle while Python collects garbage."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.idle.host_time import GARBAGE


@finding(
    "idle: Python garbage collection",
    Advice(
        sees="The GPU is idle while Python collects garbage.",
        costs="A full collection walks all live Python objects, with the interpreter's lock held.",
        remedy="gc.freeze() after set-up, gc.disable() and gc.collect() at chosen steps, fewer objects per step",
        wrong_when="It lies between steps where the host waits anyhow.",
    ),
)
def garbage_collection(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause."""
    yield from idle_of_cause(seen, GARBAGE)
