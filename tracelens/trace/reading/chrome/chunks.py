"""A trace file's text in pieces cut at event borders, events taken out of damaged text one by one, the metadata
outside the event list, and whole events read again.

A text pattern cannot know a border from a string or a nested list that looks like one. What holds, by induction: a
piece that starts on a true border and parses as ``[`` + piece + ``]`` ends on a true border. Where that breaks, the
text is damaged, and events are taken one by one until the list is sound again (``salvaged``).
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
from msgspec import Raw

from tracelens.errors import InputError
from tracelens.trace.reading.bytestream import ByteStream
from tracelens.trace.reading.chrome import decoded_events
from tracelens.trace.reading.chrome.decoded_events import repaired
from tracelens.trace.reading.chrome.scanned_events import Refusal, ScannedEvents, new_scanner
from tracelens.types.records import Record

_BETWEEN = re.compile(rb"[\s,\x00]*")
_SEPARATOR = re.compile(rb"[\s\x00]*+([,\]{]|\Z)")
_EVENT_START = re.compile(rb'\{\s*+"(?:ph|cat|name|pid|ts)"\s*:')
_EVENT_END = re.compile(rb'\}\s*+(?:(?=\])|,?+\s*+(?=\{\s*+"[A-Za-z]))')
# The end of the list behind its last event, as far as the characters around it can tell.
_LIST_END = re.compile(rb'\}[\s\x00,]*+\](?=[\s\x00]*+(?:,\s*+"[A-Za-z]|\}[\s\x00]*+\Z|\Z))')
# An event cut by a pattern inside its strings or lists is tried together with this many neighbors.
_NEIGHBORS = 8
_LARGEST_MENDED_BYTES = 64 * 1024
_BYTE = re.compile(r"\(byte (\d+)\)")
_MENDABLE = re.compile(rb"[\x00-\x1f\\]|[nN]a|[iI]n|IN")
# What is kept when no start is in sight: a start may straddle two windows.
_KEPT_BYTES = 256

_value = msgspec.json.Decoder(msgspec.Raw)


class Salvaged(Record, frozen=False, kw_only=True):
    """What one window gave. ``position``: how much of it is used up; ``skipping``: it ends inside a damaged event."""

    elements: list[bytes] = msgspec.field(default_factory=list)
    position: int = 0
    damaged_events: int = 0
    repairs: int = 0
    proven: bool = True
    skipping: bool = False
    ends_list: bool = False
    is_unfinished: bool = False


def salvaged(
    window: bytes, *, final: bool, proven: bool, skipping: bool, is_end: Callable[[int, bool], bool]
) -> Salvaged:
    """The whole events of ``window``.

    ``final``: no more text will come; ``proven``: the window starts on a true border; ``is_end`` says whether the list
    can end before a position, which may be proven to stand between events.
    """
    found = Salvaged(proven=proven, skipping=skipping)
    position = 0
    while True:
        if found.skipping:
            start = _past_damage(window, position, found, final=final, is_end=is_end)
            if start is None:
                return found
            position = start
        position = _behind(_BETWEEN, window, position)
        found.position = position
        if position >= len(window):
            return found
        byte = window[position : position + 1]
        if byte == b"]":
            if is_end(position + 1, found.proven):
                found.position, found.ends_list = position + 1, True
                return found
            position += 1
            found.proven = False
            found.repairs += 1
            continue
        if byte == b"{" and (end := _take_event(window, position, found, final=final)):
            position = end
            separator = _SEPARATOR.match(window, position)
            if separator is None:
                # Something of the event stands behind its end: what is there is lost, the event is not.
                found.proven, found.skipping = False, True
                found.repairs += 1
            elif separator[1] == b"{":
                found.repairs += 1
            continue
        if byte == b"{" and found.is_unfinished and not final:
            found.is_unfinished = False
            return found
        found.damaged_events += 1
        found.proven, found.skipping = False, True


def _past_damage(
    window: bytes, position: int, found: Salvaged, *, final: bool, is_end: Callable[[int, bool], bool]
) -> int | None:
    """Where the next event starts; None where the list ends before it, or the window does."""
    start = _event_start(window, position)
    # The end of the list may come before the next event, or instead of it: the first bracket in the damage behind which
    # the rest of the file can follow.
    brackets = _LIST_END.finditer(window, position, len(window) if start is None else start)
    end = next((match.end() for match in brackets if is_end(match.end(), False)), None)
    if end is not None:
        found.position, found.ends_list = end, True
        return None
    if start is None:
        found.position = len(window) if final else max(position, len(window) - _KEPT_BYTES)
    else:
        found.skipping = False
    return start


def _event_start(window: bytes, position: int) -> int | None:
    """Where an event may start after damage: with a known first key, and not as a value or element inside another."""
    for match in _EVENT_START.finditer(window, position):
        before = window[max(position, match.start() - _KEPT_BYTES) : match.start()].rstrip()
        before = before.removesuffix(b",").rstrip()
        if before and before[-1] not in b":[,":
            return match.start()
    return None


def _take_event(window: bytes, position: int, found: Salvaged, *, final: bool) -> int:
    """Adds the object at ``position``; returns its end, or 0 when there is none that parses."""
    length, found.is_unfinished, is_mendable = _first_value(memoryview(window)[position:])
    if length:
        found.elements.append(window[position : position + length])
        return position + length
    if not is_mendable or (found.is_unfinished and not final):
        return 0
    for stop in _stops(window, position, final=final):
        fixed, repairs = repaired(window[position:stop])
        length, is_short, _ = _first_value(memoryview(fixed))
        if length and not fixed[length:].strip():
            found.elements.append(fixed[:length])
            found.repairs += repairs
            found.is_unfinished = False
            return stop
        if not is_short:
            # More text does not mend what is wrong before it.
            break
    return 0


def _stops(window: bytes, position: int, *, final: bool) -> Iterator[int]:
    """Where the event at ``position`` may end, nearest first."""
    limit = position + _LARGEST_MENDED_BYTES
    ends = islice(_EVENT_END.finditer(window, position, limit), _NEIGHBORS)
    yield from (match.start() + 1 for match in ends)
    if final and len(window) <= limit:
        yield len(window)


def _first_value(text: memoryview) -> tuple[int, bool, bool]:
    """Of the JSON value a text starts with its length, 0 when the text ends inside it or is no JSON; whether it is too
    short, and whether ``repaired`` may help."""
    try:
        _value.decode(text)
    except RecursionError:
        return 0, False, False
    except msgspec.DecodeError as error:
        end = decoded_events.trailing_position(error)
        if end is None:
            is_short = decoded_events.is_truncation(error)
            return 0, is_short, is_short or _is_mendable(text, str(error))
        return len(bytes(text[:end]).rstrip()), False, False
    return len(bytes(text).rstrip()), False, False


def _is_mendable(text: memoryview, message: str) -> bool:
    """Whether ``repaired`` can help. Where nothing but garbage follows, trying would cost more than all the rest."""
    if "escape" in message or "comma" in message:
        return True
    place = _BYTE.search(message)
    byte = int(place[1]) if place else 0
    return "character" in message and _MENDABLE.search(bytes(text[max(byte - 4, 0) : byte + 2])) is not None


_EVENTS_KEY = re.compile(rb'"traceEvents"\s*+:\s*+\[')
_OPENING = re.compile(rb"\s*+:\s*+\[")
#: How alike a damaged key still is: two of its letters may be others.
_MISSPELLED = 0.8
#: Nothing but an event starts with its phase.
_PHASE_FIRST = re.compile(rb'\{\s*+"ph"\s*+:')
_KEY = b'"traceEvents"'
_TOKEN = re.compile(decoded_events.STRING + rb"|[{\[]++|[}\]]++", re.DOTALL)
_BLANK_BYTES = b" \t\r\n\x00"
_FAILURES = (msgspec.DecodeError, ValueError, RecursionError)  # before msgspec 0.21 the first was no ValueError


class Metadata(Record, frozen=True, kw_only=True):
    """``values`` of the top object; ``repairs``: how many were put right; ``is_whole``: nothing was lost."""

    values: dict[str, Any]
    repairs: int = 0
    is_whole: bool = True


def find_events(text: bytes) -> int | None:
    """Position behind the ``[`` of the top object's ``traceEvents``; one inside a string or a nested object is none.

    One pass over strings and brackets: parsing the text before each candidate would take hours where a file has many.
    """
    if _KEY not in text:
        return None
    return next((at for token, at in _lists(text) if token == _KEY), None)


def _lists(text: bytes) -> Iterator[tuple[bytes, int]]:
    """Keys of the top object whose value is a list, in quotes, and the position behind its ``[``."""
    depth = 0
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token[0] in b"{[":
            depth += len(token)
        elif token[0] in b"}]":
            depth -= len(token)
        elif depth == 1 and (opening := _OPENING.match(text, match.end())):
            yield token, opening.end()


def first_events(text: bytes) -> int | None:
    """As ``find_events`` in a damaged text: behind the first key that looks like it, or at the first event where that
    comes earlier, as the key is lost then."""
    key = _EVENTS_KEY.search(text)
    event = _PHASE_FIRST.search(text, 0, key.start() if key else len(text))
    if event and load_object(text) is None:
        return event.start()
    return key.end() if key else None


def begun_badly(text: bytes) -> int | None:
    """Position behind the ``[`` of ``traceEvents`` in a text that does not begin as JSON does."""
    key = _EVENTS_KEY.search(text)
    return key.end() if key else None


def misspelled_events(text: bytes) -> tuple[str, int] | None:
    """The top object's key that is nearly ``traceEvents``, of a list of objects, and the position behind its ``[``."""
    for token, at in _lists(text):
        if abs(len(token) - len(_KEY)) <= 1:
            alike = difflib.SequenceMatcher(None, token, _KEY).ratio()
            if alike >= _MISSPELLED and text[at:].lstrip(_BLANK_BYTES)[:1] == b"{":
                return token[1:-1].decode("utf-8", "replace"), at
    return None


def another_list(tail: bytes, *, in_object: bool) -> int | None:
    """Where, in the text behind the ``]`` of the event list, its document ends and another list of events begins: under
    the same key once more, or in a document that was appended. None where the text has none.
    """
    depth, end = int(in_object), 0
    for match in _TOKEN.finditer(tail) if in_object else ():
        token = match[0]
        if token[0] in b"{[":
            depth += len(token)
        elif token[0] in b"}]":
            depth -= len(token)
            if depth <= 0:
                end = match.end() + depth
                break
        elif depth == 1 and token == _KEY and _OPENING.match(tail, match.end()):
            return match.start()
    following = tail[end:].lstrip(_BLANK_BYTES)[:1]
    return end if depth <= 0 and following in ((b"{", b"[") if in_object else (b"[",)) else None


def load_metadata(head: bytes, tail: bytes | None) -> Metadata:
    """The values around the event list: ``head`` ends with its ``[``; ``tail`` starts behind its ``]``, or is None."""
    lost = not head.endswith(b"[")  # the list's own start is
    texts = [head + b"]" + tail.strip(_BLANK_BYTES), head + b"]" + tail.rstrip(_BLANK_BYTES) + b"}"] if tail else []
    for text in (*texts, head + b"]}"):
        for repair in (False, True):
            values, repairs = _loaded(text, repair=repair)
            if isinstance(values, dict):
                values.pop("traceEvents", None)
                return Metadata(values=values, repairs=repairs, is_whole=not lost)
        lost = True
    return Metadata(values={}, is_whole=False)


def load_object(text: bytes) -> dict[str, Any] | None:
    """A whole JSON object, or None."""
    values, _ = _loaded(text.strip(_BLANK_BYTES), repair=False)
    return values if isinstance(values, dict) else None


def is_tail(text: bytes, *, in_object: bool) -> bool:
    """Whether ``text`` can follow the ``]`` of the event list up to the end of the file."""
    text = text.strip(_BLANK_BYTES)
    if not in_object:
        return not text
    values, _ = _loaded(b'{"":[]' + text, repair=False)
    return isinstance(values, dict) and "traceEvents" not in values


def _loaded(text: bytes, *, repair: bool) -> tuple[Any, int]:
    repairs = 0
    if repair:
        text, repairs = repaired(text)
    try:
        return msgspec.json.decode(text), repairs
    except _FAILURES:
        pass
    try:
        return (json.loads(text.decode("utf-8", "replace"), strict=False), repairs) if repair else (None, 0)
    except _FAILURES:
        return None, 0


_BORDER = re.compile(rb'\}\s*+,\s*+(?=\{\s*+"[A-Za-z])')
_BLANK = re.compile(rb"[\s\x00]*")
_SCAN_BYTES = 16 * 1024
# A border is found although it straddles two scans: more white space than this inside one only costs a candidate.
_SCAN_OVERLAP_BYTES = 256
#: The most text held while no border parses; beyond, the text counts as damaged.
_LARGEST_WINDOW_BYTES = 64 << 20
_LOOK_AHEAD_BYTES = 4096
# Pieces that are scanned need no objects in a core's cache: larger ones save calls.
_SCANNED_AT_ONCE = 4
_LOOKED_AT = 8
# How much text may follow a doubtful end of the list for it to be checked.
_CHECKED_TAIL_BYTES = 4 << 20
# How many such ends are checked in all: each costs a look at the rest of the file.
_MOST_CHECKED_ENDS = 50


class Piece(Record, frozen=True, kw_only=True):
    """Events in file order, and how to find their text again.

    ``elements`` is the text itself where the file's no longer agrees with the events (after ``salvage``).
    """

    events: decoded_events.DecodedEvents | ScannedEvents
    offset: int
    length: int
    repaired: bool = False
    elements: tuple[bytes, ...] | None = None


class _Parsed(Record, frozen=True, kw_only=True):
    """A text that parses; ``end`` is where the list's own end stands in it, or None; ``repairs``: values put right."""

    events: Sequence[decoded_events.AnyEvent] | ScannedEvents
    end: int | None = None
    repairs: int = 0
    is_repaired: bool = False
    rest: bytes = b""


class _Unparsed(Record, frozen=True, kw_only=True):
    """A text that does not parse: cut in the middle of an event (``is_short``), or malformed."""

    is_short: bool


class Pieces:
    """Iterates the pieces of one event list, from the byte after its ``[``.

    Afterwards ``tail`` is the text behind the list, or None when the file ends inside it; ``damaged_events``,
    ``repairs`` and ``unfinished`` (the last event has no end) say what was lost. ``another``: where in the text
    another list follows, which is not read; None: nowhere.
    """

    def __init__(self, stream: ByteStream, *, window: bytes, offset: int, piece_bytes: int, in_object: bool) -> None:
        self._stream = stream
        self._window = window
        self._offset = offset
        self._piece_bytes = piece_bytes
        self._size = piece_bytes
        self._in_object = in_object
        self._at_end_of_file = False
        self._text_times = False
        self._proven = True
        self._skipping = False
        self._finished = False
        self._checked_ends = 0
        self._scanner = new_scanner()
        self._left_out = 0
        self.tail: bytes | None = None
        self.damaged_events = 0
        self.repairs = 0
        self.unfinished = False
        self.another: int | None = None
        self._has_events = False

    def __iter__(self) -> Iterator[Piece]:
        while not self._finished:
            self._fill(self._size)
            piece = self._next_piece()
            if piece is not None and piece.events:
                self._has_events = True
                yield piece
            # Two pieces at a time do not fit into a core's cache: letting go of them took three times as long.
            del piece

    def _fill(self, size: int) -> None:
        parts, length = [self._window], len(self._window)
        while length < size and not self._at_end_of_file:
            block = self._stream.read()
            self._at_end_of_file = not block
            parts.append(block)
            length += len(block)
        self._window = b"".join(parts)

    def _advance(self, position: int) -> None:
        self._offset += position
        self._window = self._window[position:]

    def _next_piece(self) -> Piece | None:
        if self._skipping:
            return self._salvaged_piece()
        start = _behind(_BLANK, self._window, 0)
        if start == len(self._window) and self._at_end_of_file:
            self._finished = True
            return None
        for end, following in self._cuts(start):
            result = self._parse(memoryview(self._window)[start:end])
            if isinstance(result, _Parsed):
                if result.end is None:
                    piece = self._piece(result, start, end)
                    self._advance(following)
                    self._size = self._piece_bytes
                    if isinstance(result.events, ScannedEvents):
                        self._size *= _SCANNED_AT_ONCE
                    return piece
                if self._is_plausible_end(result, start, end):
                    return self._emit_last(result, start, end)
                return self._salvaged_piece()
            if not result.is_short:
                return self._salvaged_piece()
        if not self._at_end_of_file and self._size < _LARGEST_WINDOW_BYTES:
            self._size *= 2
            return None
        return self._salvaged_piece()

    def _emit_last(self, result: _Parsed, start: int, end: int) -> Piece:
        """The piece with the list's own end in it; reads on to the end of the file."""
        piece = self._piece(result, start, end)
        self._has_events = self._has_events or bool(piece.events)
        if result.is_repaired:
            self._close(end, result.rest)
        else:
            self._close(start + (result.end or 0))
        return piece

    def _piece(self, result: _Parsed, start: int, end: int) -> Piece:
        self.repairs += result.repairs
        found = result.events
        return Piece(
            events=found
            if isinstance(found, ScannedEvents)
            else decoded_events.DecodedEvents.of(found, text_times=self._text_times),
            offset=self._offset + start,
            length=end - start,
            repaired=result.is_repaired,
        )

    def _close(self, position: int, before: bytes = b"") -> None:
        """Behind the list's end: reads on to the end of the file, or to another list."""
        while True:
            tail = before + self._window[position:]
            end = another_list(tail, in_object=self._in_object)
            first = None if end is None or self._has_events or before else _EVENTS_KEY.search(tail, end)
            if first is not None:  # the first list has nothing
                self._advance(position + first.end())
                return
            if end is not None:
                self.another = self._offset + position - len(before) + end
                tail = tail[:end].rstrip(_BLANK_BYTES + b",")
            if end is not None or self._at_end_of_file:
                break
            self._fill(2 * len(self._window) + 1)
        self.tail = tail
        self._finished = True
        self._window = b""

    def _cuts(self, start: int) -> Iterator[tuple[int, int]]:
        """(end of a piece, start of the next), last first, in steps that double: a long nested list is left quickly."""
        window = self._window
        if self._at_end_of_file:
            end = len(window.rstrip(_BLANK_BYTES + b","))
            if end > start:
                yield end, len(window)
        skip, step = 0, 1
        for end, following in _borders_backward(window, start):
            if skip:
                skip -= 1
                continue
            yield end, following
            skip, step = step - 1, 2 * step

    def _scanned(self, body: memoryview) -> ScannedEvents | None:
        """None where the piece is to be decoded: of many in a row, only each eighth is looked at."""
        if self._scanner is None or self._left_out % _LOOKED_AT:
            self._left_out += 1
            return None
        found = self._scanner.scanned(body, text_times=self._text_times)
        if found is Refusal.NEEDS_TEXT_TIMES:
            # Decoded, it says whether that time is an event's or one that a later key of the event takes the place of
            return None
        if not isinstance(found, ScannedEvents):
            self._left_out += 1
            return None
        self._left_out = 0
        return found

    def _parse(self, body: memoryview) -> _Parsed | _Unparsed:
        if (scanned := self._scanned(body)) is not None:
            return _Parsed(events=scanned, end=scanned.end)
        result = self._decode(body)
        if isinstance(result, _Parsed) or (result.is_short and not self._at_end_of_file):
            return result
        fixed, repairs = repaired(bytes(body))
        if fixed == body:
            return result
        again = self._decode(fixed)
        if isinstance(again, _Unparsed):
            return result if result.is_short else again
        rest = fixed[again.end :] if again.end is not None else b""
        return _Parsed(events=again.events, end=again.end, repairs=repairs, is_repaired=True, rest=rest)

    def _decode(self, body: bytes | memoryview) -> _Parsed | _Unparsed:
        text = b"".join((b"[", body, b"]"))
        try:
            events, coerced = self._timed(decoded_events.decoded, text)
        except (UnicodeDecodeError, RecursionError):
            return _Unparsed(is_short=False)
        except msgspec.DecodeError as error:
            trailing = decoded_events.trailing_position(error)
            if trailing is None:
                return _Unparsed(is_short=decoded_events.is_truncation(error))
            end = trailing - 1  # without the added bracket
            inner = self._decode(bytes(body[:end]).rstrip()[:-1])
            if isinstance(inner, _Unparsed):
                return inner
            return _Parsed(events=inner.events, repairs=inner.repairs, end=end)
        return _Parsed(events=events, repairs=coerced)

    def _timed(
        self, decode: Callable[..., tuple[Sequence[decoded_events.AnyEvent], int]], text: Any
    ) -> tuple[Sequence[decoded_events.AnyEvent], int]:
        """The events of a text, again with their times as digits where floats would lose some of them."""
        events, coerced = decode(text, text_times=self._text_times)
        if not self._text_times and decoded_events.needs_text_times(events):
            self._text_times = True
            return decode(text, text_times=True)
        return events, coerced

    def _salvaged_piece(self) -> Piece | None:
        """The events of the window one by one, as ``_next_piece`` could not take them together."""
        final = self._at_end_of_file
        found = salvaged(
            self._window,
            final=final or self._size >= _LARGEST_WINDOW_BYTES,
            proven=self._proven,
            skipping=self._skipping,
            is_end=self._is_plausible_position,
        )
        self._proven, self._skipping = found.proven, found.skipping
        self.damaged_events += found.damaged_events
        self.repairs += found.repairs
        piece = None
        if found.elements:
            events, coerced = self._timed(decoded_events.decode_each, found.elements)
            self.repairs += coerced
            piece = Piece(
                events=decoded_events.DecodedEvents.of(events, text_times=self._text_times),
                offset=self._offset,
                length=found.position,
                elements=tuple(found.elements),
            )
        if found.ends_list:
            self._close(found.position)
            return piece
        if found.position == 0 and not final:
            self._size = min(2 * self._size, _LARGEST_WINDOW_BYTES)
        else:
            self._size = self._piece_bytes
        self._advance(found.position)
        if final:
            self._finished = True
            self.unfinished = found.is_unfinished
        return piece

    def _is_plausible_end(self, result: _Parsed, start: int, end: int) -> bool:
        if not result.is_repaired:
            return self._is_plausible_position(start + (result.end or 0), self._proven)
        if self._proven:
            self._fill(end + _LOOK_AHEAD_BYTES)
            return not _more_events(result.rest + self._window[end : end + _LOOK_AHEAD_BYTES])
        return self._sees_end_of_file(end) and self._is_tail(end, result.rest)

    def _is_plausible_position(self, position: int, is_proven: bool) -> bool:
        """Whether the list ends before ``position``: not if events follow; after damage, only if the rest of the file
        can."""
        if is_proven:
            self._fill(position + _LOOK_AHEAD_BYTES)
            behind = self._window[position : position + _LOOK_AHEAD_BYTES]
            return another_list(behind, in_object=self._in_object) is not None or not _more_events(behind)
        return self._sees_end_of_file(position) and self._is_tail(position)

    def _sees_end_of_file(self, position: int) -> bool:
        self._fill(position + _CHECKED_TAIL_BYTES)
        return self._at_end_of_file

    def _is_tail(self, position: int, before: bytes = b"") -> bool:
        if self._checked_ends == _MOST_CHECKED_ENDS:
            return False
        self._checked_ends += 1
        return is_tail(before + self._window[position:], in_object=self._in_object)


def _more_events(text: bytes) -> bool:
    """Whether events follow on what looks like the end of their list: its bracket does not belong there."""
    return bool(_EVENT_START.match(text.lstrip(_BLANK_BYTES + b",]}")) or _PHASE_FIRST.search(text))


def _behind(pattern: re.Pattern[bytes], text: bytes, position: int) -> int:
    """Where what matches the pattern at a position ends; the position itself where nothing does."""
    match = pattern.match(text, position)
    return match.end() if match else position


def _borders_backward(text: bytes, start: int) -> Iterator[tuple[int, int]]:
    """(after the brace, before the next one) of every candidate, last first."""
    high = len(text)
    last = high + 1
    while high > start:
        low = max(start, high - _SCAN_BYTES)
        found = list(_BORDER.finditer(text, low, min(len(text), high + _SCAN_OVERLAP_BYTES)))
        for match in reversed(found):
            if match.start() < last:
                last = match.start()
                yield match.start() + 1, match.end()
        high = low


_KEPT_PIECES = 8


class PieceIndex:
    """Which piece holds the event at a position of the list, and where that piece stands in the file.

    The last ``_KEPT_PIECES`` pieces asked for stay in memory as text.
    """

    def __init__(self, stream: ByteStream, source: str) -> None:
        self._first: list[int] = []
        self._places: list[tuple[int, int, bool]] = []
        self._own: dict[int, Sequence[bytes]] = {}
        self._read = functools.lru_cache(_KEPT_PIECES)(functools.partial(_elements_at, stream, source))

    def add(self, piece: Piece, first: int) -> None:
        """``piece``, whose first event is number ``first`` of the list; pieces come in order."""
        if piece.elements is not None:
            self._own[len(self._first)] = piece.elements
        self._first.append(first)
        self._places.append((piece.offset, piece.length, piece.repaired))

    def event(self, file_index: int) -> dict[str, Any]:
        """The element ``file_index`` of the event list, as ``json.loads`` gives it.

        In a repaired piece, ``NaN`` and ``Infinity`` are None. InputError when the file has changed since.
        """
        number = bisect_right(self._first, file_index) - 1
        elements = self._own[number] if number in self._own else self._read(self._places[number])
        element = bytes(elements[file_index - self._first[number]])
        try:
            event = decoded_events.load_element(element)
        except (ValueError, RecursionError):
            event = decoded_events.load_element(repaired(element)[0])
        return event if isinstance(event, dict) else {}


def _elements_at(stream: ByteStream, source: str, place: tuple[int, int, bool]) -> list[Raw]:
    """The elements of a piece by its offset, its length and whether it is to be repaired."""
    offset, length, is_repaired = place
    text = stream.read_at(offset, length)
    if is_repaired:
        text, _ = repaired(text)
    text = b"[" + text + b"]"
    try:
        return decoded_events.split_elements(text)
    except msgspec.DecodeError as error:
        # The last piece holds the list's own end.
        if end := decoded_events.trailing_position(error):
            return decoded_events.split_elements(text[:end])
    except decoded_events.FAILURES:
        pass
    raise InputError(f"{source} has changed since it was read: read it again")
