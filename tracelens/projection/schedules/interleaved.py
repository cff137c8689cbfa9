"""Interleaved 1F1B: several chunks of layers per rank (Narayanan et al., 2021, arXiv 2104.04473, section 2.2)."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.errors import UsageError
from tracelens.projection.schedules.base import Order, Plan, Task, schedule


@schedule("interleaved")
class Interleaved(Order):
    """Balanced chunks take (m + (p-1)/v)(F + B), where F and B are a rank's whole share of a micro-batch.

    Micro-batches go in groups of p through each chunk in turn, so p must divide m.
    """

    own_chunks = None

    def tasks(self, plan: Plan) -> Sequence[Sequence[Task]]:
        if plan.micro_batches % plan.ranks:
            raise UsageError(
                f"schedule interleaved: {plan.ranks} pipeline ranks do not divide {plan.micro_batches} micro-batches"
            )
        # In groups of p micro-batches through each chunk in turn
        forward = [
            (group + m, c)
            for group in range(0, plan.micro_batches, plan.ranks)
            for c in range(plan.chunks)
            for m in range(plan.ranks)
        ]
        forwards = [Task("F", m, c) for m, c in forward]
        backwards = [Task("B", m, plan.chunks - 1 - c) for m, c in forward]
        return [self._of(rank, plan, forwards, backwards) for rank in range(plan.ranks)]

    def _of(self, rank: int, plan: Plan, forwards: Sequence[Task], backwards: Sequence[Task]) -> list[Task]:
        total = len(forwards)
        ahead = min(2 * (plan.ranks - rank - 1) + (plan.chunks - 1) * plan.ranks + plan.ahead, total)
        order = list(forwards[:ahead])
        for pair in zip(forwards[ahead:], backwards, strict=False):
            order += pair
        return [*order, *backwards[total - ahead :]]
