"""Megatron-LM: expert-parallel dispatch and combine by DeepEP, and its grouped GEMM.

DeepEP's autograd functions record their input as tensor 0. The backward of a dispatch is a combine and the other way
round, so each op below is read from its own tensor 0, and the backward is costed like the forward it mirrors.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracelens import CategoryOf, EPComm, GroupedGEMM, OpSignature, SignatureError, recorded_as, traced_as


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepEPDispatch(EPComm):
    """Every local token to the ranks of its experts: ``tokens`` are the rank's own, before they are copied.

    wire_bytes = tokens * hidden * width, each token once. What remains open:

    1. The top-k is not recorded in the shape that is read here. DeepEP sends a token once per destination rank (once
       per node over RDMA), so with more than one remote expert rank per token more bytes leave than are counted, while
       tokens for a local expert do not leave at all: see ``expected_wire_bytes`` for the latter.
    2. FP8 dispatch sends scales beside the tokens; only the tokens are counted.
    3. Bytes over the kernels' duration are an effective rate, waiting for the slowest rank included.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepEPCombine(EPComm):
    """The experts' rows back to their tokens' ranks: ``tokens`` are the dispatched rows, one per copy.

    wire_bytes = tokens * hidden * width. It moves more than the dispatch did, by the copies. What remains open:

    1. Rows of tokens that never left their rank are counted: the figure is an upper bound (``expected_wire_bytes``).
    2. Where the rows of one token are summed before they are sent (DeepEP does so per rank), fewer travel than counted.
    3. Bytes over the kernels' duration are an effective rate, waiting for the slowest rank included.
    """


@traced_as("DeepEPDispatch", "DeepEPCombineBackward")
def _dispatch(op: OpSignature) -> DeepEPDispatch:
    tokens, hidden = op.shape(0, rank=2)
    return DeepEPDispatch(tokens=tokens, hidden=hidden, dtype=op.dtype(0), ranks=_ranks(op))


@traced_as("DeepEPCombine", "DeepEPDispatchBackward")
def _combine(op: OpSignature) -> DeepEPCombine:
    tokens, hidden = op.shape(0, rank=2)
    return DeepEPCombine(tokens=tokens, hidden=hidden, dtype=op.dtype(0), ranks=_ranks(op))


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
    return OpSignature(
        name=name,
        shapes=((model.tokens, model.hidden),),
        dtypes=(model.dtype.traced if model.dtype is not None else "",),
        strides=((model.hidden, 1),),
        scalars=("",),
        attributes=() if model.ranks is None else (("Group size", model.ranks),),
    )


@traced_as("GroupedGemm")
def _grouped_gemm(op: OpSignature) -> GroupedGEMM:
    """(a [m,k], b [g,k,n], batch_sizes, trans_b): b is [g,n,k] when transposed."""
    m, k = op.shape(0, rank=2)
    groups, *b = op.shape(1, rank=3)
    k_b, n = reversed(b) if op.literal(3) is True else b
    if k != k_b:
        raise SignatureError(f"{op.name}: inner dims differ, {k} and {k_b}")
    return GroupedGEMM(m=m, n=n, k=k, groups=groups, dtype=op.dtype(0), dtype_b=op.dtype(1))


@recorded_as("GroupedGemm")
def _recorded_grouped_gemm(model: GroupedGEMM) -> OpSignature:
    shapes = ((model.m, model.k), (model.groups, model.k, model.n), (model.groups,), ())
    a = model.dtype.traced if model.dtype is not None else ""
    strides = ((model.k, 1), (model.k * model.n, model.n, 1), (1,), ())
    return OpSignature(
        name="GroupedGemm", shapes=shapes, dtypes=(a, a, "long int", ""), strides=strides, scalars=("", "", "", "False")
    )


#: The gradient's shapes do not say the weights': no model from its own record.
GROUPED_GEMM_BACKWARD = CategoryOf(category="GroupedGEMM_bwd", names=("GroupedGemmBackward",))
