"""Dao-AILab flash-attn 2 and 3: what ``flash_attn`` records when it is called directly.

Causal masks are aligned to the bottom right (flash-attn >= 2.1): the last query sees every key. Packed calls (varlen)
do not record the single lengths, only their sum, their number and the longest: FLOPs are known only where all
sequences are as long as the longest, and are not determined otherwise.
"""

from __future__ import annotations

from tracelens import SDPA, CategoryOf, OpSignature, traced_as
from tracelens.perf_models import SDPABackward, bind
from tracelens.perf_models.sdpa import causal, gradients_of, packed_by_lengths, rows_then_heads, windowed


@traced_as("FlashAttnFunc", "flash_attn::_flash_attn_forward")
def _forward(op: OpSignature) -> SDPA:
    """(q, k, v, dropout_p, softmax_scale, causal, window_size_left, window_size_right, ...)."""
    window = windowed(op, 6, 7, op.literal(5))
    return rows_then_heads(op, 0, dropout=op.literal(3), mask=causal(op.literal(5), "bottom_right"), **window)


@traced_as("flash_attn::_flash_attn_backward")
def _backward(op: OpSignature) -> SDPABackward:
    """(dO, q, k, v, o, lse, dq, dk, dv, dropout_p, softmax_scale, causal, window_size_left, window_size_right, ...).

    Some builds record one slot less before dropout_p; the causal flag is the one that is a truth value.
    """
    at = 10 if isinstance(op.literal(10), bool) else 11
    fields = {"dropout": op.literal(at - 2), "mask": causal(op.literal(at), "bottom_right")}
    return rows_then_heads(op, 1, **fields, **windowed(op, at + 1, at + 2, op.literal(at))).backward()


def _version_3(op: OpSignature, first: int, *, cumulative: int, longest: int, is_causal: int) -> SDPA:
    if op.has(cumulative) and op.has(cumulative + 1):
        return _packed(op, first, cumulative=cumulative, longest=longest, dropout=None, is_causal=is_causal)
    window = windowed(op, is_causal + 1, is_causal + 2, op.literal(is_causal))
    return rows_then_heads(op, first, mask=causal(op.literal(is_causal), "bottom_right"), **window)


def _packed(op: OpSignature, first: int, *, cumulative: int, longest: int, dropout: int | None, is_causal: int) -> SDPA:
    """Slots ``cumulative`` and the next: running lengths of queries and keys, one more than there are sequences.

    The window sizes follow ``is_causal``; without a slot for ``dropout`` there is none.
    """
    fields = {} if dropout is None else {"dropout": op.literal(dropout)}
    return packed_by_lengths(
        op,
        first,
        cumulative=cumulative,
        longest=longest,
        mask=causal(op.literal(is_causal), "bottom_right"),
        **fields,
        **windowed(op, is_causal + 1, is_causal + 2, op.literal(is_causal)),
    )


#: The gradient's own record does not show the keys; where a sequence number leads to the forward, that does.
FUNCTION_BACKWARD = CategoryOf(category="SDPA_bwd", names=("FlashAttnFuncBackward",))


#: Calls that only say where the operands stand, by the arguments as they are recorded.
BINDINGS = (
    # Slots 7 and 8: running lengths of packed sequences; 24 to 26: is_causal and the window sizes
    bind(_version_3, "flash_attn_3::fwd", first=0, cumulative=7, longest=12, is_causal=24),
    # (dO, q, k, v, o, lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, max_q, max_k, scale, causal,
    # left, right, ...)
    bind(gradients_of, "flash_attn_3::bwd", forward=_version_3, first=1, cumulative=9, longest=13, is_causal=16),
    bind(_packed, "flash_attn::_flash_attn_varlen_forward", first=0, cumulative=3, longest=5, dropout=7, is_causal=9),
    bind(
        gradients_of, "flash_attn::_flash_attn_varlen_backward", forward=_packed, first=1,
        cumulative=9, longest=11, dropout=13, is_causal=15,
    ),
)  # fmt: skip
