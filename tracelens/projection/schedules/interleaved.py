"""Interleaved 1F1B: several chunks of layers per rank (Narayanan et al., 2021, arXiv 2104.04473, section 2.2)."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.errors import UsageError
from tracelens.projection.schedules.base import Task, schedule


@schedule("interleaved")
class Interleaved:
    """Balanced chunks take (m + (p-1)/v)(F + B), where F and B are a rank's whole share of a micro-batch.

    Micro-batches go in groups of p through each chunk in turn, so p must divide m.
    """

    def tasks(self, rank: int, *, ranks: int, chunks: int, micro_batches: int) -> Sequence[Task]:
        if micro_batches % ranks:
            raise UsageError(
                f"schedule interleaved: {ranks} pipeline ranks do not divide {micro_batches} micro-batches"
            )
        total = micro_batches * chunks
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
