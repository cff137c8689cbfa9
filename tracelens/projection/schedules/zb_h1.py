"""ZB-H1: 1F1B whose weights' gradients fill the pipeline's end (Qi et al., 2023, arXiv 2401.10241, section 2.1)."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.projection.schedules.base import Order, Plan, Task, schedule


@schedule("zb-h1")
class ZBH1(Order):
    """Balanced stages take m(F + D + W) + (p-1)(F + D - W) where W is no longer than F and D; every stage keeps at most
    min(p, m) micro-batches.

    Stage r puts the weights' gradients off by r micro-batches, which is what it keeps less than stage 0 in 1F1B.
    """

    def tasks(self, plan: Plan) -> Sequence[Sequence[Task]]:
        return [self._of(rank, plan) for rank in range(plan.ranks)]

    def _of(self, rank: int, plan: Plan) -> list[Task]:
        m = plan.micro_batches
        ahead = min(plan.ranks - rank - 1, m)
        order = [Task("F", i, 0) for i in range(ahead)]
        for i in range(m):
            if ahead + i < m:
                order.append(Task("F", ahead + i, 0))
            order.append(Task("D", i, 0))
            if i >= rank:
                order.append(Task("W", i - rank, 0))
        return order + [Task("W", i, 0) for i in range(max(m - rank, 0), m)]
