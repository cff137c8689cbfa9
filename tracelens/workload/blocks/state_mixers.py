"""A gated DeltaNet block, and what all blocks of linear attention share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from tracelens.perf_models import CausalConv1d, LinearAttention, PerfModel
from tracelens.perf_models.recurrent_layers import Rule
from tracelens.workload.blocks.base import BlockType, Kept, needed
from tracelens.workload.layer_ops import Batch, LayerOp
from tracelens.workload.model_shape import LinearHeads, ModelShape
from tracelens.workload.ranks.training_rank import RankOp, TrainingRank


class LinearMixer(BlockType):
    """Projections, a convolution of queries, keys and values where there is one, a state per head, a gated norm."""

    mixes_tokens: ClassVar[bool] = True
    #: What a token does to the state.
    rule: ClassVar[Rule] = "delta"

    def needs(self, shape: ModelShape) -> dict[str, Any]:
        return {"linear": shape.linear}

    def core_ops(self, batch: Batch, per_head: int) -> Iterator[LayerOp]:
        """Convolution and state over whole sequences; ``per_head`` parameters of the decay."""
        own = linear_heads(batch.shape)
        if own.conv:
            yield batch.convolution("linear.conv", 2 * own.keys + own.values, own.conv)
        model = replace(self._state(batch.shape, batch.tokens), sequences=None)
        yield LayerOp(name="linear.state", model=model, weights=per_head * own.v_heads, split="heads", is_core=True)

    def cores(self, shape: ModelShape, *, b: int, new: int, past: int) -> tuple[PerfModel, ...]:
        own, state = linear_heads(shape), replace(self._state(shape, b * new), sequences=b)
        if not own.conv:
            return (state,)
        channels = 2 * own.keys + own.values
        conv = CausalConv1d(b=b, channels=channels, length=new, width=own.conv, cached=True, dtype=shape.dtype)
        return (conv, state)

    def on_rank(self, rank: TrainingRank, ops: Sequence[LayerOp]) -> Iterator[RankOp]:
        """Context ranks need the state at the end of each other's tokens."""
        yield from super().on_rank(rank, ops)
        own, parallel = linear_heads(rank.shape), rank.parallel
        states = parallel.micro_batch * own.v_heads // parallel.tp * own.d_k * own.d_v
        yield from rank.in_context("linear", parallel.cp * states)

    def _state(self, shape: ModelShape, tokens: int) -> LinearAttention:
        own = linear_heads(shape)
        return LinearAttention(
            tokens=tokens, v_heads=own.v_heads, d_k=own.d_k, d_v=own.d_v, qkv_width=2 * own.keys + own.values,
            rule=self.rule, dtype=shape.dtype,
        )  # fmt: skip

    def state_bytes(self, shape: ModelShape, width: float) -> float:
        """The state in fp32, and the tokens that the convolution looks back on, in the model's own type."""
        own = linear_heads(shape)
        kept = 2 if shape.dtype is None else shape.dtype.width_bytes
        looked_back = max(own.conv - 1, 0) * (2 * own.keys + own.values)
        return 4 * own.v_heads * own.d_k * own.d_v + kept * looked_back

    def kept_bytes(self, kept: Kept) -> float:
        """Queries, keys and values before and after the convolution, the output gate, the state's result."""
        own = linear_heads(kept.shape)
        elements = (1 + (own.conv > 0)) * (2 * own.keys + own.values) + 2 * own.values
        return 2 * kept.tokens * elements / kept.parallel.tp

    def parts(self, shape: ModelShape) -> tuple[int, ...]:
        own = linear_heads(shape)
        return own.k_heads, own.v_heads

    def sharded(self, shape: ModelShape, *, tp: int, expert_shards: int) -> dict[str, Any]:
        own = shape.linear
        if own is None:
            return {}
        return {"linear": replace(own, k_heads=-(-own.k_heads // tp), v_heads=-(-own.v_heads // tp))}


class GatedDeltaNet(LinearMixer):
    """Queries, keys, values and the output gate in one product, the two gates of each head in another (Qwen3-Next)."""

    name: ClassVar[str] = "linear_attention"

    def ops(self, batch: Batch) -> Iterator[LayerOp]:
        shape, own = batch.shape, linear_heads(batch.shape)
        yield batch.norm("linear.norm")
        yield batch.linear("linear.qkvz", 2 * own.keys + 2 * own.values, shape.hidden, split="column")
        yield batch.linear("linear.gates", 2 * own.v_heads, shape.hidden, split="column")
        # the decay's rate and its bias
        yield from self.core_ops(batch, per_head=2)
        yield replace(batch.norm("linear.gated_norm", own.d_v, own.v_heads, split="heads"), is_replicated=True)
        yield batch.linear("linear.out", shape.hidden, own.values, split="row")


def linear_heads(shape: ModelShape) -> LinearHeads:
    """The heads of a shape that has some."""
    return needed(shape.linear, "linear heads")


GATED_DELTA_NET = GatedDeltaNet(letter="D")
