"""Liger-Kernel: its autograd functions, recorded with the arguments of ``apply``; backwards with the gradients."""

from __future__ import annotations

import math

from tracelens import CategoryOf, Normalization, OpSignature, traced_as
from tracelens.perf_models import BinaryElementwise, CrossEntropy, RMSNorm, RMSNormBackward, RoPE, RoPEBackward, bind
from tracelens.perf_models.elementwise import Operand, broadcast, operand, promoted
from tracelens.perf_models.inference_attention import rotated
from tracelens.perf_models.normalization import rms_norm


def _activated_product(op: OpSignature, *, flops: int) -> BinaryElementwise:
    gate, up = operand(op, 0), operand(op, 1)
    shape = broadcast(gate.shape, up.shape)
    written = Operand(shape=shape, dtype=promoted((gate, up)))
    return BinaryElementwise(shape=shape, inputs=(gate, up), outputs=(written,), flops_per_element=flops)


@traced_as("LigerRMSNormFunctionBackward")
def _rms_norm_backward(op: OpSignature) -> RMSNormBackward:
    """(dy): the function normalizes the last dim and has a weight, which are not recorded here."""
    shape = op.shape(0)
    forward = RMSNorm(shape=shape, channels=shape[-1], statistics=math.prod(shape[:-1]), weight=True, dtype=op.dtype(0))
    return forward.backward()


@traced_as("LigerLayerNormFunction")
def _layer_norm(op: OpSignature) -> Normalization:
    """(x, weight, bias, eps)."""
    shape, channels = op.shape(0), math.prod(op.shape(1))
    return Normalization(
        shape=shape,
        channels=channels,
        statistics=math.prod(shape) // max(channels, 1),
        weight=True,
        bias=op.has(2),
        dtype=op.dtype(0),
        dtype_weight=op.dtype(1),
    )


@traced_as("LigerRopeFunction")
def _rope(op: OpSignature) -> RoPE:
    """(q, k, cos, sin, ...)."""
    return rotated(op, 0, 1)


@traced_as("LigerRopeFunctionBackward")
def _rope_backward(op: OpSignature) -> RoPEBackward:
    """(dq, dk)."""
    return rotated(op, 0, 1).backward()


@traced_as("LigerCrossEntropyFunction")
def _cross_entropy(op: OpSignature) -> CrossEntropy:
    """(logits [t,v], target, ...)."""
    *rows, vocabulary = op.shape(0)
    return CrossEntropy(rows=math.prod(rows), vocabulary=vocabulary, dtype=op.dtype(0))


#: Their gradients' shapes are not those of the logits; the fused linear one runs GEMMs that are rows of their own.
CROSS_ENTROPY = CategoryOf(category="CrossEntropy_fwd", names=("LigerFusedLinearCrossEntropyFunction",))
CROSS_ENTROPY_BACKWARD = CategoryOf(
    category="CrossEntropy_bwd",
    names=("LigerCrossEntropyFunctionBackward", "LigerFusedLinearCrossEntropyFunctionBackward"),
)
ACTIVATION_BACKWARD = CategoryOf(
    category="elementwise", names=("LigerSiLUMulFunctionBackward", "LigerGELUMulFunctionBackward")
)
LAYER_NORM_BACKWARD = CategoryOf(category="NORM_bwd", names=("LigerLayerNormFunctionBackward",))


#: Calls that only say where the operands stand, by the arguments as they are recorded.
BINDINGS = (
    # (gate, up): 4 operations for the activation and one product
    bind(_activated_product, "LigerSiLUMulFunction", flops=5),
    bind(_activated_product, "LigerGELUMulFunction", flops=10),
    # (x, weight, eps, ...): one FP32 statistic per row is kept for the backward pass
    bind(rms_norm, "LigerRMSNormFunction", x=0, weight=1, saves=True),
)  # fmt: skip
