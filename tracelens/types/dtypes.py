"""Element types, and precisions of matrix products: widths, compute rates, and how traces and users spell them."""

from __future__ import annotations

import enum
import re

from tracelens.errors import UsageError


class DType(enum.Enum):
    """An element type. ``value`` is (bits per element, name of its compute rate or ``""``, label).

    ``FP4_E2M1_X2`` is PyTorch's ``Float4_e2m1fn_x2``: one element is a byte that holds two FP4 values.
    """

    # Of the object: Enum's own hashes the name anew each time
    __hash__ = object.__hash__

    FP64 = (64, "fp64", "fp64")
    FP32 = (32, "fp32", "fp32")
    TF32 = (32, "tf32", "tf32")
    FP16 = (16, "fp16", "fp16")
    BF16 = (16, "bf16", "bf16")
    FP8_E4M3FN = (8, "fp8", "fp8_e4m3fn")
    FP8_E4M3FNUZ = (8, "fp8", "fp8_e4m3fnuz")
    FP8_E5M2 = (8, "fp8", "fp8_e5m2")
    FP8_E5M2FNUZ = (8, "fp8", "fp8_e5m2fnuz")
    FP8_E8M0FNU = (8, "", "fp8_e8m0fnu")
    FP6 = (6, "fp6", "fp6")
    FP4_E2M1 = (4, "fp4", "fp4_e2m1")
    FP4_E2M1_X2 = (8, "fp4", "fp4_e2m1_x2")
    INT64 = (64, "", "int64")
    INT32 = (32, "int32", "int32")
    INT16 = (16, "", "int16")
    INT8 = (8, "int8", "int8")
    INT4 = (4, "int4", "int4")
    UINT64 = (64, "", "uint64")
    UINT32 = (32, "", "uint32")
    UINT16 = (16, "", "uint16")
    UINT8 = (8, "", "uint8")
    BOOL = (8, "", "bool")
    COMPLEX64 = (64, "", "complex64")
    COMPLEX128 = (128, "", "complex128")

    def __repr__(self) -> str:
        """The label, so that a type reads alike in every output, alone or in a list."""
        return self.label

    __str__ = __repr__

    @property
    def bits(self) -> int:
        """Bits per element as stored."""
        return int(self.value[0])

    @property
    def width_bytes(self) -> float:
        """Bytes per element; 0.5 for 4-bit types."""
        return self.bits / 8

    @property
    def rate(self) -> str | None:
        """Key of the compute rate in a device file (``bf16``, ``fp8``), or None where no device has one."""
        return self.value[1] or None

    @property
    def label(self) -> str:
        """Lower-case name, as printed."""
        return str(self.value[2])

    @property
    def traced(self) -> str:
        """How a trace spells the type among an op's ``Input type``: ``c10::BFloat16``, ``float``, ``long int``."""
        return _TRACED.get(self, self.label)

    @property
    def is_floating(self) -> bool:
        return self.name.startswith(("FP", "TF", "BF"))

    @property
    def is_complex(self) -> bool:
        return self.name.startswith("COMPLEX")

    @property
    def values(self) -> tuple[int, DType]:
        """How many values an element holds, and their type: ``(2, FP4_E2M1)`` for packed FP4, else one of its own."""
        return (2, DType.FP4_E2M1) if self is DType.FP4_E2M1_X2 else (1, self)

    @classmethod
    def parse(cls, text: str | None) -> DType | None:
        """The type that a trace, a collective or a user spells ``text``; None when unknown.

        >>> DType.parse("c10::BFloat16"), DType.parse("long int"), DType.parse("Foo")
        (bf16, int64, None)
        """
        if not text:
            return None
        key = text.strip().lower().removeprefix("c10::").removeprefix("torch.").removeprefix("at::")
        return _SPELLINGS.get(key)


_TRACED: dict[DType, str] = {
    DType.FP64: "double", DType.FP32: "float", DType.TF32: "float",
    DType.FP16: "c10::Half", DType.BF16: "c10::BFloat16",
    DType.FP8_E4M3FN: "c10::Float8_e4m3fn", DType.FP8_E4M3FNUZ: "c10::Float8_e4m3fnuz",
    DType.FP8_E5M2: "c10::Float8_e5m2", DType.FP8_E5M2FNUZ: "c10::Float8_e5m2fnuz",
    DType.FP8_E8M0FNU: "c10::Float8_e8m0fnu", DType.FP4_E2M1: "c10::Float4_e2m1fn_x2",
    DType.FP4_E2M1_X2: "c10::Float4_e2m1fn_x2",
    DType.INT64: "long int", DType.INT32: "int", DType.INT16: "short int",
    DType.INT8: "signed char", DType.UINT8: "unsigned char",
    DType.UINT16: "unsigned short", DType.UINT32: "unsigned int", DType.UINT64: "unsigned long",
    DType.COMPLEX64: "c10::complex<float>", DType.COMPLEX128: "c10::complex<double>",
}  # fmt: skip
#: As traces spell them, labels, and others; ``float`` is FP32, also where a kernel computes in TF32.
_SPELLINGS: dict[str, DType] = {
    **{text.lower().removeprefix("c10::"): dtype for dtype, text in _TRACED.items()},
    **{dtype.label: dtype for dtype in DType},
    "float64": DType.FP64, "float": DType.FP32, "float32": DType.FP32, "tfloat32": DType.TF32, "float16": DType.FP16,
    "fp8": DType.FP8_E4M3FN, "fp8_e4m3": DType.FP8_E4M3FN, "float8": DType.FP8_E4M3FN,
    "fp4": DType.FP4_E2M1, "float4_e2m1": DType.FP4_E2M1, "mxfp4": DType.FP4_E2M1,
    "long": DType.INT64, "long long": DType.INT64, "short": DType.INT16, "char": DType.INT8, "byte": DType.UINT8,
    # As XLA spells them.
    "f64": DType.FP64, "f32": DType.FP32, "f16": DType.FP16, "pred": DType.BOOL, "c64": DType.COMPLEX64,
    "c128": DType.COMPLEX128, "s64": DType.INT64, "s32": DType.INT32, "s16": DType.INT16, "s8": DType.INT8,
    "s4": DType.INT4, "u64": DType.UINT64, "u32": DType.UINT32, "u16": DType.UINT16, "u8": DType.UINT8,
    "u4": DType.INT4, "f8e4m3fn": DType.FP8_E4M3FN, "f8e4m3fnuz": DType.FP8_E4M3FNUZ, "f8e4m3": DType.FP8_E4M3FN,
    "f8e5m2": DType.FP8_E5M2, "f8e5m2fnuz": DType.FP8_E5M2FNUZ, "f8e8m0fnu": DType.FP8_E8M0FNU,
    "f4e2m1fn": DType.FP4_E2M1,
}  # fmt: skip


class Precision(enum.StrEnum):
    """A precision of matrix products, as device files, options and tables name it.

    ``dtype`` is the type whose compute rate applies. ``width_bytes`` are bytes per element of an operand with its
    scales: MXFP8 stores a scale byte per 32 elements, NVFP4 one per 16; those of FP8, per tensor or block of 128, are
    left out. ``aliases`` are other spellings.
    """

    dtype: DType
    width_bytes: float
    aliases: tuple[str, ...]

    BF16 = "bf16", DType.BF16, 2.0, "bfloat16", "amp-bf16"
    FP16 = "fp16", DType.FP16, 2.0, "float16"
    FP8 = "fp8", DType.FP8_E4M3FN, 1.0, "fp8_e4m3fn", "fp8-cs"
    FP8_BLOCK = "fp8_block", DType.FP8_E4M3FN, 1.0
    MXFP8 = "mxfp8", DType.FP8_E4M3FN, 1.03125, "fp8-mx"
    NVFP4 = "nvfp4", DType.FP4_E2M1, 0.5625
    INT8 = "int8", DType.INT8, 1.0

    def __new__(cls, name: str, dtype: DType, width_bytes: float, *aliases: str) -> Precision:
        member = str.__new__(cls, name)
        member._value_ = name
        member.dtype, member.width_bytes, member.aliases = dtype, width_bytes, aliases
        return member

    __repr__ = str.__repr__

    @property
    def spellings(self) -> tuple[str, ...]:
        return self.value, *self.aliases

    @property
    def calibrated(self) -> Precision:
        """The precision whose fitted constants apply: FP16 runs at BF16's rates."""
        return Precision.BF16 if self is Precision.FP16 else self

    @classmethod
    def parse(cls, text: str) -> Precision | None:
        """The precision of this name or alias, in whatever case; None for any other text.

        >>> Precision.parse("BFloat16"), Precision.parse("fp8-mx"), Precision.parse("int4")
        ('bf16', 'mxfp8', None)
        """
        return _PRECISIONS.get(text.lower())

    @classmethod
    def of(cls, text: str) -> Precision:
        """As ``parse``. UsageError for a text that names none."""
        found = cls.parse(text)
        if found is None:
            raise UsageError.unknown("precision", text, _PRECISIONS)
        return found


_PRECISIONS = {text: each for each in Precision for text in each.spellings}
#: Rows of a calibration.
CALIBRATED = tuple(each for each in Precision if each.calibrated is each)
#: What a training step's GEMMs with weights may compute in.
TRAINED = (Precision.BF16, Precision.FP16, Precision.FP8, Precision.MXFP8, Precision.NVFP4)
#: Types of matrix products by the first of these in a text, the narrower before those that their names contain.
_PUBLISHED = (
    (r"mx.?fp4", "mxfp4"), (r"fp4|w4a4", "nvfp4"), (r"int4|w4a16|w4a8", "int4"),
    (r"mx.?fp8|fp8.?mx|fp8.?ue8m0", "mxfp8"), (r"w8a16|(awq|gptq).?(int)?8|int8.?(awq|gptq)", "w8a16"),
    (r"w8a8.?int|int8", "int8"), (r"fp8|float8|e4m3|e5m2|w8a8", "fp8"), (r"awq|gptq", "int4"),
    (r"bf16|bfloat16|brain", "bf16"), (r"fp16|float16|half|16.?bit", "fp16"),
)  # fmt: skip


def spelled_type(text: str) -> str | None:
    """The type that published tables mean by a text; None where it names none.

    >>> spelled_type("amp_fp8"), spelled_type("FP8-MX"), spelled_type("AWQ"), spelled_type("GPTQ-Int8")
    ('fp8', 'mxfp8', 'int4', 'w8a16')
    """
    return next((name for pattern, name in _PUBLISHED if re.search(pattern, text.lower())), None)
