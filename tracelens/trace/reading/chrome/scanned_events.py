"""Scans a piece of the event list in C (``scan_events.c``), where that is built, and adds its columns to those of
the table.

Scans a piece of the event list in C (``scan_events.c``), where that is built and the piece is written plainly.

``decode`` reads all that this leaves, with the same result.
"""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.lazy.compiled import address, library
from tracelens.lazy.records import dataclass
from tracelens.trace.reading.chrome.event_columns import (
    ALLOCATION,
    FIRST_POINTER_STREAM,
    ON_DEVICE,
    SIGNED,
    TableBuilder,
    by_appearance,
    label,
)
from tracelens.trace.reading.chrome.event_json import FAILURES, SIGNATURE_FIELDS
from tracelens.trace.table import Identifier, Kind

Array = npt.NDArray[Any]

SOURCE = Path(__file__).with_name("scan_events.c")
#: Numbers of an event's arguments, in the order of the rows of ``ScannedEvents.numbers``; -1 where there is none.
NUMBERS = (
    "correlation", "external_id", "old_external_id", "sequence_number", "wait_on_stream", "wait_on_record", "bytes",
    "allocated", "reserved", "device_type", "device_id", "stream", "device",
)  # fmt: skip
#: A start that is missing, or beyond what a trace can hold; and a duration of that kind.
NO_TIME = -(2**63)
#: From here on down to ``NO_TIME``, a stream or device is this and the number of a string.
LAST_TEXT_NUMBER = -(2**63) + 2**31

# As in scan_events.c.
_LAYOUT = 2
_DONE, _NEEDS_TEXT_TIMES, _LIST_ENDS = 0, 2, 3
_LEAST_EVENT_BYTES = 24
_MOST_STRINGS = 1 << 15
_MOST_LANES = _MOST_SIGNATURES = 1 << 13
_MOST_LABELS = 1 << 12
_ASCII = 0x80


class Refusal(Enum):
    """Why a piece was not scanned: it is not written plainly, or floats would lose digits of its times."""

    NOT_PLAIN = 1
    NEEDS_TEXT_TIMES = 2


class _Table(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("slots", "most", "found")),
        *((name, ctypes.c_void_p) for name in ("spans", "hash", "slot")),
    )


class _Scan(ctypes.Structure):
    _fields_ = (
        ("text", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("length", "text_times")),
        ("seed", ctypes.c_uint64),
        *((name, ctypes.c_int64) for name in ("most_events", "most_joined", "most_labels")),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "phase", "category", "name", "lane", "signature", "start_ns", "duration_ns", "id", "numbers",
            )
        ),
        *((name, _Table) for name in ("strings", "lanes", "signatures")),
        *((name, ctypes.c_void_p) for name in ("pairs", "joined", "label_event", "labels")),
        *((name, ctypes.c_int64) for name in ("events_found", "joined_length", "labels_found", "end")),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScannedEvents:
    """The events of one piece as columns, with numbers for texts. They are the scanner's: valid until it scans again.

    ``lanes``: (pid, tid) by number; ``signatures``: the recorded text of each, as ``SignatureStore.code`` takes it;
    ``labels``: of each metadata event its number and its arguments ``name`` and ``labels`` as recorded; ``end``: where
    in the text the list's own end stands, blanks behind it included, or None.
    """

    phase: npt.NDArray[np.uint8]
    category: npt.NDArray[np.int32]
    name: npt.NDArray[np.int32]
    lane: npt.NDArray[np.int32]
    signature: npt.NDArray[np.int32]
    start_ns: npt.NDArray[np.int64]
    duration_ns: npt.NDArray[np.int64]
    id: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]
    strings: list[str]
    lanes: list[tuple[Identifier, Identifier]]
    signatures: list[bytes]
    labels: list[tuple[int, bytes, bytes]]
    end: int | None

    def __len__(self) -> int:
        return len(self.phase)


class Scanner:
    """Scans pieces with one set of arrays, which grow with the largest piece."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._function = library.tracelens_scan
        self._scan = _Scan(
            # Nobody who makes a trace knows which of its strings meet in the table of texts
            seed=secrets.randbits(64),
            most_labels=_MOST_LABELS,
        )
        self._arrays: dict[str, Array] = {}
        self._make(
            pairs=np.empty((_MOST_LANES + 1, 2), np.int32),
            label_event=np.empty(_MOST_LABELS, np.int32),
            labels=np.empty((_MOST_LABELS, 2, 2), np.int32),
        )
        self._fill(self._scan.strings, "strings", _MOST_STRINGS)
        self._fill(self._scan.lanes, "lanes", _MOST_LANES)
        self._fill(self._scan.signatures, "signatures", _MOST_SIGNATURES)

    def scanned(self, text: memoryview, *, text_times: bool) -> ScannedEvents | Refusal:
        """The events of ``text``, from the first one's brace to the last one's, or to the end of the list."""
        characters = np.frombuffer(text, np.uint8)
        if characters.max() >= _ASCII and not _is_utf8(text):
            return Refusal.NOT_PLAIN
        self._make_room(len(text))
        scan = self._scan
        scan.text, scan.length, scan.text_times = address(characters), len(text), text_times
        state = self._function(ctypes.byref(scan))
        if state not in (_DONE, _LIST_ENDS):
            return Refusal.NEEDS_TEXT_TIMES if state == _NEEDS_TEXT_TIMES else Refusal.NOT_PLAIN
        try:
            return self._found(text, end=scan.end if state == _LIST_ENDS else None)
        except FAILURES:  # an escape that is none
            return Refusal.NOT_PLAIN

    def _found(self, text: memoryview, end: int | None) -> ScannedEvents:
        scan, arrays, events = self._scan, self._arrays, self._scan.events_found
        recorded = _texts(text, arrays["strings"][: scan.strings.found])
        lanes = arrays["pairs"][: scan.lanes.found].tolist()
        labels = arrays["labels"][: scan.labels_found]
        return ScannedEvents(
            **{key: arrays[key][:events] for key in _COLUMNS},
            numbers=arrays["numbers"][:, :events],
            strings=[_unescaped(string) for string in recorded],
            lanes=[(_identifier(recorded[process]), _identifier(recorded[thread])) for process, thread in lanes],
            signatures=_texts(arrays["joined"].data, arrays["signatures"][: scan.signatures.found]),
            labels=list(
                zip(
                    arrays["label_event"][: scan.labels_found].tolist(),
                    _texts(text, labels[:, 0]),
                    _texts(text, labels[:, 1]),
                    strict=True,
                )
            ),
            end=end,
        )

    def _make_room(self, length: int) -> None:
        events = length // _LEAST_EVENT_BYTES + 1
        if events > self._scan.most_events:
            self._scan.most_events = events
            self._scan.most_joined = length + len(SIGNATURE_FIELDS) * _MOST_SIGNATURES
            self._make(
                **{key: np.empty(events, dtype) for key, dtype in _COLUMNS.items()},
                numbers=np.empty((len(NUMBERS), events), np.int64),
                joined=np.empty(self._scan.most_joined, np.uint8),
            )

    def _fill(self, table: _Table, name: str, most: int) -> None:
        """Room for ``most`` numbers; the array ``name`` will tell where the bytes of each are."""
        slots = 2 * most
        hashes, slot = np.empty(most, np.uint64), np.empty(slots, np.int32)
        self._arrays |= {name: np.empty((most, 2), np.int32), f"hash of {name}": hashes, f"slot of {name}": slot}
        table.slots, table.most = slots, most
        table.spans, table.hash, table.slot = address(self._arrays[name]), address(hashes), address(slot)

    def _make(self, **arrays: Array) -> None:
        self._arrays |= arrays
        for name, array in arrays.items():
            setattr(self._scan, name, address(array))


_COLUMNS = {
    "phase": np.uint8, "category": np.int32, "name": np.int32, "lane": np.int32, "signature": np.int32,
    "start_ns": np.int64, "duration_ns": np.int64, "id": np.int64,
}  # fmt: skip


def new_scanner() -> Scanner | None:
    """None where ``scan_events.c`` was not compiled, or is not wanted."""
    found = library(SOURCE, _LAYOUT)
    return None if found is None else Scanner(found)


def _is_utf8(text: memoryview) -> bool:
    try:
        str(text, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _texts(text: memoryview, spans: Array) -> list[bytes]:
    return [bytes(text[start : start + length]) for start, length in spans.tolist()]


def _unescaped(recorded: bytes) -> str:
    if b"\\" not in recorded:
        return recorded.decode()
    # A process or thread stands with its quotes
    value: str = msgspec.json.decode(recorded if recorded[:1] == b'"' else b'"%b"' % recorded)
    return value


def _identifier(recorded: bytes) -> Identifier:
    """A process or thread: a number, or a text with its quotes; nothing is the empty text."""
    value: Identifier = msgspec.json.decode(recorded) if recorded else ""
    return value


_COMPLETE, _START, _FINISH, _INSTANT = b"Xsfi"
_PLACE = {name: place for place, name in enumerate(NUMBERS)}
_INT32 = np.iinfo(np.int32)


def add_scanned(builder: TableBuilder, events: ScannedEvents) -> None:
    """The events of the next piece, in file order."""
    first = builder.events_total
    builder.events_total += len(events)
    phases = by_appearance(events.phase, 256)
    counts = np.bincount(events.phase, minlength=256)
    for phase in phases.tolist():
        if phase:
            builder.counts[chr(phase)] += int(counts[phase])
        else:
            builder.no_events += int(counts[phase])
    piece = _ScannedPiece(builder, events)
    if counts[_COMPLETE]:
        piece.add_rows(np.flatnonzero(events.phase == _COMPLETE), first)
    if counts[_START] or counts[_FINISH]:
        piece.add_flows(np.flatnonzero((events.phase == _START) | (events.phase == _FINISH)))
    if counts[_INSTANT]:
        piece.add_allocations(np.flatnonzero(events.phase == _INSTANT))
    piece.add_names()


class _ScannedPiece:
    def __init__(self, builder: TableBuilder, events: ScannedEvents) -> None:
        self._builder = builder
        self._events = events

    def add_rows(self, rows: Array, first: int) -> None:
        """Complete events, by their numbers in the piece."""
        builder, events = self._builder, self._events
        rows = self._timed(rows)
        duration = events.duration_ns[rows]
        wrong = duration < 0
        if wrong.any():
            builder.repaired_durations += int(wrong.sum())
            duration[wrong] = 0
        category = self._categories(rows)
        kind = builder.kinds()[category]
        row: dict[str, Array] = {
            "kind": kind,
            "category": category,
            "name": _coded(events.name[rows], len(events.strings), lambda used: builder.names.of(self._texts(used))),
            "lane": self._lanes(rows),
            "start_ns": events.start_ns[rows],
            "duration_ns": duration,
            "file_index": rows + first,
        }
        own = np.flatnonzero(kind != Kind.PYTHON_FUNCTION)
        for key, values in self._argument_columns(rows[own], kind[own]).items():
            row[key] = values if len(own) == len(rows) else np.full(len(rows), -1, values.dtype)
            row[key][own] = values
        self._fill_streams(row["stream"], kind, rows)
        self._add_waits(rows[kind == Kind.SYNC])
        builder.append("rows", row)

    def _argument_columns(self, rows: Array, kind: Array) -> dict[str, Array]:
        external_id = self._number("external_id", rows)
        old = self._number("old_external_id", rows)
        return {
            "stream": self._streams("stream", rows),
            "correlation": self._number("correlation", rows),
            "external_id": np.where(external_id == -1, old, external_id),
            "sequence_number": self._number("sequence_number", rows),
            "signature": self._signatures(rows, kind),
            "device": self._streams("device", rows),
        }

    def _signatures(self, rows: Array, kind: Array) -> Array:
        events, store = self._events, self._builder.signatures
        codes = np.full(len(rows), -1, np.int32)
        signed = np.flatnonzero(SIGNED[kind] & (events.signature[rows] >= 0))
        codes[signed] = _coded(
            events.signature[rows[signed]],
            len(events.signatures),
            lambda used: [store.code(events.signatures[number]) for number in used],
        )
        return codes

    def _streams(self, key: str, rows: Array) -> Array:
        values = self._number(key, rows)
        if not len(values) or (_INT32.min <= values.min() and values.max() < FIRST_POINTER_STREAM):
            return values.astype(np.int32)
        distinct, first, numbers = np.unique(values, return_index=True, return_inverse=True)
        codes = np.empty(len(distinct), np.int32)
        for place in np.argsort(first).tolist():
            value = int(distinct[place])
            is_text = value < LAST_TEXT_NUMBER
            codes[place] = self._builder.stream(self._events.strings[value - NO_TIME] if is_text else value)
        return codes[numbers]

    def _fill_streams(self, stream: Array, kind: Array, rows: Array) -> None:
        """Kineto's device events have their stream as tid: what old files leave out of the arguments."""
        missing = np.flatnonzero((stream == -1) & ON_DEVICE[kind])
        if len(missing):
            threads = np.array(
                [
                    tid if isinstance(tid, int) and 0 <= tid < FIRST_POINTER_STREAM else -1
                    for _, tid in self._events.lanes
                ],
                np.int32,
            )
            stream[missing] = threads[self._events.lane[rows[missing]]]

    def _add_waits(self, rows: Array) -> None:
        rows = rows[self._number("wait_on_record", rows) > 0]
        if len(rows):
            row = {
                "lane": self._lanes(rows),
                "correlation": self._number("correlation", rows),
                "stream": self._number("wait_on_stream", rows),
                "record": self._number("wait_on_record", rows),
            }
            self._builder.append("waits", row)

    def add_flows(self, rows: Array) -> None:
        """Ends of arrows."""
        events = self._events
        rows = self._timed(rows)
        row: dict[str, Array] = {
            "is_start": events.phase[rows] == _START,
            "category": self._categories(rows),
            "id": self._ids(events.id[rows]),
            "lane": self._lanes(rows),
            "time_ns": events.start_ns[rows],
        }
        self._builder.append("flows", row)

    def _ids(self, values: Array) -> Array:
        texts = np.flatnonzero(values < -1)
        if len(texts):
            values[texts] = -2 - _coded(
                -2 - values[texts],
                len(self._events.strings),
                lambda used: self._builder.flow_ids.of(self._texts(used)),
            )
        return values

    def add_allocations(self, rows: Array) -> None:
        """What allocators say among the instant events ``rows``."""
        events = self._events
        if ALLOCATION not in events.strings:
            return
        rows = self._timed(rows[events.name[rows] == events.strings.index(ALLOCATION)])
        if len(rows):
            row: dict[str, Array] = {
                "lane": self._lanes(rows),
                "time_ns": events.start_ns[rows],
                "bytes": self._number("bytes", rows),
                "allocated": self._number("allocated", rows),
                "reserved": self._number("reserved", rows),
                "device_type": self._streams("device_type", rows),
                "device": self._streams("device_id", rows),
            }
            self._builder.append("allocations", row)

    def add_names(self) -> None:
        """Names of processes and threads."""
        builder, events = self._builder, self._events
        for number, name, labels in events.labels:
            lane = events.lanes[events.lane[number]]
            kind = events.strings[events.name[number]]
            if kind == "process_name":
                builder.process_names[lane[0]] = label(name)
            elif kind == "process_labels":
                builder.process_labels[lane[0]] = label(labels)
            elif kind == "thread_name":
                builder.thread_names[lane] = label(name)

    def _timed(self, rows: Array) -> Array:
        timed = self._events.start_ns[rows] != NO_TIME
        self._builder.untimed_events += int((~timed).sum())
        found: Array = rows[timed]
        return found

    def _number(self, key: str, rows: Array) -> Array:
        values: Array = self._events.numbers[_PLACE[key]][rows]
        return values

    def _categories(self, rows: Array) -> Array:
        categories = self._builder.categories
        codes = _coded(
            self._events.category[rows], len(self._events.strings), lambda used: categories.of(self._texts(used))
        )
        return codes.astype(np.int16)

    def _lanes(self, rows: Array) -> Array:
        lanes, events = self._builder.lanes, self._events
        return _coded(
            events.lane[rows], len(events.lanes), lambda used: [lanes.code(events.lanes[number]) for number in used]
        )

    def _texts(self, numbers: list[int]) -> list[str]:
        strings = self._events.strings
        return [strings[number] for number in numbers]


def _coded(numbers: Array, count: int, codes_of: Callable[[list[int]], list[int]]) -> Array:
    """Codes for numbers below ``count``; ``codes_of`` is asked for those that there are, in order of appearance."""
    used = by_appearance(numbers, count)
    codes: Array = np.zeros(count, np.int32)
    codes[used] = codes_of(used.tolist())
    coded: Array = codes[numbers]
    return coded
