"""A block of Kimi delta attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from tracelens.perf_models.recurrent_layers import Rule
from tracelens.workload.blocks.state_mixers import LinearMixer, linear_heads
from tracelens.workload.layer_ops import Batch, LayerOp


class KimiDeltaAttention(LinearMixer):
    """A decay per key channel, from a projection of rank d_k; a gate of full or of low rank (arXiv 2510.26692)."""

    name: ClassVar[str] = "kimi_delta_attention"
    rule: ClassVar[Rule] = "channel_delta"

    def ops(self, batch: Batch) -> Iterator[LayerOp]:
        shape, own = batch.shape, linear_heads(batch.shape)
        yield batch.norm("linear.norm")
        yield batch.linear("linear.qkv", 2 * own.keys + own.values, shape.hidden, split="column")
        yield batch.linear("linear.decay_down", own.d_k, shape.hidden)
        yield batch.linear("linear.decay_up", own.v_heads * own.d_k, own.d_k, split="column")
        yield batch.linear("linear.beta", own.v_heads, shape.hidden, split="column")
        if own.gate_rank:
            yield batch.linear("linear.gate_down", own.gate_rank, shape.hidden)
        yield batch.linear("linear.gate", own.values, own.gate_rank or shape.hidden, split="column")
        # the decay's rate per head and its bias per channel
        yield from self.core_ops(batch, per_head=1 + own.d_k)
        yield replace(batch.norm("linear.gated_norm", own.d_v, own.v_heads, split="heads"), is_replicated=True)
        yield batch.linear("linear.out", shape.hidden, own.values, split="row")


KIMI_DELTA_ATTENTION = KimiDeltaAttention(letter="K")
