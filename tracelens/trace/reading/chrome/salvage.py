"""Takes events out of damaged text one by one, losing only what is damaged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import field
from itertools import islice

import msgspec

from tracelens.lazy.records import dataclass
from tracelens.trace.reading.chrome.event_json import is_truncation, repaired, trailing_position

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


@dataclass(slots=True, kw_only=True)
class Salvaged:
    """What one window gave. ``position``: how much of it is used up; ``skipping``: it ends inside a damaged event."""

    elements: list[bytes] = field(default_factory=list)
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
        position = _between_end(window, position)
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
    # The end of the list may come before the next event, or instead of it.
    end = _list_end(window, position, len(window) if start is None else start, is_end)
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
    value = _first_value(memoryview(window)[position:])
    found.is_unfinished = value.is_short
    if value.end:
        found.elements.append(window[position : position + value.end])
        return position + value.end
    if not value.is_mendable or (value.is_short and not final):
        return 0
    for stop in _stops(window, position, final=final):
        fixed, repairs = repaired(window[position:stop])
        value = _first_value(memoryview(fixed))
        if value.end and not fixed[value.end :].strip():
            found.elements.append(fixed[: value.end])
            found.repairs += repairs
            found.is_unfinished = False
            return stop
        if not value.is_short:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    """The JSON value a text starts with: its length, or 0 when the text ends inside it or is no JSON."""

    end: int = 0
    is_short: bool = False
    is_mendable: bool = False


def _first_value(text: memoryview) -> _Value:
    try:
        _value.decode(text)
    except RecursionError:
        return _Value()
    except msgspec.DecodeError as error:
        end = trailing_position(error)
        if end is None:
            is_short = is_truncation(error)
            return _Value(is_short=is_short, is_mendable=is_short or _is_mendable(text, str(error)))
        return _Value(end=len(bytes(text[:end]).rstrip()))
    return _Value(end=len(bytes(text).rstrip()))


def _is_mendable(text: memoryview, message: str) -> bool:
    """Whether ``repaired`` can help. Where nothing but garbage follows, trying would cost more than all the rest."""
    if "escape" in message or "comma" in message:
        return True
    place = _BYTE.search(message)
    byte = int(place[1]) if place else 0
    return "character" in message and _MENDABLE.search(bytes(text[max(byte - 4, 0) : byte + 2])) is not None


def _list_end(window: bytes, position: int, limit: int, is_end: Callable[[int, bool], bool]) -> int | None:
    """The first bracket in a stretch of damage behind which the rest of the file can follow."""
    for match in _LIST_END.finditer(window, position, limit):
        if is_end(match.end(), False):
            return match.end()
    return None


def _between_end(window: bytes, position: int) -> int:
    match = _BETWEEN.match(window, position)
    return match.end() if match else position
