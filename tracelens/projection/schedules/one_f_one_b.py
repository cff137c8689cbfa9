"""1F1B: one forward, one backward once the pipeline is filled (Narayanan et al., 2021)."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.projection.schedules.base import Order, Plan, Task, schedule


@schedule("1f1b")
class OneForwardOneBackward(Order):
    """Balanced stages take (m + p - 1)(F + B); stage r keeps min(p - r + ahead, m) micro-batches."""

    def tasks(self, plan: Plan) -> Sequence[Sequence[Task]]:
        return [self._of(rank, plan) for rank in range(plan.ranks)]

    def _of(self, rank: int, plan: Plan) -> list[Task]:
        m = plan.micro_batches
        ahead = min(plan.ranks - rank - 1 + plan.ahead, m)
        order = [Task("F", i, 0) for i in range(ahead)]
        for i in range(m - ahead):
            order += [Task("F", ahead + i, 0), Task("B", i, 0)]
        return order + [Task("B", i, 0) for i in range(m - ahead, m)]
