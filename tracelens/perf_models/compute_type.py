"""What matrix kernels compute in, where the recorded element type leaves it open: their names say it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from tracelens.dtypes import DType
from tracelens.lazy.records import dataclass


@dataclass(frozen=True, slots=True)
class ComputeType:
    """The type that products are computed in, and how many products stand for one; NaN where that is not known.

    ``label`` is what reports call it: ``tf32``, ``bf16x9``.
    """

    label: str
    dtype: DType
    passes: float = 1.0

    @classmethod
    def parse(cls, label: str) -> ComputeType | None:
        """What ``label`` stands for: one of those that kernels' names say, or an element type."""
        named = next((named for named in _NAMED if named.label == label), None)
        dtype = DType.parse(label)
        return named or (None if dtype is None else cls(dtype.label, dtype))


FP32 = ComputeType("fp32", DType.FP32)
TF32 = ComputeType("tf32", DType.TF32)
TF32X3 = ComputeType("tf32x3", DType.TF32, 3)
BF16X3 = ComputeType("bf16x3", DType.BF16, 3)
BF16X9 = ComputeType("bf16x9", DType.BF16, 9)
FP8 = ComputeType("fp8", DType.FP8_E4M3FN)
FP4 = ComputeType("fp4", DType.FP4_E2M1)
INT8 = ComputeType("int8", DType.INT8)
#: Double precision from products of 8-bit slices (the Ozaki scheme): how many slices depends on the values.
FP64_EMULATED = ComputeType("fp64_emulated", DType.INT8, math.nan)
_NAMED = (FP32, TF32, TF32X3, BF16X3, BF16X9, FP8, FP4, INT8, FP64_EMULATED)

_PRODUCT = (
    r"(?i)gemm|gemv|cijk_|nvjet|xmma|tensorop|fprop|dgrad|wgrad|convolve|scudnn|winograd|conv(?!ert)|_simt_|ozaki"
)
#: Of products whose tensors are FP32, first match wins. cuBLAS and CUTLASS name tensor-core kernels by the instruction:
#: s1688 and s1684 multiply FP32 tensors as TF32, ``..x..x8gemm`` is TF32's depth of k on Hopper and Blackwell. nvjet
#: kernels use tensor cores only. ``_MX_`` is how Tensile (hipBLASLt, rocBLAS) names its XF32 kernels for FP32 tensors.
_OF_FP32 = (
    (r"(?i)bf16x9", BF16X9),
    (r"(?i)bf16x3", BF16X3),
    (r"(?i)3xtf32|tf32x3", TF32X3),
    (r"(?i)(?<!b)fp16_|_b?f16|b?f16f16|_bf16gemm|e4m3|e5m2", None),
    (r"(?i)tf32|xf32|s168[48]|tensorop_s\d+x\d+x8gemm|nvjet|cijk_\w*_mx_", TF32),
    (r"(?i)sgemm|sgemv|gemv|ffma|scudnn|_simt_|f32f32_f32f32|winograd|cijk_[a-z]+_[a-z]+_s|fp32", FP32),
)  # fmt: skip
#: Of products whose tensors are FP64.
_OF_FP64 = ((r"(?i)ozaki|emulat|imma|i8816|i16832|s8s8|_i8_|int8", FP64_EMULATED),)
#: Of products whose tensors are wider than what they are multiplied in, or of a type that the trace does not say.
#: cuBLAS names both operands of an nvjet kernel by a letter each before C, the accumulator and D (``nvjet_qqtst_``,
#: ``nvjet_sm100_ootst_``): q is E4M3, o E2M1, whose scales may be E4M3 (``Avec16UE4M3``).
_OF_OTHERS = (
    (r"nvjet_(?:sm\d+_)?oo[a-z]{3}_", FP4),
    (r"nvjet_(?:sm\d+_)?(?:q[a-z]|[a-z]q)[a-z]{3}_", FP8),
    (r"(?i)e4m3|e5m2|f8f8|fp8|float8|cijk_\w*_[fb]8", FP8),
    (r"(?i)i8816|i16832|imma|s8s8|i8i8|cijk_[a-z]+_[a-z]+_i8", INT8),
)
_OPEN = {DType.FP32: _OF_FP32, DType.FP64: _OF_FP64, DType.BF16: _OF_OTHERS, DType.FP16: _OF_OTHERS, None: _OF_OTHERS}


def is_open(recorded: DType | None) -> bool:
    """Whether tensors of this type may be multiplied in another one."""
    return recorded in _OPEN


def precisions(kernels: Sequence[str], recorded: DType | None) -> list[ComputeType | None]:
    """What each of these kernels computes in, its tensors being of the ``recorded`` type; None: silent."""
    rules = [(re.compile(pattern), precision) for pattern, precision in _OPEN.get(recorded, ())]
    product = re.compile(_PRODUCT)
    return [
        next((precision for pattern, precision in rules if pattern.search(name)), None)
        if product.search(name)
        else None
        for name in kernels
    ]
