"""FBGEMM: rows quantized for the wire, and the permutations of pooled embeddings, as TorchRec uses them.

The lookups of embedding tables themselves (``split_embedding_codegen_lookup_*``) have a category and no model: the
width of a table stands in the values of a tensor, which a trace does not hold.
"""

from __future__ import annotations

import math

from tracelens import CategoryOf, DType, OpSignature, traced_as
from tracelens.perf_models import GroupQuant, Movement

# A quantized row ends with its scale and bias, FP32 each (fbgemm_gpu/src/quantize_ops).
_SUFFIX_BYTES = 8


@traced_as("fbgemm::FloatToFP8RowwiseQuantized")
def _to_fp8(op: OpSignature) -> GroupQuant:
    """(x [r,c], ...): to r rows of c + 8 bytes."""
    rows, columns = op.shape(0, rank=2)
    scales = rows * _SUFFIX_BYTES // 4
    return GroupQuant(elements=rows * columns, scale_elements=scales, dtype=op.dtype(0), dtype_out=DType.FP8_E4M3FN)


@traced_as("fbgemm::FP8RowwiseQuantizedToFloat")
def _from_fp8(op: OpSignature) -> GroupQuant:
    """(x [r,c + 8] bytes, ...): to FP32."""
    rows, columns = op.shape(0, rank=2)
    return GroupQuant(
        elements=rows * (columns - _SUFFIX_BYTES),
        scale_elements=rows * _SUFFIX_BYTES // 4,
        dtype=op.dtype(0),
        dtype_out=DType.FP32,
    )


@traced_as(
    "fbgemm::permute_pooled_embs_auto_grad", "fbgemm::permute_pooled_embs",
    "torch::autograd::CppNode<fbgemm_gpu::PermutePooledEmbsFunction<&fbgemm_gpu::permute_pooled_embs_gpu> >",
    category="index",
)  # fmt: skip
def _permute(op: OpSignature) -> Movement:
    """(x [b,width], ...), or its gradient: every element read and written once."""
    n = math.prod(op.shape(0))
    return Movement(read=((n, op.dtype(0)),), written=((n, op.dtype(0)),))


LOOKUPS = CategoryOf(
    category="index",
    names=(
        "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function", "fbgemm::permute_2D_sparse_data",
        "torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>", "fbgemm::permute_1D_sparse_data",
    ),
)  # fmt: skip
