"""Kernels are launched as graphs."""

from __future__ import annotations

import numpy as np

from tracelens.whatif.changes import ORDER, change
from tracelens.whatif.plan import Plan

#: Queued kernels from which the gaps between them are those of a graph, and the gap (ns) with fewer: of traces with
#: more the medians are 0 to 3 us.
_LEAST_QUEUED, _USUAL_GAP = 20, 2000


@change("graphs", ORDER)
def in_graphs(plan: Plan, _: bool) -> None:
    """The host's time between synchronizations falls away, and kernels follow each other as queued ones do.

    Data loading and communication on the host take as long as they did. What the host waits for (a copied value) still
    ends a graph.
    """
    replay = plan.subject.replay
    gaps = replay.queued_gaps
    if len(gaps) >= _LEAST_QUEUED:
        low, gap, high = (int(ns) for ns in np.quantile(gaps, (0.05, 0.5, 0.95)))
        source = "the median of queued kernels here"
    else:
        low, gap, high = 0, _USUAL_GAP, max(replay.device.usual, _USUAL_GAP)
        source = "as in other traces: too few kernels were queued here"
    plan.gaps = low, gap, high
    plan.note(f"in a graph a kernel starts {gap / 1000:.1f} us after the one before, {source}")
