"""Attention to all keys before a token, to the nearest ones, and within chunks, with grouped or latent heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from tracelens.perf_models import GEMM, SDPA, PerfModel, RoPE, SelectiveAttention
from tracelens.predict.workload.blocks.base import BlockType, Kept
from tracelens.predict.workload.layer_ops import Batch, LayerOp
from tracelens.predict.workload.model_shape import LatentAttention, ModelShape
from tracelens.predict.workload.ranks import RankOp, TrainingRank, passes

#: Tokens per sequence and step up to which engines absorb latent attention's projections: decoding and its drafts.
ABSORBED_TOKENS = 8


class Attention(BlockType, name="attention", mixes_tokens=True, divides_on_grid=True):
    """Projections, rotary positions where none are learned, the core of attention, output projection."""

    def needs(self, shape: ModelShape) -> dict[str, Any]:
        return {"head_dim": shape.head_dim or shape.latent_attention}

    def window(self, shape: ModelShape) -> int | None:
        """How many of the nearest keys a token attends to; None: all."""
        return None

    def core(self, shape: ModelShape, *, b: int, s_q: int, s_kv: int, mask: Any) -> SDPA:
        """Queries, keys and values to the heads' results."""
        return SDPA(
            b=b,
            s_q=s_q,
            s_kv=s_kv,
            q_heads=shape.q_heads,
            kv_heads=shape.kv_heads,
            d_qk=shape.d_qk,
            d_v=shape.d_v,
            mask=mask,
            window=self.window(shape),
            flash=True,
            dtype=shape.dtype,
        )

    def ops(self, batch: Batch) -> Iterator[LayerOp]:
        shape = batch.shape
        yield batch.norm("attention.norm")
        if shape.latent_attention is not None:
            yield from _latent_projections(batch, shape.latent_attention)
        else:
            values = 0 if shape.key_is_value else shape.kv_heads * shape.d_v
            width = (shape.q_heads + shape.kv_heads) * shape.d_qk + values
            yield batch.linear("attention.qkv", width, shape.hidden, bias=shape.qkv_bias, split="column")
        if shape.qk_norm:
            yield from _head_norms(batch)
        if shape.gate_width:
            yield batch.linear("attention.gate", shape.q_heads * shape.gate_width, shape.hidden, split="column")
        yield from self.core_ops(batch)
        if shape.gate_width:
            yield batch.gating("attention.gating", shape.q_heads * shape.d_v, shape.q_heads * shape.gate_width)
        yield batch.linear("attention.out", shape.hidden, shape.q_heads * shape.d_v, bias=shape.out_bias, split="row")

    def core_ops(self, batch: Batch) -> Iterator[LayerOp]:
        """Attention itself, over whole sequences."""
        shape = batch.shape
        length = shape.document_length(batch.sequence)
        yield LayerOp(
            name="attention.sdpa",
            model=self.core(
                shape,
                b=round(batch.batch * batch.sequence / length),
                s_q=length,
                s_kv=length,
                mask="none" if shape.bidirectional else "top_left",
            ),
            weights=shape.q_heads if shape.sinks else 0,
            split="heads",
            is_replicated=True,
            is_core=True,
        )

    def indexed_ops(self, batch: Batch) -> Iterator[LayerOp]:
        """``cores`` over whole sequences, where they are an indexer's scores, its choice, and attention to that."""
        length = batch.shape.document_length(batch.sequence)
        cores = self.cores(batch.shape, b=round(batch.tokens / length), new=length, past=0)
        names = ("attention.index_scores", "attention.index_top_k", "attention.sdpa")
        for name, model in zip(names, cores, strict=True):
            yield LayerOp(name=name, model=model, split="heads" if name.endswith("sdpa") else "tokens", is_core=True)

    def cores(self, shape: ModelShape, *, b: int, new: int, past: int) -> tuple[PerfModel, ...]:
        """Latent attention of a few new tokens runs on the latent itself, the key's and value's projections absorbed
        into the query's and the output's: as many products as ``attention.kv_up``, which stands for them.
        """
        latent = shape.latent_attention
        if latent is not None and new <= ABSORBED_TOKENS:
            return (absorbed(shape, latent, b=b, new=new, past=past),)
        return (self.core(shape, b=b, s_q=new, s_kv=past + new, mask="bottom_right"),)

    def on_rank(self, rank: TrainingRank, ops: Sequence[LayerOp]) -> Iterator[RankOp]:
        yield from super().on_rank(rank, ops)
        yield from rank.in_context("attention", rank.parallel.micro_batch * rank.sequence * self.shared_elements(rank))

    def shared_elements(self, rank: TrainingRank) -> int:
        """Elements per token of what context ranks need of each other: keys and values."""
        return max(rank.shape.kv_heads // rank.parallel.tp, 1) * (rank.shape.d_qk + rank.shape.d_v)

    def op_on_rank(self, rank: TrainingRank, op: LayerOp) -> Iterator[RankOp]:
        if isinstance(op.model, SDPA):
            yield from self._core_on_rank(rank, op.name, op.model)
        else:
            yield from rank.op(op)
        if op.name in ("attention.qkv", "attention.kv_up") and not rank.shape.positions:
            yield from _rope(rank)

    def _core_on_rank(self, rank: TrainingRank, name: str, model: SDPA) -> Iterator[RankOp]:
        """Context-parallel ranks hold an early and a late piece of a document, so all see the mean number of its keys,
        of those within a window as well. Of documents that are shorter than what a rank holds, it holds whole ones.
        """
        shape, own = rank.shape, rank.own_sequence
        rows = model.s_q or own
        keys = shape.document_length(rank.sequence) if rows == own else rows
        made = replace(
            model,
            s_q=rows,
            s_kv=keys if shape.bidirectional else (keys + rows) // 2,
            q_heads=rank.part(model.q_heads, "attention heads"),
            kv_heads=max(model.kv_heads // rank.parallel.tp, 1),
            mask="none" if shape.bidirectional else "bottom_right",
            dtype=rank.width,
        )
        if keys > rows and self.window(shape) is not None:
            whole = self.core(shape, b=model.b, s_q=keys, s_kv=keys, mask=model.mask).total_pairs or 0
            pairs = whole * rows // keys
            made = replace(made, pairs=pairs, window=-(-pairs // (model.b * rows)))
        if rank.parallel.attention != "unfused":
            yield from passes(name, "attention", made, made.backward())
        else:
            yield from _unfused(rank, made, rows, keys)

    def kept_bytes(self, kept: Kept) -> float:
        shape, parallel = kept.shape, kept.parallel
        projected = 2 * (shape.q_heads * shape.d_qk + shape.kv_heads * (shape.d_qk + shape.d_v))
        latent = shape.latent_attention
        if latent is not None:
            up = 0 if kept.repeats("mla_up_proj") else 2 * shape.q_heads * shape.d_qk + shape.q_heads * shape.d_v
            projected = 2 * (up + (latent.q_rank or 0) + latent.kv_rank + latent.d_rope)
        per_token = projected + 2 * shape.q_heads * shape.d_v
        if parallel.attention != "unfused":
            per_token += 4 * shape.q_heads
        elif not kept.repeats("core_attn"):
            length = shape.document_length(kept.sequence)
            keys = min(length, self.window(shape) or length)
            # Softmax and, with dropout, its mask and its result.
            per_token += (5 if shape.dropout else 2) * shape.q_heads * keys
        return kept.tokens * per_token / parallel.tp

    def parts(self, shape: ModelShape) -> tuple[int, ...]:
        return (shape.q_heads,)

    def sharded(self, shape: ModelShape, *, tp: int, expert_shards: int) -> dict[str, Any]:
        """Key-value heads are replicated when ``tp`` exceeds them."""
        return {"q_heads": shape.q_heads // tp, "kv_heads": -(-shape.kv_heads // tp)}

    def cached_elements(self, shape: ModelShape) -> int:
        latent = shape.latent_attention
        return shape.kv_heads * (shape.d_qk + shape.d_v) if latent is None else latent.kv_rank + latent.d_rope


def absorbed(
    shape: ModelShape, latent: LatentAttention, *, b: int, new: int, past: int, top_k: int | None = None
) -> SelectiveAttention:
    """Attention on the cached latent, one row per token for all heads."""
    return SelectiveAttention(
        b=b,
        s_q=new,
        s_kv=past + new,
        q_heads=shape.q_heads,
        d_qk=latent.kv_rank + latent.d_rope,
        d_v=latent.kv_rank,
        top_k=top_k,
        dtype=shape.dtype,
    )


def _head_norms(batch: Batch) -> Iterator[LayerOp]:
    """Norms of queries and keys, of each head or over all of them together."""
    shape = batch.shape
    for name, heads in (("q_norm", shape.q_heads), ("k_norm", shape.kv_heads)):
        if shape.qk_norm_joint:
            yield batch.norm(f"attention.{name}", heads * shape.d_qk, split="heads")
        else:
            made = batch.norm(f"attention.{name}", shape.d_qk, heads, split="heads")
            yield replace(made, is_replicated=True)


def _latent_projections(batch: Batch, latent: LatentAttention) -> Iterator[LayerOp]:
    shape = batch.shape
    queries = shape.q_heads * shape.d_qk
    if latent.q_rank is None:
        yield batch.linear("attention.q", queries, shape.hidden, split="column")
    else:
        yield batch.linear("attention.q_down", latent.q_rank, shape.hidden)
        yield batch.norm("attention.q_latent_norm", latent.q_rank)
        yield batch.linear("attention.q_up", queries, latent.q_rank, split="column")
    yield batch.linear("attention.kv_down", latent.kv_rank + latent.d_rope, shape.hidden)
    yield batch.norm("attention.kv_latent_norm", latent.kv_rank)
    values = shape.q_heads * (latent.d_nope + latent.d_v)
    yield batch.linear("attention.kv_up", values, latent.kv_rank, split="column")


def _unfused(rank: TrainingRank, model: SDPA, rows: int, keys: int) -> Iterator[RankOp]:
    """Two batched products over the whole square of scores, softmax and dropout on scores in memory.

    Per score forward: fp16 written and read by the softmax, written and read by the dropout with its mask, written
    and read by the product with V; backward mirrors it.
    """
    b = model.b * model.q_heads
    scores = GEMM(b=b, m=rows, n=keys, k=model.d_qk, dtype=rank.width)
    values = GEMM(b=b, m=rows, n=model.d_v, k=keys, dtype=rank.width)
    for name, made in (("attention.scores", scores), ("attention.values", values)):
        yield RankOp(name=name, phase="forward", part="attention", model=made, core=True)
        for gradient in made.backward():
            yield RankOp(name=name, phase="dgrad", part="attention", model=gradient)
    count = b * rows * keys
    for name, reads in (("attention.softmax", 2), ("attention.dropout", 1)):
        forward, backward = rank.pass_over(count, 1, 1), rank.pass_over(count, reads, 1)
        yield RankOp(name=name, phase="forward", part="attention", model=forward, core=True)
        yield RankOp(name=name, phase="dgrad", part="attention", model=backward)


def _rope(rank: TrainingRank) -> Iterator[RankOp]:
    shape, tp = rank.shape, rank.parallel.tp
    latent = shape.latent_attention
    per_token = shape.q_heads // tp * shape.d_qk + max(shape.kv_heads // tp, 1) * shape.d_qk
    if latent is not None:
        per_token = (shape.q_heads // tp + 1) * latent.d_rope
    rope = RoPE(elements=rank.tokens * per_token, rotated=rank.tokens * per_token, dtype=rank.width)
    yield from passes("attention.rope", "memory", rope, rope.backward())


ATTENTION = Attention(letter="*")


class WindowedAttention(Attention, name="sliding_attention"):
    """Attention whose keys are the ``window`` before a token; ``reach``: the figure of the shape that says how many."""

    reach: ClassVar[str] = "window"

    def needs(self, shape: ModelShape) -> dict[str, Any]:
        return {self.reach: self.window(shape), **super().needs(shape)}

    def window(self, shape: ModelShape) -> int | None:
        reach: int | None = getattr(shape, self.reach)
        return reach

    def cached_elements(self, shape: ModelShape) -> int:
        """None that stay: see ``window_bytes``."""
        return 0

    def window_bytes(self, shape: ModelShape, width: float) -> tuple[int, float]:
        return self.window(shape) or 0, super().cached_elements(shape) * width


WINDOWED_ATTENTION = WindowedAttention(letter="w")


class ChunkedAttention(WindowedAttention, name="chunked_attention", reach="chunk"):
    """Attention of a token to those before it in its chunk of ``chunk`` tokens (Llama 4's layers with positions)."""

    def core(self, shape: ModelShape, *, b: int, s_q: int, s_kv: int, mask: Any) -> SDPA:
        """Whole chunks are sequences of their own; else the pairs of a prompt's part, or of a token at the end of its
        chunk, whose keys are the most that it can see.
        """
        chunk = shape.chunk or s_kv
        if s_q == s_kv and s_kv > chunk and s_kv % chunk == 0:
            return super().core(shape, b=b * (s_kv // chunk), s_q=chunk, s_kv=chunk, mask=mask)
        made = super().core(shape, b=b, s_q=s_q, s_kv=s_kv, mask=mask)
        if s_kv <= chunk or s_q == 1:
            return made
        return replace(made, pairs=b * _pairs(s_kv - s_q, s_kv, chunk))


def _pairs(first: int, last: int, chunk: int) -> int:
    """Sum of p % chunk + 1 over positions from ``first`` to before ``last``.

    >>> _pairs(2, 5, 4), _pairs(0, 4, 4)
    (8, 10)
    """

    def until(tokens: int) -> int:
        chunks, rest = divmod(tokens, chunk)
        return chunks * chunk * (chunk + 1) // 2 + rest * (rest + 1) // 2

    return until(last) - until(first)


CHUNKED_ATTENTION = ChunkedAttention(letter="c")
