"""The decoded events of a piece in the form that scanned ones have (``ScannedEvents``), with exact times."""

from __future__ import annotations

import math
import operator
import re
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Raw

from tracelens.trace.reading.chrome.event_json import ABSENT, SIGNATURE_FIELDS, AnyEvent, Args, Event, TextTimedEvent
from tracelens.trace.table import SEPARATOR, Identifier

Array = npt.NDArray[Any]

#: From here on (101 days in µs) a float keeps less than a whole ns.
FLOAT_TIME_LIMIT_US = 2.0**43
#: Half of the int64 range, so that start + duration stays inside.
TIME_LIMIT_NS = 2**62
#: A start that is missing, or beyond what a trace can hold; and a duration of that kind.
NO_TIME = -(2**63)
#: A stream or device recorded as text is ``NO_TIME`` and the number of the string: below this.
LAST_TEXT_NUMBER = NO_TIME + 2**31

_NO_ARGS = Args()
_signature_parts = operator.attrgetter(*SIGNATURE_FIELDS)
_shapes = operator.attrgetter("dims", "types", "scalars")
_attributes = operator.attrgetter(
    "collective",
    "kernel_backend",
    "in_elements",
    "group_size",
    "group_name",
    "kernel_num_gb",
    "kernel_flop",
    "old_dims",
)
_traffic = operator.attrgetter("dram_read", "dram_written", "dram_moved")
#: Arguments that may be the text of a pointer.
_PLACES = ("stream", "device", "device_type", "device_id")


class DecodedEvents:
    """``events`` with the columns and methods of ``ScannedEvents``, which says what they are."""

    def __init__(self, events: Sequence[AnyEvent], start_ns: Array, duration_ns: Array) -> None:
        self.events = events
        self.start_ns, self.duration_ns = start_ns, duration_ns
        self.strings: list[str] = []
        self._numbers: dict[str, int] = {}
        self.category = self._texts([e.cat for e in events])
        self.name = self._texts([e.name for e in events])
        lanes: dict[tuple[Identifier, Identifier], int] = {}
        self.lane = _numbered([(e.pid, e.tid) for e in events], lanes)
        self.lanes = list(lanes)
        phases = [e.ph for e in events]
        self.counts = Counter(phases)
        text = "".join(phases)
        if len(text) != len(events) or not text.isascii():
            text = "".join(ph if len(ph) == 1 and ph.isascii() else "\x00" for ph in phases)
        self.phase: npt.NDArray[np.uint8] = np.frombuffer(text.encode(), np.uint8)

    @classmethod
    def of(cls, events: Sequence[AnyEvent], *, text_times: bool) -> DecodedEvents:
        """Events with the times that they record, of one of the two types."""
        if text_times:
            start, valid = _text_times_ns([bytes(e.ts) for e in events if isinstance(e, TextTimedEvent)])
        else:
            start, valid = _exact_ns(_array([e.ts for e in events], np.float64))
        duration, usable = _exact_ns(_array([e.dur for e in events], np.float64))
        return cls(events, np.where(valid, start, NO_TIME), np.where(usable, duration, -1))

    def __len__(self) -> int:
        return len(self.events)

    @property
    def labels(self) -> list[tuple[int, Raw, Raw]]:
        """Of each metadata event its number and its arguments ``name`` and ``labels`` as recorded."""
        args = ((i, e.args or _NO_ARGS) for i, e in enumerate(self.events) if e.ph == "M")
        return [(i, each.name, each.labels) for i, each in args]

    def values(self, keys: Sequence[str], rows: Array) -> list[Array]:
        """Whole numbers of the arguments ``keys`` of some events, -1 where there is none."""
        args = [self.events[i].args or _NO_ARGS for i in rows.tolist()]
        return [self._integers(list(map(operator.attrgetter(key), args)), key in _PLACES) for key in keys]

    def ids(self, rows: Array) -> Array:
        """The arrows of some events: a number as it is, -1 for none, and -2 and less for the number of a text."""
        ids = [self.events[i].id for i in rows.tolist()]
        try:
            found = _array(ids, np.int64)
            if (found >= 0).all():
                return found
        except struct.error:
            pass
        return np.array([-1 if i is None else i if _is_number(i) else -2 - self._number(str(i)) for i in ids], np.int64)

    def signature_codes(self, rows: Array, code: Callable[[bytes], int]) -> list[int]:
        """``code`` of the recorded arguments that tell calls apart, of some events; -1 where there are none."""
        codes = []
        for i in rows.tolist():
            args = self.events[i].args or _NO_ARGS
            if any(_attributes(args)):
                codes.append(code(SEPARATOR.join(_signature_parts(args))))
            elif any(_shapes(args)):
                codes.append(code(SEPARATOR.join((args.dims, args.types, args.strides, args.scalars))))
            else:
                codes.append(-1 if args.copied is ABSENT else code(SEPARATOR.join(_signature_parts(args))))
        return codes

    def traffic(self, rows: Array) -> npt.NDArray[np.float64]:
        """[rows, 3] bytes read, written and moved; NaN for each that is not recorded, or is no amount."""
        recorded = [_traffic(self.events[i].args or _NO_ARGS) for i in rows.tolist()]
        return np.array(
            [[v if isinstance(v, (int, float)) and 0 <= v < math.inf else math.nan for v in row] for row in recorded],
            np.float64,
        )

    def _integers(self, values: list[int | str], are_places: bool) -> Array:
        least = LAST_TEXT_NUMBER if are_places else -(2**63)
        try:
            found = _array(values, np.int64)
            if (found >= least).all():
                return found
        except struct.error:
            pass
        return np.array(
            [
                value
                if isinstance(value, int) and least <= value < 2**63
                else NO_TIME + self._number(str(value))
                if are_places
                else -1
                for value in values
            ],
            np.int64,
        )

    def _number(self, text: str) -> int:
        number = self._numbers.setdefault(text, len(self.strings))
        if number == len(self.strings):
            self.strings.append(text)
        return number

    def _texts(self, texts: list[str]) -> Array:
        found = _numbered(texts, self._numbers)
        self.strings += list(self._numbers)[len(self.strings) :]
        return found


def _is_number(value: int | str) -> bool:
    return isinstance(value, int) and 0 <= value < 2**63


def _numbered(values: list[Any], numbers: dict[Any, int]) -> Array:
    """A number for each distinct value, by first appearance; ``numbers`` has those known."""
    for value in dict.fromkeys(values):
        numbers.setdefault(value, len(numbers))
    return _array([numbers[value] for value in values], np.int32)


def needs_text_times(events: Sequence[AnyEvent]) -> bool:
    """Whether floats lose digits of these events' times: the piece is then decoded again as ``TextTimedEvent``."""
    times = _array([e.ts for e in events], np.float64)
    with np.errstate(invalid="ignore"):
        return bool((np.abs(times) >= FLOAT_TIME_LIMIT_US).any())


def text_time_ns(text: bytes) -> int | None:
    """A time in µs, as the digits recorded, in ns; exact, halves of a ns to even; None when it is no time."""
    try:
        us = Decimal(text.strip(b'" ').decode("ascii"))
    except (ValueError, InvalidOperation):
        return None
    if not us.is_finite() or us.adjusted() > _MOST_TIME_DIGITS or us.copy_abs() >= TIME_LIMIT_NS // 1000:
        return None
    if us.adjusted() < -_MOST_TIME_DIGITS:
        return 0
    return int(us.scaleb(3, _EXACT).to_integral_value(ROUND_HALF_EVEN))


# Enough digits for any time within the limit; traces record three or six decimals.
_EXACT = Context(prec=60)
_MOST_TIME_DIGITS = 20


def mixed_starts_ns(events: Sequence[AnyEvent]) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Starts of events of several pieces, and which of them are times."""
    values = [text_time_ns(repr(e.ts).encode() if isinstance(e, Event) else bytes(e.ts)) for e in events]
    valid = np.array([v is not None for v in values], np.bool_)
    return np.array([v or 0 for v in values], np.int64), valid


def _exact_ns(us: npt.NDArray[np.float64]) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Exact to three decimals below ``FLOAT_TIME_LIMIT_US``: the whole µs never meet the factor 1000 as floats."""
    with np.errstate(invalid="ignore"):
        valid = np.abs(us) < TIME_LIMIT_NS / 1000
        if not valid.all():
            us = np.where(valid, us, 0.0)
    whole = np.floor(us)
    return whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64), valid


_WHOLE = re.compile(rb"(?:\d{1,15} )+")
_THREE_DECIMALS = re.compile(rb"(?:\d{1,15}\.\d{3} )+")


def _text_times_ns(texts: list[bytes]) -> tuple[Array, npt.NDArray[np.bool_]]:
    joined = b" ".join(texts) + b" "
    for pattern, factor in ((_WHOLE, 1000), (_THREE_DECIMALS, 1)):
        if pattern.fullmatch(joined):
            digits = np.array(joined.replace(b".", b"").split(), np.bytes_)
            return digits.astype(np.int64) * factor, np.ones(len(texts), np.bool_)
    values = [text_time_ns(text) for text in texts]
    return np.array([v or 0 for v in values], np.int64), np.array([v is not None for v in values], np.bool_)


_TYPE_CODES = {np.int16: "h", np.int32: "i", np.int64: "q", np.float64: "d"}


def _array(values: Sequence[Any], dtype: type[np.generic]) -> Array:
    """Numbers as a column; ``struct.error`` for anything else, and for one too large.

    By way of ``struct``, which looks at each number once: a third of what ``np.array`` takes on a list.
    """
    return np.frombuffer(bytearray(struct.pack(f"{len(values)}{_TYPE_CODES[dtype]}", *values)), dtype)
