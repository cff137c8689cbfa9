"""DeepEP without Megatron's wrappers: the methods of its buffer, and the ops that other frameworks register on them.

DeepEP's buffer is a class outside PyTorch's dispatcher: it records no op, and its kernels are known by name
(``internode_ll::dispatch``). What is recorded is what a framework puts around it: torchtitan registers
``deepep::dispatch`` and ``deepep::combine``, Megatron-LM has the autograd functions ``FusedDispatch`` and
``FusedCombine``. Ops named after the buffer's methods follow ``csrc/deep_ep.hpp``.

Rows are counted once per token in the normal mode, where a token travels once per destination rank, and once per token
and expert in the low-latency mode, which sends a copy to every chosen expert.
"""

from __future__ import annotations

from tracelens import EPComm, OpSignature, traced_as
from tracelens.perf_models.collective import COMBINE, DISPATCH, given_tokens, routed_tokens


@traced_as("FusedDispatch", "FusedCombineBackward", "HybridEPCombineBackward", "hybridep::dispatch")
def _dispatch(op: OpSignature) -> EPComm:
    """(x [t,h], token_indices [t,k], token_probs, num_experts, ...); the gradient of a combine's result alone."""
    found = routed_tokens(op)
    return EPComm(
        tokens=found.tokens, hidden=found.hidden, dtype=found.dtype, topk=found.topk, experts=found.number,
        phase=DISPATCH,
    )  # fmt: skip


@traced_as("HybridEPDispatch")
def _hybrid_dispatch(op: OpSignature) -> EPComm:
    """(x [t,h], routing_map [t,e], probs [t,e], ...)."""
    found = routed_tokens(op)
    return EPComm(tokens=found.tokens, hidden=found.hidden, dtype=found.dtype, experts=found.flags, phase=DISPATCH)


@traced_as("deepep::dispatch", "deep_ep::intranode_dispatch", "deep_ep::internode_dispatch")
def _buffer_dispatch(op: OpSignature) -> EPComm:
    """(x [t,h], .., topk_idx [t,k], .., is_token_in_rank [t,p], ...), every argument in its place."""
    found = routed_tokens(op, may_be_pair=False)
    return EPComm(
        tokens=found.tokens, hidden=found.hidden, dtype=found.dtype, topk=found.topk, ranks=found.flags, phase=DISPATCH
    )


@traced_as(
    "FusedCombine", "FusedDispatchBackward", "deepep::combine", "deep_ep::intranode_combine",
    "deep_ep::internode_combine",
)  # fmt: skip
def _combine(op: OpSignature) -> EPComm:
    """(x [rows,h], ...): the rows that arrived, one per token and sending rank."""
    (tokens, hidden), dtype = given_tokens(op)
    return EPComm(tokens=tokens, hidden=hidden, dtype=dtype, phase=COMBINE)


@traced_as("HybridEPCombine", "HybridEPDispatchBackward", "hybridep::combine")
def _hybrid_combine(op: OpSignature) -> EPComm:
    """(x [rows,h], ...): HybridEP sorts rows by expert, so there is one per token and expert, padded."""
    (tokens, hidden), dtype = given_tokens(op)
    return EPComm(tokens=tokens, hidden=hidden, dtype=dtype, phase=COMBINE, per_expert=True)


@traced_as("deep_ep::low_latency_dispatch")
def _low_latency_dispatch(op: OpSignature) -> EPComm:
    """(x [t,h], topk_idx [t,k], ...): a copy per choice; in x's type, also where the kernel narrows it to FP8."""
    (tokens, hidden), dtype = given_tokens(op)
    topk = op.shape(1, rank=2)[1]
    return EPComm(tokens=tokens, hidden=hidden, dtype=dtype, topk=topk, rows=tokens * topk, phase=DISPATCH)


@traced_as("deep_ep::low_latency_combine")
def _low_latency_combine(op: OpSignature) -> EPComm:
    """(x [local experts, slots, h], topk_idx [t,k], ...): the slots are padded, so the choices say how many rows."""
    tokens, topk = op.shape(1, rank=2)
    return EPComm(
        tokens=tokens * topk, hidden=op.shape(0, rank=3)[2], dtype=op.dtype(0), topk=topk, own_tokens=tokens,
        phase=COMBINE,
    )  # fmt: skip
