"""The GPU is idle while kernels or libraries are loaded for the first time."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.idle.host_time import FIRST_LOAD


@finding(
    "idle: first-time loading",
    Advice(
        sees="The GPU is idle while kernels or libraries are loaded for the first time.",
        costs="Modules are read from disk and put on the device when a kernel is first used.",
        remedy="profile after warm-up steps",
        wrong_when="It recurs in every process start and start-up time is what matters.",
    ),
)
def first_time_loading(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause."""
    yield from idle_of_cause(seen, FIRST_LOAD)
