"""Traces written again: changed or cut, as Kineto's JSON or Perfetto's protobuf, and many ranks as one file."""

from __future__ import annotations

import itertools
import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson

from tracelens.errors import InputError, UsageError
from tracelens.files.atomic_write import whole_packed_file
from tracelens.trace.reading.chrome.decoded_events import TIME_LIMIT_NS
from tracelens.trace.reading.wire import number_field, text_field, varint
from tracelens.trace.table import DEVICE_KINDS, Identifier, Kind, TraceTable
from tracelens.types.records import Record

Ints = npt.NDArray[np.int64]
#: The lane below its track of each slice that is not on it, by pid, tid and start as recorded.
Moved: TypeAlias = dict[tuple[Identifier, Identifier, int], int]

# Beyond the thread ids of any operating system (Linux: at most 2**22)
_FIRST_NEW_TID = 1 << 23
_IDS = ("correlation", "External id")
_OF_THE_JOB = ("deviceProperties", "record_shapes", "with_stack", "profile_memory")


class CounterTrack(Record, frozen=True, kw_only=True, eq=False):
    """A quantity over time: ``values`` hold from each of ``times_ns`` (the table's own clock) to the next."""

    name: str
    unit: str
    times_ns: Ints
    values: npt.NDArray[np.float64]


class FusedRank(Record, frozen=True, kw_only=True, eq=False):
    """One rank to write. ``corrected`` takes times since the epoch (``base_ns`` added) to the common clock."""

    rank: int
    table: TraceTable
    corrected: Callable[[Ints], Ints]
    counters: tuple[CounterTrack, ...] = ()


class EventFilter(Record, frozen=True, kw_only=True):
    """Which events go into the file.

    ``window_ns``: what overlaps [start, end) after the origin, whole; None is everything. ``categories`` as recorded
    (``kernel``, ``cpu_op``); empty means all. Flows are kept with all categories only.
    """

    window_ns: tuple[int, int] | None = None
    categories: frozenset[str] = frozenset()


class Fused(Record, frozen=True, kw_only=True):
    """What was written: events, of them slices (with a duration), ranks, and overlapping slices on own lanes."""

    events: int
    slices: int
    ranks: int
    moved_slices: int


def fuse(
    ranks: Iterable[FusedRank], path: str | os.PathLike[str], *, origin_ns: int, kept: EventFilter | None = None
) -> Fused:
    """Writes the ranks to ``path`` (gzip when it ends in ``.gz``), whole or not at all.

    ``ranks``: in the order in which they shall stand; an iterator that loads each when asked keeps memory flat.
    ``origin_ns``: time 0 of the file on the common clock; nothing should be before it. Process ids, flow ids,
    correlations and external ids are made disjoint. What all ranks say alike of devices, of the number of ranks and of
    how they were recorded is kept. Slices of one track that overlap without nesting, which Perfetto
    cannot show, go to further lanes of it. OutputError when the file cannot be written.
    """
    target = Path(path)
    state = _State()
    with whole_packed_file(target) as sink:
        sink.write(b'{"displayTimeUnit":"ms","traceEvents":[')
        separator = b"\n"
        alike: dict[str, Any] = {}
        for order, rank in enumerate(ranks):
            # What a trace says of itself that may hold for all ranks
            table = rank.table
            said = {key: table.metadata[key] for key in _OF_THE_JOB if key in table.metadata}
            own = said if table.world_size is None else {**said, "distributedInfo": {"world_size": table.world_size}}
            alike = {key: value for key, value in own.items() if order == 0 or alike.get(key) == value}
            for event in _RankWriter(rank, order, origin_ns, kept or EventFilter(), state).events():
                sink.write(separator)
                sink.write(_json(event))
                separator = b",\n"
                state.events += 1
            state.ranks += 1
        sink.write(b"\n]" + b"".join(b",%b:%b" % (_json(key), _json(value)) for key, value in alike.items()) + b"}\n")
    return Fused(events=state.events, slices=state.slices, ranks=state.ranks, moved_slices=state.moved)


def parse_window(text: str) -> tuple[int, int]:
    """``START:END`` in ms as ns; UsageError for anything else, or an empty window."""
    try:
        start, end = (round(float(part) * 1e6) for part in text.split(":"))
    except (ValueError, OverflowError):
        raise UsageError(f"--window takes START:END in ms, like 10:20.5; got {text!r}") from None
    if end <= start:
        raise UsageError(f"the window {text!r} ends before it starts")
    return start, end


class _State(Record, frozen=False):
    """What the ranks share: the ids that are taken."""

    next_pid: int = 1
    next_id: int = 1
    events: int = 0
    slices: int = 0
    ranks: int = 0
    moved: int = 0


class _RankWriter:
    """The events of one rank, with ids and times of the fused file."""

    def __init__(self, rank: FusedRank, order: int, origin_ns: int, kept: EventFilter, state: _State) -> None:
        self._rank, self._table, self._order, self._kept, self._state = rank, rank.table, order, kept, state
        self._origin_ns = origin_ns
        self._pids: dict[Identifier, int] = {}
        self._tids: dict[tuple[int, Identifier, int], int] = {}
        self._id_base = state.next_id

    def events(self) -> Iterator[dict[str, Any]]:
        """Slices and all else in file order, then names, then counters."""
        table = self._table
        start = self._time(table.start_ns)
        end = self._time(table.start_ns + table.duration_ns)
        sublane = sublanes(table.lane.astype(np.int64), table.start_ns, table.start_ns + table.duration_ns)
        self._state.moved += int((sublane > 0).sum())
        moved = {
            (*table.lanes[int(table.lane[row])], int(table.start_ns[row])): int(sublane[row])
            for row in np.flatnonzero(sublane).tolist()
        }
        wanted = np.ones(len(table), bool)
        if self._kept.window_ns is not None:
            first, last = self._kept.window_ns
            wanted &= (start < last) & (end > first)
        if self._kept.categories:
            codes = [i for i, name in enumerate(table.categories) if name in self._kept.categories]
            wanted &= np.isin(table.category, codes)
        for row, event in events(table, wanted):
            if row >= 0:
                self._state.slices += 1
                yield self._slice(row, event, start, end, int(sublane[row]))
            elif (made := self._other(event, moved)) is not None:
                yield made
        yield from self._names()
        yield from self._counters()
        ids = (table.correlation, table.external_id, table.flows.id)
        self._state.next_id += 1 + max((int(column.max()) for column in ids if len(column)), default=0)

    def _time(self, times_ns: Ints) -> Ints:
        return self._rank.corrected(times_ns + self._table.base_ns) - self._origin_ns

    def _slice(self, row: int, event: dict[str, Any], start: Ints, end: Ints, sublane: int) -> dict[str, Any]:
        pid, tid = self._table.lanes[int(self._table.lane[row])]
        begin = int(start[row])
        event |= {
            "pid": self._pid(pid), "tid": self._tid(pid, tid, sublane), "ts": begin / 1000,
            "dur": (int(end[row]) - begin) / 1000,
        }  # fmt: skip
        args = event.get("args")
        if isinstance(args, dict):
            event["args"] = args | {
                key: args[key] + self._id_base for key in _IDS if isinstance(args.get(key), int) and args[key] >= 0
            }
        return event

    def _other(self, event: dict[str, Any], moved: Moved) -> dict[str, Any] | None:
        phase, time = event.get("ph"), event.get("ts")
        pid, tid = event.get("pid", ""), event.get("tid", "")
        if phase == "M" or not isinstance(pid, int | str) or not isinstance(tid, int | str):
            return None
        if not isinstance(time, int | float) or not abs(time) < TIME_LIMIT_NS / 1000:
            return None
        if self._kept.categories and (phase in ("s", "t", "f") or event.get("cat") not in self._kept.categories):
            return None
        time_ns = round(time * 1000)
        at = int(self._time(np.array([time_ns], np.int64))[0])
        window = self._kept.window_ns
        if window is not None and not window[0] <= at < window[1]:
            return None
        # A float of µs since boot may be a nanosecond off
        sublane = next((moved[key] for ns in (0, -1, 1) if (key := (pid, tid, time_ns + ns)) in moved), 0)
        event |= {"pid": self._pid(pid), "tid": self._tid(pid, tid, sublane), "ts": at / 1000}
        if isinstance(event.get("id"), int):
            event["id"] += self._id_base
        elif "id" in event:
            event["id"] = f"{self._rank.rank}:{event['id']}"
        return event

    def _pid(self, pid: Identifier) -> int:
        if pid not in self._pids:
            self._pids[pid] = self._state.next_pid
            self._state.next_pid += 1
        return self._pids[pid]

    def _tid(self, pid: Identifier, tid: Identifier, sublane: int) -> int:
        key = (self._pid(pid), tid, sublane)
        if key not in self._tids:
            plain = sublane == 0 and isinstance(tid, int) and 0 <= tid < _FIRST_NEW_TID
            self._tids[key] = int(tid) if plain else _FIRST_NEW_TID + len(self._tids)
        return self._tids[key]

    def _names(self) -> Iterator[dict[str, Any]]:
        table, rank = self._table, self._rank.rank
        for place, (pid, new) in enumerate(self._pids.items()):
            # A process of the host and a device are told apart by what Kineto calls them (CPU, GPU 3)
            label = table.process_labels.get(pid) or table.process_names.get(pid) or str(pid) or "events"
            yield _meta("process_name", new, 0, {"name": f"rank {rank} · {label}"})
            yield _meta("process_sort_index", new, 0, {"sort_index": self._order * 1000 + place})
        old = {new: pid for pid, new in self._pids.items()}
        for place, ((new, tid, sublane), lane) in enumerate(sorted(self._tids.items(), key=_by_name)):
            name = table.thread_names.get((old[new], tid)) or str(tid)
            yield _meta("thread_name", new, lane, {"name": name + (f" ({sublane + 1})" if sublane else "")})
            yield _meta("thread_sort_index", new, lane, {"sort_index": place})

    def _counters(self) -> Iterator[dict[str, Any]]:
        if not self._rank.counters:
            return
        pid = self._state.next_pid
        self._state.next_pid += 1
        yield _meta("process_name", pid, 0, {"name": f"rank {self._rank.rank} · rates"})
        yield _meta("process_sort_index", pid, 0, {"sort_index": self._order * 1000 + 999})
        for track in self._rank.counters:
            # A counter holds its value, so only changes are written
            values = np.round(track.values, 6)
            changes = np.flatnonzero(np.concatenate(([True], np.diff(values) != 0)))
            times = self._time(track.times_ns[changes])
            for time, value in zip(times.tolist(), values[changes].tolist(), strict=True):
                if self._kept.window_ns is None or self._kept.window_ns[0] <= time < self._kept.window_ns[1]:
                    yield {
                        "ph": "C", "name": track.name, "pid": pid, "tid": 0, "ts": time / 1000,
                        "args": {track.unit: value},
                    }  # fmt: skip


def sublanes(lane: Ints, start: Ints, end: Ints) -> Ints:
    """For each slice the number of the lane below its track, 0 for the track itself, so that in each slices nest.

    The first lane in which a slice lies inside the open one, or begins after it.
    """
    result = np.zeros(len(lane), np.int64)
    order = np.lexsort((-end, start, lane))
    open_ends: list[list[int]] = []
    last = -1
    for row, of, begin, stop in zip(
        order.tolist(), lane[order].tolist(), start[order].tolist(), end[order].tolist(), strict=True
    ):
        if of != last:
            open_ends, last = [[]], of
        number = 0
        while number < len(open_ends):
            ends = open_ends[number]
            while ends and ends[-1] <= begin:
                ends.pop()
            if not ends or stop <= ends[-1]:
                break
            number += 1
        else:
            open_ends.append([])
        open_ends[number].append(stop)
        result[row] = number
    return result


def _meta(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _by_name(entry: tuple[tuple[int, Identifier, int], int]) -> tuple[int, bool, int, str, int]:
    (pid, tid, sublane), _ = entry
    return pid, isinstance(tid, str), tid if isinstance(tid, int) else 0, str(tid), sublane


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
    written = 0
    around = table.metadata if metadata is None else metadata
    edited = (edit(row, event) for row, event in events(table))
    with whole_packed_file(Path(path)) as sink:
        sink.write(b"{" + b"".join(_json(str(key)) + b":" + _json(value) + b"," for key, value in around.items()))
        sink.write(b'"traceEvents":[')
        for made in itertools.chain(edited, added):
            if made is not None:
                sink.write((b",\n" if written else b"\n") + _json(made))
                written += 1
        sink.write(b"\n]}\n")
    return written


def events(table: TraceTable, wanted: npt.NDArray[np.bool_] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(row or -1, event) of every event that can be read; ``wanted``: which rows, by default all."""
    row_of = np.full(table.events_total, -1, np.int64)
    known = table.file_index < table.events_total
    row_of[table.file_index[known]] = np.flatnonzero(known)
    closing = set(table.pair_ends.values())
    for index, row in enumerate(row_of.tolist()):
        if index in closing or (row >= 0 and wanted is not None and not wanted[row]):
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
    with whole_packed_file(Path(path)) as sink:
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
            elif (phase := event.get("ph")) in ("i", "I"):
                yield from self._instant(event)
            elif phase == "C":
                yield from self._counter(event)

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
            track = self._track(event.get("pid", ""), event.get("tid", ""), 0)
            body = number_field(9, _INSTANT) + number_field(11, track)
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
            about = number_field(1, self._tracks[key]) + number_field(5, parent) + text_field(2, _encoded(name))
            self._waiting.append(self._packet(text_field(60, about + text_field(8, b""))))
        return self._tracks[key]


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
