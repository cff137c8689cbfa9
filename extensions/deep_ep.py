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


@traced_as(
    "deepep::dispatch", "deepep::combine", "hybridep::dispatch", "hybridep::combine",
    "FusedDispatch", "FusedCombine", "FusedDispatchBackward", "FusedCombineBackward",
    "deep_ep::intranode_dispatch", "deep_ep::intranode_combine",
    "deep_ep::internode_dispatch", "deep_ep::internode_combine",
)  # fmt: skip
def _exchange(op: OpSignature) -> EPComm:
    """(x [t,h], ...): a dispatch is given its own tokens, a combine the rows that arrived."""
    tokens, hidden = op.shape(0, rank=2)
    return EPComm(tokens=tokens, hidden=hidden, dtype=op.dtype(0))


@traced_as("deep_ep::low_latency_dispatch")
def _low_latency_dispatch(op: OpSignature) -> EPComm:
    """(x [t,h], topk_idx [t,k], ...): counted in x's type, also where the kernel narrows it to FP8."""
    tokens, hidden = op.shape(0, rank=2)
    return EPComm(tokens=tokens * op.shape(1, rank=2)[1], hidden=hidden, dtype=op.dtype(0))


@traced_as("deep_ep::low_latency_combine")
def _low_latency_combine(op: OpSignature) -> EPComm:
    """(x [local experts, slots, h], topk_idx [t,k], ...): the slots are padded, so the choices say how many rows."""
    tokens, top_k = op.shape(1, rank=2)
    return EPComm(tokens=tokens * top_k, hidden=op.shape(0, rank=3)[2], dtype=op.dtype(0))
