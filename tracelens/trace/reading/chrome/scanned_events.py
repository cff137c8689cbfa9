"""Scans a piece of the event list in C (``scan_events.c``), where that is built and the piece is written plainly.

``DecodedEvents`` are what Python reads of all that this leaves, with the same result.
"""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.files.compiled import address, library
from tracelens.trace.reading.chrome.decoded_events import FAILURES, SIGNATURE_FIELDS
from tracelens.trace.table import Identifier
from tracelens.types.records import Record

Array = npt.NDArray[Any]

SOURCE = Path(__file__).with_name("scan_events.c")
#: Numbers of an event's arguments, in the order of the rows of ``ScannedEvents.numbers``; -1 where there is none.
NUMBERS = (
    "correlation", "external_id", "old_external_id", "sequence_number", "wait_on_stream", "wait_on_record", "bytes",
    "allocated", "reserved", "device_type", "device_id", "graph", "graph_node", "stream", "device",
)  # fmt: skip

# As in scan_events.c.
_LAYOUT = 3
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


class ScannedEvents(Record, frozen=True, kw_only=True, eq=False):
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

    @property
    def counts(self) -> dict[str, int]:
        """How many events there are of each phase, in order of appearance; "" is no event."""
        counts = np.bincount(self.phase, minlength=256)
        found = sorted(np.flatnonzero(counts).tolist(), key=lambda phase: int((self.phase == phase).argmax()))
        return {chr(phase) if phase else "": int(counts[phase]) for phase in found}

    def values(self, keys: Sequence[str], rows: Array) -> list[Array]:
        """Whole numbers of the arguments ``keys`` of some events, -1 where there is none."""
        return [self.numbers[NUMBERS.index(key)][rows] for key in keys]

    def ids(self, rows: Array) -> Array:
        """The arrows of some events: a number as it is, -1 for none, and -2 and less for the number of a text."""
        return self.id[rows]

    def signature_codes(self, rows: Array, code: Callable[[bytes], int]) -> Array:
        """``code`` of the recorded arguments that tell calls apart, of some events; -1 where there are none."""
        numbers = self.signature[rows]
        codes = np.full(len(self.signatures) + 1, -1, np.int32)  # the last is that of -1
        for number in by_appearance(numbers[numbers >= 0], len(self.signatures)).tolist():
            codes[number] = code(self.signatures[number])
        return codes[numbers]


def by_appearance(codes: Array, count: int) -> Array:
    """The distinct ones of codes below ``count``, in order of appearance."""
    first = np.full(count, len(codes))
    # Of several values for one place the last one stays: the first row's
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    used = np.flatnonzero(first < len(codes))
    return used[np.argsort(first[used])]


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
        scan, events = self._scan, len(text) // _LEAST_EVENT_BYTES + 1
        if events > scan.most_events:
            scan.most_events, scan.most_joined = events, len(text) + len(SIGNATURE_FIELDS) * _MOST_SIGNATURES
            self._make(
                **{key: np.empty(events, dtype) for key, dtype in _COLUMNS.items()},
                numbers=np.empty((len(NUMBERS), events), np.int64),
                joined=np.empty(scan.most_joined, np.uint8),
            )
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
    return msgspec.json.decode(recorded if recorded[:1] == b'"' else b'"%b"' % recorded)


def _identifier(recorded: bytes) -> Identifier:
    """A process or thread: a number, or a text with its quotes; nothing is the empty text."""
    return msgspec.json.decode(recorded) if recorded else ""
