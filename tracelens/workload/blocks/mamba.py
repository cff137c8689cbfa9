"""A Mamba-2 block."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

from tracelens.perf_models import GEMM, Conv
from tracelens.workload.blocks.base import BlockType, Kept
from tracelens.workload.layer_ops import Batch, LayerOp
from tracelens.workload.model_shape import ModelShape


class Mamba2(BlockType):
    """Input projection, convolution, scan, gated norm, output projection."""

    name: ClassVar[str] = "mamba"
    mixes_tokens: ClassVar[bool] = True

    def needs(self, shape: ModelShape) -> dict[str, Any]:
        return {"mamba": shape.mamba}

    def ops(self, batch: Batch) -> Iterator[LayerOp]:
        """The scan as its products (state space duality, arXiv 2405.21060, section 6): within a chunk C times B and
        that times x; into and out of the chunk's state.
        """
        shape, mamba = batch.shape, batch.shape.mamba
        if mamba is None:
            return
        inner, channels = mamba.inner, mamba.conv_channels
        yield batch.norm("mamba.norm")
        yield batch.linear("mamba.in", inner + channels + mamba.heads, shape.hidden, split="column")
        yield LayerOp(
            name="mamba.conv",
            model=Conv(
                x=(batch.batch, channels, batch.sequence + mamba.conv - 1),
                w=(channels, 1, mamba.conv),
                bias=True,
                stride=(1,),
                padding=(0,),
                dilation=(1,),
                output_padding=(0,),
                groups=channels,
                dtype=batch.dtype,
            ),
            weights=channels * (mamba.conv + 1),
            active_weights=channels * (mamba.conv + 1),
            split="heads",
        )
        chunk = min(mamba.chunk, batch.sequence)
        chunks = batch.batch * math.ceil(batch.sequence / chunk)
        # the decay, the skip weight and the step's bias of each head
        per_head = 3 * mamba.heads
        for name, b, m, n, k, weights in (
            ("scores", chunks * mamba.groups, chunk, chunk, mamba.state, per_head),
            ("within", chunks * mamba.heads, chunk, mamba.head_dim, chunk, 0),
            ("state_in", chunks * mamba.heads, mamba.state, mamba.head_dim, chunk, 0),
            ("state_out", chunks * mamba.heads, chunk, mamba.head_dim, mamba.state, 0),
        ):
            model = GEMM(b=b, m=m, n=n, k=k, dtype=batch.dtype)
            yield LayerOp(name=f"mamba.{name}", model=model, weights=weights, active_weights=weights, split="heads")
        yield batch.norm("mamba.gated_norm", inner, split="heads")
        yield batch.linear("mamba.out", shape.hidden, inner, split="row")

    def kept_bytes(self, kept: Kept) -> float:
        """The input projection's parts, the convolution's result, the scan's result."""
        mamba = kept.shape.mamba
        channels = 0 if mamba is None else 2 * mamba.inner + 2 * mamba.conv_channels
        return 2 * kept.tokens * channels / kept.parallel.tp

    def parts(self, shape: ModelShape) -> tuple[int, ...]:
        return () if shape.mamba is None else (shape.mamba.heads, shape.mamba.groups)

    def sharded(self, shape: ModelShape, *, tp: int, expert_shards: int) -> dict[str, Any]:
        mamba = shape.mamba
        if mamba is None:
            return {}
        return {"mamba": replace(mamba, heads=-(-mamba.heads // tp), groups=-(-mamba.groups // tp))}


MAMBA = Mamba2(letter="M")
