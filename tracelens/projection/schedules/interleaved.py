"""Interleaved 1F1B: several chunks of layers per rank (Narayanan et al., 2021, arXiv 2104.04473, section 2.2)."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.errors import UsageError
from tracelens.projection.schedules.base import Plan, Route, Task, round_and_round, schedule


@schedule("interleaved")
class Interleaved:
    """Balanced chunks take (m + (p-1)/v)(F + B), where F and B are a rank's whole share of a micro-batch.

    Micro-batches go in groups of p through each chunk in turn, so p must divide m.
    """

    def chunks(self, asked: int) -> int:
        return asked

    def routes(self, ranks: int, chunks: int) -> Sequence[Route]:
        return round_and_round(ranks, chunks)

    def tasks(self, plan: Plan) -> Sequence[Sequence[Task]]:
        if plan.micro_batches % plan.ranks:
            raise UsageError(
                f"schedule interleaved: {plan.ranks} pipeline ranks do not divide {plan.micro_batches} micro-batches"
            )
        return [self._of(rank, plan) for rank in range(plan.ranks)]

    def _of(self, rank: int, plan: Plan) -> list[Task]:
        ranks, chunks = plan.ranks, plan.chunks
        total = plan.micro_batches * chunks
        forward = [self._at(i, ranks, chunks) for i in range(total)]
        ahead = min(2 * (ranks - rank - 1) + (chunks - 1) * ranks, total)
        order = [Task("F", m, c) for m, c in forward[:ahead]]
        backward = [Task("B", m, chunks - 1 - c) for m, c in forward]
        for i in range(total - ahead):
            m, c = forward[ahead + i]
            order += [Task("F", m, c), backward[i]]
        return order + backward[total - ahead :]

    def _at(self, index: int, ranks: int, chunks: int) -> tuple[int, int]:
        """Micro-batch and chunk of the ``index``-th forward."""
        group, inside = divmod(index, ranks * chunks)
        chunk, micro_batch = divmod(inside, ranks)
        return group * ranks + micro_batch, chunk
