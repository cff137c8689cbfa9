"""Attention over a cache: unlike requests in one call, shared or selected rows; rotary position embedding."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from math import inf, prod
from typing import Any, TypeVar

from tracelens.errors import SignatureError
from tracelens.perf_models.base import Like, ModelRecord, Moved, resolved, traced_name, with_fields_of
from tracelens.perf_models.sdpa import SDPA, AttentionRequests, SDPABackward, attended_pairs, attention_flops
from tracelens.registry import mark
from tracelens.types.dtypes import DType
from tracelens.types.records import Record
from tracelens.types.signature import OpSignature

F = TypeVar("F", bound=Callable[..., Any])

#: The attributes under which an op's signature carries the sums of the step that it ran in, and its layer's window.
SUMS, WINDOW = "attention sums", "layer window"


class AttentionSums(Record, frozen=True, kw_only=True):
    """Sums over the context (``c_``, prefill) and the generation (``g_``, decode) requests of one engine step.

    With ``sq`` new tokens and ``sk`` keys in all per request: of sq, sk, sq*sq and sq*sk. ``assumed``: what the
    annotation does not say.
    """

    c_sq: int = 0
    c_sk: int = 0
    c_sqsq: int = 0
    c_sqsk: int = 0
    g_sq: int = 0
    g_sk: int = 0
    g_sqsq: int = 0
    g_sqsk: int = 0
    assumed: str = ""


class LayerWindow(Record, frozen=True, kw_only=True):
    """How many keys a layer of ``model`` sees: what a trace does not record and the model says."""

    keys: int
    model: str


class InferenceStep(Record, frozen=True, kw_only=True):
    """What an engine's step annotation says; None is *not recorded*.

    ``padded_requests`` is the batch size that a captured graph was padded to.
    """

    context_requests: int | None = None
    context_tokens: int | None = None
    generation_requests: int | None = None
    generation_tokens: int | None = None
    padded_requests: int | None = None
    sums: AttentionSums | None = None


def annotated_as(*prefixes: str) -> Callable[[F], F]:
    """Marks ``reader(annotation: str) -> InferenceStep | None`` for step annotations that start with a prefix.

    None says that the annotation is no step's. Bindings marked ``traced_as(..., per_step=True)`` find the sums of
    the step around their op with ``attention_sums``.
    """
    return mark("annotated_as", *prefixes)


def annotated_numbers(text: str) -> dict[str, int]:
    """``key=123`` pairs of an annotation.

    >>> annotated_numbers("bs=2 toks=14721 ctx=[7803]")
    {'bs': 2, 'toks': 14721}
    """
    return {key: int(value) for key, value in re.findall(r"\b(\w++)=(\d{1,18})\b", text)}


def step_of_one_kind(
    is_context: bool,
    requests: int | None,
    tokens: int | None,
    sums: AttentionSums | None,
    *,
    padded_requests: int | None = None,
) -> InferenceStep:
    kind, other = ("context", "generation") if is_context else ("generation", "context")
    values = {f"{kind}_requests": requests, f"{kind}_tokens": tokens, f"{other}_requests": 0, f"{other}_tokens": 0}
    return InferenceStep(**values, sums=sums, padded_requests=padded_requests)


def attention_sums(op: OpSignature) -> AttentionSums:
    """The sums of the step that an op ran in; SignatureError where no annotation says them."""
    found = op.attribute(SUMS)
    if not isinstance(found, AttentionSums):
        raise SignatureError(f"{op.name}: no step annotation gives the context length of its requests")
    return found


class _OverCache(ModelRecord, engine="matrix", priced_as="sdpa"):
    """Attention that reads a cache."""

    @property
    def cache_dtype(self) -> DType | None:
        kind: DType | Like | None = getattr(self, "dtype_kv", None)
        return resolved(kind, getattr(self, "dtype", None))


class InferenceAttention(_OverCache, category="InferenceAttention", family="InferenceAttention_fwd", inferred=True):
    """Causal attention over cached and new tokens; shapes alone do not say how long the past is, ``sums`` do.

    flops = q_heads * (d_qk + d_v) * (2*c_sqsk - c_sqsq + 2*g_sqsk): among a request's new tokens half of the pairs.
    bytes = (c_sq + g_sq) * (q_heads + kv_heads) * (d_qk + d_v) elements of the queries' type: Q, O and the new K and V;
    and (sk - sq) * kv_heads * (d_qk + d_v) of the cache's type. With a ``window`` W each token sees at most W keys: its
    pairs and the keys read are at most sq*W; exact where all requests are on one side of it, but for the first W tokens
    of a prompt.

    An engine's window per layer is mostly not recorded: where no model says it (``assumed``), both are upper bounds.
    """

    tokens: int
    q_heads: int
    kv_heads: int
    d_qk: int
    d_v: int
    sums: AttentionSums
    window: int | None = None
    assumed: str = ""
    dtype: DType | None = DType.BF16
    dtype_kv: DType | Like | None = Like.FIRST

    def flops(self) -> int:
        s = self.sums
        pairs = self._within(2 * s.c_sqsk - s.c_sqsq, 2 * s.c_sq) + 2 * self._within(s.g_sqsk, s.g_sq)
        return self.q_heads * (self.d_qk + self.d_v) * pairs

    def moved(self) -> Moved:
        s, width = self.sums, self.d_qk + self.d_v
        cached = self._within(max(s.c_sk - s.c_sq, 0), s.c_sq) + max(self._within(s.g_sk, s.g_sq) - s.g_sq, 0)
        return (
            ((s.c_sq + s.g_sq) * (self.q_heads + self.kv_heads) * width, self.dtype),
            (cached * self.kv_heads * width, self.dtype_kv),
        )

    def requests(self) -> tuple[AttentionRequests, ...]:
        """Requests with a prompt, then those that generate, each as equal requests with the same sums.

        That is, of sq tokens and sk keys in all, their squares and products. A few new tokens of one request
        (speculation) are further query heads on the same keys.
        """
        s = self.sums
        found: list[AttentionRequests] = []
        prompts, generates = s.c_sq > 0 and s.c_sqsk > 0, s.g_sq > 0 and s.g_sqsk > 0
        if (prompts and not s.c_sqsq) or (generates and not s.g_sqsq):
            return ()
        if prompts:
            new, keys = s.c_sqsq / s.c_sq, s.c_sqsk / s.c_sq
            past = max(keys - new, 0)
            found.append(AttentionRequests(s.c_sq / new, new, past, self.q_heads, self.kv_heads, self.d_qk, self.d_v))
        if generates:
            new, keys = s.g_sqsq / s.g_sq, s.g_sqsk / s.g_sq
            heads, window = (self.q_heads * new, self.kv_heads), inf if self.window is None else self.window
            found.append(AttentionRequests(s.g_sq / new, 1, max(keys - 1, 0), *heads, self.d_qk, self.d_v, window))
        return tuple(found)

    def _within(self, everything: int, tokens: int) -> int:
        """``everything``, or what the windows of so many tokens hold of it."""
        return everything if self.window is None else min(everything, tokens * self.window)

    def parameters(self) -> dict[str, Any]:
        return {
            "N_Q": self.tokens, "H_Q": self.q_heads, "H_KV": self.kv_heads, "d_h_qk": self.d_qk, "d_h_v": self.d_v,
            **{f.name: getattr(self.sums, f.name) for f in fields(AttentionSums)}, "sliding_window": self.window,
            "assumed": ", ".join(filter(None, (self.sums.assumed, self.assumed))), "dtype_Q": traced_name(self.dtype),
            "dtype_KV": traced_name(self.cache_dtype),
        }  # fmt: skip


class SparseAttention(_OverCache, category="InferenceAttention", family="InferenceAttention_fwd", inferred=True):
    """Attention over listed (query, key) ``pairs``, one latent key-value row for all heads.

    flops = 2 * pairs * q_heads * (d_qk + d_v); bytes = Q read, O written, and a row of the cache per pair: which rows
    several queries share is not recorded, so an upper bound. The value is part of the key's row.
    """

    tokens: int
    q_heads: int
    d_qk: int
    d_v: int
    pairs: int
    dtype: DType | None
    dtype_kv: DType | Like | None = Like.FIRST

    def flops(self) -> int:
        return attention_flops(self.pairs, self.q_heads, self.d_qk, self.d_v)

    def requests(self) -> tuple[AttentionRequests, ...]:
        """Each token reads its own rows of the cache, as decoding does."""
        past = max(self.pairs / max(self.tokens, 1) - 1, 0)
        return (AttentionRequests(self.tokens, 1, past, self.q_heads, 1, self.d_qk, self.d_v, value_in_key=True),)

    def moved(self) -> Moved:
        return (
            (self.tokens * self.q_heads * (self.d_qk + self.d_v), self.dtype),
            (self.pairs * self.d_qk, self.dtype_kv),
        )


class CacheWrite(ModelRecord, category="InferenceAttention", engine="none", family="InferenceAttention_fwd"):
    """New keys and values copied into the cache: flops = 0; bytes = one read, one write in the cache's type."""

    elements: int
    dtype: DType | None
    dtype_cache: DType | Like | None = Like.FIRST

    def moved(self) -> Moved:
        return ((self.elements, self.dtype), (self.elements, self.dtype_cache))


def paged_attention(op: OpSignature, q: int = 0, k: int = 1, v: int | None = None) -> InferenceAttention:
    """Attention of queries ``q`` [t,hq,d] or [t,hq*d] on a cache or new keys ``k`` [..,hkv,d]; d_v is the last dim of
    ``v``, else of ``k``.
    """
    cache = op.shape(k)
    if len(op.shape(q)) == 2 and len(cache) > 2 and op.shape(q)[1] % max(cache[-1], 1) == 0:
        tokens, d_qk = op.shape(q)[0], cache[-1]
        q_heads = op.shape(q)[1] // max(d_qk, 1)
    else:
        tokens, q_heads, d_qk = op.shape(q, rank=3)
    layer = op.attribute(WINDOW)
    layer = layer if isinstance(layer, LayerWindow) else None
    return InferenceAttention(
        tokens=tokens,
        q_heads=q_heads,
        kv_heads=cache[-2],
        d_qk=d_qk,
        d_v=op.shape(k if v is None else v)[-1],
        sums=attention_sums(op),
        window=None if layer is None else layer.keys,
        assumed="" if layer is None else f"sliding window as in {layer.model}",
        dtype=op.dtype(q),
        dtype_kv=op.dtype(k),
    )


def cache_write(op: OpSignature, *tensors: int, cache: int) -> CacheWrite:
    """The rows of ``tensors`` written into tensor ``cache``, in its type."""
    elements = sum(prod(op.shape(i)) for i in tensors)
    return CacheWrite(elements=elements, dtype=op.dtype(tensors[0]), dtype_cache=op.dtype(cache))


class RoPE(ModelRecord, category="RoPE_fwd"):
    """``x*cos + rotated(x)*sin`` for the first ``rotated`` of ``elements``; the others pass.

    flops = 3 per rotated element: two products and a sum; bytes = every element read and written once, ``copied`` more
    that the same op only moves (into a cache) read and written. The table of sines and cosines is left out: all heads
    share a row of it. ``dtype_copied`` is the type that is written there.
    """

    elements: int
    rotated: int
    copied: int = 0
    dtype: DType | None = DType.BF16
    dtype_copied: DType | Like | None = Like.FIRST

    def flops(self) -> int:
        return 3 * self.rotated

    def moved(self) -> Moved:
        return ((2 * self.elements + self.copied, self.dtype), (self.copied, self.dtype_copied))

    def backward(self) -> RoPEBackward:
        """The gradient of the same call: the opposite rotation."""
        return RoPEBackward(elements=self.elements, rotated=self.rotated, dtype=self.dtype)


class RoPEBackward(RoPE, category="RoPE_bwd"):
    """The gradient: the opposite rotation, at the same cost."""


def rotated(op: OpSignature, *tensors: int, share: float = 1.0) -> RoPE:
    """The ``tensors`` rotated in place, or ``share`` of each head of them."""
    elements = sum(prod(op.shape(i)) for i in tensors if op.has(i))
    return RoPE(elements=elements, rotated=round(elements * share), dtype=op.dtype(tensors[0]))


def rotated_heads(op: OpSignature, *tensors: int, head: int, table: int) -> RoPE:
    """Like ``rotated``, where argument ``head`` is the head size and the ``table``'s last dim how much of it turns."""
    size = op.literal(head)
    turned = op.shape(table, rank=2)[1]
    if not isinstance(size, int) or not 0 < turned <= size:
        raise SignatureError(f"{op.name}: argument {head}, the head size, is {size!r} for a table of {turned}")
    return rotated(op, *tensors, share=turned / size)


def visible_rows(s_q: int, s_kv: int, ratio: int = 1, at_most: int | None = None) -> int:
    """Rows of ``ratio`` keys each that the last ``s_q`` of ``s_kv`` tokens see, at most ``at_most`` each, summed.

    The token at position p sees the rows that are whole by then: floor((p + 1) / ratio).

    >>> visible_rows(8, 8), visible_rows(8, 8, 4), visible_rows(8, 8, 1, 3)
    (36, 6, 21)
    """
    return _rows_until(s_kv, ratio, at_most) - _rows_until(s_kv - s_q, ratio, at_most)


def _rows_until(tokens: int, ratio: int, at_most: int | None) -> int:
    """Sum of min(floor(t / ratio), at_most) for t in 1..tokens."""
    capped = tokens if at_most is None else min(tokens, ratio * (at_most + 1) - 1)
    rows, rest = divmod(capped, ratio)
    # ratio tokens see each number of rows from 0 to rows - 1 (one less of 0), and rest + 1 see all of them
    total = ratio * rows * (rows - 1) // 2 + (rest + 1) * rows
    return total + (tokens - capped) * (at_most or 0)


def _share(whole: int, ranks: int) -> int | float:
    """One rank's part; a whole number where it comes out even."""
    return whole // ranks if whole % ranks == 0 else whole / ranks


#: So many new tokens of a sequence read its cache together.
DECODED_TOGETHER = 8


class SelectiveAttention(_OverCache, category=SDPA.category):
    """Causal attention of the last ``s_q`` of ``s_kv`` tokens to rows of a cache that all query heads of a group share.

    A row stands for ``ratio`` tokens; ``top_k`` of the rows that a token may see are selected for it (None: all are).
    Beside them each token sees the last ``window`` tokens one by one (0: none). ``ratio`` 0: the window alone.

    - Latent attention after absorption: d_qk = kv_rank + d_rope, d_v = kv_rank, ``value_in_key``.
    - DeepSeek sparse attention: the same, ``top_k`` of the rows, chosen by an ``Indexer``.
    - DeepSeek-V4's compressed attention: ``ratio`` 4 with ``top_k``, or 128 without; both with a ``window``.
    - MiniMax's sparse attention: several ``kv_heads``, each with values of its own.

    flops = 2 * q_heads * pairs * (d_qk + d_v). bytes = Q read, O written, each row that some token sees read once:
    all of them, or as many as there are pairs where those are fewer. The value is part of the key's row, or beside it.
    ``ranks``: the tokens are shared out evenly among so many devices, and this is one's part, with all rows.
    """

    b: int
    s_q: int
    s_kv: int
    q_heads: int
    d_qk: int
    d_v: int
    kv_heads: int = 1
    ratio: int = 1
    top_k: int | None = None
    window: int = 0
    ranks: int = 1
    value_in_key: bool = True
    dtype: DType | None = DType.BF16
    dtype_kv: DType | Like | None = Like.FIRST

    @property
    def tokens(self) -> int | float:
        """Queries, over the batch."""
        return _share(self.b * self.s_q, self.ranks)

    @property
    def row_pairs(self) -> int | float:
        """(token, row) pairs, over the batch."""
        seen = visible_rows(self.s_q, self.s_kv, self.ratio, self.top_k) if self.ratio else 0
        return _share(self.b * seen, self.ranks)

    @property
    def window_pairs(self) -> int | float:
        """(token, key) pairs of the windows, over the batch."""
        seen = attended_pairs(self.s_q, self.s_kv, "bottom_right", self.window) if self.window else 0
        return _share(self.b * seen, self.ranks)

    @property
    def rows_read(self) -> int | float:
        """Rows of the cache that some token sees."""
        rows = min(self.b * (self.s_kv // self.ratio), self.row_pairs) if self.ratio else 0
        nearest = self.b * min(self.s_kv, self.s_q + self.window - 1) if self.window else 0
        return rows + nearest

    @property
    def cache_width(self) -> int:
        """Elements of a row of one key head."""
        return self.d_qk if self.value_in_key else self.d_qk + self.d_v

    def flops(self) -> int | float:
        pairs = self.row_pairs + self.window_pairs
        return attention_flops(pairs, self.q_heads, self.d_qk, self.d_v)

    def moved(self) -> Moved:
        return (
            (self.tokens * self.q_heads * (self.d_qk + self.d_v), self.dtype),
            (self.rows_read * self.kv_heads * self.cache_width, self.cache_dtype),
        )

    def requests(self) -> tuple[AttentionRequests, ...]:
        """As backends price it: selected or compressed rows as a decode of each token over as many as it sees; a few
        tokens of a latent decode (speculation) as further query heads on the same rows.
        """
        heads = self.q_heads, self.kv_heads, self.d_qk, self.d_v
        # Where rows are selected tokens see rows of their own: neighbors share none for certain
        selects = self.top_k is not None and self.ratio > 0 and self.s_kv // self.ratio > self.top_k
        if self.ratio == self.ranks == 1 and not self.window and not selects:
            past = self.s_kv - self.s_q
            if self.value_in_key and 1 < self.s_q <= min(DECODED_TOGETHER, past):
                rows = past + (self.s_q - 1) / 2
                return (
                    AttentionRequests(self.b, 1, rows, self.q_heads * self.s_q, *heads[1:], inf, 1, self.value_in_key),
                )
            return (AttentionRequests(self.b, self.s_q, past, *heads, inf, 1, self.value_in_key),)
        tokens = self.tokens
        seen = (self.row_pairs + self.window_pairs) / max(tokens, 1)
        if self.gradient:
            # A work-group holds the query heads of a key head as its rows: neighbors share no keys for certain.
            rows = self.q_heads // self.kv_heads
            return (AttentionRequests(tokens, rows, seen - rows, *heads[1:2], *heads[1:], inf, 0, self.value_in_key),)
        return (AttentionRequests(tokens, 1, max(seen - 1, 0), *heads, inf, 1, self.value_in_key),)

    def backward(self) -> SelectiveAttentionBackward:
        return with_fields_of(self, SelectiveAttentionBackward)


class SelectiveAttentionBackward(SelectiveAttention, category=SDPABackward.category, gradient=True):
    """The gradients of Q and of the rows: the scores again, then dV, dP, dQ and dK.

    flops = 2 * q_heads * pairs * (3*d_qk + 2*d_v); bytes = Q, O's gradient and the rows read, both gradients written.
    """

    def flops(self) -> int | float:
        return 2 * self.q_heads * (self.row_pairs + self.window_pairs) * (3 * self.d_qk + 2 * self.d_v)

    def moved(self) -> Moved:
        return (
            (self.tokens * self.q_heads * (2 * self.d_qk + self.d_v), self.dtype),
            (2 * self.rows_read * self.kv_heads * self.cache_width, self.cache_dtype),
        )


class IndexerScores(ModelRecord, category=SDPA.category, engine="matrix", priced_as="indexer"):
    """Scores by which each of the last ``s_q`` of ``s_kv`` tokens selects rows: ``heads`` queries of ``d`` per token on
    one key per ``ratio`` tokens, rectified, weighted and summed over heads.

    flops = 2 * heads * d * pairs, over the rows that a token may see; bytes = queries, weights and keys read, a score
    in fp32 per pair written. ``dtype`` is that of queries and keys; ``ranks`` as in ``SelectiveAttention``.
    """

    b: int
    s_q: int
    s_kv: int
    heads: int
    d: int
    ratio: int = 1
    ranks: int = 1
    dtype: DType | None = DType.FP8_E4M3FN

    @property
    def tokens(self) -> int | float:
        """Tokens that select, over the batch."""
        return _share(self.b * self.s_q, self.ranks)

    @property
    def pairs(self) -> int | float:
        """(token, row) pairs, over the batch."""
        return _share(self.b * visible_rows(self.s_q, self.s_kv, self.ratio), self.ranks)

    def flops(self) -> int | float:
        return 2 * self.heads * self.d * self.pairs

    def moved(self) -> Moved:
        tokens = self.tokens
        return (
            (tokens * self.heads * self.d + self.b * (self.s_kv // self.ratio) * self.d, self.dtype),
            (tokens * self.heads + self.pairs, DType.FP32),
        )

    def backward(self) -> IndexerScoresBackward:
        return with_fields_of(self, IndexerScoresBackward)


class IndexerScoresBackward(IndexerScores, category=SDPABackward.category, gradient=True):
    """The gradients of queries and keys, the scores again: three products per pair.

    bytes = queries, weights, keys and the scores' gradient read, the gradients of queries, weights and keys written.
    """

    def flops(self) -> int | float:
        return 6 * self.heads * self.d * self.pairs

    def moved(self) -> Moved:
        tokens = self.tokens
        elements = tokens * self.heads * self.d + self.b * (self.s_kv // self.ratio) * self.d
        return ((2 * elements, self.dtype), (2 * tokens * self.heads + self.pairs, DType.FP32))


class TopKRows(ModelRecord, category=SDPA.category, engine="none"):
    """The ``top_k`` rows of highest score for each of the last ``s_q`` of ``s_kv`` tokens.

    flops = 0: comparisons are not counted; bytes = a score of ``dtype`` per pair read, an index in int32 per selected
    row written.
    """

    b: int
    s_q: int
    s_kv: int
    top_k: int
    ratio: int = 1
    ranks: int = 1
    dtype: DType | None = DType.FP32

    def moved(self) -> Moved:
        scores = _share(self.b * visible_rows(self.s_q, self.s_kv, self.ratio), self.ranks)
        chosen = _share(self.b * visible_rows(self.s_q, self.s_kv, self.ratio, self.top_k), self.ranks)
        return ((scores, self.dtype), (chosen, DType.INT32))
