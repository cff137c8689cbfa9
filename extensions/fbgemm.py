"""FBGEMM: look-ups in embedding tables, rows quantized for the wire, permutations of sparse features and embeddings.

As TorchRec uses them. The slots of a look-up are those of ``fbgemm_gpu/codegen`` with row-wise Adagrad.
"""

from __future__ import annotations

import math

from tracelens import CategoryOf, DType, OpSignature, SignatureError, traced_as
from tracelens.perf_models import BackwardOf, GroupQuant, Movement, PooledLookup

# A quantized row ends with its scale and bias, FP32 each (fbgemm_gpu/src/quantize_ops).
_SUFFIX_BYTES = 8

_LOOKUP = "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function"
_LOOKUP_BACKWARD = "torch::autograd::CppNode<SplitLookupFunction_rowwise_adagrad_Op>"


@traced_as(_LOOKUP)
def _lookup(op: OpSignature) -> PooledLookup:
    """(.., weights on the device (1), in host memory (2), .., offsets of the widths (6), total width (7), ..,
    indices (11), offsets of the bags (12), .., index weights (14), .., moments as 1 and 2 (20, 21), ...).

    A table's width stands in the values of a tensor. The mean is taken: the total width over the tables, where it was
    recorded, else all weights over all rows, of which each has one moment. Bags are FP32.
    """
    tables, bags = op.shape(6, rank=1)[0] - 1, op.shape(12, rank=1)[0] - 1
    total, rows = op.literal(7), _elements(op, 20) + _elements(op, 21)
    if isinstance(total, int) and tables > 0:
        width, assumed = total / tables, "tables looked up alike"
    elif rows:
        width, assumed = (_elements(op, 1) + _elements(op, 2)) / rows, "mean row width"
    else:
        raise SignatureError(f"{op.name}: neither the widths of the tables nor their rows were recorded")
    return PooledLookup(
        looked_up=op.shape(11, rank=1)[0],
        width=width,
        bags=bags,
        weighted=op.has(14),
        dtype=op.dtype(1),
        dtype_index=op.dtype(11),
        assumed=assumed,
    )


def _elements(op: OpSignature, tensor: int) -> int:
    return math.prod(op.shape(tensor)) if op.has(tensor) else 0


#: The gradient's record shows the bags alone.
LOOKUP_BACKWARD = BackwardOf(forward=_LOOKUP, names=(_LOOKUP_BACKWARD,))


@traced_as("fbgemm::permute_2D_sparse_data", "fbgemm::permute_1D_sparse_data", "fbgemm::permute_sparse_features",
           category="index")  # fmt: skip
def _permute_sparse(op: OpSignature) -> Movement:
    """(permutation [p], lengths [t,b] or [t], values [n], weights, values of the result): n where that is unknown."""
    lengths, n = op.shape(1), op.shape(2, rank=1)[0]
    permuted = op.shape(0, rank=1)[0] * math.prod(lengths[1:])
    recorded = op.literal(4)
    written = recorded if isinstance(recorded, int) and not isinstance(recorded, bool) else n
    weights = (written, op.dtype(3)) if op.has(3) else (0, None)
    return Movement(
        read=((n, op.dtype(2)), (math.prod(lengths), op.dtype(1)), weights),
        written=((written, op.dtype(2)), (permuted, op.dtype(1)), weights),
    )


@traced_as("fbgemm::bounds_check_indices", category="index")
def _bounds_check(op: OpSignature) -> Movement:
    """(rows per table, indices, offsets, ...): only an index out of bounds is written."""
    return Movement(read=tuple((math.prod(op.shape(i)), op.dtype(i)) for i in (0, 1, 2)), written=())


@traced_as("fbgemm::asynchronous_complete_cumsum", "fbgemm::asynchronous_inclusive_cumsum", category="reduce")
def _running_sum(op: OpSignature) -> Movement:
    """(x [n]): n or n + 1 sums."""
    n = math.prod(op.shape(0))
    return Movement(read=((n, op.dtype(0)),), written=((n + ("complete" in op.name), op.dtype(0)),), added=n)


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


@traced_as("fbgemm::FloatToHFP8Quantized")
def _to_hybrid_fp8(op: OpSignature) -> GroupQuant:
    """(x, exponent bits, exponent bias, largest value): a byte per element, no scales."""
    return GroupQuant(elements=math.prod(op.shape(0)), scale_elements=0, dtype=op.dtype(0), dtype_out=DType.UINT8)


@traced_as("fbgemm::HFP8QuantizedToFloat")
def _from_hybrid_fp8(op: OpSignature) -> GroupQuant:
    """(bytes, exponent bits, exponent bias): to FP32."""
    return GroupQuant(elements=math.prod(op.shape(0)), scale_elements=0, dtype=op.dtype(0), dtype_out=DType.FP32)


@traced_as(
    "fbgemm::permute_pooled_embs_auto_grad", "fbgemm::permute_pooled_embs",
    "torch::autograd::CppNode<fbgemm_gpu::PermutePooledEmbsFunction<&fbgemm_gpu::permute_pooled_embs_gpu> >",
    category="index",
)  # fmt: skip
def _permute(op: OpSignature) -> Movement:
    """(x [b,width], ...), or its gradient: every element read and written once."""
    n = math.prod(op.shape(0))
    return Movement(read=((n, op.dtype(0)),), written=((n, op.dtype(0)),))


LOOKUPS = CategoryOf(category="index", names=(_LOOKUP_BACKWARD,))
