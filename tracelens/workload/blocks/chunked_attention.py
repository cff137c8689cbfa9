"""Attention within chunks of tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from tracelens.perf_models import SDPA
from tracelens.workload.blocks.attention import Attention
from tracelens.workload.model_shape import ModelShape


class ChunkedAttention(Attention):
    """Attention of a token to those before it in its chunk of ``chunk`` tokens (Llama 4's layers with positions)."""

    name: ClassVar[str] = "chunked_attention"

    def needs(self, shape: ModelShape) -> dict[str, Any]:
        return {"chunk": shape.chunk, **super().needs(shape)}

    def window(self, shape: ModelShape) -> int | None:
        return shape.chunk

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

    def cached_elements(self, shape: ModelShape) -> int:
        """None that stay: see ``window_bytes``."""
        return 0

    def window_bytes(self, shape: ModelShape, width: float) -> tuple[int, float]:
        return shape.chunk or 0, super().cached_elements(shape) * width


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
