"""Flex attention: PyTorch's compiled attention whose mask and scores are user code."""

from __future__ import annotations

from typing import TypeVar

from tracelens.errors import SignatureError
from tracelens.perf_models.base import traced_as_pattern
from tracelens.perf_models.sdpa import SDPA, SDPABackward
from tracelens.signature import OpSignature

Kind = TypeVar("Kind", bound=SDPA)


@traced_as_pattern(r"^triton_tem_fused\w*?flex_(?:attention|decoding)(?!\w*backward)")
def _forward(op: OpSignature) -> SDPA:
    """Inductor's template: q, k and v [b,h,s,d] come first.

    Which blocks of keys are seen stands in the values of the block mask, so the FLOPs are unknown.
    """
    return _attention(op, SDPA)


@traced_as_pattern(r"^triton_tem_fused\w*?flex_attention\w*backward")
def _backward(op: OpSignature) -> SDPABackward:
    """The gradients of q, k and v: these come first here too."""
    return _attention(op, SDPABackward)


def _attention(op: OpSignature, kind: type[Kind]) -> Kind:
    whole = [i for i, slot in enumerate(op.shapes or ()) if len(slot) == 4 and not isinstance(slot[0], tuple)]
    if len(whole) < 3:
        raise SignatureError(f"{op.name}: q, k and v were not recorded")
    q, k, v = (op.shape(i) for i in whole[:3])
    if q[3] != k[3] or k[:3] != v[:3] or k[1] == 0 or q[1] % k[1]:
        raise SignatureError(f"{op.name}: {list(q)}, {list(k)} and {list(v)} are no queries, keys and values")
    return kind(
        b=q[0],
        s_q=q[2],
        s_kv=k[2],
        q_heads=q[1],
        kv_heads=k[1],
        d_qk=q[3],
        d_v=v[3],
        mask=None,
        dtype=op.dtype(whole[0]),
        dtype_k=op.dtype(whole[1]),
        dtype_v=op.dtype(whole[2]),
    )
