"""Protobuf's encoding without its definitions: one message field by field, or thousands of one type as columns.

Reading all messages at once, their first fields, then their second ..., takes a few passes over arrays where a
generated parser makes an object each; and no trace needs a package that it could do without.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.types.records import Record

Ints = npt.NDArray[np.int64]
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MOST_SHIFT = 63
# A byte below this is a varint of its own.
_ONE_BYTE = 0x80
# Fields of one message beyond these are no trace's.
_MOST_FIELDS = 4096
# What may be read behind the end of the data by the vectors: zeros.
_PADDING = bytes(16)


class WireError(ValueError):
    """The data is no message; ``position``: where that shows."""

    def __init__(self, position: int) -> None:
        super().__init__(f"no protobuf at byte {position:,}")
        self.position = position


class Spans(Record, frozen=False, eq=False):
    """Messages inside others: ``owner`` indexes the outer ones."""

    owner: Ints
    start: Ints
    end: Ints

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        return zip(self.owner.tolist(), self.start.tolist(), self.end.tolist(), strict=True)


class Columns(Record, frozen=False, eq=False):
    """``integers`` by field number: 0 where not ``there``, the last of several; ``spans`` of those with a length."""

    integers: dict[int, Ints]
    there: dict[int, npt.NDArray[np.bool_]]
    spans: dict[int, Spans] = msgspec.field(default_factory=dict)


class Wire:
    """Protobuf data. Positions are those in ``data``."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._bytes = np.frombuffer(data + _PADDING, np.uint8)

    def fields(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """(field number, value or start, end or -1) of one message; WireError where it is none."""
        position = start
        while position < end:
            number, value, stop, position = self._field(position, end)
            yield number, value, stop

    def repeated(
        self, start: int, end: int, number: int, others: list[tuple[int, int, int]] | None = None
    ) -> tuple[Ints, Ints, int]:
        """(starts, ends) of every message with the field number in another, and where that stops being one (-1: not).

        ``others`` gets the other fields, as ``fields`` gives them. A field of a low number and a short length is most
        of what long messages hold: those are stepped over without a call, four times as fast.
        """
        data, position, starts, ends = self.data, start, array("q"), array("q")
        tag = number << 3 | BYTES
        limit = min(end, len(data)) - 1
        try:
            while position < end:
                if (
                    position < limit
                    and data[position] == tag < _ONE_BYTE
                    and (length := data[position + 1]) < _ONE_BYTE
                ):
                    first = position + 2
                    position = first + length
                    if position > end:
                        raise WireError(first)
                    starts.append(first)
                    ends.append(position)
                    continue
                field_number, value, stop, position = self._field(position, end)
                if field_number == number and stop >= 0:
                    starts.append(value)
                    ends.append(stop)
                elif others is not None:
                    others.append((field_number, value, stop))
        except WireError as error:
            return np.frombuffer(starts, np.int64), np.frombuffer(ends, np.int64), error.position
        return np.frombuffer(starts, np.int64), np.frombuffer(ends, np.int64), -1

    def message(self, start: int, end: int) -> dict[int, Any]:
        """The last value of every field: integers, or bytes of what has a length."""
        return {number: value if stop < 0 else self.data[value:stop] for number, value, stop in self.fields(start, end)}

    def varints(self, start: int, end: int) -> Iterator[int]:
        """Whole numbers that follow each other, as repeated ones are packed."""
        while start < end:
            value, start = self._varint(start, end)
            yield value

    def text(self, start: int, end: int) -> str:
        return self.data[start:end].decode("utf-8", "replace")

    def columns(self, start: Ints, end: Ints, integers: tuple[int, ...], spans: tuple[int, ...] = ()) -> Columns:
        """Some fields of many messages; WireError where one is none."""
        found = Columns(
            integers={number: np.zeros(len(start), np.int64) for number in integers},
            there={number: np.zeros(len(start), np.bool_) for number in integers},
        )
        inner: dict[int, list[tuple[Ints, Ints, Ints]]] = {number: [] for number in spans}
        position, stop, at = start.copy(), end, np.arange(len(start))
        for _ in range(_MOST_FIELDS):
            active = position < stop
            if not active.all():
                position, stop, at = position[active], stop[active], at[active]
            if not len(at):
                break
            number, value, length, position = self._next_fields(position, stop)
            for wanted in integers:
                here = (number == wanted) & (length < 0)
                found.integers[wanted][at[here]] = value[here]
                found.there[wanted][at[here]] = True
            for wanted in spans:
                here = (number == wanted) & (length >= 0)
                if here.any():
                    inner[wanted].append((at[here], value[here], value[here] + length[here]))
        else:
            raise WireError(int(position[0]))
        for field_number, parts in inner.items():
            joined = [np.concatenate(each) if each else np.zeros(0, np.int64) for each in zip(*parts, strict=True)]
            found.spans[field_number] = Spans(*(joined or [np.zeros(0, np.int64)] * 3))
        return found

    def _next_fields(self, position: Ints, stop: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """(field number, value or start, length or -1, next position) of one field per message."""
        key, position = self._varints(position)
        kind = key & 7
        value, after = self._varints(position)
        has_length, is_varint = kind == BYTES, kind == VARINT
        length = np.where(has_length, value, -1)
        value = np.where(is_varint, value, np.where(has_length, after, position))
        fixed = (kind == FIXED64) | (kind == FIXED32)
        wrong = ~(has_length | is_varint | fixed) | (has_length & ((length < 0) | (length > len(self.data))))
        following = np.where(
            has_length, after + length, np.where(is_varint, after, position + np.where(kind == 1, 8, 4))
        )
        wrong |= following > stop
        if wrong.any():
            raise WireError(int(position[wrong][0]))
        if fixed.any():
            raw = self._bytes[position[fixed][:, None] + np.arange(8)].astype(np.uint64)
            raw[kind[fixed] == FIXED32, 4:] = 0
            value[fixed] = (raw << (8 * np.arange(8, dtype=np.uint64))).sum(axis=1, dtype=np.uint64).view(np.int64)
        return key >> 3, value, length, following

    def _varints(self, position: Ints) -> tuple[Ints, Ints]:
        last = len(self._bytes) - 1
        byte = self._bytes[np.minimum(position, last)]
        value = (byte & 0x7F).astype(np.uint64)
        position = position + 1
        more = np.flatnonzero(byte >= 0x80)
        shift = 7
        while len(more) and shift <= _MOST_SHIFT:
            byte = self._bytes[np.minimum(position[more], last)]
            value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            position[more] += 1
            more = more[byte >= 0x80]
            shift += 7
        if len(more):
            raise WireError(int(position[more[0]]))
        return value.view(np.int64), position

    def _field(self, position: int, end: int) -> tuple[int, int, int, int]:
        """(field number, value or start, end or -1, next position) of the field at a position."""
        data = self.data
        key, position = self._varint(position, end)
        kind = key & 7
        if kind == VARINT:
            value, position = self._varint(position, end)
            return key >> 3, value, -1, position
        if kind == BYTES:
            length, position = self._varint(position, end)
            if length < 0:
                raise WireError(position)
        else:
            length = {FIXED64: 8, FIXED32: 4}.get(kind, len(data))
        after = position + length
        if after > end:
            raise WireError(position)
        if kind == BYTES:
            return key >> 3, position, after, after
        return key >> 3, int.from_bytes(data[position:after], "little", signed=True), -1, after

    def _varint(self, position: int, end: int) -> tuple[int, int]:
        data, value, shift = self.data, 0, 0
        while position < end and shift <= _MOST_SHIFT:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value - (1 << 64) if value >= 1 << 63 else value, position
            shift += 7
        raise WireError(position)


def varint(value: int) -> bytes:
    """A whole number in protobuf's encoding; a negative one as of 64 bits."""
    if 0 <= value < 0x80:
        return _BYTES[value]
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


_BYTES = [bytes((value,)) for value in range(0x80)]


def number_field(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text_field(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content
