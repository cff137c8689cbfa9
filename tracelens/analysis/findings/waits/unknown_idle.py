"""Nothing was recorded of why the GPU was idle."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.idle.idle_time import UNKNOWN


@finding(
    "idle: unknown",
    Advice(
        sees="Nothing was recorded of why the GPU was idle.",
        costs="The device did nothing for this time.",
        remedy="record CPU activity and the CUDA or HIP runtime together with the kernels",
        wrong_when="The file was cut.",
    ),
)
def unknown_idle(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause."""
    yield from idle_of_cause(seen, UNKNOWN)
