"""Some operations are not there any more."""

from __future__ import annotations

from tracelens.whatif.changes import TIME, change
from tracelens.whatif.plan import Plan


@change("remove", TIME)
def removed(plan: Plan, wanted: tuple[str, ...]) -> None:
    """Their device events are gone; of an op, module or range also the host's time in it, and what it waited for."""
    for selector in wanted:
        plan.removed |= plan.subject.events_of(selector)
        plan.gone |= plan.subject.rows_named(selector)
