"""The events of a piece decoded by Python: text that is almost JSON repaired, typed decoding, and the form that
scanned events have.

What profilers and their hosts are known to write wrongly is repaired. Outside strings: ``NaN`` and ``Infinity`` in any
spelling become ``null``, a comma before a closing bracket is dropped. In strings: control characters, invalid escapes,
lone surrogates and invalid UTF-8 become something readable. The result is a function of the text alone, so a piece that
is read again is repaired the same way.
"""

from __future__ import annotations

import json
import math
import operator
import re
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw, Struct, field

from tracelens.trace.table import SEPARATOR, Identifier

#: A JSON string, as a pattern. One without an end reaches to the end of the text: as it matches there, what is in it is
#: not searched again from each of its quotes, which would take the square of its length.
STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)'
_TOKEN = re.compile(STRING + rb"|-?\b(?:NaN|nan|Infinity|infinity|inf|Inf|INF)\b|,(?=\s*+[}\]])", re.DOTALL)
_SUSPECT = re.compile(rb"[\x00-\x1f\\\x80-\xff]")
_CONTROL = re.compile(rb"[\x00-\x1f]")
_ESCAPE = re.compile(
    rb"\\(?:(?P<valid>[\"\\/bfnrt]|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})|(?P<surrogate>u[dD][89a-fA-F][0-9a-fA-F]{2}))?"
)


def repaired(text: bytes) -> tuple[bytes, int]:
    """The text with every known fault put right, and how many values that were. It may still be no JSON."""
    count = 0

    def fix(match: re.Match[bytes]) -> bytes:
        nonlocal count
        token = match[0]
        if token[:1] == b'"':
            if _SUSPECT.search(token) is None:
                return token
            fixed = _ESCAPE.sub(lambda m: m[0] if m["valid"] else rb"\ufffd" if m["surrogate"] else rb"\\", token)
            fixed = _CONTROL.sub(lambda m: b"\\u%04x" % m[0][0], fixed).decode("utf-8", "replace").encode()
            count += fixed != token
            return fixed
        count += 1
        return b"" if token == b"," else b"null"

    return _TOKEN.sub(fix, text), count


#: An absent raw value; compared by identity, as ``Raw | None`` is no type msgspec can decode.
ABSENT = Raw()


class Args(Struct, gc=False):
    """The arguments that become columns; everything else is skipped without being decoded."""

    correlation: int = -1
    external_id: int = field(default=-1, name="External id")
    old_external_id: int = field(default=-1, name="external id")
    sequence_number: int = field(default=-1, name="Sequence number")
    graph: int = field(default=-1, name="graph id")
    graph_node: int = field(default=-1, name="graph node id")
    # ROCm's runtime calls record a stream as the text of a pointer.
    stream: int | str = -1
    device: int | str = -1
    dims: Raw = field(default=ABSENT, name="Input Dims")
    types: Raw = field(default=ABSENT, name="Input type")
    strides: Raw = field(default=ABSENT, name="Input Strides")
    scalars: Raw = field(default=ABSENT, name="Concrete Inputs")
    collective: Raw = field(default=ABSENT, name="Collective name")
    receiver: Raw = field(default=ABSENT, name="Dst Rank")
    group_size: Raw = field(default=ABSENT, name="Group size")
    in_elements: Raw = field(default=ABSENT, name="In msg nelems")
    in_split: Raw = field(default=ABSENT, name="In split size")
    out_elements: Raw = field(default=ABSENT, name="Out msg nelems")
    out_split: Raw = field(default=ABSENT, name="Out split size")
    group_description: Raw = field(default=ABSENT, name="Process Group Description")
    group_name: Raw = field(default=ABSENT, name="Process Group Name")
    group_ranks: Raw = field(default=ABSENT, name="Process Group Ranks")
    sender: Raw = field(default=ABSENT, name="Src Rank")
    copied: Raw = field(default=ABSENT, name="bytes")
    dtype: Raw = ABSENT
    kernel_backend: Raw = ABSENT
    kernel_flop: Raw = ABSENT
    kernel_kwargs: Raw = ABSENT
    kernel_num_gb: Raw = ABSENT
    old_dims: Raw = field(default=ABSENT, name="Input dims")
    # Of synchronization records: the stream waited for, and the call that recorded the event waited for.
    wait_on_stream: int = -1
    wait_on_record: int = field(default=-1, name="wait_on_cuda_event_record_corr_id")
    # Of allocator events (phase i).
    bytes: int = field(default=0, name="Bytes")
    allocated: int = field(default=-1, name="Total Allocated")
    reserved: int = field(default=-1, name="Total Reserved")
    device_type: int = field(default=-1, name="Device Type")
    device_id: int = field(default=-1, name="Device Id")
    # Of hardware counters (phase C).
    dram_read: float = field(default=math.nan, name="dram__bytes_read.sum")
    dram_moved: float = field(default=math.nan, name="dram__bytes.sum")
    dram_written: float = field(default=math.nan, name="dram__bytes_write.sum")
    tensor_percent: float = field(
        default=math.nan, name="sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
    )
    sm_percent: float = field(default=math.nan, name="sm__cycles_active.avg.pct_of_peak_sustained_elapsed")
    # Of metadata events (phase M).
    name: Raw = ABSENT
    labels: Raw = ABSENT


#: The fields of ``Args`` that make a signature, in the order of ``signatures.ARGUMENT_KEYS`` and ``ATTRIBUTE_KEYS``.
SIGNATURE_FIELDS = (
    "dims", "types", "strides", "scalars",
    "collective", "receiver", "group_size", "in_elements", "in_split", "out_elements", "out_split",
    "group_description", "group_name", "group_ranks", "sender", "copied", "dtype",
    "kernel_backend", "kernel_flop", "kernel_kwargs", "kernel_num_gb",
    "old_dims",
)  # fmt: skip


class _EventFields(Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    dur: float = 0.0
    id: int | str | None = None
    args: Args | None = None


class Event(_EventFields, gc=False):
    """One event; ``ts`` and ``dur`` in µs. An element of the list that is no event has the phase ``""``."""

    ts: float = math.nan


class TextTimedEvent(_EventFields, gc=False):
    """As ``Event``, with ``ts`` as the digits recorded: a float holds too few of them from 2**43 µs on."""

    ts: Raw = ABSENT


AnyEvent: TypeAlias = Event | TextTimedEvent

#: What the decoders below raise for text that is no such JSON.
FAILURES = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_events = msgspec.json.Decoder(list[Event], strict=False)
_text_timed_events = msgspec.json.Decoder(list[TextTimedEvent], strict=False)
_event = msgspec.json.Decoder(Event, strict=False)
_text_timed_event = msgspec.json.Decoder(TextTimedEvent, strict=False)
_elements = msgspec.json.Decoder(list[Raw])


def decoded(text: bytes, *, text_times: bool) -> tuple[Sequence[AnyEvent], int]:
    """All events of a JSON array, and how many of them had a value that is not of its field's type.

    Raises one of ``FAILURES``, and MemoryError where its strings would not fit.
    """
    # msgspec does not look whether a string got its memory: without any, the process would end. This takes no page.
    np.empty(2 * len(text), np.uint8)
    try:
        return (_text_timed_events.decode(text) if text_times else _events.decode(text)), 0
    except msgspec.ValidationError:
        return decode_each(split_elements(text), text_times=text_times)


def split_elements(text: bytes) -> list[Raw]:
    """The elements of a JSON array as text, whatever their types; raises as ``decode_events`` does."""
    return _elements.decode(text)


def trailing_position(error: msgspec.DecodeError) -> int | None:
    """Where text begins that stands behind a complete value, in bytes from its start; None for any other error."""
    match = _TRAILING.search(str(error))
    return int(match[1]) - 1 if match else None


def is_truncation(error: msgspec.DecodeError) -> bool:
    """Whether the text ends inside its value."""
    return "truncated" in str(error)


def decode_each(elements: Sequence[Raw | bytes], *, text_times: bool) -> tuple[list[AnyEvent], int]:
    """The events of a list of JSON values, field by field where a value is not of its field's type.

    Second: how many events had such a value.
    """
    decoder: msgspec.json.Decoder[Any] = _text_timed_event if text_times else _event
    events: list[AnyEvent] = []
    coerced = 0
    for element in elements:
        try:
            events.append(decoder.decode(element))
        except FAILURES:
            event = _coerced(bytes(element), text_times=text_times)
            events.append(event)
            coerced += bool(event.ph)
    return events, coerced


def load_element(text: bytes) -> Any:
    """One element of the event list as ``json.loads`` gives it; ValueError or RecursionError when it is no JSON."""
    return json.loads(text.decode("utf-8", "replace"), strict=False)


def whole_number(value: Any) -> int | None:
    """``7``, ``7.0``, ``"7"`` and ``"0x7"`` as 7; None for everything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if isinstance(value, str):
        try:
            return int(value.strip(), 0)
        except ValueError:
            return None
    return value if isinstance(value, int) else None


def _coerced(text: bytes, *, text_times: bool) -> AnyEvent:
    kind = TextTimedEvent if text_times else Event
    try:
        value = load_element(text)
    except (ValueError, RecursionError):
        return kind()
    if not isinstance(value, dict):
        return kind()
    event_id = value.get("id")
    event = kind(
        ph=_text(value.get("ph")),
        cat=_text(value.get("cat")),
        name=_text(value.get("name")),
        pid=_identifier(value.get("pid")),
        tid=_identifier(value.get("tid")),
        dur=0.0 if value.get("dur") is None else _number(value["dur"]),
        id=None if event_id is None else _identifier(event_id),
        args=_coerced_args(value.get("args")),
    )
    if isinstance(event, Event):
        event.ts = _number(value.get("ts"))
    else:
        event.ts = Raw(json.dumps(value.get("ts")).encode())
    return event


def _coerced_args(value: Any) -> Args | None:
    if not isinstance(value, dict):
        return None
    args = Args()
    for f in _ARGS_FIELDS:
        if f.encode_name not in value:
            continue
        given = value[f.encode_name]
        if f.type is Raw:
            setattr(args, f.name, Raw(json.dumps(given).encode()))
        elif isinstance(given, str) and f.type is not int:
            setattr(args, f.name, given)
        else:
            number = whole_number(given)
            setattr(args, f.name, -1 if number is None else number)
    return args


def _text(value: Any) -> str:
    # A lone surrogate cannot be written to any output.
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return "" if value is None else str(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def _identifier(value: Any) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return _text(value)


_ARGS_FIELDS = msgspec.structs.fields(Args)

Array = npt.NDArray[Any]

#: From here on (101 days in µs) a float keeps less than a whole ns.
FLOAT_TIME_LIMIT_US = 2.0**43
#: Half of the int64 range, so that start + duration stays inside.
TIME_LIMIT_NS = 2**62
#: 104 days: what a recording lasts at most.
LONGEST_NS = 2**53
#: A start that is missing, or beyond what a trace can hold; and a duration of that kind.
NO_TIME = -(2**63)
#: A stream or device recorded as text is ``NO_TIME`` and the number of the string: below this.
LAST_TEXT_NUMBER = NO_TIME + 2**31

_NO_ARGS = Args()
_signature_parts = operator.attrgetter(*SIGNATURE_FIELDS)
_shapes = operator.attrgetter("dims", "types", "scalars")
_attributes = operator.attrgetter(
    "collective", "kernel_backend", "in_elements", "group_size", "group_name", "kernel_num_gb", "kernel_flop",
    "old_dims",
)  # fmt: skip
_traffic = operator.attrgetter("dram_read", "dram_written", "dram_moved", "tensor_percent", "sm_percent")
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
        """[rows, 5] bytes read, written, moved, tensor pipes and SMs in percent; NaN where no amount is recorded."""
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
