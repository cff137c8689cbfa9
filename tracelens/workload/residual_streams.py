"""What surrounds a block where the residual stream is no plain sum: hyper-connections, attention over depth."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Any

from tracelens.dtypes import DType
from tracelens.perf_models import HyperConnectionCoefficients, HyperConnectionPost, HyperConnectionPre, Movement
from tracelens.workload.layer_ops import Batch, LayerOp
from tracelens.workload.model_shape import ModelShape


def residual_ops(batch: Batch) -> Iterator[LayerOp]:
    """Before and after one block."""
    shape = batch.shape
    if shape.streams:
        n = shape.streams
        # of the streams that enter the block, leave it, and pass it by; with a bias each, and three scales
        outputs = (2 + n) * n
        yield from _hyper(batch, outputs, outputs + 3)
        yield LayerOp(name="residual.post", model=HyperConnectionPost(**_sizes(batch)))
    if shape.residual_block:
        yield _depth_attention(batch)


def last_residual_ops(batch: Batch) -> Iterator[LayerOp]:
    """Before the final norm."""
    shape = batch.shape
    if shape.streams:
        yield from _hyper(batch, shape.streams, shape.streams + 1)
    if shape.residual_block:
        yield _depth_attention(batch)


def _hyper(batch: Batch, outputs: int, biases: int) -> Iterator[LayerOp]:
    """Manifold-constrained hyper-connections (arXiv 2512.24880): coefficients of the mix in fp32, and the mix."""
    sizes = _sizes(batch)
    mixed = HyperConnectionCoefficients(**sizes, outputs=outputs, dtype_weight=DType.FP32)
    weights = outputs * sizes["streams"] * sizes["channels"] + biases
    yield LayerOp(name="residual.coefficients", model=mixed, weights=weights)
    yield LayerOp(name="residual.pre", model=HyperConnectionPre(**sizes))


def _sizes(batch: Batch) -> dict[str, Any]:
    shape = batch.shape
    return {"tokens": batch.tokens, "streams": shape.streams, "channels": shape.hidden, "dtype": batch.dtype}


def _depth_attention(batch: Batch) -> LayerOp:
    """A softmax over the sums of blocks of layers that are kept, by one learned query (Attention residuals, arXiv
    2603.15031). Averaged over depth: half of the sums that the whole model keeps, the embedding, and the open one.
    """
    shape, elements = batch.shape, batch.tokens * batch.shape.hidden
    sources = round((kept_sums(shape) / 2 + 1.5) * elements)
    model = Movement(read=((sources, batch.dtype),), written=((elements, batch.dtype),), added=2 * sources)
    # the query and the norm of what it is compared with
    return LayerOp(name="residual.depth_attention", model=model, weights=2 * shape.hidden)


def kept_sums(shape: ModelShape) -> int:
    """Sums of blocks of layers that the whole model keeps; two residual blocks are a layer."""
    return ceil(len(shape.blocks) / 2 / shape.residual_block) if shape.residual_block else 0
