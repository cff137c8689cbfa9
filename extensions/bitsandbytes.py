"""bitsandbytes: 8-bit matrix products. The schema is the library's (``bitsandbytes/_ops.py``)."""

from __future__ import annotations

import math

from tracelens import GEMM, CategoryOf, DType, OpSignature, traced_as
from tracelens.perf_models.gemm import check_inner


@traced_as("bitsandbytes::int8_linear_matmul")
def _int8_matmul(op: OpSignature) -> GEMM:
    """(A [..,k], B [n,k][, out]): a 32-bit integer result."""
    *rows, k = op.shape(0)
    n, k_b = op.shape(1, rank=2)
    check_inner(op, k, k_b)
    return GEMM(m=math.prod(rows), n=n, k=k, dtype=op.dtype(0), dtype_b=op.dtype(1), dtype_out=DType.INT32)


QUANTIZATION = CategoryOf(
    category="GroupQuant",
    names=(
        "bitsandbytes::int8_vectorwise_quant", "bitsandbytes::int8_vectorwise_dequant",
        "bitsandbytes::int8_double_quant", "bitsandbytes::int8_mm_dequant", "bitsandbytes::quantize_4bit",
        "bitsandbytes::dequantize_4bit", "bitsandbytes::quantize_blockwise", "bitsandbytes::dequantize_blockwise",
    ),
)  # fmt: skip
GEMV = CategoryOf(category="GEMM", names=("bitsandbytes::gemv_4bit", "bitsandbytes::int8_scaled_mm"))
