"""A Mamba-2 block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from tracelens.perf_models import CausalConv1d, PerfModel, StateSpaceScan
from tracelens.workload.blocks.base import BlockType, Kept, needed
from tracelens.workload.layer_ops import Batch, LayerOp
from tracelens.workload.model_shape import Mamba, ModelShape
from tracelens.workload.ranks.training_rank import RankOp, TrainingRank


class Mamba2(BlockType):
    """Input projection, convolution, scan, gated norm, output projection."""

    name: ClassVar[str] = "mamba"
    mixes_tokens: ClassVar[bool] = True

    def needs(self, shape: ModelShape) -> dict[str, Any]:
        return {"mamba": shape.mamba}

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
