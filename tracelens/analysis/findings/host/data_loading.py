"""The GPU is idle while the host waits for data."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.idle.host_time import DATA_LOADING


@finding(
    "idle: data loading",
    Advice(
        sees="The GPU is idle while the host waits for data.",
        costs="The step cannot begin without its batch, and the device has nothing else to do.",
        remedy="more DataLoader workers, prefetch_factor, pin_memory=True, persistent_workers; preprocess on the GPU",
        wrong_when="Storage is the limit: measure reading alone.",
    ),
)
def data_loading(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause."""
    yield from idle_of_cause(seen, DATA_LOADING)
