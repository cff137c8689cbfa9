"""What a finding of the report says is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.attribution.window import attribute
from tracelens.errors import UsageError
from tracelens.whatif.changes import TIME, change
from tracelens.whatif.plan import Plan
from tracelens.whatif.subject import Subject

if TYPE_CHECKING:
    from tracelens.analysis.findings.rule import Claimed, Observed
    from tracelens.analysis.verdict.summary import Finding


@change("apply", TIME)
def finding_applied(plan: Plan, wanted: tuple[str, ...]) -> None:
    """Findings by id, kind or key: their device events become shorter by what is claimed of each, and the host spends
    that much less in idle time that waits for it, or the event that was late comes that much sooner.

    UsageError for a finding that the report of the trace does not have.
    """
    # The sheets of a report take long to import, and no other change needs them
    from tracelens.analysis.findings.ranking import findings_and_claims
    from tracelens.analysis.findings.replayed_gain import ReplayedGain

    seen = _observed(plan.subject)
    found = findings_and_claims(seen, plan.subject.recording.extensions)
    applied: dict[str | None, tuple[Finding, Claimed]] = {}
    for name in wanted:
        chosen = [pair for pair in found if name in (pair[0].id, pair[0].kind, pair[0].key)]
        if not chosen:
            known = sorted({finding.key or finding.id for finding, _ in found})
            raise UsageError.unknown("finding in the report of this trace", name, known)
        if all(finding.gain_us is None for finding, _ in chosen):
            raise UsageError(f"{name!r} has no gain: nothing in the trace says what its remedy spares")
        applied |= {finding.key: (finding, claimed) for finding, claimed in chosen if finding.gain_us is not None}
    for finding, claimed in applied.values():
        _apply(plan, seen, claimed)
        plan.claims.append((claimed, claimed.gain_ns))
        plan.note(_said(finding))
    plan.replayed = seen.once(ReplayedGain)


def _observed(subject: Subject) -> Observed:
    from tracelens.analysis.findings.rule import Observed
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
    from tracelens.analysis.findings.replayed_gain import spared_by

    spared, activity = spared_by(seen, claimed, claimed.gain_ns), plan.subject.activity
    at = np.searchsorted(activity.rows, seen.activity.rows[spared.events])
    plan.factor[at] *= 1 - spared.share
    plan.removed[at[spared.is_removed]] = True
    np.add.at(plan.sooner, np.searchsorted(activity.rows, spared.late), spared.sooner_ns)
    plan.saved += zip(*(column.tolist() for column in spared.spans), strict=True)


def _said(finding: Finding) -> str:
    low, gain, high = (f"{(us or 0) / 1e3:.3g}" for us in (finding.gain_low_us, finding.gain_us, finding.gain_high_us))
    return f"{finding.key or finding.id}: the report says {gain} ms ({low} to {high}) of a step: {finding.why}"
