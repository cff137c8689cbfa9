"""Argument signatures: the recorded arguments that tell calls of one op apart, interned as text, parsed on demand."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import Any

import msgspec

from tracelens.signature import OpSignature, ShapeSlot, freeze

#: The arguments every op may have, in the order of a signature's first four parts.
ARGUMENT_KEYS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
#: The arguments that tell collectives, copies and compiled kernels apart; sorted, as in ``OpSignature.attributes``.
ATTRIBUTE_KEYS = (
    "Collective name", "Dst Rank", "Group size", "In msg nelems", "In split size", "Out msg nelems", "Out split size",
    "Process Group Description", "Process Group Name", "Process Group Ranks", "Src Rank", "bytes", "dtype",
    "kernel_backend", "kernel_flop", "kernel_kwargs", "kernel_num_gb",
)  # fmt: skip

# Valid JSON text holds no NUL byte.
SEPARATOR = b"\x00"
_PARTS = len(ARGUMENT_KEYS) + len(ATTRIBUTE_KEYS)


class SignatureStore:
    """Distinct signature texts, coded by first appearance. Texts that differ in whitespace only share a code."""

    def __init__(self) -> None:
        self._texts: list[bytes] = []
        self._code_of_text: dict[bytes, int] = {}
        self._code_of_recorded: dict[bytes, int] = {}
        self.has_shapes = False

    def __len__(self) -> int:
        return len(self._texts)

    def code(self, recorded: bytes) -> int:
        """Code of a text as recorded: each part's JSON, joined by ``SEPARATOR``; absent last parts may be left out."""
        code = self._code_of_recorded.get(recorded)
        if code is None:
            code = self._code_of_recorded[recorded] = self._intern(recorded)
        return code

    def newest(self, known: int) -> list[bytes]:
        """The texts that were added after the first ``known`` ones."""
        return self._texts[known:]

    def code_of_text(self, text: bytes) -> int:
        """Code of a text of another store."""
        code = self._code_of_text.setdefault(text, len(self._texts))
        if code == len(self._texts):
            self._texts.append(text)
            self.has_shapes |= not text.startswith(SEPARATOR)
        return code

    def code_of(self, signature: OpSignature) -> int:
        """Code of what a signature has beside its name; -1 for a bare name."""
        text = _recorded(signature)
        return self.code(text) if text else -1

    def signature(self, name: str, code: int) -> OpSignature:
        """The signature ``code`` of an op called ``name``, parsed now; the bare name for -1."""
        if code < 0:
            return OpSignature(name=name)
        parts = self._texts[code].split(SEPARATOR)
        attributes = zip(ATTRIBUTE_KEYS, parts[len(ARGUMENT_KEYS) :], strict=True)
        return signature_of_lists(
            name,
            *(_parsed_list(part) for part in parts[: len(ARGUMENT_KEYS)]),
            attributes=tuple((key, _frozen(_parsed(part))) for key, part in attributes if part),
        )

    def extended(self, signatures: Iterable[OpSignature]) -> tuple[SignatureStore, list[int]]:
        """A store with these signatures too, and the code of each; -1 for a bare name."""
        store = SignatureStore()
        store._texts = list(self._texts)
        store._code_of_text = {text: code for code, text in enumerate(store._texts)}
        store.has_shapes = self.has_shapes
        codes = [store._intern(text) if (text := _recorded(signature)) else -1 for signature in signatures]
        store.forget_recorded()
        return store, codes

    def forget_recorded(self) -> None:
        """Drop the index of texts as recorded, which only reading needs."""
        self._code_of_recorded.clear()
        self._code_of_text.clear()

    def reorder(self, order: list[int]) -> None:
        """Signatures get new codes; ``order``: the former code of each. Only after ``forget_recorded``."""
        self._texts = [self._texts[code] for code in order]

    def _intern(self, recorded: bytes) -> int:
        parts = [_compact(part) for part in recorded.split(SEPARATOR)]
        parts += [b""] * (_PARTS + 1 - len(parts))
        old_dims = parts.pop()
        parts[0] = parts[0] or old_dims
        return self.code_of_text(SEPARATOR.join(parts))


def signature_of_lists(
    name: str,
    dims: tuple[Any, ...] | None,
    types: tuple[Any, ...] | None,
    strides: tuple[Any, ...] | None,
    scalars: tuple[Any, ...] | None,
    *,
    attributes: tuple[tuple[str, Any], ...] = (),
) -> OpSignature:
    """Of what a file has by argument, as ``freeze`` gives it; a size that is none counts as absent."""
    return OpSignature(
        name=name,
        shapes=_slots(dims),
        dtypes=_texts(types),
        strides=_slots(strides),
        scalars=_texts(scalars),
        attributes=attributes,
    )


def _recorded(signature: OpSignature) -> bytes:
    """The text of a signature; empty when nothing but its name is known."""
    attributes = dict(signature.attributes)
    values = (signature.shapes, signature.dtypes, signature.strides, signature.scalars)
    parts = [*values, *(attributes.get(key) for key in ATTRIBUTE_KEYS)]
    if all(part is None for part in parts):
        return b""
    return SEPARATOR.join(b"" if part is None else json.dumps(part).encode() for part in parts)


def _compact(part: bytes) -> bytes:
    if not part:
        return part
    try:
        return msgspec.json.format(part, indent=-1)
    except (msgspec.DecodeError, RecursionError):
        return part.strip()


def _parsed(part: bytes) -> Any:
    if not part:
        return None
    try:
        return msgspec.json.decode(part)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return json.loads(part.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None


@functools.lru_cache(maxsize=4096)
def _parsed_list(part: bytes) -> tuple[Any, ...] | None:
    value = _parsed(part)
    found: tuple[Any, ...] | None = _frozen(value) if isinstance(value, list) else None
    return found


def _frozen(value: Any) -> Any:
    """None for what is nested deeper than Python follows: from 3.12 on, decoders read deeper than that."""
    try:
        return freeze(value)
    except RecursionError:
        return None


def _slots(values: tuple[Any, ...] | None) -> tuple[ShapeSlot, ...] | None:
    """Sizes, or lists of sizes, per argument; what is neither counts as absent."""
    if values is None:
        return None
    return tuple(v if _is_sizes(v) or (isinstance(v, tuple) and all(map(_is_sizes, v))) else () for v in values)


def _is_sizes(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(n, int) for n in value)


def _texts(values: tuple[Any, ...] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(v if isinstance(v, str) else str(v) for v in values)
