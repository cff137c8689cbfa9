"""Traces of many ranks as one file for Perfetto, written rank by rank: one trace is in memory at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson

from tracelens.errors import InputError, UsageError
from tracelens.files.atomic_write import whole_packed_file
from tracelens.lazy.records import dataclass
from tracelens.trace.reading.chrome.decoded_events import TIME_LIMIT_NS
from tracelens.trace.table import Identifier, TraceTable

Ints = npt.NDArray[np.int64]
#: The lane below its track of each slice that is not on it, by pid, tid and start as recorded.
Moved: TypeAlias = dict[tuple[Identifier, Identifier, int], int]

# Beyond the thread ids of any operating system (Linux: at most 2**22)
_FIRST_NEW_TID = 1 << 23
_IDS = ("correlation", "External id")
_OF_THE_JOB = ("deviceProperties", "record_shapes", "with_stack", "profile_memory")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CounterTrack:
    """A quantity over time: ``values`` hold from each of ``times_ns`` (the table's own clock) to the next."""

    name: str
    unit: str
    times_ns: Ints
    values: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FusedRank:
    """One rank to write. ``corrected`` takes times since the epoch (``base_ns`` added) to the common clock."""

    rank: int
    table: TraceTable
    corrected: Callable[[Ints], Ints]
    counters: tuple[CounterTrack, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events go into the file.

    ``window_ns``: what overlaps [start, end) after the origin, whole; None is everything. ``categories`` as recorded
    (``kernel``, ``cpu_op``); empty means all. Flows are kept with all categories only.
    """

    window_ns: tuple[int, int] | None = None
    categories: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """What was written: events, of them slices (what has a duration), ranks, and slices that got a lane of their own
    because they overlapped another.
    """

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
            own = _of_the_job(rank.table)
            alike = {key: value for key, value in own.items() if order == 0 or alike.get(key) == value}
            for event in _RankWriter(rank, order, origin_ns, kept or EventFilter(), state).events():
                sink.write(separator)
                sink.write(_json(event))
                separator = b",\n"
                state.events += 1
            state.ranks += 1
        sink.write(b"\n]" + b"".join(b",%b:%b" % (_json(key), _json(value)) for key, value in alike.items()) + b"}\n")
    return Fused(events=state.events, slices=state.slices, ranks=state.ranks, moved_slices=state.moved)


def _of_the_job(table: TraceTable) -> dict[str, Any]:
    """What a trace says of itself that may hold for all ranks."""
    said = {key: table.metadata[key] for key in _OF_THE_JOB if key in table.metadata}
    return said if table.world_size is None else {**said, "distributedInfo": {"world_size": table.world_size}}


def parse_window(text: str) -> tuple[int, int]:
    """``START:END`` in ms as ns; UsageError for anything else, or an empty window."""
    try:
        start, end = (round(float(part) * 1e6) for part in text.split(":"))
    except (ValueError, OverflowError):
        raise UsageError(f"--window takes START:END in ms, like 10:20.5; got {text!r}") from None
    if end <= start:
        raise UsageError(f"the window {text!r} ends before it starts")
    return start, end


@dataclass(slots=True)
class _State:
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
        wanted = self._wanted(start, end)
        row_of = np.full(table.events_total, -1, np.int64)
        row_of[table.file_index] = np.arange(len(table))
        closing = set(table.pair_ends.values())
        for index in range(table.events_total):
            row = int(row_of[index])
            if (row >= 0 and not wanted[row]) or index in closing:
                continue
            if row >= 0:
                self._state.slices += 1
                yield self._slice(row, start, end, int(sublane[row]))
                continue
            try:
                event = table.lookup.event(index)
            except InputError:
                continue  # damaged in the file: reading has counted it
            if (made := self._other(event, moved)) is not None:
                yield made
        yield from self._names()
        yield from self._counters()
        self._state.next_id += self._largest_id() + 1

    def _time(self, times_ns: Ints) -> Ints:
        return self._rank.corrected(times_ns + self._table.base_ns) - self._origin_ns

    def _wanted(self, start: Ints, end: Ints) -> npt.NDArray[np.bool_]:
        wanted = np.ones(len(self._table), bool)
        if self._kept.window_ns is not None:
            first, last = self._kept.window_ns
            wanted &= (start < last) & (end > first)
        if self._kept.categories:
            codes = [i for i, name in enumerate(self._table.categories) if name in self._kept.categories]
            wanted &= np.isin(self._table.category, codes)
        return wanted

    def _slice(self, row: int, start: Ints, end: Ints, sublane: int) -> dict[str, Any]:
        event = self._table.event(row)
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

    def _largest_id(self) -> int:
        columns = (self._table.correlation, self._table.external_id, self._table.flows.id)
        return max((int(column.max()) for column in columns if len(column)), default=0)

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


def _json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # an integer beyond 64 bits, a lone surrogate
        return json.dumps(value).encode()


def _meta(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _by_name(entry: tuple[tuple[int, Identifier, int], int]) -> tuple[int, bool, int, str, int]:
    (pid, tid, sublane), _ = entry
    return pid, isinstance(tid, str), tid if isinstance(tid, int) else 0, str(tid), sublane
