"""Whole events, read again from the file when someone asks: reading keeps columns, not dictionaries."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from tracelens.errors import InputError
from tracelens.trace.reading.bytestream import ByteStream
from tracelens.trace.reading.chrome.chunks import Piece
from tracelens.trace.reading.chrome.event_json import FAILURES, load_element, split_elements, trailing_position
from tracelens.trace.reading.chrome.repair import repaired

_KEPT_PIECES = 8


class PieceIndex:
    """Which piece holds the event at a position of the list, and where that piece stands in the file.

    The last ``_KEPT_PIECES`` pieces asked for stay in memory as text.
    """

    def __init__(self, stream: ByteStream, source: str) -> None:
        self._stream = stream
        self._source = source
        self._first: list[int] = []
        self._places: list[tuple[int, int, bool]] = []
        self._own: dict[int, Sequence[bytes]] = {}
        self._kept: OrderedDict[int, Sequence[Raw | bytes]] = OrderedDict()

    def add(self, piece: Piece, first: int) -> None:
        """``piece``, whose first event is number ``first`` of the list; pieces come in order."""
        if piece.elements is not None:
            self._own[len(self._first)] = piece.elements
        self.add_text(piece.offset, piece.length, first, is_repaired=piece.repaired)

    def add_text(self, offset: int, length: int, first: int, *, is_repaired: bool = False) -> None:
        """A piece by where its text is in the file."""
        self._first.append(first)
        self._places.append((offset, length, is_repaired))

    def event(self, file_index: int) -> dict[str, Any]:
        """The element ``file_index`` of the event list, as ``json.loads`` gives it.

        In a repaired piece, ``NaN`` and ``Infinity`` are None. InputError when the file has changed since.
        """
        number = bisect_right(self._first, file_index) - 1
        element = bytes(self._elements(number)[file_index - self._first[number]])
        try:
            event = load_element(element)
        except (ValueError, RecursionError):
            event = load_element(repaired(element)[0])
        return event if isinstance(event, dict) else {}

    def _elements(self, number: int) -> Sequence[Raw | bytes]:
        if number in self._own:
            return self._own[number]
        elements = self._kept.get(number)
        if elements is None:
            elements = self._kept[number] = self._read(number)
            if len(self._kept) > _KEPT_PIECES:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(number)
        return elements

    def _read(self, number: int) -> Sequence[Raw | bytes]:
        offset, length, is_repaired = self._places[number]
        text = self._stream.read_at(offset, length)
        if is_repaired:
            text, _ = repaired(text)
        text = b"[" + text + b"]"
        try:
            return split_elements(text)
        except msgspec.DecodeError as error:
            # The last piece holds the list's own end.
            if end := trailing_position(error):
                return split_elements(text[:end])
        except FAILURES:
            pass
        raise InputError(f"{self._source} has changed since it was read: read it again")
