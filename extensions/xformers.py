"""xFormers' flash attention: the custom ops that ``memory_efficient_attention`` calls.

Its other kernels are recorded as ``aten::_efficient_attention_forward``, or as ``aten::_flash_attention_forward`` below
these ops, which then count. Causal masks are aligned to the bottom right: xFormers refuses others of unequal lengths.
"""

from __future__ import annotations

from tracelens import SDPA, OpSignature, traced_as
from tracelens.perf_models import SDPABackward
from tracelens.perf_models.sdpa import causal, packed_by_lengths, rows_then_heads, windowed


@traced_as("xformers_flash::flash_fwd", leaf_only=True)
def _forward(op: OpSignature) -> SDPA:
    """(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, max_q, max_k, dropout, scale, causal, left, right, ...)."""
    return _attention(op, 0, cumulative=3, longest=6, dropout=8)


@traced_as("xformers_flash::flash_bwd", leaf_only=True)
def _backward(op: OpSignature) -> SDPABackward:
    """(storage, dO, q, k, v, o, lse, cu_q, cu_k, max_q, max_k, dropout, scale, causal, left, right, ...)."""
    return _attention(op, 2, cumulative=7, longest=9, dropout=11).backward()


def _attention(op: OpSignature, first: int, *, cumulative: int, longest: int, dropout: int) -> SDPA:
    """Scale, causal flag and window follow ``dropout``; with running lengths the sequences are packed."""
    is_causal = op.literal(dropout + 2)
    fields = {
        "dropout": op.literal(dropout),
        "mask": causal(is_causal, "bottom_right"),
        **windowed(op, dropout + 3, dropout + 4, is_causal),
    }
    if not op.has(cumulative):
        return rows_then_heads(op, first, **fields)
    return packed_by_lengths(op, first, cumulative=cumulative, longest=longest, **fields)
