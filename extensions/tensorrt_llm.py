"""TensorRT-LLM: the ops of its PyTorch backend. Schemas: ``cpp/tensorrt_llm/thop`` and ``_torch/custom_ops``."""

from __future__ import annotations

import math

from tracelens import GEMM, CategoryOf, DType, OpSignature, SignatureError, traced_as
from tracelens.perf_models import CustomCollective, Like, MoEFused
from tracelens.perf_models.base import scalar_type
from tracelens.perf_models.collective import exchanged
from tracelens.perf_models.gemm import matrix_product
from tracelens.perf_models.moe import fused_experts


@traced_as("trtllm::cublas_scaled_mm")
def _cublas_scaled_mm(op: OpSignature) -> GEMM:
    """(a [m,k], b [k,n], scale_a, scale_b, bias, out_dtype, ...): 16-bit output where no type was given."""
    scales = sum(math.prod(op.shape_or_scalar(i)) for i in (2, 3))
    return _product(op, bias=4, out=scalar_type(op.literal(5)) or DType.BF16, scales=scales)


@traced_as("trtllm::cublas_mm")
def _cublas_mm(op: OpSignature) -> GEMM:
    """(a [m,k], b [k,n], bias, out_dtype, ...)."""
    return _product(op, bias=2, out=scalar_type(op.literal(3)) or op.dtype(0), scales=0)


def _product(op: OpSignature, *, bias: int, out: DType | None, scales: int) -> GEMM:
    dtype_bias = op.dtype(bias) if op.has(bias) else Like.FIRST
    return matrix_product(op, bias=op.has(bias), dtype_out=out, dtype_bias=dtype_bias, scale_elements=scales)


@traced_as("trtllm::fused_moe")
def _fused_moe(op: OpSignature) -> MoEFused:
    """(input, experts [t,k], scales, fc1 weights, fc1 biases, fc2 weights, ...); older versions have no biases."""
    fc2 = 5 if op.has(5) and len(op.shape(5)) == 3 else 4
    return fused_experts(op, 0, 3, fc2, top_k=op.shape(1, rank=2)[1], packed_as=DType.FP4_E2M1)


@traced_as(
    "trtllm::fp8_block_scale_moe_runner", "trtllm::fp4_block_scale_moe_runner",
    "flashinfer::trtllm_fp8_block_scale_moe", "flashinfer::trtllm_fp4_block_scale_moe",
    "vllm::flashinfer_fused_moe_blockscale_fp8",
)  # fmt: skip
def _block_scale_moe(op: OpSignature) -> MoEFused:
    """(router logits, bias, x [t,h], scales, weights [e,2f,h], .., weights [e,h,f], .., experts, top-k, ...).

    The weights are the two largest 3-D tensors; the number of experts and top-k are the first integers.
    """
    cubes = [i for i, slot in enumerate(op.shapes or ()) if len(slot) == 3 and not isinstance(slot[0], tuple)]
    up_down = sorted(sorted(cubes, key=lambda i: -math.prod(op.shape(i)))[:2])
    values = [op.literal(i) for i in range(len(op.scalars or ()))]
    numbers = [v for v in values if isinstance(v, int) and not isinstance(v, bool)]
    if len(up_down) < 2 or len(numbers) < 2:
        raise SignatureError(f"{op.name}: two weights and the top-k were not recorded")
    return fused_experts(op, 2, up_down[0], up_down[1], top_k=numbers[1], packed_as=DType.FP4_E2M1)


@traced_as("trtllm::allreduce")
def _all_reduce(op: OpSignature) -> CustomCollective:
    """(input, residual, norm weight, ...): a fused norm is left out."""
    return exchanged(op, "all_reduce", 0)


#: How much each request attends to is not among the arguments, and the engine's annotation does not say it.
ATTENTION = CategoryOf(
    category="InferenceAttention",
    names=("trtllm::attention", "trtllm::attn_custom_op", "trtllm::attn_custom_op_inplace"),
)
