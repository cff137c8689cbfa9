"""Products with quantized weights that vLLM and SGLang share: Marlin, GPTQ, AWQ, Machete and CUTLASS kernels.

The ops' slots moved from version to version. What stayed: activations first, then the packed weight, and the sizes m, n
and k as three integers in a row, of which m and k are the activations' own.
"""

from __future__ import annotations

from math import prod

from tracelens import GEMM, DType, OpSignature, SignatureError, traced_as
from tracelens.perf_models import GroupedGEMM, MoEUp, Movement, bind
from tracelens.perf_models.base import scalar_type
from tracelens.perf_models.gemm import matrix_product, packed_bits, size_argument, times_transposed, weight_only


@traced_as(
    "_C::gptq_marlin_gemm", "_C::marlin_gemm", "_C::fp8_marlin_gemm", "_C::gptq_marlin_24_gemm",
    "sgl_kernel::gptq_marlin_gemm",
)  # fmt: skip
def _marlin(op: OpSignature) -> GEMM:
    """(x [m,k], .., packed weight, .., scales [k/g,n], .., m, n, k, ...)."""
    _, n, k = _sizes(op)
    weight = _packed_weight(op)
    scales = [i for i in range(weight + 1, len(op.shapes or ())) if op.has(i) and op.shape(i)[-1] == n]
    return weight_only(op, 0, n=n, weight=packed_bits(op, weight, n * k), scales=tuple(scales[:1]))


@traced_as("_moe_C::moe_wna16_marlin_gemm", "sgl_kernel::moe_wna16_marlin_gemm")
def _marlin_experts(op: OpSignature) -> MoEUp:
    """(x [m,k], .., packed weights [e,..], .., the choice's weights, tile, top_k, .., m, n, k, ...).

    Every row of x goes to ``top_k`` experts.
    """
    rows, n, k = _sizes(op)
    weight = _packed_weight(op)
    experts = op.shape(weight)[0]
    values = [op.literal(i) for i in range(len(op.scalars or ()))]
    numbers = [v for v in values if isinstance(v, int) and not isinstance(v, bool)]
    top_k = numbers[1] if len(numbers) > 1 else 0
    if not 0 < top_k <= experts:
        raise SignatureError(f"{op.name}: how many experts a row goes to is not among {numbers}")
    return MoEUp(
        tokens=rows,
        hidden=k,
        ffn=n,
        experts=experts,
        top_k=top_k,
        gated=False,
        dtype=op.dtype(0),
        dtype_weight=packed_bits(op, weight, experts * n * k),
    )


def _sizes(op: OpSignature) -> tuple[int, int, int]:
    """(m, n, k), the first three integers in a row of which the outer ones are the first tensor's dims."""
    *rows, k = op.shape(0)
    numbers = [op.literal(i) for i in range(len(op.scalars or ()))]
    for m, n, last in zip(numbers, numbers[1:], numbers[2:], strict=False):
        if (m, last) == (prod(rows), k) and isinstance(n, int) and not isinstance(n, bool) and n > 0:
            return m, n, k
    raise SignatureError(f"{op.name}: the sizes m, n and k were not recorded")


def _packed_weight(op: OpSignature) -> int:
    """The first tensor of 32-bit words after the activations."""
    for slot in range(1, len(op.shapes or ())):
        if op.has(slot) and len(op.shape(slot)) > 1 and op.shape(slot) != op.shape(0):
            return slot
    raise SignatureError(f"{op.name}: no packed weight was recorded")


@traced_as("_C::awq_gemm")
def _awq(op: OpSignature) -> GEMM:
    """(x [m,k], weight [k,n/8] of words, scales [k/g,n], zeros, ...)."""
    n = op.shape(2, rank=2)[1]
    return weight_only(op, 0, n=n, weight=packed_bits(op, 1, n * op.shape(0)[-1]), scales=(2,))


@traced_as("_C::gptq_gemm", "sgl_kernel::gptq_gemm")
def _gptq(op: OpSignature) -> GEMM:
    """(x [m,k], weight [k/8,n] of words, zeros, scales [k/g,n], order, ...)."""
    n = op.shape(1, rank=2)[1]
    return weight_only(op, 0, n=n, weight=packed_bits(op, 1, n * op.shape(0)[-1]), scales=(3,))


@traced_as("_C::awq_dequantize", "sgl_kernel::awq_dequantize")
def _awq_dequantize(op: OpSignature) -> Movement:
    """(weight [k,n/8] of words, scales [k/g,n], zeros, ...): to [k,n], a difference and a product each."""
    k, n = op.shape(0, rank=2)[0], op.shape(1, rank=2)[1]
    read = tuple((prod(op.shape(slot)), op.dtype(slot)) for slot in (0, 1, 2))
    return Movement(read=read, written=((k * n, op.dtype(1)),), added=2 * k * n)


@traced_as("_C::machete_mm")
def _machete(op: OpSignature) -> GEMM:
    """(x [m,k], packed weight, type, result's type, group scales [k/g,n], zeros, g, channel scales [n], ...)."""
    scales = next((slot for slot in (4, 7) if op.has(slot)), None)
    if scales is None:
        raise SignatureError(f"{op.name}: without scales nothing says how wide the weight is")
    n = op.shape(scales)[-1]
    return weight_only(op, 0, n=n, weight=packed_bits(op, 1, n * op.shape(0)[-1]), scales=(scales,))


@traced_as("sgl_kernel::fp8_scaled_mm", "sgl_kernel::int8_scaled_mm", "sgl_kernel::fp8_blockwise_scaled_mm")
def _scaled_mm(op: OpSignature) -> GEMM:
    """(A [m,k], B [k,n], scales of A, scales of B, result's type, bias)."""
    # without a recorded type the result is 16 bits wide: these kernels offer FP16 and BF16
    out = scalar_type(op.literal(4)) or DType.BF16
    scales = sum(prod(op.shape_or_scalar(slot)) for slot in (2, 3))
    return matrix_product(
        op, bias=op.has(5), dtype_out=out, dtype_bias=out, scale_elements=scales, stride_a=op.stride(0),
        stride_b=op.stride(1),
    )  # fmt: skip


@traced_as("_C::cutlass_scaled_fp4_mm", "sgl_kernel::cutlass_scaled_fp4_mm")
def _fp4_mm(op: OpSignature) -> GEMM:
    """(result [m,n], A [m,k/2], B [n,k/2], scales of A, scales of B, ...): two FP4 values per byte."""
    dtype = DType.FP4_E2M1 if op.dtype(1) is not None else None
    return times_transposed(op, 1, 2, scales=(3, 4), packed=(2, 2), dtypes=(dtype, dtype), dtype_out=op.dtype(0))


@traced_as("sgl_kernel::bmm_fp8")
def _batched_fp8(op: OpSignature) -> GEMM:
    """(A [b,m,k], B [b,k,n], result, two scales, ...)."""
    (b, m, k), n = op.shape(0, rank=3), op.shape(1, rank=3)[2]
    return GEMM(b=b, m=m, n=n, k=k, dtype=op.dtype(0), dtype_b=op.dtype(1), dtype_out=op.dtype(2), scale_elements=2)


@traced_as("sgl_kernel::dsv3_fused_a_gemm", "sgl_kernel::dsv3_router_gemm", "_C::dsv3_fused_a_gemm")
def _few_rows(op: OpSignature) -> GEMM:
    """(result [m,n], A [m,k], B)."""
    (m, n), k = op.shape(0, rank=2), op.shape(1, rank=2)[1]
    return GEMM(m=m, n=n, k=k, dtype=op.dtype(1), dtype_b=op.dtype(2), dtype_out=op.dtype(0))


def _grouped(op: OpSignature, out: int, a: int, b: int, *, scales: tuple[int, ...], packed: int = 1) -> GroupedGEMM:
    (m, n), k = op.shape(out, rank=2), op.shape(a, rank=2)[1]
    narrow = [DType.FP4_E2M1 if packed > 1 and op.dtype(slot) is not None else op.dtype(slot) for slot in (a, b)]
    return GroupedGEMM(
        m=m,
        n=n,
        k=packed * k,
        groups=op.shape(b, rank=3)[0],
        dtype=narrow[0],
        dtype_b=narrow[1],
        dtype_out=op.dtype(out),
        scale_elements=sum(prod(op.shape_or_scalar(slot)) for slot in scales),
        dtype_scale=next((op.dtype(slot) for slot in scales if op.has(slot)), None),
    )


@traced_as("sgl_kernel::cutlass_w4a8_moe_mm")
def _w4a8_experts(op: OpSignature) -> GroupedGEMM:
    """(result [m,n], A [m,k] in FP8, B [e,n,k/2] of INT4 pairs, ..., chunk size, top-k): computed in FP8."""
    (m, n), k = op.shape(0, rank=2), op.shape(1, rank=2)[1]
    size_argument(op, 12, "top-k")
    experts = op.shape(2, rank=3)[0]
    return GroupedGEMM(
        m=m,
        n=n,
        k=k,
        groups=experts,
        dtype=op.dtype(1),
        dtype_b=packed_bits(op, 2, experts * n * k),
        dtype_out=op.dtype(0),
    )


#: Calls that only say where the operands stand, by the arguments as they are recorded.
BINDINGS = (
    # (result [m,n], A [m,k], B [e,..], scales of A, scales of B, ...)
    bind(_grouped, "_C::cutlass_moe_mm", out=0, a=1, b=2, scales=(3, 4)),
    # (result [m,n], five lists of addresses, A [m,k], B [e,..], scales of A, scales of B, ...)
    bind(_grouped, "sgl_kernel::fp8_blockwise_scaled_grouped_mm", out=0, a=6, b=7, scales=(8, 9)),
    # (result [m,n], A [m,k/2], B [e,n,k/2], scales of A, scales of B, ...): two FP4 values per byte
    bind(
        _grouped, "sgl_kernel::cutlass_fp4_group_mm", "_C::cutlass_fp4_group_mm", out=0, a=1, b=2, scales=(3, 4),
        packed=2,
    ),
)  # fmt: skip
