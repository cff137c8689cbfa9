"""A dense feed-forward block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from tracelens.workload.blocks.base import BlockType, Kept
from tracelens.workload.layer_ops import Batch, LayerOp
from tracelens.workload.model_shape import ModelShape


class FeedForward(BlockType):
    """Up projection, with a gate's beside it where the model has one, activation, down projection."""

    name: ClassVar[str] = "mlp"
    divides_on_grid: ClassVar[bool] = True
    recompute_module: ClassVar[str | None] = "mlp"

    def needs(self, shape: ModelShape) -> dict[str, Any]:
        return {"ffn": shape.ffn}

    def ops(self, batch: Batch) -> Iterator[LayerOp]:
        yield batch.norm("mlp.norm")
        yield from batch.feed_forward("mlp", batch.shape.ffn or 0, bias=batch.shape.mlp_bias)

    def kept_bytes(self, kept: Kept) -> float:
        per_channel = 2 * (1 + kept.shape.gated) + kept.stored * (not kept.repeats("mlp_act"))
        return kept.tokens * (kept.shape.ffn or 0) * per_channel / kept.parallel.tp

    def parts(self, shape: ModelShape) -> tuple[int, ...]:
        return (shape.ffn or 0,)

    def sharded(self, shape: ModelShape, *, tp: int, expert_shards: int) -> dict[str, Any]:
        return {"ffn": None if shape.ffn is None else shape.ffn // tp}


MLP = FeedForward(letter="-")
