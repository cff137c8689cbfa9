"""ZB-1P: zero bubble with the activations of 1F1B (Qi et al., 2023, arXiv 2401.10241, section 4)."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.projection.schedules.base import Order, Plan, Task, schedule
from tracelens.projection.schedules.zero_bubble import filled


@schedule("zb-1p")
class ZB1P(Order):
    """1F1B's forwards and input gradients; weights' gradients wherever a rank would idle, at times that were given.

    Every stage keeps at most min(p, m) micro-batches, as in ZB-H1, and the bubble is that of ZB-H1 where all take as
    long: (p-1)(F + D - W). The paper's search looks further; this is its greedy start.
    """

    def tasks(self, plan: Plan) -> Sequence[Sequence[Task]]:
        wanted = [self._of(rank, plan) for rank in range(plan.ranks)]
        return filled(plan, self.routes(plan.ranks, 1), wanted, min(plan.ranks, plan.micro_batches))

    def _of(self, rank: int, plan: Plan) -> list[Task]:
        m = plan.micro_batches
        ahead = min(plan.ranks - rank - 1, m)
        order = [Task("F", i, 0) for i in range(ahead)]
        for i in range(m - ahead):
            order += [Task("F", ahead + i, 0), Task("D", i, 0)]
        return order + [Task("D", i, 0) for i in range(m - ahead, m)]
