"""flash-linear-attention (``fla``): autograd functions of its chunked kernels, recorded with the arguments of apply."""

from __future__ import annotations

from tracelens import OpSignature, SignatureError
from tracelens.perf_models import BackwardPairs, LinearAttention, bind
from tracelens.perf_models.recurrent_layers import Rule


def _of(op: OpSignature, rule: Rule) -> LinearAttention:
    b, tokens, k_heads, d_k = op.shape(1, rank=4)
    _, _, v_heads, d_v = op.shape(2, rank=4)
    if op.shape(0) != op.shape(1) or v_heads % k_heads:
        raise SignatureError(f"{op.name}: {k_heads} key heads and {v_heads} value heads are no heads that share keys")
    return LinearAttention(
        tokens=b * tokens,
        v_heads=v_heads,
        d_k=d_k,
        d_v=d_v,
        qkv_width=2 * k_heads * d_k + v_heads * d_v,
        rule=rule,
        dtype=op.dtype(0),
    )


BACKWARDS = BackwardPairs(
    pairs=tuple((name, f"{name}Backward") for name in ("ChunkGatedDeltaRuleFunction", "ChunkKDAFunction"))
)


#: Calls that only say where the operands stand, by the arguments as they are recorded.
BINDINGS = (
    # (q [b,t,hk,dk], k, v [b,t,hv,dv], g [b,t,hv], beta, ...): one decay per head
    bind(_of, "ChunkGatedDeltaRuleFunction", rule="delta"),
    # (q [b,t,h,dk], k, v [b,t,h,dv], g [b,t,h,dk], beta, ...): a decay per key channel
    bind(_of, "ChunkKDAFunction", rule="channel_delta"),
)  # fmt: skip
