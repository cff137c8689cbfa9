"""FBGEMM: look-ups in embedding tables, rows quantized for the wire, permutations of sparse features and embeddings.

As TorchRec uses them. The slots of a look-up are those of ``fbgemm_gpu/codegen``.
"""

from __future__ import annotations

import math

from tracelens import CategoryOf, DType, OpSignature, SignatureError, traced_as
from tracelens.perf_models import BackwardPairs, GroupQuant, Movement, PooledLookup, bind
from tracelens.perf_models.surroundings import gradient_of

# A quantized row ends with its scale and bias, FP32 each (fbgemm_gpu/src/quantize_ops).
_SUFFIX_BYTES = 8

# Optimizer in a look-up's name -> elements of its state per element of a row, and per row (fbgemm_gpu/codegen).
_STATE: dict[str, tuple[int, int]] = {
    "rowwise_adagrad": (0, 1), "approx_rowwise_adagrad": (0, 1), "rowwise_weighted_adagrad": (0, 1),
    "adagrad": (1, 0), "sgd": (0, 0), "approx_sgd": (0, 0), "lars_sgd": (1, 0), "adam": (2, 0), "lamb": (2, 0),
    "partial_rowwise_adam": (1, 1), "partial_rowwise_lamb": (1, 1), "none": (0, 0),
}  # fmt: skip
_LOOKUPS = {f"fbgemm::split_embedding_codegen_lookup_{name}_function": state for name, state in _STATE.items()}
_ROWWISE = "fbgemm::split_embedding_codegen_lookup_rowwise_adagrad_function"
_DENSE = "fbgemm::dense_embedding_codegen_lookup_function"
_GRADIENTS = {
    **{
        f"fbgemm::split_embedding_codegen_lookup_{name}_function": (
            f"torch::autograd::CppNode<SplitLookupFunction_{name}_Op>"
        )
        for name in _STATE
    },
    _DENSE: "torch::autograd::CppNode<SplitLookupFunction_Dense_Op>",
}


@traced_as(*_LOOKUPS, asks=("gradient",))
def _lookup(op: OpSignature) -> PooledLookup:
    """(.., weights on the device (1), in host memory (2), .., offsets of the widths (6), total width (7), ..,
    indices (11), offsets of the bags (12), .., index weights (14), .., moments as 1 and 2 (20, 21), ...).

    A table's width stands in the values of a tensor. The mean is taken: the total width over the tables, where it was
    recorded or the gradient shows it, else, where each row has one moment, all weights over all rows. Bags are FP32.
    """
    tables, bags = op.shape(6, rank=1)[0] - 1, op.shape(12, rank=1)[0] - 1
    total, rows = op.literal(7), _elements(op, 20) + _elements(op, 21) if op.name == _ROWWISE else 0
    if not isinstance(total, int):
        total = _gradient_width(op)
    if total and tables > 0:
        width, assumed = total / tables, "tables looked up alike"
    elif rows:
        width, assumed = (_elements(op, 1) + _elements(op, 2)) / rows, "mean row width"
    else:
        raise SignatureError(f"{op.name}: neither the widths of the tables nor their rows were recorded")
    per_element, per_row = _LOOKUPS[op.name]
    return PooledLookup(
        looked_up=op.shape(11, rank=1)[0],
        width=width,
        bags=bags,
        weighted=op.has(14),
        dtype=op.dtype(1),
        dtype_index=op.dtype(11),
        row_state=per_row + per_element * width,
        assumed=assumed,
        table_elements=_elements(op, 1) + _elements(op, 2) or None,
    )


@traced_as(_DENSE, asks=("gradient",))
def _dense_lookup(op: OpSignature) -> PooledLookup:
    """(weights (0), .., offsets of the widths (2), total width (3), .., indices (7), offsets of the bags (8), ...).

    The gradient is added to that of the weights, no optimizer runs.
    """
    tables, total = op.shape(2, rank=1)[0] - 1, op.literal(3)
    if not isinstance(total, int):
        total = _gradient_width(op)
    if not total or tables <= 0:
        raise SignatureError(f"{op.name}: the widths of the tables were not recorded")
    return PooledLookup(
        looked_up=op.shape(7, rank=1)[0],
        width=total / tables,
        bags=op.shape(8, rank=1)[0] - 1,
        dtype=op.dtype(0),
        dtype_index=op.dtype(7),
        row_state=0,
        assumed="tables looked up alike",
        table_elements=_elements(op, 0) or None,
    )


def _gradient_width(op: OpSignature) -> int | None:
    """The width of all tables together: the last dim of the gradient of the bags, [batch, width]."""
    gradient = gradient_of(op)
    return gradient.shape(0, rank=2)[1] if gradient is not None else None


def _elements(op: OpSignature, tensor: int) -> int:
    return math.prod(op.shape(tensor)) if op.has(tensor) else 0


#: The gradient's record shows the bags alone.
LOOKUP_BACKWARDS = BackwardPairs(pairs=tuple(_GRADIENTS.items()))


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


def _without_scales(op: OpSignature, *, dtype_out: DType) -> GroupQuant:
    return GroupQuant(elements=math.prod(op.shape(0)), scale_elements=0, dtype=op.dtype(0), dtype_out=dtype_out)


HYBRID_FP8 = (
    # (x, exponent bits, exponent bias, largest value): a byte per element
    bind(_without_scales, "fbgemm::FloatToHFP8Quantized", dtype_out=DType.UINT8),
    # (bytes, exponent bits, exponent bias)
    bind(_without_scales, "fbgemm::HFP8QuantizedToFloat", dtype_out=DType.FP32),
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


LOOKUPS = CategoryOf(category="index", names=tuple(_GRADIENTS.values()))
