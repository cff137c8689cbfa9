"""The GPU is idle while the launching thread runs Python or other code that launches nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tracelens.analysis.attribution.host_time import HOST_WORK
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.host.before_first_launch import before_first_launch
from tracelens.analysis.findings.host_bound import hidden_without_waits
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Bools, Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.findings.wording import shortened
from tracelens.trace.lacks import no_stacks
from tracelens.trace.table import Kind, Recorder, TraceTable

#: Share of the longest part that an op must have lasted for to be named.
_MOST_OF_IT = 0.6
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
    """Idle time of this cause, but for that at the start of steps and what the host would do while it waits."""
    parts = seen.idle_of(HOST_WORK) & ~seen.once(before_first_launch) & ~hidden_without_waits(seen)
    for candidate in idle_of_cause(seen, HOST_WORK, parts):
        remedy = _RECORD_STACKS if _could_have_stacks(seen.table) else None
        yield replace(candidate, why=candidate.why + _ran(seen, parts), remedy=remedy)


def _ran(seen: Observed, parts: Bools) -> str:
    """The shortest op or annotation without a launch in it that most of the longest of these parts passed in."""
    table, length = seen.table, np.where(parts, seen.idle_ns, 0)
    longest = int(length.argmax())
    start, end = int(seen.idle.start[longest]), int(seen.idle.end[longest])
    least = _MOST_OF_IT * (end - start)
    # Nearly all are too short, which costs least to see
    rows = np.flatnonzero(table.duration_ns >= least)
    rows = rows[(table.kind[rows] == Kind.CPU_OP) | (table.kind[rows] == Kind.USER_ANNOTATION)]
    shared = np.minimum(table.ends_ns(rows), end) - np.maximum(table.start_ns[rows], start)
    rows = rows[shared >= least]
    if not len(rows):
        return ""
    launches = np.sort(table.start_ns[seen.tree.launch[seen.tree.launch >= 0]])
    within = np.searchsorted(launches, table.ends_ns(rows)) - np.searchsorted(launches, table.start_ns[rows])
    rows = rows[within == 0]
    if not len(rows):
        return ""
    return f", most of it in {shortened(table.name_of(int(rows[table.duration_ns[rows].argmin()])))}"


def _could_have_stacks(table: TraceTable) -> bool:
    """Whether torch.profiler was told not to record Python frames."""
    is_option = table.recorder.no_stacks == Recorder().no_stacks
    return is_option and not table.has_stacks and no_stacks(table).option != ""
