"""Everything of a trace file outside its event list."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from tracelens.lazy.patterns import lazy_pattern
from tracelens.lazy.records import dataclass
from tracelens.trace.reading.chrome.repair import STRING, repaired

_EVENTS_KEY = lazy_pattern(rb'"traceEvents"\s*+:\s*+\[')
_OPENING = lazy_pattern(rb"\s*+:\s*+\[")
#: Nothing but an event starts with its phase.
PHASE_FIRST = lazy_pattern(rb'\{\s*+"ph"\s*+:')
_KEY = b'"traceEvents"'
_TOKEN = lazy_pattern(STRING + rb"|[{\[]++|[}\]]++", re.DOTALL)
_BLANK_BYTES = b" \t\r\n\x00"
_FAILURES = (msgspec.DecodeError, ValueError, RecursionError)  # before msgspec 0.21 the first was no ValueError


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
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
    depth = 0
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token[0] in b"{[":
            depth += len(token)
        elif token[0] in b"}]":
            depth -= len(token)
        elif depth == 1 and token == _KEY and (opening := _OPENING.match(text, match.end())):
            return opening.end()
    return None


def first_events(text: bytes) -> int | None:
    """As ``find_events`` in a damaged text: behind the first key that looks like it, or at the first event where that
    comes earlier, as the key is lost then."""
    key = _EVENTS_KEY.search(text)
    event = PHASE_FIRST.search(text, 0, key.start() if key else len(text))
    if event and load_object(text) is None:
        return event.start()
    return key.end() if key else None


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
