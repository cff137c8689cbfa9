"""Attention to keys that an indexer selects, to selected blocks of keys, and to compressed rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tracelens.perf_models import GEMM, IndexerScores, Movement, PerfModel, SelectiveAttention, TopKRows
from tracelens.predict.workload.blocks.attention import Attention, absorbed
from tracelens.predict.workload.blocks.base import needed
from tracelens.predict.workload.layer_ops import Batch, LayerOp
from tracelens.predict.workload.model_shape import CompressedAttention, Indexer, LatentAttention, ModelShape
from tracelens.predict.workload.ranks import TrainingRank
from tracelens.types.dtypes import DType

#: An indexer's key is kept in FP8 with a scale in fp32 (DeepSeek-V3.2, inference/kernel.py).
_INDEX_TYPE, _SCALE_BYTES = DType.FP8_E4M3FN, 4


class SparseLatentAttention(Attention, name="deepseek_sparse_attention", divides_on_grid=False):
    """Latent attention whose prompts too run absorbed, on ``top_k`` selected rows per token (DeepSeek-V3.2, section 2).

    The indexer's queries come from the query latent, its one key and the heads' weights from the hidden state.
    """

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


class BlockSparseAttention(Attention, name="block_sparse_attention", divides_on_grid=False):
    """Grouped heads that see the ``top_k`` blocks of ``block`` keys of highest score, and keys before the token in it.

    An index query per group and one index key per token score every key; a block's score is its keys' highest.
    """

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


class CompressedRows(Attention, name="compressed_attention", divides_on_grid=False):
    """One key per token and layer, which is its value too, for all heads: those of a window one by one, those before
    it ``ratio`` in a row, all of them or those that an indexer selects.

    A row is a mean of its tokens' keys, weighted by gates per channel. The heads' results are projected in groups.
    """

    def needs(self, shape: ModelShape) -> dict[str, Any]:
        selects = shape.compressed is not None and shape.compressed.selects
        return {
            "compressed": shape.compressed, "head_dim": shape.head_dim, "window": shape.window,
            "indexer": shape.indexer if selects else True,
        }  # fmt: skip

    def ops(self, batch: Batch) -> Iterator[LayerOp]:
        shape, own, d = batch.shape, needed(batch.shape.compressed, "compressed"), batch.shape.d_qk
        yield batch.norm("attention.norm")
        yield batch.linear("attention.q_down", own.q_rank, shape.hidden)
        yield batch.norm("attention.q_latent_norm", own.q_rank)
        yield batch.linear("attention.q_up", shape.q_heads * d, own.q_rank, split="column")
        yield batch.linear("attention.kv", d, shape.hidden)
        yield batch.norm("attention.kv_norm", d)
        if own.ratio:
            yield from _compression(batch, "attention.compress", own, d)
        if own.selects:
            indexer = needed(shape.indexer, "indexer")
            yield batch.linear("attention.index_q", indexer.heads * indexer.head_dim, own.q_rank)
            yield batch.linear("attention.index_weights", indexer.heads, shape.hidden)
            yield from _compression(batch, "attention.index_compress", own, indexer.head_dim)
        yield from self.core_ops(batch)
        # each group's heads to ``o_rank``: as many products as groups
        k = shape.q_heads * d // own.o_groups
        model = GEMM(b=own.o_groups, m=batch.tokens, n=own.o_rank, k=k, dtype=batch.dtype)
        weights = own.o_groups * own.o_rank * k
        yield LayerOp(name="attention.out_groups", model=model, weights=weights, split="heads")
        yield batch.linear("attention.out", shape.hidden, own.o_groups * own.o_rank, split="row")

    def core_ops(self, batch: Batch) -> Iterator[LayerOp]:
        shape = batch.shape
        length = shape.document_length(batch.sequence)
        for model in self.cores(shape, b=round(batch.tokens / length), new=length, past=0):
            if isinstance(model, SelectiveAttention):
                sinks = shape.q_heads if shape.sinks else 0
                yield LayerOp(
                    name="attention.sdpa", model=model, weights=sinks, split="heads",
                    is_replicated=True, is_core=True,
                )  # fmt: skip
            else:
                name = "attention.index_top_k" if isinstance(model, TopKRows) else "attention.index_scores"
                yield LayerOp(name=name, model=model, is_core=True)

    def cores(self, shape: ModelShape, *, b: int, new: int, past: int) -> tuple[PerfModel, ...]:
        own = needed(shape.compressed, "compressed")
        lengths: dict[str, Any] = {"b": b, "s_q": new, "s_kv": past + new, "ratio": own.ratio}
        sizes: dict[str, Any] = {"q_heads": shape.q_heads, "d_qk": shape.d_qk, "d_v": shape.d_qk, "dtype": shape.dtype}
        if not own.selects:
            return (SelectiveAttention(**lengths, **sizes, window=shape.window or 0, top_k=None),)
        indexer = needed(shape.indexer, "indexer")
        return (
            IndexerScores(**lengths, heads=indexer.heads, d=indexer.head_dim, dtype=_INDEX_TYPE),
            TopKRows(**lengths, top_k=indexer.top_k),
            SelectiveAttention(**lengths, **sizes, window=shape.window or 0, top_k=indexer.top_k),
        )

    def parts(self, shape: ModelShape) -> tuple[int, ...]:
        return (shape.q_heads, needed(shape.compressed, "compressed").o_groups)

    def sharded(self, shape: ModelShape, *, tp: int, expert_shards: int) -> dict[str, Any]:
        """The one key head stays whole; a rank has its heads' groups of the output projection."""
        if shape.compressed is None:
            return {}
        return {"compressed": replace(shape.compressed, o_groups=-(-shape.compressed.o_groups // tp))}

    def shared_elements(self, rank: TrainingRank) -> int:
        """The key, before it is compressed, and the indexer's."""
        own = needed(rank.shape.compressed, "compressed")
        return rank.shape.d_qk + (needed(rank.shape.indexer, "indexer").head_dim if own.selects else 0)

    def cached_elements(self, shape: ModelShape) -> int:
        """Less than one row per token: see ``cached_bytes``."""
        return 0

    def cached_bytes(self, shape: ModelShape, width: float) -> float:
        own = needed(shape.compressed, "compressed")
        if not own.ratio:
            return 0.0
        index = 0.0
        if own.selects:
            index = needed(shape.indexer, "indexer").head_dim * _INDEX_TYPE.width_bytes + _SCALE_BYTES
        return (shape.d_qk * width + index) / own.ratio

    def window_bytes(self, shape: ModelShape, width: float) -> tuple[int, float]:
        return shape.window or 0, shape.d_qk * width

    def state_bytes(self, shape: ModelShape, width: float) -> float:
        """Tokens of the row that is not whole yet, with their gates."""
        own = needed(shape.compressed, "compressed")
        return 2 * own.ratio * (1 + own.overlap) * shape.d_qk * width


def _compression(batch: Batch, name: str, own: CompressedAttention, d: int) -> Iterator[LayerOp]:
    """Keys and gates of each token, twice as many where rows overlap; the weighted mean of each row's."""
    width = d * (1 + own.overlap)
    yield batch.linear(name, 2 * width, batch.shape.hidden)
    rows = batch.tokens // own.ratio
    read, written = ((2 * batch.tokens * width, batch.dtype),), ((rows * d, batch.dtype),)
    # softmax of the gates over a row, and their products with the keys: added up
    pooled = Movement(read=read, written=written, added=2 * batch.tokens * width)
    yield LayerOp(name=f"{name}_rows", model=pooled, weights=own.ratio * width + d)


COMPRESSED_ATTENTION = CompressedRows(letter="C")
