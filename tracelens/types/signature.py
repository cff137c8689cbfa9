"""What a trace records of an op call (name, shapes, types, strides and scalars) and of its device."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tracelens.errors import SignatureError
from tracelens.types.dtypes import DType
from tracelens.types.records import Record

Shape: TypeAlias = tuple[int, ...]
#: A slot of the schema: a shape, a tuple of shapes (tensor list), or () for a scalar or an absent argument.
ShapeSlot: TypeAlias = tuple[Any, ...]


class OpSignature(Record, frozen=True, kw_only=True):
    """One distinct op call; hashable, so a perf model is built once for all its events.

    Kineto lists every schema slot, absent ones as ``[]``: index ``i`` below is the schema position.
    ``shapes`` is None when the trace was recorded without shapes. ``attributes`` are the other
    recorded arguments that tell calls apart (a collective's name, element counts and group), sorted by key.
    """

    name: str
    shapes: tuple[ShapeSlot, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    strides: tuple[ShapeSlot, ...] | None = None
    scalars: tuple[str, ...] | None = None
    attributes: tuple[tuple[str, Any], ...] = ()

    def has(self, index: int) -> bool:
        """Whether slot ``index`` holds a tensor (or tensor list). 0-dim tensors are recorded like absent ones."""
        return bool(self.shapes is not None and index < len(self.shapes) and self.shapes[index])

    def shape(self, index: int, rank: int | None = None) -> Shape:
        """Shape of tensor ``index``; SignatureError when absent, a list, or not of ``rank`` dims."""
        slot = self._slot(index)
        if slot and isinstance(slot[0], tuple):
            raise SignatureError(f"{self.name}: input {index} is a list of tensors")
        if not slot:
            raise SignatureError(f"{self.name}: input {index} has no recorded shape")
        if rank is not None and len(slot) != rank:
            raise SignatureError(f"{self.name}: input {index} should have {rank} dims, the trace recorded {list(slot)}")
        return slot

    def shape_or_scalar(self, index: int) -> Shape:
        """Like ``shape``, but () for a 0-dim tensor or scalar."""
        slot = self._slot(index)
        return () if not slot or isinstance(slot[0], tuple) else slot

    def shape_list(self, index: int) -> tuple[Shape, ...]:
        """Shapes of the tensor list ``index``; SignatureError when it is none."""
        slot = self._slot(index)
        if not slot or not isinstance(slot[0], tuple):
            raise SignatureError(f"{self.name}: input {index} is not a list of tensors")
        return slot

    def stride(self, index: int) -> Shape | None:
        """Strides of tensor ``index`` in elements, or None when not recorded."""
        if self.strides is None or index >= len(self.strides):
            return None
        slot = self.strides[index]
        return slot if slot and not isinstance(slot[0], tuple) else None

    def dtype_text(self, index: int) -> str | None:
        """The type of slot ``index`` as recorded; None when absent."""
        if self.dtypes is None or index >= len(self.dtypes):
            return None
        text = self.dtypes[index]
        return text or None

    def dtype(self, index: int) -> DType | None:
        """Element type of slot ``index``; None when absent or unknown: there is no default width."""
        return DType.parse(self.dtype_text(index))

    def literal(self, index: int) -> Any:
        """Scalar argument ``index`` as a Python value (``'False'`` is False); None when empty or not recorded."""
        if self.scalars is None or index >= len(self.scalars):
            return None
        return parse_literal(self.scalars[index])

    def integer(self, index: int, what: str = "") -> int:
        """Scalar argument ``index``, a whole number or truth value. SignatureError, which says ``what``, for others."""
        value = self.literal(index)
        if not isinstance(value, int):
            raise SignatureError(f"{self.name}: argument {index}{f', {what},' if what else ''} was not recorded")
        return value

    def attribute(self, key: str) -> Any:
        for name, value in self.attributes:
            if name == key:
                return value
        return None

    def _slot(self, index: int) -> ShapeSlot:
        if self.shapes is None:
            raise SignatureError(f"{self.name}: the trace has no shapes (record_shapes=True was not set)")
        if index >= len(self.shapes):
            raise SignatureError(f"{self.name}: input {index} is missing, the trace recorded {len(self.shapes)} inputs")
        return self.shapes[index]


def parse_literal(text: str | None) -> Any:
    """A recorded scalar as a Python value; None for ``''``; the text itself when it is no literal (never ``eval``)."""
    if text is None:
        return None
    text = text.strip()
    if not text:
        return None
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > 10_000:
        return text
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


_WORDS: dict[str, Any] = {
    "True": True, "true": True, "False": False, "false": False, "None": None, "null": None,
    "inf": float("inf"), "-inf": float("-inf"), "nan": float("nan"),
}  # fmt: skip


def freeze(value: Any) -> Any:
    """Lists, nested to any depth, as tuples, and dictionaries as text: what a signature holds can be hashed."""
    # Sizes and texts first: asking the abstract class takes ten times as long, and most values are no sequence.
    if isinstance(value, int | str | bytes) or not isinstance(value, Sequence):
        return str(value) if isinstance(value, dict) else value
    return tuple([freeze(v) for v in value])


def recorded_text(value: tuple[Any, ...] | None) -> str | None:
    """What was recorded, as reports print it; None where nothing was."""
    return None if value is None else repr(value)


class DeviceProperties(Record, frozen=True, kw_only=True):
    """One entry of a trace's ``deviceProperties``; None is "not recorded"."""

    name: str | None = None
    memory_bytes: int | None = None
    compute_major: int | None = None
    compute_minor: int | None = None
    compute_units: int | None = None
    warp_size: int | None = None

    @classmethod
    def from_trace(cls, entry: Mapping[str, Any]) -> DeviceProperties:
        """From a dictionary as Kineto writes it (``totalGlobalMem``, ``numSms`` ...); odd types count as absent."""

        def whole(key: str) -> int | None:
            value = entry.get(key)
            return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None

        name = entry.get("name")
        return cls(
            name=name.strip() or None if isinstance(name, str) else None,
            memory_bytes=whole("totalGlobalMem"),
            compute_major=whole("computeMajor"),
            compute_minor=whole("computeMinor"),
            compute_units=whole("numSms"),
            warp_size=whole("warpSize"),
        )

    def to_trace(self, index: int) -> dict[str, Any]:
        """The inverse: the entry of device ``index``, without what is not recorded."""
        known = {
            "id": index,
            "name": self.name,
            "totalGlobalMem": self.memory_bytes,
            "computeMajor": self.compute_major,
            "computeMinor": self.compute_minor,
            "warpSize": self.warp_size,
            "numSms": self.compute_units,
        }
        return {key: value for key, value in known.items() if value is not None}
