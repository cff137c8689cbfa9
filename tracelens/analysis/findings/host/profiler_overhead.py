"""The GPU is idle while the profiler writes or allocates."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.idle.host_time import PROFILER


@finding(
    "idle: profiler overhead",
    Advice(
        sees="The GPU is idle while the profiler writes or allocates.",
        costs="The profiler's own buffers and records take time on the thread that launches.",
        remedy="record fewer activities (no stacks, shapes or memory) or fewer steps; a run without the profiler "
        "has less",
        wrong_when="Never: this time is not of the program.",
    ),
)
def profiler_overhead(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause."""
    yield from idle_of_cause(seen, PROFILER)
