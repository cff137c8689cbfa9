"""ZB-V: a V without a bubble but its filling, with the activations of 1F1B (Qi et al., 2023 and 2024, arXiv 2401.10241
section 6, 2405.15362).
"""

from __future__ import annotations

from tracelens.projection.schedules.base import schedule
from tracelens.projection.schedules.building_blocks import Block, VShaped


@schedule("zb-v")
class ZBV(VShaped):
    """Where all six passes take as long, a step is 6m + p - 1 passes. Stages keep p micro-batches."""

    block = Block(down=4, up=2, back_down=4, back_up=2)
