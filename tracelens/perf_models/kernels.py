"""What a device kernel's name says: its family, whether it communicates or copies, what a product computes in."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import cache, lru_cache
from importlib.resources import files

from tracelens.errors import UsageError
from tracelens.registry import Mark
from tracelens.types.dtypes import DType
from tracelens.types.records import Record


class KernelPattern(Record, frozen=True, kw_only=True):
    """Kernels whose name contains ``regex`` (Python syntax, case matters). A module-level constant is an addition.

    ``communication`` kernels are the timeline's communication, with or without an op above them; ``collective`` ones
    belong to recorded collectives, which have their own sheets; ``memcpy`` ones are copies launched as kernels;
    ``rearranges`` ones only lay out the operands of others, so no matrix product's model speaks of them.
    """

    name: str
    regex: str
    category: str
    communication: bool = False
    collective: bool = False
    memcpy: bool = False
    rearranges: bool = False

    @property
    def __tracelens_marks__(self) -> tuple[Mark, ...]:
        return (Mark(kind="kernel_pattern", keys=(self.name,)),)

    def matches(self, kernel: str) -> bool:
        """Whether the pattern is found in a kernel's name. UsageError when it is no regular expression."""
        expression, in_lower_case = _compiled(self.regex)
        return expression.search(kernel.lower() if in_lower_case else kernel) is not None


def classify(names: Sequence[str], patterns: Iterable[KernelPattern]) -> list[KernelPattern | None]:
    """The first pattern that each kernel name contains, or None; so an extension's patterns go first."""
    ordered = tuple(patterns)
    known = _classified(ordered)
    found = []
    for name in names:
        if name not in known:
            if len(known) >= _MOST_KNOWN:
                known.clear()
            known[name] = next((pattern for pattern in ordered if pattern.matches(name)), None)
        found.append(known[name])
    return found


#: Kernel names whose pattern is remembered: ranks, and both sides of a comparison, run the same kernels.
_MOST_KNOWN = 1 << 16


@lru_cache(maxsize=4)
def _classified(_: tuple[KernelPattern, ...]) -> dict[str, KernelPattern | None]:
    return {}


class CopyPath(Record, frozen=True, kw_only=True):
    """Between which memories a copy went: ``direction`` is HtoD, DtoH or PtoP; ``host_memory`` is pinned, pageable or
    unknown, and None between devices."""

    direction: str
    host_memory: str | None = None


def copy_path(name: str) -> CopyPath | None:
    """The path of a recorded copy, by its name; None for one within a memory, or when the name does not say.

    >>> copy_path("Memcpy HtoD (Pinned -> Device)")
    CopyPath(direction='HtoD', host_memory='pinned')
    """
    found = _ENDS.search(name)
    ends = tuple(_MEMORY[word[0].upper()] for word in found.groups()) if found else ()
    if ends == ("P", "P"):
        return CopyPath(direction="PtoP")
    if "H" not in ends or ends == ("H", "H"):
        return None
    memory = next((word for word in ("pinned", "pageable") if word in name.lower()), "unknown")
    return CopyPath(direction="to".join(ends), host_memory=memory)


# Kineto ("Memcpy HtoD (Pinned -> Device)"), oneAPI ("Memcpy M2D"), ROCm ("CopyHostToDevice",
# MEMORY_COPY_HOST_TO_DEVICE) and Nsight Systems ("[CUDA memcpy Host-to-Device]").
_END = "(host|device|peer|[HDPMA])"
_ENDS = re.compile(rf"(?i)(?:memcpy|copy)[ _]*{_END}[ _-]*(?:to|2)[ _-]*{_END}(?![a-z])")
# M is oneAPI's name for host memory, A an array of the device.
_MEMORY = {"H": "H", "M": "H", "D": "D", "A": "D", "P": "P"}


@cache
def kernel_patterns() -> tuple[KernelPattern, ...]:
    """The built-in patterns of ``kernels.toml``, in the order in which they are tried."""
    text = files(__package__).joinpath("kernels.toml").read_text(encoding="utf-8")
    known = {f.name for f in fields(KernelPattern)}
    found: list[KernelPattern] = []
    for entry in tomllib.loads(text)["pattern"]:
        if unknown := set(entry) - known:
            raise UsageError(f"kernels.toml: pattern {entry.get('name')!r} has unknown keys {sorted(unknown)}")
        found.append(KernelPattern(**entry))
    return tuple(found)


@cache
def _compiled(regex: str) -> tuple[re.Pattern[str], bool]:
    """The expression, and whether it is to be searched in lower case: as ``(?i)`` without capitals, in a third of the
    time."""
    pattern = regex.removeprefix("(?i)")
    in_lower_case = pattern != regex and pattern == pattern.lower()
    try:
        return re.compile(pattern if in_lower_case else regex), in_lower_case
    except re.error as error:
        raise UsageError(f"kernel pattern {regex!r} is not a regular expression: {error}") from error


class ComputeType(Record, frozen=True):
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
