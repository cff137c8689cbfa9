"""ZB-V: a V without a bubble but its filling, with the activations of 1F1B (Qi et al., 2023 and 2024, arXiv 2401.10241
section 6, 2405.15362).
"""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.projection.schedules.base import Plan, Route, Task, check_chunk_count, schedule, v_shaped_routes
from tracelens.projection.schedules.building_blocks import Block


@schedule("zb-v")
class ZBV:
    """Where all six passes take as long, a step is 6m + p - 1 passes. Stages keep p micro-batches."""

    def chunks(self, asked: int) -> int:
        return check_chunk_count("zb-v", 2, asked)

    def routes(self, ranks: int, chunks: int) -> Sequence[Route]:
        return v_shaped_routes(ranks)

    def tasks(self, plan: Plan) -> Sequence[Sequence[Task]]:
        return Block(down=4, up=2, back_down=4, back_up=2).tasks(plan)
