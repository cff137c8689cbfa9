"""SageAttention: queries and keys in int8, values in FP16 or FP8; CUDA ops and AITER's Triton kernel."""

from __future__ import annotations

from tracelens import DType, OpSignature, SignatureError, traced_as_pattern
from tracelens.perf_models import SDPA
from tracelens.perf_models.sdpa import Mask


@traced_as_pattern(r"^sageattention\w*::qk_int8_sv_f(?:8|16)_accum_\w+$")
def _attention(op: OpSignature) -> SDPA:
    """(q, k, v, result, scales of q and k, .., layout, causal, ...): layout 0 is [b,s,h,d], 1 [b,h,s,d].

    The value's tensor is transposed and padded in some versions: the result says how wide it is.
    """
    values = [op.literal(i) for i in range(len(op.scalars or ()))]
    numbers = [v for v in values if isinstance(v, int) and not isinstance(v, bool)]
    if len(numbers) < 2 or not {numbers[0], numbers[1]} <= {0, 1}:
        raise SignatureError(f"{op.name}: layout and mask are not among {numbers}")
    return _sdpa(op, 1 if numbers[0] else 2, out=3, mask="top_left" if numbers[1] else "none")


@traced_as_pattern(r"^sage_fwd(?:_\d+)?$", category=SDPA.category)
def _triton_kernel(op: OpSignature) -> SDPA:
    """Arguments of the kernel: q, k, v, scales [b,h,blocks] of q and k, .., result; its mask is not recorded."""
    tensors = [i for i in range(len(op.shapes or ())) if op.has(i)]
    whole = [i for i in tensors if len(op.shape(i)) == 4]
    scales = [op.shape(i) for i in tensors if len(op.shape(i)) == 3]
    if len(whole) < 3:
        raise SignatureError(f"{op.name}: q, k and v were not recorded")
    q = op.shape(whole[0])
    heads_at = next((at for at in (1, 2) for s in scales if s[:2] == (q[0], q[at]) and s[2] <= q[3 - at]), None)
    if heads_at is None:
        raise SignatureError(f"{op.name}: no scales say which dim of {list(q)} counts the heads")
    out = next((i for i in whole[3:] if op.shape(i)[:3] == q[:3]), None)
    return _sdpa(op, heads_at, slots=(whole[0], whole[1], whole[2]), out=out, mask=None)


def _sdpa(
    op: OpSignature, heads_at: int, *, slots: tuple[int, int, int] = (0, 1, 2), out: int | None, mask: Mask | None
) -> SDPA:
    q, k = op.shape(slots[0], rank=4), op.shape(slots[1], rank=4)
    return SDPA(
        b=q[0],
        s_q=q[3 - heads_at],
        s_kv=k[3 - heads_at],
        q_heads=q[heads_at],
        kv_heads=k[heads_at],
        d_qk=q[3],
        d_v=q[3] if out is None else op.shape(out, rank=4)[3],
        mask=mask,
        dtype=op.dtype(slots[0]),
        dtype_k=op.dtype(slots[1]),
        dtype_v=op.dtype(slots[2]),
        # without a recorded result 16 bits: the kernels offer FP16 and BF16
        dtype_out=op.dtype(out) if out is not None else DType.BF16,
    )
