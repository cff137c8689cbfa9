"""V-half: a V with half the activations of 1F1B (Qi et al., 2024, arXiv 2405.15362)."""

from __future__ import annotations

from tracelens.projection.schedules.base import schedule
from tracelens.projection.schedules.building_blocks import Block, VShaped


@schedule("v-half")
class VHalf(VShaped):
    """Stages keep p/2 micro-batches and at most 1.5 more.

    The bubble is about half that of 1F1B where all six passes take as long, and more where they do not.
    """

    block = Block(down=2, up=1, back_down=2, back_up=1)
