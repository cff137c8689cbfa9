"""Communication runs beside computation."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.intervals import Ints, union_ns
from tracelens.errors import UsageError
from tracelens.projection.overlap import OVERLAP_COST
from tracelens.whatif.changes import ORDER, change
from tracelens.whatif.plan import Plan

#: What can be overlapped.
COMMUNICATION = "comm"


@change("overlap", ORDER)
def overlapped(plan: Plan, _: str) -> None:
    """No kernel waits for communication; computing slows while more of it runs beside, as a projection has it.

    A bound: what needs a message before it can start is not recorded, but the host and other messages still wait.
    """
    activity = plan.subject.activity
    if not activity.communication.any():
        raise UsageError(f"{plan.subject.table.source}: no communication to overlap")
    recorded = _exposed_ns(plan, *_times(plan))
    plan.detached = plan.detached | activity.communication
    hidden = max(recorded - _exposed_ns(plan, *_times(plan)), 0)
    computes = ~(activity.communication | activity.memcpy)
    slower = OVERLAP_COST * min(hidden / max(float(activity.duration[computes].sum()), 1.0), 1.0)
    plan.multiply(np.asarray(computes), 1 + slower)
    share = 100 * hidden / max(recorded, 1)
    plan.note(
        f"a bound: no kernel waits for communication, which hides {share:.0f} % of what was exposed; computing is "
        f"{100 * slower:.1f} % slower beside that"
    )


def _times(plan: Plan) -> tuple[Ints, Ints]:
    """(start, end) of the replay's device events, as planned so far."""
    changes = plan.changes()
    start = plan.subject.replay.times(changes).start
    return start, start + np.rint(np.where(changes.removed, 0.0, changes.length)).astype(np.int64)


def _exposed_ns(plan: Plan, start: Ints, end: Ints) -> int:
    """Communication during which nothing computes."""
    activity, at = plan.subject.activity, plan.subject.replay.at
    sent, computes = activity.communication[at], ~(activity.communication | activity.memcpy)[at]
    both = union_ns(start[sent | computes], end[sent | computes])
    return both - union_ns(start[computes], end[computes])
