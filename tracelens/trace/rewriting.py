"""A trace written again with some events changed or left out: as Kineto's JSON, or as Perfetto's protobuf."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import orjson

from tracelens.errors import InputError
from tracelens.files.atomic_write import whole_packed_file
from tracelens.trace.fuse import sublanes
from tracelens.trace.reading.wire import number_field, text_field, varint
from tracelens.trace.table import DEVICE_KINDS, Identifier, Kind, TraceTable

# Up to here a float of µs is less than half a ns off.
_EXACT_NS = 2**52
#: Given a row of the table (-1: no complete event) and its event as recorded: the event to write, None for none.
Edit: TypeAlias = Callable[[int, dict[str, Any]], dict[str, Any] | None]


def rewrite(
    table: TraceTable,
    path: str | os.PathLike[str],
    edit: Edit,
    metadata: Mapping[str, Any] | None = None,
    added: Iterable[Mapping[str, Any]] = (),
) -> int:
    """Writes the events to ``path`` (gzip when it ends in ``.gz``), whole or not at all; returns how many.

    In file order, a matched ``B``/``E`` pair as the complete event it stands for. ``metadata``: what stands round the
    events, by default as recorded; ``added``: events after those of the file. OutputError when the
    file cannot be written.
    """
    target, written = Path(path), 0
    around = table.metadata if metadata is None else metadata
    with whole_packed_file(target) as sink:
        sink.write(b"{" + b"".join(_json(str(key)) + b":" + _json(value) + b"," for key, value in around.items()))
        sink.write(b'"traceEvents":[')
        for row, event in events(table):
            made = edit(row, event)
            if made is not None:
                sink.write((b",\n" if written else b"\n") + _json(made))
                written += 1
        for each in added:
            sink.write((b",\n" if written else b"\n") + _json(each))
            written += 1
        sink.write(b"\n]}\n")
    return written


def events(table: TraceTable) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row or -1, event) of every event that can be read."""
    row_of = np.full(table.events_total, -1, np.int64)
    known = table.file_index < table.events_total
    row_of[table.file_index[known]] = np.flatnonzero(known)
    closing = set(table.pair_ends.values())
    for index, row in enumerate(row_of.tolist()):
        if index in closing:
            continue
        try:
            yield row, table.event(row) if row >= 0 else table.lookup.event(index)
        except InputError:
            continue  # damaged in the file: reading has counted it


def microseconds(time_ns: int) -> float | int | orjson.Fragment:
    """Whole ns as the µs that an event's ``ts`` is; digits where a float would not hold them."""
    if time_ns % 1000 == 0:
        return time_ns // 1000
    return time_ns / 1000 if abs(time_ns) < _EXACT_NS else orjson.Fragment(f"{time_ns // 1000}.{time_ns % 1000:03d}")


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # an integer beyond 64 bits, a lone surrogate
        return json.dumps(value).encode()


_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_SEQUENCE = 1
_CLEARED, _NEEDS_STATE = 1, 2
# InternedData: categories, names of events, names of arguments.
_CATEGORIES, _NAMES, _KEYS = 1, 2, 3
_LAUNCHING = (Kind.RUNTIME, Kind.DRIVER, *DEVICE_KINDS)
_LARGEST = 1 << 63


def write_packets(table: TraceTable, path: str | os.PathLike[str]) -> int:
    """Writes ``path`` (gzip when its name ends in ``.gz``), whole or not at all; returns how many packets.

    Slices that overlap without nesting, which a track cannot show, are on further tracks below theirs.
    """
    target = Path(path)
    with whole_packed_file(target) as sink:
        written = 0
        for packet in _Writer(table).packets():
            sink.write(b"\n" + varint(len(packet)) + packet)
            written += 1
    return written


class _Writer:
    """One pass over a table. Time 0 is the file's own, its place in ``baseTimeNanoseconds`` of the metadata."""

    def __init__(self, table: TraceTable) -> None:
        self._table = table
        self._known: dict[int, dict[str, int]] = {_CATEGORIES: {}, _NAMES: {}, _KEYS: {}}
        self._new: list[bytes] = []
        self._tracks: dict[tuple[Any, ...], int] = {}
        self._waiting: list[bytes] = []
        self._sublane = sublanes(table.lane.astype(np.int64), table.start_ns, table.start_ns + table.duration_ns)
        earliest = int(table.start_ns.min(initial=0))
        self._shift = max(-earliest, 0)

    def packets(self) -> Iterator[bytes]:
        yield self._packet(b"", flags=_CLEARED)
        for key, value in self._table.metadata.items():
            said = self._annotation(str(key), value if isinstance(value, str) else json.dumps(value))
            yield from self._sent(number_field(9, _INSTANT) + self._name("trace_metadata") + said, None)
        for row, event in events(self._table):
            if row >= 0:
                yield from self._slice(row, event)
            elif (make := _OTHERS.get(str(event.get("ph", "")))) is not None:
                yield from make(self, event)

    def _slice(self, row: int, event: dict[str, Any]) -> Iterator[bytes]:
        table = self._table
        pid, tid = table.lanes[int(table.lane[row])]
        track = number_field(11, self._track(pid, tid, int(self._sublane[row])))
        body = number_field(9, _BEGIN) + track + self._name(table.name_of(row)) + self._category(table.category_of(row))
        args = event.get("args")
        body += self._annotations(args if isinstance(args, dict) else {})
        correlation = int(table.correlation[row])
        if correlation > 0 and table.kind[row] in _LAUNCHING:
            body += varint(47 << 3 | 1) + correlation.to_bytes(8, "little")
        start = int(table.start_ns[row])
        yield from self._sent(body, start)
        yield self._packet(text_field(11, number_field(9, _END) + track), start + int(table.duration_ns[row]))

    def _instant(self, event: dict[str, Any]) -> Iterator[bytes]:
        if (time := _time_ns(event)) is not None:
            args = event.get("args")
            body = number_field(9, _INSTANT) + number_field(
                11, self._track(event.get("pid", ""), event.get("tid", ""), 0)
            )
            body += self._name(str(event.get("name", ""))) + self._category(str(event.get("cat", "")))
            yield from self._sent(body + self._annotations(args if isinstance(args, dict) else {}), time)

    def _counter(self, event: dict[str, Any]) -> Iterator[bytes]:
        time, args = _time_ns(event), event.get("args")
        for key, value in (args if isinstance(args, dict) else {}).items():
            if time is not None and isinstance(value, int | float):
                name = " ".join(part for part in (str(event.get("name", "")), str(key)) if part)
                body = number_field(9, _COUNTER) + number_field(11, self._counter_track(event.get("pid", ""), name))
                yield from self._sent(body + varint(44 << 3 | 1) + struct.pack("<d", value), time)

    def _sent(self, event: bytes, time_ns: int | None) -> Iterator[bytes]:
        """The packet of an event, after descriptors of tracks that it is the first to need, with its new texts."""
        yield from self._waiting
        self._waiting.clear()
        interned = text_field(12, b"".join(self._new)) if self._new else b""
        self._new.clear()
        yield self._packet(interned + text_field(11, event), time_ns)

    def _packet(self, content: bytes, time_ns: int | None = None, *, flags: int = _NEEDS_STATE) -> bytes:
        stamp = b"" if time_ns is None else number_field(8, time_ns + self._shift)
        return stamp + number_field(10, _SEQUENCE) + number_field(13, flags) + content

    def _name(self, name: str) -> bytes:
        return number_field(10, self._number(_NAMES, name))

    def _category(self, category: str) -> bytes:
        return number_field(3, self._number(_CATEGORIES, category)) if category else b""

    def _number(self, kind: int, spelled: str) -> int:
        known = self._known[kind]
        found = known.get(spelled)
        if found is None:
            found = known[spelled] = len(known) + 1
            self._new.append(text_field(kind, number_field(1, found) + text_field(2, _encoded(spelled))))
        return found

    def _annotations(self, args: dict[str, Any]) -> bytes:
        return b"".join(self._annotation(str(key), value) for key, value in args.items() if value is not None)

    def _annotation(self, key: str, value: Any) -> bytes:
        return text_field(4, number_field(1, self._number(_KEYS, key)) + _value(value))

    def _track(self, pid: Identifier, tid: Identifier, sublane: int) -> int:
        key = (pid, tid, sublane)
        if key in self._tracks:
            return self._tracks[key]
        parent = self._track(pid, tid, 0) if sublane else self._process(pid)
        uuid = self._tracks[key] = len(self._tracks) + 1
        name = self._table.thread_names.get((pid, tid), "") or ("" if isinstance(tid, int) else tid)
        about = number_field(1, uuid) + number_field(5, parent)
        if sublane or not (isinstance(pid, int) and isinstance(tid, int)):
            about += text_field(2, _encoded(name or f"{pid} {tid}"))
        else:
            thread = number_field(1, pid) + number_field(2, tid) + (text_field(5, _encoded(name)) if name else b"")
            about += text_field(4, thread)
        self._waiting.append(self._packet(text_field(60, about)))
        return uuid

    def _process(self, pid: Identifier) -> int:
        if (pid,) in self._tracks:
            return self._tracks[pid,]
        uuid = self._tracks[pid,] = len(self._tracks) + 1
        name = self._table.process_names.get(pid, "") or ("" if isinstance(pid, int) else pid)
        process = (number_field(1, pid) if isinstance(pid, int) else b"") + (
            text_field(6, _encoded(name)) if name else b""
        )
        labels = self._table.process_labels.get(pid)
        process += text_field(8, _encoded(labels)) if labels else b""
        about = text_field(3, process) if isinstance(pid, int) else text_field(2, _encoded(name))
        self._waiting.append(self._packet(text_field(60, number_field(1, uuid) + about)))
        return uuid

    def _counter_track(self, pid: Identifier, name: str) -> int:
        key = (pid, name, "counter", 0)
        if key not in self._tracks:
            parent = self._process(pid)
            self._tracks[key] = len(self._tracks) + 1
            about = (
                number_field(1, self._tracks[key])
                + number_field(5, parent)
                + text_field(2, _encoded(name))
                + text_field(8, b"")
            )
            self._waiting.append(self._packet(text_field(60, about)))
        return self._tracks[key]


_OTHERS: dict[str, Callable[[_Writer, dict[str, Any]], Iterator[bytes]]] = {
    "i": _Writer._instant,
    "I": _Writer._instant,
    "C": _Writer._counter,
}


def _time_ns(event: dict[str, Any]) -> int | None:
    time = event.get("ts")
    return round(time * 1000) if isinstance(time, int | float) and abs(time) < _LARGEST / 1000 else None


def _value(value: Any) -> bytes:
    """The value of a DebugAnnotation. An empty list has none."""
    if isinstance(value, bool):
        return number_field(2, int(value))
    if isinstance(value, int) and -_LARGEST <= value < _LARGEST:
        return number_field(4, value)
    if isinstance(value, float):
        return varint(5 << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, list | tuple):
        return b"".join(text_field(12, _value(each)) for each in value)
    if isinstance(value, dict):
        return b"".join(
            text_field(11, text_field(10, _encoded(str(key))) + _value(each)) for key, each in value.items()
        )
    return text_field(6, _encoded(str(value)))


def _encoded(spelled: str) -> bytes:
    return spelled.encode("utf-8", "replace")
