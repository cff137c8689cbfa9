"""From the columns of one scanned piece to those of the whole table, with the same codes as events one by one get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.trace.reading.chrome.code_order import by_appearance
from tracelens.trace.reading.chrome.event_columns import (
    ALLOCATION,
    FIRST_POINTER_STREAM,
    ON_DEVICE,
    SIGNED,
    TableBuilder,
    label,
)
from tracelens.trace.reading.chrome.scanned_events import LAST_TEXT_NUMBER, NO_TIME, NUMBERS, ScannedEvents
from tracelens.trace.table import Kind

Array = npt.NDArray[Any]

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
    piece = _Piece(builder, events)
    if counts[_COMPLETE]:
        piece.add_rows(np.flatnonzero(events.phase == _COMPLETE), first)
    if counts[_START] or counts[_FINISH]:
        piece.add_flows(np.flatnonzero((events.phase == _START) | (events.phase == _FINISH)))
    if counts[_INSTANT]:
        piece.add_allocations(np.flatnonzero(events.phase == _INSTANT))
    piece.add_names()


class _Piece:
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
