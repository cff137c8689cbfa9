"""Scaled dot-product attention and flex attention, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod
from typing import Any, Literal, NamedTuple, TypeAlias

from tracelens.errors import SignatureError
from tracelens.perf_models.base import (
    Like,
    ModelRecord,
    Moved,
    Slot,
    bind,
    distinct_elements,
    number,
    recorded_as,
    recorded_call,
    resolved,
    traced_as_pattern,
    traced_name,
    with_fields_of,
)
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature

#: Which keys query ``i`` sees. ``top_left``: keys ``<= i`` (aten's ``is_causal``); ``bottom_right``: keys
#: ``<= i + s_kv - s_q`` (flash-attn >= 2.1, whose changelog describes the change). They agree when the lengths do.
Mask: TypeAlias = Literal["none", "top_left", "bottom_right"]


def attended_pairs(s_q: int, s_kv: int, mask: Mask, window: int | None = None, ahead: int | None = None) -> int:
    """(query, key) pairs that are computed, in closed form; a ``window`` keeps each query's last ``window`` keys.

    Without a mask, a query's own key is the one that ``bottom_right`` says, and ``ahead`` how many it sees after it.

    >>> attended_pairs(4, 4, "top_left"), attended_pairs(2, 4, "top_left"), attended_pairs(2, 4, "bottom_right")
    (10, 3, 7)
    """
    first = 1 if mask == "top_left" else s_kv - s_q + 1  # keys up to query 0's own
    if mask != "none":
        seen = _clipped_ramp(first, s_q, s_kv)
    else:
        seen = s_q * s_kv if ahead is None else _clipped_ramp(first + ahead, s_q, s_kv)
    # what leaves the window is what a ramp that starts ``window`` keys later attends
    return seen if window is None else seen - _clipped_ramp(first - window, s_q, s_kv)


def _clipped_ramp(first: int, count: int, ceiling: int) -> int:
    """Sum of ``min(max(first + i, 0), ceiling)`` for ``i`` in ``range(count)``."""
    last = first + count - 1
    low, high = max(first, 1), min(last, ceiling)
    ramp = (low + high) * (high - low + 1) // 2 if high >= low else 0
    return ramp + ceiling * max(0, count - max(0, ceiling + 1 - first))


def attention_flops(pairs: Any, q_heads: Any, d_qk: Any, d_v: Any) -> Any:
    """Operations of scores and weighted sums over ``pairs`` per head. Numbers or arrays."""
    return 2 * q_heads * pairs * (d_qk + d_v)


def row_elements(q_heads: Any, kv_heads: Any, d_qk: Any, d_v: Any) -> tuple[Any, Any, Any, Any]:
    """Elements of a token's row of Q, K, V and O. Numbers or arrays."""
    return q_heads * d_qk, kv_heads * d_qk, kv_heads * d_v, q_heads * d_v


class AttentionRequests(NamedTuple):
    """``b`` sequences of ``s`` new tokens, each over ``past + s`` keys: what backends price attention by.

    ``causal`` 0 or 1. ``value_in_key``: the values are the first ``d_v`` elements of the keys' rows.
    """

    b: float
    s: float
    past: float
    q_heads: float
    kv_heads: float
    d_qk: float
    d_v: float
    window: float = inf
    causal: float = 1
    value_in_key: bool = False


class SDPA(ModelRecord, category="SDPA_fwd", engine="matrix", priced_as="sdpa"):
    """``O = softmax(Q @ K^T) @ V`` per head; ``q_heads / kv_heads`` query heads share one key and value head.

    flops = 2 * q_heads * pairs * (d_qk + d_v), over the attended pairs only (see ``attended_pairs``); the softmax is
    left out, as in torch.utils.flop_counter. bytes = one read of Q, K and V, one write of O; no scores.

    ``s_q`` and ``s_kv`` are None where sequences are packed and their lengths were not recorded: then flops are
    unknown, while ``tokens_q`` and ``tokens_kv``, the rows of the packed tensors, still give the bytes. ``pairs``,
    when given, is the number of attended pairs per head over all ``b`` sequences, for callers that know the lengths.
    ``mask`` None is *not recorded*. ``window`` and ``ahead`` as in ``attended_pairs``: keys that no query sees are not
    read. ``dtype`` is Q's; K, V and O are like it unless said otherwise. ``bias_elements`` of ``dtype_bias``, a bias or
    mask added to the scores, are read once; its addition is left out of the flops like the softmax.
    """

    b: int
    s_q: int | None
    s_kv: int | None
    q_heads: int
    kv_heads: int
    d_qk: int
    d_v: int
    mask: Mask | None = "none"
    window: int | None = None
    ahead: int | None = None
    dropout: float | None = 0.0
    pairs: int | None = None
    tokens_q: int | None = None
    tokens_kv: int | None = None
    flash: bool | None = None
    dtype: DType | None = DType.BF16
    dtype_k: DType | Like | None = Like.FIRST
    dtype_v: DType | Like | None = Like.FIRST
    dtype_out: DType | Like | None = Like.FIRST
    bias_elements: int = 0
    bias_gradient: int = 0
    dtype_bias: DType | Like | None = Like.FIRST

    def flops(self) -> int | None:
        pairs = self.total_pairs
        return None if pairs is None else attention_flops(pairs, self.q_heads, self.d_qk, self.d_v)

    def moved(self) -> Moved | None:
        q, k, v, o = self._elements()
        if q is None or k is None or v is None:
            return None
        seen = self._seen_keys
        if seen is not None and self.s_kv:
            k, v = k * seen // self.s_kv, v * seen // self.s_kv
        return (
            (q, self.dtype), (k, self.dtype_k), (v, self.dtype_v), (o or 0, self.dtype_out),
            (self.bias_elements, self.dtype_bias),
        )  # fmt: skip

    @property
    def cache_dtype(self) -> DType | None:
        return resolved(self.dtype_k, self.dtype)

    def requests(self) -> tuple[AttentionRequests, ...]:
        """As backends price it; none where lengths or the mask were not recorded."""
        if self.s_q is None or self.s_kv is None or self.mask is None:
            return ()
        # A top-left mask sees no more keys than queries; past is what bottom-right adds.
        keys = min(self.s_kv, self.s_q) if self.mask == "top_left" else self.s_kv
        window, causal = inf if self.window is None else self.window, self.mask != "none"
        heads = self.q_heads, self.kv_heads, self.d_qk, self.d_v
        return (AttentionRequests(self.b, self.s_q, max(keys - self.s_q, 0), *heads, window, causal),)

    def backward(self) -> SDPABackward:
        return with_fields_of(self, SDPABackward)

    @property
    def total_pairs(self) -> int | None:
        """Attended pairs per head, over the batch."""
        if self.pairs is not None:
            return self.pairs
        if self.s_q is None or self.s_kv is None or self.mask is None:
            return None
        return self.b * attended_pairs(self.s_q, self.s_kv, self.mask, self.window, self.ahead)

    @property
    def _seen_keys(self) -> int | None:
        """Keys of a sequence that a query sees, where a window hides the first of them."""
        if self.window is None or self.s_q is None or self.s_kv is None or self.mask == "top_left":
            return None
        return min(self.s_kv, self.s_q + self.window - 1)

    def _elements(self) -> tuple[int | None, int | None, int | None, int | None]:
        """Elements of Q, K, V and O."""
        rows_q = self.tokens_q if self.tokens_q is not None else _times(self.b, self.s_q)
        rows_kv = self.tokens_kv if self.tokens_kv is not None else _times(self.b, self.s_kv)
        q, k, v, o = row_elements(self.q_heads, self.kv_heads, self.d_qk, self.d_v)
        return _times(q, rows_q), _times(k, rows_kv), _times(v, rows_kv), _times(o, rows_q)

    def parameters(self) -> dict[str, Any]:
        return {
            "B": self.b, "N_Q": self.s_q, "H_Q": self.q_heads, "N_KV": self.s_kv, "H_KV": self.kv_heads,
            "d_h_qk": self.d_qk, "d_h_v": self.d_v, "dropout": self.dropout,
            "causal": None if self.mask is None else self.mask != "none", "mask": self.mask, "flash_impl": self.flash,
            **({} if self.window is None else {"sliding_window": self.window}),
            "dtype_A_B": (traced_name(self.dtype), traced_name(resolved(self.dtype_k, self.dtype))),
        }  # fmt: skip


class SDPABackward(SDPA, category="SDPA_bwd", gradient=True):
    """The gradients of Q, K and V.

    flops = 2 * q_heads * pairs * (3*d_qk + 2*d_v): the scores again, then dV, dP, dQ and dK, five products; plus one
    addition per element of dK and dV and query head beyond the first of its group. bytes = one read of Q, K, V, dO and
    the bias, one write of dQ, dK and dV, and of ``bias_gradient`` elements where the bias' gradient was asked for.
    """

    def flops(self) -> int | None:
        pairs = self.total_pairs
        if pairs is None:
            return None
        products = 2 * self.q_heads * pairs * (3 * self.d_qk + 2 * self.d_v)
        if self.q_heads == self.kv_heads:
            return products
        rows_kv = self.tokens_kv if self.tokens_kv is not None else _times(self.b, self.s_kv)
        if rows_kv is None:
            return None
        return products + rows_kv * (self.q_heads - self.kv_heads) * (self.d_qk + self.d_v)

    def moved(self) -> Moved | None:
        q, k, v, o = self._elements()
        if q is None or k is None:
            return None
        inputs = (q, self.dtype), (k, self.dtype_k), (v or 0, self.dtype_v)
        bias = (self.bias_elements + self.bias_gradient, self.dtype_bias)
        return (*inputs, (o or 0, self.dtype_out), *inputs, bias)


def _times(a: int, b: int | None) -> int | None:
    return None if b is None else a * b


def rows_then_heads(op: OpSignature, first: int, **fields: Any) -> SDPA:
    """SDPA of Q, K, V in slots ``first`` to ``first + 2``, laid out ``b s h d``; ``fields`` are SDPA's others."""
    q, k, _ = (op.shape(first + i, rank=4) for i in range(3))
    return _of_slots(op, first, heads=2, b=q[0], s_q=q[1], s_kv=k[1], **fields)


def packed(
    op: OpSignature,
    first: int,
    *,
    sequences: int | None,
    longest_q: int | None,
    longest_kv: int | None,
    sequences_kv: int | None = None,
    **fields: Any,
) -> SDPA:
    """SDPA of packed Q, K, V ``t h d``. Lengths are known only where all ``sequences`` are as long as the longest."""
    q, k, _ = (op.shape(first + i, rank=3) for i in range(3))
    s_q = longest_q if sequences and longest_q and q[0] == sequences * longest_q else None
    s_kv = longest_kv if sequences and longest_kv and k[0] == (sequences_kv or sequences) * longest_kv else None
    if sequences == 1:
        s_q, s_kv = q[0], k[0]
    rows = {"tokens_q": q[0], "tokens_kv": k[0]}
    return _of_slots(op, first, heads=1, b=sequences or 1, s_q=s_q, s_kv=s_kv, **rows, **fields)


def packed_by_lengths(op: OpSignature, first: int, *, cumulative: int, longest: int, **fields: Any) -> SDPA:
    """``packed``, from slots: ``cumulative`` and the next hold running lengths of queries and of keys, one more than
    there are sequences, ``longest`` and the next the longest of each.
    """
    return packed(
        op,
        first,
        sequences=op.shape(cumulative, rank=1)[0] - 1,
        sequences_kv=op.shape(cumulative + 1, rank=1)[0] - 1,
        longest_q=op.literal(longest),
        longest_kv=op.literal(longest + 1),
        **fields,
    )


def _of_slots(op: OpSignature, first: int, *, heads: int, **fields: Any) -> SDPA:
    """Heads, sizes and types of Q, K, V in slots ``first`` to ``first + 2``, whose dim ``heads`` counts heads."""
    q, k, v = (op.shape(first + i) for i in range(3))
    return SDPA(
        q_heads=q[heads], kv_heads=k[heads], d_qk=q[-1], d_v=v[-1],
        dtype=op.dtype(first), dtype_k=op.dtype(first + 1), dtype_v=op.dtype(first + 2), **fields,
    )  # fmt: skip


def gradients_of(op: OpSignature, *, forward: Callable[..., SDPA], **slots: Any) -> SDPABackward:
    return forward(op, **slots).backward()


def causal(recorded: Any, aligned: Mask) -> Mask | None:
    """The mask that a recorded ``is_causal`` flag means; None when it was not recorded."""
    if not isinstance(recorded, bool | int):
        return None
    return aligned if recorded else "none"


def windowed(op: OpSignature, left: int, right: int, is_causal: Any) -> dict[str, Any]:
    """SDPA's ``window`` and ``ahead`` from the slots of flash-attn's window sizes; -1 is no limit.

    A query sees itself and ``left`` keys before it; a causal mask hides those after it, whatever ``right`` says.
    """
    before, after = op.literal(left), op.literal(right)
    if isinstance(before, list | tuple) and len(before) == 2:
        before, after = before
    return {
        "window": before + 1 if _is_limit(before) else None,
        "ahead": after if _is_limit(after) and not is_causal else None,
    }


def _is_limit(size: Any) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size >= 0


def biased(op: OpSignature, index: int, gradient: bool = False) -> dict[str, Any]:
    """SDPA's fields of a bias or mask in slot ``index``: what broadcasting repeats is read once."""
    if not op.has(index):
        return {}
    shape = op.shape(index)
    return {
        "bias_elements": distinct_elements(shape, op.stride(index)),
        "bias_gradient": prod(shape) if gradient else 0,
        "dtype_bias": op.dtype(index),
    }


def _probability(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _scaled_dot_product(
    op: OpSignature,
    *,
    first: int = 0,
    dropout: int,
    is_causal: int,
    bias: int | None = None,
    asked: tuple[int, int] | None = None,
    **fields: Any,
) -> SDPA:
    """(q, k, v) from ``first``, ``b h s d``; ``asked``: list of wanted gradients, the bias' place in it."""
    fields["mask"] = causal(op.literal(is_causal), "top_left")
    fields["dropout"] = _probability(op.literal(dropout))
    if bias is not None:
        wanted, at = (op.literal(asked[0]), asked[1]) if asked else (None, 0)
        fields |= biased(op, bias, isinstance(wanted, list | tuple) and len(wanted) > at and wanted[at] is True)
    q, k, _ = (op.shape(first + i, rank=4) for i in range(3))
    return _of_slots(op, first, heads=1, b=q[0], s_q=q[2], s_kv=k[2], **fields)


DENSE_OPS = (
    # (q, k, v, dropout_p, is_causal, ...), with a mask in slot 5 on the CPU
    bind(_scaled_dot_product, "aten::_scaled_dot_product_flash_attention", dropout=3, is_causal=4, flash=True),
    bind(
        _scaled_dot_product, "aten::_scaled_dot_product_flash_attention_for_cpu", dropout=3, is_causal=4, bias=5,
        flash=True,
    ),
    # (q, k, v, attn_bias, compute_log_sumexp, dropout_p, is_causal, ...)
    bind(
        _scaled_dot_product, "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention", dropout=5, is_causal=6, bias=3, flash=False,
    ),
    # (q, k, v, attn_mask, dropout_p, is_causal, ...)
    bind(
        _scaled_dot_product, "aten::_scaled_dot_product_attention_math", leaf_only=True, dropout=4, is_causal=5, bias=3,
        flash=False,
    ),
    bind(_scaled_dot_product, "aten::scaled_dot_product_attention", leaf_only=True, dropout=4, is_causal=5, bias=3),
    # (dO, q, k, v, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, ...)
    bind(
        gradients_of, "aten::_scaled_dot_product_flash_attention_backward", forward=_scaled_dot_product, first=1,
        dropout=10, is_causal=11, flash=True,
    ),
    # (dO, q, k, v, out, logsumexp, dropout_p, is_causal, attn_mask, scale)
    bind(
        gradients_of, "aten::_scaled_dot_product_flash_attention_for_cpu_backward", forward=_scaled_dot_product,
        first=1, dropout=6, is_causal=7, bias=8, flash=True,
    ),
    # (dO, q, k, v, attn_bias, out, logsumexp, seed, offset, dropout_p, grad_input_mask, is_causal)
    bind(
        gradients_of, "aten::_scaled_dot_product_efficient_attention_backward", forward=_scaled_dot_product, first=1,
        dropout=9, is_causal=11, bias=4, asked=(10, 3), flash=False,
    ),
    # (dO, q, k, v, out, logsumexp, seed, offset, bias, cum_q, cum_k, max_q, max_k, dropout_p, is_causal)
    bind(
        gradients_of, "aten::_scaled_dot_product_cudnn_attention_backward", forward=_scaled_dot_product, first=1,
        dropout=13, is_causal=14, bias=8, flash=False,
    ),
)  # fmt: skip


def _flash(op: OpSignature, *, first: int, lengths: int, is_causal: int, window: int) -> SDPA:
    """flash-attn's own kernel, whose causal mask is anchored at the bottom right.

    Packed where slots ``lengths`` and the next hold running lengths of queries and keys; the longest ones follow. The
    dropout stands before ``is_causal``.
    """
    fields: dict[str, Any] = {
        "mask": causal(op.literal(is_causal), "bottom_right"),
        "dropout": _probability(op.literal(is_causal - 1)),
        "flash": True,
        **windowed(op, window, window + 1, op.literal(is_causal)),
    }
    if not op.has(lengths) and len(op.shape(first)) != 3:
        return rows_then_heads(op, first, **fields)
    sequences = op.shape(lengths, rank=1)[0] - 1 if op.has(lengths) else None
    q_max, kv_max = (value if isinstance(value := op.literal(lengths + i), int) else None for i in (2, 3))
    return packed(op, first, sequences=sequences, longest_q=q_max, longest_kv=kv_max, **fields)


def _efficient(op: OpSignature, *, first: int, lengths: int, dropout: int, mask: int) -> SDPA:
    """xFormers' kernel, laid out ``b s h d``, packed where slot ``lengths`` holds running lengths.

    The bias follows v; behind a backward's ``mask`` stands whether it has a gradient, and four slots behind the mask
    the window, which counts a query's own key: 0 or nothing is no window.
    """
    masks: dict[Any, Mask] = {0: "none", 1: "top_left", 2: "bottom_right"}
    window = op.literal(mask + 4)
    fields: dict[str, Any] = {
        "mask": masks.get(op.literal(mask)),
        "dropout": _probability(op.literal(dropout)),
        "flash": False,
        "window": window if _is_limit(window) and window > 0 else None,
        **biased(op, first + 3, first > 0 and op.literal(mask + 1) is True),
    }
    if not op.has(lengths):
        return rows_then_heads(op, first, **fields)
    # Packed sequences, recorded with a leading batch of one.
    q, k, _ = (op.shape(first + i, rank=4) for i in range(3))
    sequences = op.shape(lengths, rank=1)[0] - 1
    s_q, s_kv = (q[1], k[1]) if sequences == 1 else (None, None)
    return _of_slots(op, first, heads=2, b=sequences, tokens_q=q[1], tokens_kv=k[1], s_q=s_q, s_kv=s_kv, **fields)


PACKED_OPS = (
    # (q, k, v, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask, scale, window_size_left,
    # window_size_right, ...)
    bind(_flash, "aten::_flash_attention_forward", first=0, lengths=3, is_causal=8, window=11),
    # (dO, q, k, v, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, rng_state, unused, scale,
    # window_size_left, window_size_right)
    bind(gradients_of, "aten::_flash_attention_backward", forward=_flash, first=1, lengths=6, is_causal=11, window=15),
    # (q, k, v, bias, cu_seqlens_q, cu_seqlens_k, max_q, max_k, dropout_p, custom_mask_type, compute_log_sumexp, scale,
    # seqlen_k, window_size)
    bind(_efficient, "aten::_efficient_attention_forward", first=0, lengths=4, dropout=8, mask=9),
    # (dO, q, k, v, bias, out, cu_seqlens_q, cu_seqlens_k, max_q, max_k, logsumexp, dropout_p, seed, offset,
    # custom_mask_type, bias_requires_grad, scale, num_splits_key, window_size, ...)
    bind(
        gradients_of, "aten::_efficient_attention_backward", forward=_efficient, first=1, lengths=6, dropout=11, mask=14
    ),
)


def _recorded_operands(model: SDPA) -> tuple[Slot, Slot, Slot]:
    """Q, K and V of a dense call as ``b h s d``, stored ``b s h d`` as attention layers leave them."""
    s_q, s_kv = model.s_q or 0, model.s_kv or 0
    return (
        _heads_first(model, model.q_heads, s_q, model.d_qk, model.dtype),
        _heads_first(model, model.kv_heads, s_kv, model.d_qk, model.dtype_k),
        _heads_first(model, model.kv_heads, s_kv, model.d_v, model.dtype_v),
    )


def _heads_first(model: SDPA, heads: int, rows: int, size: int, dtype: DType | Like | None) -> Slot:
    strides = (heads * rows * size, size, heads * size, 1)
    return Slot.tensor((model.b, heads, rows, size), resolved(dtype, model.dtype), strides)


@recorded_as("aten::_scaled_dot_product_flash_attention")
def _recorded_scaled_dot_product_flash(model: SDPA) -> OpSignature:
    return recorded_call(
        "aten::_scaled_dot_product_flash_attention",
        *_recorded_operands(model),
        *(number(model.dropout or 0.0), number(model.mask != "none"), number(False), number("")),
    )


@recorded_as("aten::_scaled_dot_product_flash_attention_backward")
def _recorded_scaled_dot_product_flash_backward(model: SDPA) -> OpSignature:
    s_q = model.s_q or 0
    out = _heads_first(model, model.q_heads, s_q, model.d_v, model.dtype)
    log_sums = Slot.tensor((model.b, model.q_heads, s_q), DType.FP32)
    numbers = map(number, (s_q, model.s_kv or 0, model.dropout or 0.0, model.mask != "none"))
    seed = Slot(dtype="long int")
    return recorded_call(
        "aten::_scaled_dot_product_flash_attention_backward",
        *(out, *_recorded_operands(model), out, log_sums, Slot(), Slot(), *numbers, seed, seed, number("")),
    )


@traced_as_pattern(r"^triton_tem_fused\w*?flex_(?:attention|decoding)(?!\w*backward)")
def _flex_forward(op: OpSignature) -> SDPA:
    """Inductor's template: q, k and v [b,h,s,d] come first.

    Which blocks of keys are seen stands in the values of the block mask, so the FLOPs are unknown.
    """
    whole = [i for i, slot in enumerate(op.shapes or ()) if len(slot) == 4 and not isinstance(slot[0], tuple)]
    if len(whole) < 3:
        raise SignatureError(f"{op.name}: q, k and v were not recorded")
    q, k, v = (op.shape(i) for i in whole[:3])
    if q[3] != k[3] or k[:3] != v[:3] or k[1] == 0 or q[1] % k[1]:
        raise SignatureError(f"{op.name}: {list(q)}, {list(k)} and {list(v)} cannot be query, key and value")
    (b, q_heads, s_q, d_qk), (_, kv_heads, s_kv, d_v) = q, v
    dtype, dtype_k, dtype_v = map(op.dtype, whole[:3])
    return SDPA(
        b=b, s_q=s_q, s_kv=s_kv, q_heads=q_heads, kv_heads=kv_heads, d_qk=d_qk, d_v=d_v, mask=None,
        dtype=dtype, dtype_k=dtype_k, dtype_v=dtype_v,
    )  # fmt: skip


@traced_as_pattern(r"^triton_tem_fused\w*?flex_attention\w*backward")
def _flex_backward(op: OpSignature) -> SDPABackward:
    """The gradients of q, k and v: these come first here too."""
    return _flex_forward(op).backward()
