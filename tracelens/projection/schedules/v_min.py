"""V-min: the least activations that a V can do with, a third of 1F1B's (Qi et al., 2024, arXiv 2405.15362)."""

from __future__ import annotations

from tracelens.projection.schedules.base import schedule
from tracelens.projection.schedules.building_blocks import Block, VShaped


@schedule("v-min")
class VMin(VShaped):
    """Stages keep p/3 micro-batches and at most 1.5 more.

    The bubble is about two thirds of 1F1B's where all six passes take as long. Where they do not, every micro-batch
    adds to it.
    """

    block = Block(down=1, up=1, back_down=1, back_up=1)
