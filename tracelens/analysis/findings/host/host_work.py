"""The GPU is idle while the launching thread runs Python or other code that launches nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.host.before_first_launch import before_first_launch
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.idle.host_time import HOST_WORK
from tracelens.trace.lacks import no_stacks
from tracelens.trace.table import Recorder, TraceTable

_RECORD_STACKS = "see the longest gaps in idle_gaps, record with_stack=True; move this work ahead or to another thread"


@finding(
    "idle: Python or other host work",
    Advice(
        sees="The GPU is idle while the launching thread runs Python or other code that launches nothing.",
        costs="One thread both prepares and launches: while it prepares, the device runs out of work.",
        remedy="see the longest gaps in idle_gaps and what the host ran in them; move it ahead or to another thread",
        wrong_when="The trace holds no step loop: what lies before the first launch is set-up.",
    ),
)
def host_work(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause, but for that at the start of steps."""
    for candidate in idle_of_cause(seen, HOST_WORK, seen.idle_of(HOST_WORK) & ~before_first_launch(seen)):
        yield replace(candidate, remedy=_RECORD_STACKS if _could_have_stacks(seen.table) else None)


def _could_have_stacks(table: TraceTable) -> bool:
    """Whether torch.profiler was told not to record Python frames."""
    is_option = table.recorder.no_stacks == Recorder().no_stacks
    return is_option and not table.has_stacks and no_stacks(table).option != ""
