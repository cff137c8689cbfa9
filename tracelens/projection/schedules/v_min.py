"""V-min: the least activations that a V can do with, a third of 1F1B's (Qi et al., 2024, arXiv 2405.15362)."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.projection.schedules.base import Plan, Route, Task, check_chunk_count, schedule, v_shaped_routes
from tracelens.projection.schedules.building_blocks import Block


@schedule("v-min")
class VMin:
    """Stages keep p/3 micro-batches and at most 1.5 more.

    The bubble is about two thirds of 1F1B's where all six passes take as long. Where they do not, every micro-batch
    adds to it.
    """

    def chunks(self, asked: int) -> int:
        return check_chunk_count("v-min", 2, asked)

    def routes(self, ranks: int, chunks: int) -> Sequence[Route]:
        return v_shaped_routes(ranks)

    def tasks(self, plan: Plan) -> Sequence[Sequence[Task]]:
        return Block(down=1, up=1, back_down=1, back_up=1).tasks(plan)
