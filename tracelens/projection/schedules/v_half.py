"""V-half: a V with half the activations of 1F1B (Qi et al., 2024, arXiv 2405.15362)."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.projection.schedules.base import Plan, Route, Task, check_chunk_count, schedule, v_shaped_routes
from tracelens.projection.schedules.building_blocks import Block


@schedule("v-half")
class VHalf:
    """Stages keep p/2 micro-batches and at most 1.5 more.

    The bubble is about half that of 1F1B where all six passes take as long, and more where they do not.
    """

    def chunks(self, asked: int) -> int:
        return check_chunk_count("v-half", 2, asked)

    def routes(self, ranks: int, chunks: int) -> Sequence[Route]:
        return v_shaped_routes(ranks)

    def tasks(self, plan: Plan) -> Sequence[Sequence[Task]]:
        return Block(down=2, up=1, back_down=2, back_up=1).tasks(plan)
