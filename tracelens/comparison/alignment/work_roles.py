"""What kind of work a call does: coarser than its category, and the same in every implementation."""

from __future__ import annotations

from tracelens.comparison.sides import Call

PRODUCT, ATTENTION, COMMUNICATION, COPY, STREAMING = "product", "attention", "communication", "copy", "streaming"
_ROLES = (
    (PRODUCT, ("GEMM", "GroupedGEMM", "CONV", "RNN", "MoE_fused", "MoE_unfused")),
    (ATTENTION, ("SDPA", "InferenceAttention", "SSM")),
    (COMMUNICATION, ("collectives", "EP_Communication", "CustomCollective", "record_param_comms", "MoE_comm")),
    (COPY, ("copy", "memcpy")),
)
#: Ops of experts' exchanges that sort rows in a rank's own memory.
_LOCAL = ("TokenPermute", "_OperationFuser")
#: Inductor's templates of matrix products.
_TEMPLATES = ("triton_tem_", "triton_mm", "triton_bmm")


def role(category: str, name: str = "") -> str:
    """Of a category, or of what is called so; all that only streams memory is of one kind.

    >>> role("MoE_comm_fwd", "MoEDispatch"), role("MoE_comm_fwd", "TokenPermuteMaskMap")
    ('communication', 'streaming')
    """
    if name.startswith(_TEMPLATES):
        return PRODUCT
    if name.startswith(_LOCAL):
        return STREAMING
    return next((name for name, prefixes in _ROLES if category.startswith(prefixes)), STREAMING)


def call_role(call: Call) -> str:
    """Of a call."""
    return role(call.category, call.kernel or call.name)
