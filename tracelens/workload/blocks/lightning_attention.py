"""A block of Lightning attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from tracelens.perf_models.recurrent_layers import Rule
from tracelens.workload.blocks.state_mixers import LinearMixer, linear_heads
from tracelens.workload.layer_ops import Batch, LayerOp


class LightningAttention(LinearMixer):
    """Linear attention with a constant decay per head, a norm over all heads and an output gate (MiniMax-01)."""

    name: ClassVar[str] = "lightning_attention"
    rule: ClassVar[Rule] = "decay"

    def ops(self, batch: Batch) -> Iterator[LayerOp]:
        shape, own = batch.shape, linear_heads(batch.shape)
        yield batch.norm("linear.norm")
        yield batch.linear("linear.qkv", 2 * own.keys + own.values, shape.hidden, split="column")
        yield batch.linear("linear.gate", own.values, shape.hidden, split="column")
        yield from self.core_ops(batch, per_head=0)
        yield batch.norm("linear.gated_norm", own.values, split="heads")
        yield batch.linear("linear.out", shape.hidden, own.values, split="row")


LIGHTNING_ATTENTION = LightningAttention(letter="L")
