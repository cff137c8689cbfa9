"""A gated short convolution (LFM2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from tracelens.lazy.records import dataclass
from tracelens.perf_models import CausalConv1d, PerfModel
from tracelens.workload.blocks.base import BlockType, Kept, needed
from tracelens.workload.layer_ops import Batch, LayerOp
from tracelens.workload.model_shape import ModelShape
from tracelens.workload.ranks.training_rank import RankOp, TrainingRank


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """``width`` taps over each of ``channels``; ``bias`` also of the projections."""

    channels: int
    width: int
    bias: bool = False


class ShortConvolution(BlockType):
    """Two gates and a value in one product; the gated value convolved and gated again; output projection."""

    name: ClassVar[str] = "conv"
    mixes_tokens: ClassVar[bool] = True
    table: ClassVar[str | None] = "short_convolution"
    figures: ClassVar[type | None] = Convolution

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
