"""1F1B: one forward, one backward once the pipeline is filled (Narayanan et al., 2021)."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.errors import UsageError
from tracelens.projection.schedules.base import Task, schedule


@schedule("1f1b")
class OneForwardOneBackward:
    """Balanced stages take (m + p - 1)(F + B); stage r keeps min(p - r, m) micro-batches."""

    def tasks(self, rank: int, *, ranks: int, chunks: int, micro_batches: int) -> Sequence[Task]:
        if chunks != 1:
            raise UsageError(f"schedule 1f1b has one chunk per rank, not {chunks}; interleaved has several")
        ahead = min(ranks - rank - 1, micro_batches)
        order = [Task("F", m, 0) for m in range(ahead)]
        for m in range(micro_batches - ahead):
            order += [Task("F", ahead + m, 0), Task("B", m, 0)]
        return order + [Task("B", m, 0) for m in range(micro_batches - ahead, micro_batches)]
