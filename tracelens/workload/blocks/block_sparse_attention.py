"""Attention to blocks of keys that an indexer selects for each group of query heads (MiniMax sparse attention)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from tracelens.perf_models import IndexerScores, PerfModel, SelectiveAttention, TopKRows
from tracelens.workload.blocks.attention import Attention
from tracelens.workload.blocks.base import needed
from tracelens.workload.layer_ops import Batch, LayerOp
from tracelens.workload.model_shape import ModelShape
from tracelens.workload.ranks.training_rank import TrainingRank


class BlockSparseAttention(Attention):
    """Grouped heads that see the ``top_k`` blocks of ``block`` keys of highest score, and keys before the token in it.

    An index query per group and one index key per token score every key; a block's score is its keys' highest.
    """

    name: ClassVar[str] = "block_sparse_attention"
    divides_on_grid: ClassVar[bool] = False

    def needs(self, shape: ModelShape) -> dict[str, Any]:
        return {"indexer": shape.indexer, **super().needs(shape)}

    def core_ops(self, batch: Batch) -> Iterator[LayerOp]:
        shape, indexer = batch.shape, needed(batch.shape.indexer, "indexer")
        yield batch.linear("attention.index_q", indexer.heads * indexer.head_dim, shape.hidden)
        yield batch.linear("attention.index_k", indexer.head_dim, shape.hidden)
        yield batch.norm("attention.index_q_norm", indexer.head_dim, indexer.heads)
        yield batch.norm("attention.index_k_norm", indexer.head_dim)
        yield from self.indexed_ops(batch)

    def cores(self, shape: ModelShape, *, b: int, new: int, past: int) -> tuple[PerfModel, ...]:
        indexer = needed(shape.indexer, "indexer")
        lengths: dict[str, Any] = {"b": b, "s_q": new, "s_kv": past + new}
        return (
            IndexerScores(**lengths, heads=indexer.heads, d=indexer.head_dim, dtype=shape.dtype),
            TopKRows(**lengths, top_k=indexer.top_k, dtype=shape.dtype),
            SelectiveAttention(
                **lengths, q_heads=shape.q_heads, kv_heads=shape.kv_heads, d_qk=shape.d_qk, d_v=shape.d_v,
                top_k=indexer.top_k * indexer.block, value_in_key=False, dtype=shape.dtype,
            ),
        )  # fmt: skip

    def shared_elements(self, rank: TrainingRank) -> int:
        return super().shared_elements(rank) + needed(rank.shape.indexer, "indexer").head_dim

    def cached_elements(self, shape: ModelShape) -> int:
        return super().cached_elements(shape) + needed(shape.indexer, "indexer").head_dim


BLOCK_SPARSE_ATTENTION = BlockSparseAttention(letter="B")
