"""GPipe: all forwards, then all backwards (Huang et al., 2019)."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.projection.schedules.base import Order, Plan, Task, schedule


@schedule("gpipe")
class GPipe(Order):
    """Balanced stages take (m + p - 1)(F + B), and every stage keeps m micro-batches."""

    own_chunks = None

    def tasks(self, plan: Plan) -> Sequence[Sequence[Task]]:
        forward = [Task("F", m, c) for c in range(plan.chunks) for m in range(plan.micro_batches)]
        backward = [Task("B", m, c) for c in reversed(range(plan.chunks)) for m in range(plan.micro_batches)]
        return [forward + backward] * plan.ranks
