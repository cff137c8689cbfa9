"""One product in a block's place, as a search for a smaller architecture leaves it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from tracelens.workload.blocks.base import BlockType, Kept
from tracelens.workload.layer_ops import Batch, LayerOp


class SingleLinear(BlockType):
    """A square product of the normalized hidden state (Puzzle, arXiv 2411.19146)."""

    name: ClassVar[str] = "linear"

    def ops(self, batch: Batch) -> Iterator[LayerOp]:
        yield batch.norm("mlp.norm")
        yield batch.linear("mlp.linear", batch.shape.hidden, batch.shape.hidden)

    def kept_bytes(self, kept: Kept) -> float:
        return 0.0


SINGLE_LINEAR = SingleLinear(letter="=")
