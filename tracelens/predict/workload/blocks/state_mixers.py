"""Blocks that keep a state in place of all keys: linear attention, Mamba-2, and short convolutions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from tracelens.perf_models import CausalConv1d, LinearAttention, PerfModel, StateSpaceScan
from tracelens.perf_models.recurrent_layers import Rule
from tracelens.predict.workload.blocks.base import BlockType, Kept, needed
from tracelens.predict.workload.layer_ops import Batch, LayerOp
from tracelens.predict.workload.model_shape import LinearHeads, Mamba, ModelShape
from tracelens.predict.workload.ranks import RankOp, TrainingRank
from tracelens.types.records import Record


class LinearMixer(BlockType, mixes_tokens=True, reads=("linear",)):
    """Projections, a convolution of queries, keys and values where there is one, a state per head, a gated norm."""

    #: What a token does to the state.
    rule: ClassVar[Rule] = "delta"

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


class GatedDeltaNet(LinearMixer, name="linear_attention"):
    """Queries, keys, values and the output gate in one product, the two gates of each head in another (Qwen3-Next)."""

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


class KimiDeltaAttention(LinearMixer, name="kimi_delta_attention", rule="channel_delta"):
    """A decay per key channel, from a projection of rank d_k; a gate of full or of low rank (arXiv 2510.26692)."""

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


class LightningAttention(LinearMixer, name="lightning_attention", rule="decay"):
    """Linear attention with a constant decay per head, a norm over all heads and an output gate (MiniMax-01)."""

    def ops(self, batch: Batch) -> Iterator[LayerOp]:
        shape, own = batch.shape, linear_heads(batch.shape)
        yield batch.norm("linear.norm")
        yield batch.linear("linear.qkv", 2 * own.keys + own.values, shape.hidden, split="column")
        yield batch.linear("linear.gate", own.values, shape.hidden, split="column")
        yield from self.core_ops(batch, per_head=0)
        yield batch.norm("linear.gated_norm", own.values, split="heads")
        yield batch.linear("linear.out", shape.hidden, own.values, split="row")


LIGHTNING_ATTENTION = LightningAttention(letter="L")


class Mamba2(BlockType, name="mamba", mixes_tokens=True, reads=("mamba",)):
    """Input projection, convolution, scan, gated norm, output projection."""

    def ops(self, batch: Batch) -> Iterator[LayerOp]:
        shape, mamba = batch.shape, needed(batch.shape.mamba, "mamba")
        inner, channels = mamba.inner, mamba.conv_channels
        yield batch.norm("mamba.norm")
        yield batch.linear("mamba.in", inner + channels + mamba.heads, shape.hidden, split="column")
        yield batch.convolution("mamba.conv", channels, mamba.conv, bias=True)
        # the decay, the skip weight and the step's bias of each head
        scan = _scan(batch.shape, mamba, b=batch.batch, tokens=batch.sequence)
        yield LayerOp(name="mamba.scan", model=scan, weights=3 * mamba.heads, split="heads", is_core=True)
        yield batch.norm("mamba.gated_norm", inner, split="heads")
        yield batch.linear("mamba.out", shape.hidden, inner, split="row")

    def cores(self, shape: ModelShape, *, b: int, new: int, past: int) -> tuple[PerfModel, ...]:
        mamba = needed(shape.mamba, "mamba")
        conv = CausalConv1d(
            b=b, channels=mamba.conv_channels, length=new, width=mamba.conv, bias=True, cached=True, dtype=shape.dtype
        )
        return (conv, replace(_scan(shape, mamba, b=b, tokens=new), cached=True))

    def state_bytes(self, shape: ModelShape, width: float) -> float:
        """The state in fp32, and the tokens that the convolution looks back on, in the model's own type."""
        mamba = needed(shape.mamba, "mamba")
        kept = 2 if shape.dtype is None else shape.dtype.width_bytes
        return 4 * mamba.inner * mamba.state + kept * mamba.conv_channels * (mamba.conv - 1)

    def on_rank(self, rank: TrainingRank, ops: Sequence[LayerOp]) -> Iterator[RankOp]:
        """Context ranks need the state at the end of each other's tokens."""
        yield from super().on_rank(rank, ops)
        mamba, parallel = needed(rank.shape.mamba, "mamba"), rank.parallel
        states = parallel.micro_batch * mamba.inner // parallel.tp * mamba.state
        yield from rank.in_context("mamba", parallel.cp * states)

    def kept_bytes(self, kept: Kept) -> float:
        """The input projection's parts, the convolution's result, the scan's result."""
        mamba = needed(kept.shape.mamba, "mamba")
        return 2 * kept.tokens * (2 * mamba.inner + 2 * mamba.conv_channels) / kept.parallel.tp

    def parts(self, shape: ModelShape) -> tuple[int, ...]:
        return () if shape.mamba is None else (shape.mamba.heads, shape.mamba.groups)

    def sharded(self, shape: ModelShape, *, tp: int, expert_shards: int) -> dict[str, Any]:
        mamba = shape.mamba
        if mamba is None:
            return {}
        return {"mamba": replace(mamba, heads=-(-mamba.heads // tp), groups=-(-mamba.groups // tp))}


def _scan(shape: ModelShape, mamba: Mamba, *, b: int, tokens: int) -> StateSpaceScan:
    return StateSpaceScan(
        b=b, tokens=tokens, heads=mamba.heads, head_dim=mamba.head_dim, state=mamba.state, groups=mamba.groups,
        chunk=mamba.chunk, dtype=shape.dtype,
    )  # fmt: skip


MAMBA = Mamba2(letter="M")


class Convolution(Record, frozen=True, kw_only=True):
    """``width`` taps over each of ``channels``; ``bias`` also of the projections."""

    channels: int
    width: int
    bias: bool = False


class ShortConvolution(BlockType, name="conv", mixes_tokens=True, table="short_convolution", figures=Convolution):
    """Two gates and a value in one product; the gated value convolved and gated again; output projection."""

    def figures_of(self, shape: ModelShape) -> Convolution:
        own: Convolution = needed(super().figures_of(shape), "[short_convolution]")
        return own

    def needs(self, shape: ModelShape) -> dict[str, Any]:
        return {"short_convolution": super().figures_of(shape)}

    def ops(self, batch: Batch) -> Iterator[LayerOp]:
        hidden, own = batch.shape.hidden, self.figures_of(batch.shape)
        yield batch.norm("convolution.norm")
        yield batch.linear("convolution.in", 3 * own.channels, hidden, bias=own.bias, split="column")
        yield batch.gating("convolution.gate_in", own.channels, own.channels)
        yield batch.convolution("convolution.conv", own.channels, own.width, bias=own.bias)
        yield batch.gating("convolution.gate_out", own.channels, own.channels)
        yield batch.linear("convolution.out", hidden, own.channels, bias=own.bias, split="row")

    def cores(self, shape: ModelShape, *, b: int, new: int, past: int) -> tuple[PerfModel, ...]:
        own = self.figures_of(shape)
        return (
            CausalConv1d(
                b=b, channels=own.channels, length=new, width=own.width, bias=own.bias, cached=True, dtype=shape.dtype
            ),
        )

    def state_bytes(self, shape: ModelShape, width: float) -> float:
        """The tokens that the convolution looks back on, in the model's own type."""
        own = self.figures_of(shape)
        return (2 if shape.dtype is None else shape.dtype.width_bytes) * own.channels * (own.width - 1)

    def on_rank(self, rank: TrainingRank, ops: Sequence[LayerOp]) -> Iterator[RankOp]:
        """Context ranks need the last tokens before their own."""
        yield from super().on_rank(rank, ops)
        own, parallel = self.figures_of(rank.shape), rank.parallel
        last = parallel.micro_batch * (own.width - 1) * own.channels // parallel.tp
        yield from rank.in_context("convolution", parallel.cp * last)

    def kept_bytes(self, kept: Kept) -> float:
        """Both gates and the value, what is convolved, and the result before and after its gate."""
        return 2 * kept.tokens * 6 * self.figures_of(kept.shape).channels / kept.parallel.tp

    def parts(self, shape: ModelShape) -> tuple[int, ...]:
        return (self.figures_of(shape).channels,)

    def sharded(self, shape: ModelShape, *, tp: int, expert_shards: int) -> dict[str, Any]:
        own = super().figures_of(shape)
        if own is None:
            return {}
        others = tuple(pair for pair in shape.block_figures if pair[0] != self.table)
        part = replace(own, channels=-(-own.channels // tp))
        return {"block_figures": (*others, (str(self.table), part))}


SHORT_CONVOLUTION = ShortConvolution(letter="G")
