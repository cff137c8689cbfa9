"""GPipe: all forwards, then all backwards (Huang et al., 2019)."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.projection.schedules.base import Task, schedule


@schedule("gpipe")
class GPipe:
    """Balanced stages take (m + p - 1)(F + B), and every stage keeps m micro-batches."""

    def tasks(self, rank: int, *, ranks: int, chunks: int, micro_batches: int) -> Sequence[Task]:
        forward = [Task("F", m, c) for c in range(chunks) for m in range(micro_batches)]
        backward = [Task("B", m, c) for c in reversed(range(chunks)) for m in range(micro_batches)]
        return forward + backward
