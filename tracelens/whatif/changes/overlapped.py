"""Communication runs beside computation."""

from __future__ import annotations

import numpy as np

from tracelens.errors import UsageError
from tracelens.projection.overlap import OVERLAP_COST
from tracelens.whatif.changes import ORDER, change
from tracelens.whatif.plan import Plan

#: What can be overlapped.
COMMUNICATION = "comm"


@change("overlap", ORDER)
def overlapped(plan: Plan, _: str) -> None:
    """No kernel waits for communication; computing slows while both run, as a projection has it.

    A bound: what needs a message before it can start is not recorded, but the host and other messages still wait.
    """
    activity = plan.subject.activity
    if not activity.communication.any():
        raise UsageError(f"{plan.subject.table.source}: no communication to overlap")
    plan.detached = plan.detached | activity.communication
    computes = ~(activity.communication | activity.memcpy)
    shared = min(activity.duration[activity.communication].sum() / max(activity.duration[computes].sum(), 1), 1.0)
    plan.multiply(np.asarray(computes), 1 + OVERLAP_COST * float(shared))
    plan.note(
        f"a bound: no kernel waits for communication; computing is {100 * OVERLAP_COST * shared:.1f} % slower beside it"
    )
