"""What a finding of the report says is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.attribution.attributed import attribute
from tracelens.analysis.intervals import Ints
from tracelens.errors import UsageError
from tracelens.trace.table import DEVICE_KINDS
from tracelens.whatif.changes import TIME, change
from tracelens.whatif.dependency_replay import Floats
from tracelens.whatif.plan import Plan
from tracelens.whatif.subject import Subject

if TYPE_CHECKING:
    from tracelens.analysis.findings.candidate import Claimed
    from tracelens.analysis.findings.observed import Observed
    from tracelens.analysis.verdict.summary import Finding


@change("apply", TIME)
def finding_applied(plan: Plan, wanted: tuple[str, ...]) -> None:
    """Findings by id, kind or key: their device events become shorter by what is claimed of each, and the host spends
    that much less in idle time that waits for it, or the event that was late comes that much sooner.

    UsageError for a finding that the report of the trace does not have.
    """
    # The sheets of a report take long to import, and no other change needs them
    from tracelens.analysis.findings.ranking import findings_and_claims

    seen = _observed(plan.subject)
    found, _ = findings_and_claims(seen, plan.subject.recording.extensions)
    for name in wanted:
        chosen = [pair for pair in found if name in (pair[0].id, pair[0].kind, pair[0].key)]
        if not chosen:
            known = sorted({finding.key or finding.id for finding, _ in found})
            raise UsageError.unknown("finding in the report of this trace", name, known)
        for finding, claimed in chosen:
            _apply(plan, seen, claimed)
            plan.note(_said(finding))
            plan.claimed_us = (plan.claimed_us or 0.0) + (finding.gain_us or 0.0)


def _observed(subject: Subject) -> Observed:
    from tracelens.analysis.findings.observed import Observed
    from tracelens.analysis.sheets.context import SheetContext
    from tracelens.analysis.sheets.priced_calls import PricedCalls

    recording, options = subject.recording, subject.options
    window = subject.window.within(subject.window.selected)
    attribution = attribute(recording, window, options)
    return Observed(SheetContext(
        recording=recording, options=options, step_times=window.times, selected=window.selected, window=window,
        attribution=attribution, priced=PricedCalls.of(recording, window, attribution, options),
    ))  # fmt: skip


def _apply(plan: Plan, seen: Observed, claimed: Claimed) -> None:
    is_event = claimed.part < seen.time.events
    rows, gain = seen.activity.rows[claimed.part[is_event]], claimed.gain_ns[is_event]
    at = np.searchsorted(plan.subject.activity.rows, rows)
    share = gain / np.maximum(plan.subject.activity.duration[at], 1)
    plan.factor[at] *= 1 - share
    _spare_copying(plan, at, share)
    if claimed.spares_launches:
        _spare_launches(plan, at, share)
    table, parts = plan.subject.table, claimed.part[~is_event] - seen.time.events
    late = seen.idle.row[parts]
    launch = np.where(late >= 0, plan.subject.tree.launch[late], -1)
    is_device = (late >= 0) & table.is_of(DEVICE_KINDS)[late]
    row = np.where(is_device, launch, late)
    start, end = seen.idle.start[parts], seen.idle.start[parts] + np.rint(claimed.gain_ns[~is_event]).astype(np.int64)
    waiting = np.searchsorted(plan.subject.activity.rows, late[is_device])
    np.add.at(plan.sooner, waiting, (end - start)[is_device])
    known = (row >= 0) & (end > start)
    plan.saved += zip(table.lane[row[known]].tolist(), start[known].tolist(), end[known].tolist(), strict=True)


def _spare_copying(plan: Plan, events: Ints, share: Floats) -> None:
    """A call that copies from pageable memory does so itself while its copy runs: that time of the thread goes too."""
    table, activity = plan.subject.table, plan.subject.activity
    launch = plan.subject.tree.launch[activity.rows[events]]
    copies = activity.memcpy[events] & (launch >= 0)
    call, copy = launch[copies], events[copies]
    start = np.maximum(table.start_ns[call], activity.start[copy])
    both = np.minimum(table.ends_ns(call), activity.end[copy]) - start
    end = start + np.rint(np.maximum(both, 0) * share[copies]).astype(np.int64)
    plan.saved += zip(table.lane[call].tolist(), start.tolist(), end.tolist(), strict=True)


def _spare_launches(plan: Plan, events: Ints, share: Floats) -> None:
    """The ops that launch ``events`` take less of the host's time, by the ``share`` of their kernels that goes."""
    plan.removed[events[share >= 1]] = True
    op, table = plan.subject.activity.op, plan.subject.table
    kernels, gone = np.zeros(len(table)), np.zeros(len(table))
    np.add.at(kernels, op[op >= 0], 1)
    linked = op[events] >= 0
    np.add.at(gone, op[events[linked]], share[linked])
    rows = np.flatnonzero(gone)
    end = table.start_ns[rows] + np.rint(table.duration_ns[rows] * gone[rows] / kernels[rows]).astype(np.int64)
    plan.saved += zip(table.lane[rows].tolist(), table.start_ns[rows].tolist(), end.tolist(), strict=True)


def _said(finding: Finding) -> str:
    low, gain, high = (f"{(us or 0) / 1e3:.3g}" for us in (finding.gain_low_us, finding.gain_us, finding.gain_high_us))
    return f"{finding.key or finding.id}: the report says {gain} ms ({low} to {high}) of a step: {finding.why}"
