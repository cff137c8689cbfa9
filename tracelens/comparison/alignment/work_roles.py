"""What kind of work a call does: coarser than its category, and the same in every implementation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracelens.comparison.sides import Call, Ints

if TYPE_CHECKING:
    from tracelens.comparison.compared import ComparedRow

PRODUCT, ATTENTION, COMMUNICATION, COPY, STREAMING = "product", "attention", "communication", "copy", "streaming"
_SOFTMAX = "softmax"
_ROLES = (
    (PRODUCT, ("GEMM", "GroupedGEMM", "CONV", "RNN", "MoE_fused", "MoE_unfused")),
    (ATTENTION, ("SDPA", "InferenceAttention", "SSM")),
    (COMMUNICATION, ("collectives", "EP_Communication", "CustomCollective", "record_param_comms", "MoE_comm")),
    (COPY, ("copy", "memcpy")),
)
#: Ops of experts' exchanges that sort rows in a rank's own memory.
_LOCAL = ("TokenPermute", "_OperationFuser")
#: What cuBLAS, CUTLASS and Tensile run after the product whose parts it adds.
_ADDS_PARTS = re.compile(r"(?i:splitk_?reduce|reduce_?split_?k|PostGSU)")
#: Inductor's templates of matrix products.
_TEMPLATES = ("triton_tem_", "triton_mm", "triton_bmm")


def role(category: str, name: str = "") -> str:
    """Of a category, or of what is called so; all that only streams memory is of one kind.

    >>> role("MoE_comm_fwd", "any_dispatch"), role("MoE_comm_fwd", "TokenPermuteMaskMap")
    ('communication', 'streaming')
    """
    if name.startswith(_TEMPLATES):
        return PRODUCT
    if name.startswith(_LOCAL):
        return STREAMING
    return next((name for name, prefixes in _ROLES if category.startswith(prefixes)), STREAMING)


def row_role(row: ComparedRow) -> str:
    """Of a compared row."""
    return role(row.category, row.name)


def call_role(call: Call) -> str:
    """Of a call; a kernel of a softmax that stands for itself is that of attention from parts."""
    if call.kernel and _ADDS_PARTS.search(call.kernel):
        return STREAMING
    if call.kernel and call.category == _SOFTMAX:
        return ATTENTION
    return role(call.category, call.kernel or call.name)


def roles_of(calls: Sequence[Call], order: Ints) -> list[str]:
    """Of the calls in this order; the products on both sides of a softmax's kernel are of its attention."""
    known = [call_role(call) for call in calls]
    found = [known[number] for number in order.tolist()]
    for at, number in enumerate(order.tolist()):
        if calls[number].kernel and calls[number].category == _SOFTMAX:
            for near in (at - 1, at + 1):
                if 0 <= near < len(found) and found[near] == PRODUCT and calls[order[near]].kernel:
                    found[near] = ATTENTION
    return found
