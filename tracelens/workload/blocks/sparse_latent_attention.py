"""Latent attention to the keys that an indexer selects (DeepSeek sparse attention)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from tracelens.dtypes import DType
from tracelens.perf_models import IndexerScores, PerfModel, TopKRows
from tracelens.workload.blocks.attention import Attention, absorbed
from tracelens.workload.blocks.base import needed
from tracelens.workload.layer_ops import Batch, LayerOp
from tracelens.workload.model_shape import Indexer, LatentAttention, ModelShape
from tracelens.workload.ranks.training_rank import TrainingRank

#: An indexer's key is kept in FP8 with a scale in fp32 (DeepSeek-V3.2, inference/kernel.py).
_INDEX_TYPE, _SCALE_BYTES = DType.FP8_E4M3FN, 4


class SparseLatentAttention(Attention):
    """Latent attention whose prompts too run absorbed, on ``top_k`` selected rows per token (DeepSeek-V3.2, section 2).

    The indexer's queries come from the query latent, its one key and the heads' weights from the hidden state.
    """

    name: ClassVar[str] = "deepseek_sparse_attention"
    divides_on_grid: ClassVar[bool] = False

    def needs(self, shape: ModelShape) -> dict[str, Any]:
        return {"latent_attention": shape.latent_attention, "indexer": shape.indexer}

    def core_ops(self, batch: Batch) -> Iterator[LayerOp]:
        shape = batch.shape
        latent, indexer = _figures(shape)
        queries = indexer.heads * indexer.head_dim
        yield batch.linear("attention.index_q", queries, latent.q_rank or shape.hidden)
        yield batch.linear("attention.index_k", indexer.head_dim, shape.hidden)
        yield batch.norm("attention.index_k_norm", indexer.head_dim)
        yield batch.linear("attention.index_weights", indexer.heads, shape.hidden)
        yield from self.indexed_ops(batch)

    def cores(self, shape: ModelShape, *, b: int, new: int, past: int) -> tuple[PerfModel, ...]:
        latent, indexer = _figures(shape)
        lengths: dict[str, Any] = {"b": b, "s_q": new, "s_kv": past + new}
        return (
            IndexerScores(**lengths, heads=indexer.heads, d=indexer.head_dim, dtype=_INDEX_TYPE),
            TopKRows(**lengths, top_k=indexer.top_k),
            absorbed(shape, latent, b=b, new=new, past=past, top_k=indexer.top_k),
        )

    def shared_elements(self, rank: TrainingRank) -> int:
        """The latent, and the indexer's key."""
        latent, indexer = _figures(rank.shape)
        return latent.kv_rank + latent.d_rope + indexer.head_dim

    def cached_bytes(self, shape: ModelShape, width: float) -> float:
        _, indexer = _figures(shape)
        return super().cached_bytes(shape, width) + indexer.head_dim * _INDEX_TYPE.width_bytes + _SCALE_BYTES


def _figures(shape: ModelShape) -> tuple[LatentAttention, Indexer]:
    return needed(shape.latent_attention, "latent_attention"), needed(shape.indexer, "indexer")


SPARSE_LATENT_ATTENTION = SparseLatentAttention(letter="S")
