"""Work was queued and did not start; what it waited for was not recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.idle.idle_time import UNRECORDED
from tracelens.trace.lacks import lacks_sync_events

_RECORD_SYNC = (
    "record enable_cuda_sync_events=True (torch.profiler's _ExperimentalConfig), or look at the other streams"
)


@finding(
    "idle: device wait, cause not recorded",
    Advice(
        sees="Work was queued and did not start; what it waited for was not recorded.",
        costs="Work was there, and the device did not begin it.",
        remedy="look for what ran then on other streams (the timeline) and in other processes of the device",
        wrong_when="Another process shares the device.",
    ),
)
def unrecorded_wait(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause."""
    remedy = _RECORD_SYNC if lacks_sync_events(seen.table) else None
    for candidate in idle_of_cause(seen, UNRECORDED, seen.idle_of(UNRECORDED)):
        yield replace(candidate, remedy=remedy)
