"""Megatron-LM: expert-parallel dispatch and combine by DeepEP, and its grouped GEMM.

The backward of a dispatch is a combine and the other way round, so each op below is read from its own tensor 0, and the
backward is costed like the forward it mirrors. The functions' arguments are recorded without the objects, strings and
pairs of tensors among them.
"""

from __future__ import annotations

from dataclasses import replace

from tracelens import CategoryOf, DType, EPComm, GroupedGEMM, OpSignature, SignatureError, recorded_as, traced_as
from tracelens.perf_models.base import Slot, recorded_call
from tracelens.perf_models.collective import COMBINE, DISPATCH, given_tokens, routed_tokens
from tracelens.perf_models.gemm import check_inner


class DeepEPDispatch(EPComm, frozen=True, kw_only=True):
    """Every local token to the ranks of its experts: ``tokens`` are the rank's own, before they are copied.

    wire_bytes = rows * hidden * width * remote_share, where ``rows`` are one copy per token and destination rank: as
    many as the layer's combine returns, else what even routing makes of top-k, experts and ranks. What remains open:

    1. Which copies stay on their rank: see ``remote_share``. Over RDMA a token crosses once per node.
    2. FP8 dispatch sends scales beside the tokens; only the tokens are counted.
    3. Bytes over the kernels' duration are an effective rate, waiting for the slowest rank included.
    """


class DeepEPCombine(EPComm, frozen=True, kw_only=True):
    """The experts' rows back to their tokens' ranks: ``tokens`` are the dispatched rows, one per copy.

    wire_bytes = tokens * hidden * width * remote_share: the copies that the dispatch made. What remains open:

    1. Which rows stay on their rank: see ``remote_share``.
    2. Where the rows of one token are summed before they are sent (DeepEP does so per node), fewer travel than counted.
    3. Bytes over the kernels' duration are an effective rate, waiting for the slowest rank included.
    """


@traced_as("DeepEPDispatch", "DeepEPCombineBackward")
def _dispatch(op: OpSignature) -> DeepEPDispatch:
    """(x [t,h], token_indices [t,k], token_probs, num_experts, ...); the gradient of a combine's result alone."""
    found = routed_tokens(op)
    return DeepEPDispatch(
        tokens=found.tokens, hidden=found.hidden, dtype=found.dtype, topk=found.topk, experts=found.number,
        buffer_rows=found.buffer_rows, phase=DISPATCH, ranks=_ranks(op),
    )  # fmt: skip


@traced_as("DeepEPCombine", "DeepEPDispatchBackward")
def _combine(op: OpSignature) -> DeepEPCombine:
    (tokens, hidden), dtype = given_tokens(op)
    return DeepEPCombine(tokens=tokens, hidden=hidden, dtype=dtype, phase=COMBINE, ranks=_ranks(op))


def _ranks(op: OpSignature) -> int | None:
    """The expert-parallel group's size, which today's profilers record on collectives only."""
    size = op.attribute("Group size")
    return size if isinstance(size, int) and size > 0 else None


@recorded_as("DeepEPDispatch")
def _recorded_dispatch(model: DeepEPDispatch) -> OpSignature:
    return _recorded("DeepEPDispatch", model)


@recorded_as("DeepEPCombine")
def _recorded_combine(model: DeepEPCombine) -> OpSignature:
    return _recorded("DeepEPCombine", model)


@recorded_as("DeepEPDispatchBackward")
def _recorded_dispatch_backward(model: DeepEPCombine) -> OpSignature:
    return _recorded("DeepEPDispatchBackward", model)


@recorded_as("DeepEPCombineBackward")
def _recorded_combine_backward(model: DeepEPDispatch) -> OpSignature:
    return _recorded("DeepEPCombineBackward", model)


def _recorded(name: str, model: EPComm) -> OpSignature:
    if model.hidden is None:
        raise SignatureError(f"{name}: the tokens' size is not known")
    call = recorded_call(name, Slot.tensor((model.tokens, model.hidden), model.dtype))
    return call if model.ranks is None else replace(call, attributes=(("Group size", model.ranks),))


@traced_as("GroupedGemm")
def _grouped_gemm(op: OpSignature) -> GroupedGEMM:
    """(a [m,k], b [g,k,n], batch_sizes, trans_b): b is [g,n,k] when transposed."""
    m, k = op.shape(0, rank=2)
    groups, *b = op.shape(1, rank=3)
    k_b, n = reversed(b) if op.literal(3) is True else b
    check_inner(op, k, k_b)
    return GroupedGEMM(m=m, n=n, k=k, groups=groups, dtype=op.dtype(0), dtype_b=op.dtype(1))


@recorded_as("GroupedGemm")
def _recorded_grouped_gemm(model: GroupedGEMM) -> OpSignature:
    a, b = (model.m, model.k), (model.groups, model.k, model.n)
    tensors = Slot.tensor(a, model.dtype), Slot.tensor(b, model.dtype), Slot.tensor((model.groups,), DType.INT64)
    return recorded_call("GroupedGemm", *tensors, Slot(scalar="False"))


#: The gradient's shapes do not say the weights': no model from its own record.
GROUPED_GEMM_BACKWARD = CategoryOf(category="GroupedGEMM_bwd", names=("GroupedGemmBackward",))
