"""Attention over a cache whose rows are shared by heads, compressed, or selected by an indexer."""

from __future__ import annotations

from math import inf
from typing import ClassVar

from tracelens.dtypes import DType
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import Like, Moved, PerfModel, resolved, with_fields_of
from tracelens.perf_models.sdpa import SDPA, AttentionRequests, SDPABackward, attended_pairs, attention_flops


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectiveAttention(PerfModel):
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

    category: ClassVar[str] = SDPA.category
    engine: ClassVar[str] = "matrix"
    priced_as: ClassVar[str | None] = "sdpa"

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

    @property
    def cache_dtype(self) -> DType | None:
        """The type of the cache."""
        return resolved(self.dtype_kv, self.dtype)

    @property
    def is_selected(self) -> bool:
        """Whether tokens see rows of their own, so that neighbors share none for certain."""
        return self.top_k is not None and self.ratio > 0 and self.s_kv // self.ratio > self.top_k

    def flops(self) -> int | float:
        pairs = self.row_pairs + self.window_pairs
        flops: int | float = attention_flops(pairs, self.q_heads, self.d_qk, self.d_v)
        return flops

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
        if self.ratio == self.ranks == 1 and not self.window and not self.is_selected:
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
        """The gradient of the same call."""
        return with_fields_of(self, SelectiveAttentionBackward)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectiveAttentionBackward(SelectiveAttention):
    """The gradients of Q and of the rows: the scores again, then dV, dP, dQ and dK.

    flops = 2 * q_heads * pairs * (3*d_qk + 2*d_v); bytes = Q, O's gradient and the rows read, both gradients written.
    """

    category: ClassVar[str] = SDPABackward.category
    gradient: ClassVar[bool] = True

    def flops(self) -> int | float:
        return 2 * self.q_heads * (self.row_pairs + self.window_pairs) * (3 * self.d_qk + 2 * self.d_v)

    def moved(self) -> Moved:
        return (
            (self.tokens * self.q_heads * (2 * self.d_qk + self.d_v), self.dtype),
            (2 * self.rows_read * self.kv_heads * self.cache_width, self.cache_dtype),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerScores(PerfModel):
    """Scores by which each of the last ``s_q`` of ``s_kv`` tokens selects rows: ``heads`` queries of ``d`` per token on
    one key per ``ratio`` tokens, rectified, weighted and summed over heads.

    flops = 2 * heads * d * pairs, over the rows that a token may see; bytes = queries, weights and keys read, a score
    in fp32 per pair written. ``dtype`` is that of queries and keys; ``ranks`` as in ``SelectiveAttention``.
    """

    category: ClassVar[str] = SDPA.category
    engine: ClassVar[str] = "matrix"
    priced_as: ClassVar[str | None] = "indexer"

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
        """The gradient of the same call."""
        return with_fields_of(self, IndexerScoresBackward)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexerScoresBackward(IndexerScores):
    """The gradients of queries and keys, the scores again: three products per pair.

    bytes = queries, weights, keys and the scores' gradient read, the gradients of queries, weights and keys written.
    """

    category: ClassVar[str] = SDPABackward.category
    gradient: ClassVar[bool] = True

    def flops(self) -> int | float:
        return 6 * self.heads * self.d * self.pairs

    def moved(self) -> Moved:
        tokens = self.tokens
        elements = tokens * self.heads * self.d + self.b * (self.s_kv // self.ratio) * self.d
        return ((2 * elements, self.dtype), (2 * tokens * self.heads + self.pairs, DType.FP32))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKRows(PerfModel):
    """The ``top_k`` rows of highest score for each of the last ``s_q`` of ``s_kv`` tokens.

    flops = 0: comparisons are not counted; bytes = a score of ``dtype`` per pair read, an index in int32 per selected
    row written.
    """

    category: ClassVar[str] = SDPA.category
    engine: ClassVar[str] = "none"

    b: int
    s_q: int
    s_kv: int
    top_k: int
    ratio: int = 1
    ranks: int = 1
    dtype: DType | None = DType.FP32

    def flops(self) -> int:
        return 0

    def moved(self) -> Moved:
        scores = _share(self.b * visible_rows(self.s_q, self.s_kv, self.ratio), self.ranks)
        chosen = _share(self.b * visible_rows(self.s_q, self.s_kv, self.ratio, self.top_k), self.ranks)
        return ((scores, self.dtype), (chosen, DType.INT32))
