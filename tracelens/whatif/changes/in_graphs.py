"""Kernels are launched as graphs."""

from __future__ import annotations

from tracelens.whatif.changes import ORDER, change
from tracelens.whatif.plan import Plan


@change("graphs", ORDER)
def in_graphs(plan: Plan, _: bool) -> None:
    """The host's time between synchronizations falls away, and kernels follow each other as queued ones do.

    What the host waits for (a copied value, a collective on the host) still ends a graph.
    """
    plan.together = True
    gap = plan.subject.replay.queued_gap / 1000
    plan.note(f"in a graph a kernel starts {gap:.1f} us after the one before, the median of queued kernels here")
