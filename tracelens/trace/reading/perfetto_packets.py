"""The packets of a Perfetto trace as columns: clocks, texts by number, tracks, slices paired from their ends."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.trace.reading.source import Ints, Source, coded, coded_pairs
from tracelens.trace.reading.wire import Columns, Spans, Wire, varint
from tracelens.types.records import Record

Bools = npt.NDArray[np.bool_]
# Trace.packet, and fields of TracePacket (perfetto/protos/perfetto/trace/trace_packet.proto).
PACKET = 1
_SNAPSHOT, TIMESTAMP, SEQUENCE, TRACK_EVENT, INTERNED, FLAGS = 6, 8, 10, 11, 12, 13
CLEARED, THREAD, COMPRESSED, STAGE_EVENT, CLOCK, DEFAULTS, TRACK = 41, 44, 50, 53, 58, 59, 60
# TrackEvent: type, track, name by number, categories, annotations, name, flows.
_CATEGORY_IID, _ANNOTATIONS, _LEGACY, _TYPE, _NAME_IID, _TRACK_UUID, _CATEGORY, _NAME = 3, 4, 6, 9, 10, 11, 22, 23
_FLOWS = (36, 42, 47, 48)
_BEGIN, _END, _INSTANT = 1, 2, 3
_PHASES = {ord("B"): _BEGIN, ord("E"): _END, ord("X"): 5, ord("I"): _INSTANT, ord("i"): _INSTANT}
_COMPLETE = 5
# InternedData: the kinds of texts that events have by number.
CATEGORIES, NAMES, KEYS, STAGES, TEXTS, KERNELS = 1, 2, 3, 24, 29, 1000
_BOOT_TIME = 6
# Clocks from here on belong to one sequence of packets.
_FIRST_OWN_CLOCK = 64
_STATE_CLEARED = 1
# Data that unpacks to more than this at a time is looked at in portions.
_PORTION_BYTES = 1 << 20
_BIG = 1 << 40


def unpacked(wire: Wire, source: Source) -> tuple[Wire, Ints, Ints, int]:
    """The data with compressed packets opened, where its packets stand, and where it is damaged (-1: not)."""
    starts, ends, damage = wire.repeated(0, len(wire.data), PACKET)
    if not len(starts) or b"\x92\x03" not in wire.data:
        return wire, starts, ends, damage
    found = wire.columns(starts, ends, (), (COMPRESSED,)).spans[COMPRESSED]
    if not len(found.owner):
        return wire, starts, ends, damage
    packed = {owner: span for owner, *span in found}
    parts: list[bytes] = []
    size = 0
    for i, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        if i not in packed:
            parts.append(b"\n" + varint(end - start) + wire.data[start:end])
            continue
        for part in _inflated(wire.data[slice(*packed[i])]):
            size += len(part)
            source.limit.check_unpacked(source.name, size)
            parts.append(part)
    opened = Wire(b"".join(parts))
    starts, ends, inner_damage = opened.repeated(0, len(opened.data), PACKET)
    return opened, starts, ends, max(damage, inner_damage)


def _inflated(data: bytes) -> Iterator[bytes]:
    inflater = zlib.decompressobj()
    try:
        while data and (part := inflater.decompress(data, _PORTION_BYTES)):
            yield part
            data = inflater.unconsumed_tail
    except zlib.error:
        return


class Track(Record, frozen=False, eq=False):
    """What a descriptor says. ``parent``: the track that it is below."""

    name: str = ""
    parent: int = 0
    process: int | None = None
    process_name: str = ""
    thread: tuple[int, int] | None = None
    thread_name: str = ""
    is_counter: bool = False


class Slices(Record, frozen=False, eq=False):
    """One row per slice or instant; ``instant`` tells the latter. ``event``: where its TrackEvent stands."""

    start_ns: Ints
    end_ns: Ints
    track: Ints
    name: Ints
    category: Ints
    flow: Ints
    scope: Ints
    instant: Bools
    timed: Bools
    names: list[str]
    categories: list[str]
    annotations: Spans
    unfinished: int = 0


class Packets:
    """All packets of a trace; positions are those in ``wire``."""

    def __init__(self, wire: Wire, starts: Ints, ends: Ints) -> None:
        self.wire = wire
        integers = (TIMESTAMP, SEQUENCE, FLAGS, CLEARED, CLOCK)
        self.found = wire.columns(
            starts, ends, integers, (_SNAPSHOT, TRACK_EVENT, INTERNED, THREAD, STAGE_EVENT, DEFAULTS, TRACK)
        )
        # A number per packet for what it may refer to: its sequence, since that forgot all before
        found = self.found.integers
        cleared = (found[CLEARED] != 0) | (found[FLAGS] & _STATE_CLEARED != 0)
        order, generation = np.argsort(found[SEQUENCE], kind="stable"), np.empty(len(cleared), np.int64)
        generation[order] = np.cumsum(cleared[order])
        scopes: dict[tuple[int, int], int] = {}
        self.scope = coded_pairs(found[SEQUENCE], generation, lambda *key: scopes.setdefault(key, len(scopes)))
        self.texts = self._interned()
        self._default_clock: dict[int, int] = {}
        self._default_track: dict[int, int] = {}
        for owner, start, end in self.found.spans[DEFAULTS]:
            scope = int(self.scope[owner])
            for number, value, stop in wire.fields(start, end):
                if number == CLOCK and stop < 0:
                    self._default_clock[scope] = value
                elif number == TRACK_EVENT and stop >= 0:
                    uuid = wire.message(value, stop).get(_TRACK_UUID)
                    if isinstance(uuid, int):
                        self._default_track[scope] = uuid
        self.tracks = self._tracks()
        self.time_ns, self.timed = self._times()

    def _interned(self) -> dict[int, dict[tuple[int, int], str]]:
        """Texts by kind, scope and number."""
        wire = self.wire
        texts: dict[int, dict[tuple[int, int], str]] = {kind: {} for kind in _TEXT_FIELDS}
        for owner, start, end in self.found.spans[INTERNED]:
            scope = int(self.scope[owner])
            for kind, first, last in wire.fields(start, end):
                if last < 0 or kind not in texts:
                    continue
                iid, text = 0, ""
                for number, value, stop in wire.fields(first, last):
                    if number == 1 and stop < 0:
                        iid = value
                    elif number in _TEXT_FIELDS[kind] and stop >= 0:
                        text = wire.text(value, stop)
                texts[kind][scope, iid] = text
        return texts

    def _tracks(self) -> dict[int, Track]:
        wire = self.wire
        tracks: dict[int, Track] = {}
        for _, start, end in self.found.spans[TRACK]:
            said = wire.message(start, end)
            track = tracks.setdefault(_integer(said.get(1)), Track())
            track.name = _text(said.get(2)) or _text(said.get(10)) or track.name
            track.parent = _integer(said.get(5)) or track.parent
            track.is_counter |= 8 in said
            if isinstance(process := said.get(3), bytes):
                about = Wire(process).message(0, len(process))
                track.process, track.process_name = _integer(about.get(1)), _text(about.get(6))
            if isinstance(thread := said.get(4), bytes):
                about = Wire(thread).message(0, len(thread))
                track.thread = (_integer(about.get(1)), _integer(about.get(2)))
                track.thread_name = _text(about.get(5))
        for owner, start, end in self.found.spans[THREAD]:
            # Older writers describe the thread of a sequence instead of a track: one of their own number.
            about, uuid = wire.message(start, end), -1 - int(self.scope[owner])
            tracks[uuid] = Track(
                thread=(_integer(about.get(1)), _integer(about.get(2))), thread_name=_text(about.get(5))
            )
            self._default_track.setdefault(int(self.scope[owner]), uuid)
        return tracks

    def _times(self) -> tuple[Ints, Bools]:
        """The time of every packet on the trace's clock."""
        stamp, scope = self.found.integers[TIMESTAMP], self.scope
        clock = np.where(
            self.found.integers[CLOCK] > 0,
            self.found.integers[CLOCK],
            coded(scope, lambda number: self._default_clock.get(number, 0)),
        )
        snapshots, primary = self._snapshots()
        time = stamp.copy()
        for number in set(clock.tolist()) - {0, primary}:
            if number < _FIRST_OWN_CLOCK:
                # By the first snapshot of both clocks; times stay where the file has none
                both = (s.clocks for s in snapshots if {number, primary} <= s.clocks.keys())
                time[clock == number] += next((known[primary][0] - known[number][0] for known in both), 0)
        own = clock >= _FIRST_OWN_CLOCK
        if own.any():
            self._own_times(time, clock, own, snapshots, primary)
        return time, self.found.there[TIMESTAMP]

    def _own_times(self, time: Ints, clock: Ints, own: Bools, snapshots: list[_Snapshot], primary: int) -> None:
        """Clocks of one sequence: in units, and as differences to the packet before where they say so."""
        sequence = self.found.integers[SEQUENCE]
        known: defaultdict[tuple[int, int], list[_Snapshot]] = defaultdict(list)
        for snapshot in snapshots:
            for number in snapshot.clocks:
                known[int(sequence[snapshot.packet]), number].append(snapshot)
        for (of_sequence, number), found in known.items():
            here = np.flatnonzero(own & (clock == number) & (sequence == of_sequence) & self.found.there[TIMESTAMP])
            of_snapshot = np.searchsorted([s.packet for s in found], here, side="right") - 1
            for i, snapshot in enumerate(found):
                rows = here[of_snapshot == i]
                rows = rows[rows != snapshot.packet]
                value, incremental, unit = snapshot.clocks[number]
                reference = snapshot.clocks.get(primary, snapshot.clocks.get(_BOOT_TIME, (value * unit, False, 1)))[0]
                since = np.cumsum(time[rows]) if incremental else time[rows] - value
                time[rows] = reference + since * unit

    def _snapshots(self) -> tuple[list[_Snapshot], int]:
        wire, primary = self.wire, _BOOT_TIME
        found: list[_Snapshot] = []
        for owner, start, end in self.found.spans[_SNAPSHOT]:
            snapshot = _Snapshot(packet=owner)
            for number, value, stop in wire.fields(start, end):
                if number == 1 and stop >= 0:
                    about = wire.message(value, stop)
                    snapshot.clocks[_integer(about.get(1))] = (
                        _integer(about.get(2)), bool(about.get(3, False)), _integer(about.get(4)) or 1,
                    )  # fmt: skip
                elif number == 2 and stop < 0:
                    primary = value
            found.append(snapshot)
        found.sort(key=lambda s: s.packet)
        return found, primary

    def text_codes(self, kind: int, scope: Ints, iid: Ints, spans: Spans, codes: dict[str, int]) -> Ints:
        """A code per event of its text: its own (``spans``), or that of its number; 0 is none."""
        texts, data = self.texts[kind], self.wire.data
        found = coded_pairs(scope, iid, lambda *key: codes.setdefault(texts.get(key, ""), len(codes)))
        of_text: dict[bytes, int] = {}
        for owner, start, end in spans:
            text = data[start:end]
            code = of_text.get(text)
            if code is None:
                code = of_text[text] = codes.setdefault(text.decode("utf-8", "replace"), len(codes))
            found[owner] = code
        return found

    def slices(self) -> Slices:
        outer = self.found.spans[TRACK_EVENT]
        found = self.wire.columns(
            outer.start, outer.end, (_CATEGORY_IID, _TYPE, _NAME_IID, _TRACK_UUID, *_FLOWS),
            (_CATEGORY, _NAME, _ANNOTATIONS, _LEGACY),
        )  # fmt: skip
        integers, scope, time = found.integers, self.scope[outer.owner], self.time_ns[outer.owner]
        timed = self.timed[outer.owner]
        track = np.where(
            found.there[_TRACK_UUID],
            integers[_TRACK_UUID],
            coded(scope, lambda number: self._default_track.get(number, 0)),
        )
        names, categories = {"": 0}, {"": 0}
        kind, duration = self._kinds(found)
        flow = np.full(len(kind), -1, np.int64)
        for number in _FLOWS:
            flow = np.where(found.there[number], integers[number], flow)
        opened, closed, unfinished = _paired(np.where(timed & (kind != _COMPLETE), kind, 0), track, time, outer.owner)
        alone = np.flatnonzero((kind == _INSTANT) | (timed & (kind == _COMPLETE)))
        rows = np.concatenate((opened, alone))
        slice_of = np.full(len(kind), -1, np.int64)
        slice_of[rows] = np.arange(len(rows))
        slice_of[closed] = np.arange(len(closed))
        spans = found.spans[_ANNOTATIONS]
        inside = slice_of[spans.owner] >= 0
        order = rows[np.argsort(outer.owner[rows], kind="stable")]
        position = np.empty(len(rows), np.int64)
        position[slice_of[order]] = np.arange(len(rows))
        end = np.concatenate((time[closed], time[alone] + duration[alone]))
        name = self.text_codes(NAMES, scope, integers[_NAME_IID], found.spans[_NAME], names)
        category = self.text_codes(CATEGORIES, scope, integers[_CATEGORY_IID], found.spans[_CATEGORY], categories)
        return Slices(
            start_ns=time[order],
            end_ns=end[slice_of[order]],
            track=track[order],
            name=name[order],
            category=category[order],
            flow=flow[order],
            scope=scope[order],
            instant=kind[order] == _INSTANT,
            timed=timed[order],
            names=list(names),
            categories=list(categories),
            annotations=Spans(position[slice_of[spans.owner[inside]]], spans.start[inside], spans.end[inside]),
            unfinished=unfinished,
        )

    def _kinds(self, found: Columns) -> tuple[Ints, Ints]:
        """The type of every event, and the duration (ns) of those that have one of their own (Chrome's)."""
        kind, duration = found.integers[_TYPE].copy(), np.zeros(len(found.integers[_TYPE]), np.int64)
        spans = found.spans[_LEGACY]
        if len(spans.owner):
            legacy = self.wire.columns(spans.start, spans.end, (1, 2, 3))
            phase = coded(legacy.integers[2], lambda value: _PHASES.get(value, 0))
            kind[spans.owner] = np.where(kind[spans.owner] > 0, kind[spans.owner], phase)
            duration[spans.owner] = legacy.integers[3] * 1000
            named = spans.owner[legacy.there[1]]
            found.integers[_NAME_IID][named] = legacy.integers[1][legacy.there[1]]
        return kind, duration


_TEXT_FIELDS = {CATEGORIES: (2,), NAMES: (2,), KEYS: (2,), STAGES: (2,), TEXTS: (2,), KERNELS: (2, 3)}


class _Snapshot(Record, frozen=False, eq=False):
    """What clocks showed at one moment: (value, whether packets give differences, ns per unit) by number."""

    packet: int
    clocks: dict[int, tuple[int, bool, int]] = msgspec.field(default_factory=dict)


def _paired(kind: Ints, track: Ints, time: Ints, packet: Ints) -> tuple[Ints, Ints, int]:
    """(begins, their ends, how many begins have none), as a stack per track would pair them.

    In the order of the file where that is the order of time. Elsewhere the n-th begin with the n-th end of a track,
    where that gives no negative duration: writers put each slice, or all begins and then all ends, one after the
    other. Else in the order of time, ends first.
    """
    rows = np.flatnonzero((kind == _BEGIN) | (kind == _END))
    numbers: dict[int, int] = {}
    tracks = coded(track[rows], lambda uuid: numbers.setdefault(uuid, len(numbers)))
    order = np.lexsort((packet[rows], tracks))
    rows, tracks = rows[order], tracks[order]
    count = len(numbers)
    backwards = (np.diff(tracks) == 0) & (np.diff(time[rows]) < 0)
    unsorted = np.bincount(tracks[1:][backwards], minlength=count) > 0
    here = unsorted[tracks]
    begins, ends, left = _in_turn(kind, tracks[here], time, rows[here], count)
    rest = ~here | left[tracks]
    at, of = rows[rest], tracks[rest]
    again = np.lexsort((kind[at] == _BEGIN, np.where(unsorted[of], time[at], np.arange(len(at))), of))
    at, of = at[again], of[again]
    opened, closed, waiting = _stacked(kind[at] == _BEGIN, of, at)
    return np.concatenate((begins, opened)), np.concatenate((ends, closed)), waiting


def _in_turn(kind: Ints, tracks: Ints, time: Ints, rows: Ints, count: int) -> tuple[Ints, Ints, Bools]:
    """(begins, ends) of the tracks whose n-th begin and n-th end make a slice each, and which tracks are left."""
    is_begin = kind[rows] == _BEGIN
    many = np.bincount(tracks[is_begin], minlength=count)
    left = many != np.bincount(tracks[~is_begin], minlength=count)
    even = ~left[tracks]
    begins, ends, of = rows[is_begin & even], rows[~is_begin & even], tracks[is_begin & even]
    left |= np.bincount(of[time[ends] < time[begins]], minlength=count) > 0
    good = ~left[of]
    return begins[good], ends[good], left


def _stacked(is_begin: Bools, tracks: Ints, rows: Ints) -> tuple[Ints, Ints, int]:
    """Pairs by depth: a begin goes with the next end at its depth. An end without a begin changes no depth."""
    starts = np.diff(tracks, prepend=-1) != 0
    number = np.cumsum(starts) - 1
    depth = np.cumsum(np.where(is_begin, 1, -1))
    depth -= (depth - np.where(is_begin, 1, -1))[starts][number]
    # Each track is far below the one before it, so that the lowest depth so far is its own.
    lowest = np.minimum.accumulate(np.minimum(depth, 0) - number * _BIG) + number * _BIG
    stray = ~is_begin & (lowest < np.where(starts, 0, np.roll(lowest, 1)))
    level = depth - lowest + ~is_begin
    kept = ~stray
    is_begin, tracks, rows, level = is_begin[kept], tracks[kept], rows[kept], level[kept]
    order = np.lexsort((np.arange(len(rows)), level, tracks))
    begin, after = order[:-1], order[1:]
    pairs = is_begin[begin] & ~is_begin[after] & (level[begin] == level[after]) & (tracks[begin] == tracks[after])
    begin, after = begin[pairs], after[pairs]
    return rows[begin], rows[after], int(is_begin.sum()) - len(begin)


class Annotations:
    """What slices say beside their name, by key. ``owner`` indexes the slices."""

    def __init__(self, packets: Packets, slices: Slices) -> None:
        self._packets, self._spans, self._count = packets, slices.annotations, len(slices.start_ns)
        spans = self._spans
        self._scope = slices.scope[spans.owner]
        self._found = packets.wire.columns(spans.start, spans.end, (1, 2, 3, 4, 7, 17), (6, 9, 10))
        self._keys: dict[str, int] = {"": 0}
        self._key = packets.text_codes(KEYS, self._scope, self._found.integers[1], self._found.spans[10], self._keys)
        order = np.argsort(spans.owner, kind="stable")
        self._order, self._first = order, np.searchsorted(spans.owner[order], np.arange(self._count + 1))

    def rows(self, key: str) -> Ints:
        """Which annotations are of a key."""
        code = self._keys.get(key)
        return np.zeros(0, np.int64) if code is None else np.flatnonzero(self._key == code)

    def has(self, *keys: str) -> Bools:
        found = np.zeros(self._count, np.bool_)
        for key in keys:
            found[self._spans.owner[self.rows(key)]] = True
        return found

    def integers(self, key: str) -> Ints:
        """A whole number per slice; -1 where it has none."""
        values = np.full(self._count, -1, np.int64)
        rows = self.rows(key)
        for number in (2, 3, 4, 7):
            here = rows[self._found.there[number][rows]]
            values[self._spans.owner[here]] = self._found.integers[number][here]
        spelled = rows[~np.logical_or.reduce([self._found.there[n][rows] for n in (2, 3, 4, 7)])]
        for row in spelled.tolist():
            value = self._value(row)
            if isinstance(value, str):
                value = int(value) if value.strip().lstrip("-").isdecimal() and len(value) < 19 else -1
            if isinstance(value, int | float) and abs(value) < 2**62:
                values[self._spans.owner[row]] = int(value)
        return values

    def values(self, key: str) -> Iterator[tuple[int, Any]]:
        """(slice, value) of each that has the key; equal ones are decoded once."""
        known: dict[tuple[int, bytes], Any] = {}
        data, spans = self._packets.wire.data, self._spans
        for row in self.rows(key).tolist():
            at = (int(self._scope[row]), data[int(spans.start[row]) : int(spans.end[row])])
            if at not in known:
                known[at] = self._value(row)
            yield int(spans.owner[row]), known[at]

    def of(self, number: int) -> dict[str, Any]:
        keys = list(self._keys)
        rows = self._order[self._first[number] : self._first[number + 1]].tolist()
        said = {keys[int(self._key[row])]: self._value(row) for row in rows}
        return {**said, **loaded(said.pop("metadata"))} if isinstance(said.get("metadata"), str) else said

    def _value(self, row: int) -> Any:
        return self._decoded(int(self._spans.start[row]), int(self._spans.end[row]), int(self._scope[row]), 0)

    def _decoded(self, start: int, end: int, scope: int, depth: int) -> Any:
        """A DebugAnnotation; one without a value is an empty list."""
        wire, texts = self._packets.wire, self._packets.texts
        value: Any = []
        if depth > _DEEPEST:
            return value
        for number, first, stop in wire.fields(start, end):
            if number == 17:
                value = texts[TEXTS].get((scope, first), "")
            elif stop < 0:
                value = _SCALARS[number](first) if number in _SCALARS else value
            elif number in (6, 9):
                value = wire.text(first, stop)
            elif number == 12:
                value = value if isinstance(value, list) else []
                value.append(self._decoded(first, stop, scope, depth + 1))
            elif number == 11:
                value = value if isinstance(value, dict) else {}
                said = wire.message(first, stop)
                name = _text(said.get(10)) or texts[KEYS].get((scope, _integer(said.get(1))), "")
                value[name] = self._decoded(first, stop, scope, depth + 1)
        return value


_DEEPEST = 20
_SCALARS: dict[int, Callable[[int], Any]] = {
    2: bool, 3: int, 4: int, 5: lambda value: float(np.int64(value).view(np.float64)), 7: int,
}  # fmt: skip


def loaded(text: str) -> dict[str, Any]:
    """Arguments that Kineto writes as the inner text of a JSON object; empty when they are none."""
    for spelled in (text, f"{{{text}}}"):
        try:
            value = msgspec.json.decode(spelled.encode())
        except (msgspec.DecodeError, RecursionError):
            continue
        if isinstance(value, dict):
            return value
    return {}


def _integer(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
