"""DeepSpeed for science: the attention of Evoformer blocks."""

from __future__ import annotations

from tracelens import SDPA, CategoryOf, OpSignature, traced_as


@traced_as("EvoformerAttention", "EvoformerFusedAttention")
def _evoformer(op: OpSignature) -> SDPA:
    """(q [b,sequences,n,h,d], k, v, biases ...): every row of the alignment attends to itself, without a mask."""
    b, sequences, s_q, q_heads, d_qk = op.shape(0, rank=5)
    k = op.shape(1, rank=5) if op.has(1) else op.shape(0)
    v = op.shape(2, rank=5) if op.has(2) else k
    return SDPA(
        b=b * sequences,
        s_q=s_q,
        s_kv=k[2],
        q_heads=q_heads,
        kv_heads=k[3],
        d_qk=d_qk,
        d_v=v[4],
        mask="none",
        dtype=op.dtype(0),
        dtype_k=op.dtype(1) if op.has(1) else op.dtype(0),
        dtype_v=op.dtype(2) if op.has(2) else op.dtype(0),
    )


#: The gradient shows the queries only.
EVOFORMER_BACKWARD = CategoryOf(
    category="SDPA_bwd", names=("EvoformerAttentionBackward", "EvoformerFusedAttentionBackward")
)
