"""The GPU is idle while Dynamo, Inductor or Triton compiles."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.idle.host_time import COMPILATION


@finding(
    "idle: compilation",
    Advice(
        sees="The GPU is idle while Dynamo, Inductor or Triton compiles.",
        costs="Tracing, lowering and autotuning take seconds, in which the host launches nothing.",
        remedy="profile after warm-up; if it comes back, see TORCH_LOGS=recompiles and mark dynamic dims",
        wrong_when="It is the first step.",
    ),
)
def compilation(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause."""
    yield from idle_of_cause(seen, COMPILATION)
