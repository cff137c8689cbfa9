"""XPlane: what JAX, TensorFlow and PyTorch/XLA record (``.xplane.pb``, XSpace of tsl's xplane.proto)."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.trace.reading.source import Array, Ints, RowBlocks, Source, coded_pairs, device_category, reader
from tracelens.trace.reading.wire import Wire, WireError
from tracelens.trace.table import XLA_PROGRAMS, XLA_STEPS, Recorder, TraceTable
from tracelens.types.records import Record

RECORDER = Recorder(
    file="an XPlane profile (JAX, TensorFlow or PyTorch/XLA)",
    no_shapes="XLA records HLO ops without the shapes of their inputs",
    no_stacks="Python functions were not recorded (python_tracer_level)",
    shapes_option="XLA records none",
)
# A plane, its id, its name: XSpace.planes, XPlane.id, XPlane.name.
_START = re.compile(
    rb"\n[\x80-\xff]{0,9}+[\x00-\x7f](?:\x08[\x80-\xff]{0,9}+[\x00-\x7f])?\x12[\x00-\x7f]/(?:host|device):"
)
# Field numbers of the messages.
_PLANES = 1
_PLANE_NAME, _LINES, _EVENT_NAMES, _STAT_NAMES, _PLANE_STATS = 2, 3, 4, 5, 6
_LINE_ID, _LINE_NAME, _LINE_NS, _EVENTS = 1, 2, 3, 4
_NAME_ID, _OFFSET_PS, _DURATION_PS, _STATS = 1, 2, 3, 4
_STAT_ID, _STAT_DOUBLE, _STAT_UINT, _STAT_INT, _STAT_TEXT, _STAT_REF = 1, 2, 3, 4, 5, 7
_DEVICE = re.compile(r"/device:([A-Za-z_]{1,20}):(\d{1,4})")
_STREAM = re.compile(r"Stream #(\d{1,9})")
#: On devices without streams (TPU): the line of what ran, one op after the other.
_OPS_LINE = "XLA Ops"
_TRIPLE = r"(\d{1,10}),(\d{1,10}),(\d{1,10})"
_GRID, _BLOCK = (re.compile(rf"\b{what}:{_TRIPLE}") for what in ("grid", "block"))
_CALL = re.compile(r"(?:hip|cuda|cu)[A-Z]")
_PS_PER_NS = 1000


@reader("xplane", recognizes=lambda source: _START.match(source.start) is not None)
def read(source: Source) -> TraceTable:
    """Streams of devices, their steps and programs, host threads, and the HLO op round each launch."""
    rows = RowBlocks(source.name)
    wire = Wire(source.whole())
    devices: dict[int, dict[str, Any]] = {}
    try:
        for number, start, end in wire.fields(0, len(wire.data)):
            if number == _PLANES and end >= 0:
                _Plane.of(wire, start, end).add_to(rows, devices)
    except WireError as error:
        if not len(rows):
            raise source.damage("an XPlane profile", error.position) from error
        rows.notes.append(f"the file is damaged at byte {error.position:,}; what stands before is used")
    rows.set_devices(devices)
    return rows.table(RECORDER, truncated=bool(rows.notes))


class _Line(Record, frozen=False, eq=False):
    """One thread or stream: its number and name, and where its events stand."""

    starts: Ints
    ends: Ints
    number: int = 0
    name: str = ""
    start_ns: int = 0


class _Plane(Record, frozen=False, eq=False):
    """A host or a device."""

    wire: Wire
    name: str = ""
    lines: list[_Line] = msgspec.field(default_factory=list)
    events: dict[int, str] = msgspec.field(default_factory=dict)
    stats: dict[int, str] = msgspec.field(default_factory=dict)
    own: list[tuple[int, int]] = msgspec.field(default_factory=list)

    @classmethod
    def of(cls, wire: Wire, start: int, end: int) -> _Plane:
        plane = cls(wire)
        for number, first, last in wire.fields(start, end):
            if last < 0:
                continue
            if number == _PLANE_NAME:
                plane.name = wire.text(first, last)
            elif number == _LINES:
                plane.lines.append(_line(wire, first, last))
            elif number == _EVENT_NAMES:
                plane.events.update(_named(wire, first, last))
            elif number == _STAT_NAMES:
                plane.stats.update(_named(wire, first, last))
            elif number == _PLANE_STATS:
                plane.own.append((first, last))
        return plane

    def add_to(self, rows: RowBlocks, devices: dict[int, dict[str, Any]]) -> None:
        if match := _DEVICE.match(self.name):
            number = int(match[2])
            devices[number] = self._properties()
            rows.process_names[number] = self.name
            streams = [line for line in self.lines if _STREAM.match(line.name)]
            self._add_streams(rows, streams or [line for line in self.lines if line.name == _OPS_LINE], number)
            self._add_ranges(rows, [line for line in self.lines if line.name in (XLA_STEPS, XLA_PROGRAMS)], number)
        elif self.name.startswith("/host:"):
            self._add_threads(rows, [line for line in self.lines if len(line.starts)])

    def _properties(self) -> dict[str, Any]:
        known: dict[str, Any] = {}
        for start, end in self.own:
            stat = self.wire.message(start, end)
            name = self.stats.get(stat.get(_STAT_ID, 0), "")
            value = next((stat[key] for key in (_STAT_UINT, _STAT_INT) if key in stat), None)
            if isinstance(value, int) and name in _PROPERTIES:
                known[_PROPERTIES[name]] = value
            if name == "device_vendor" and stat.get(_STAT_TEXT) == b"AMD":
                known["warpSize"] = 64
        return known

    def _add_streams(self, rows: RowBlocks, lines: list[_Line], device: int) -> None:
        found = _Events(self, lines)
        if not len(found.start_ns):
            return
        streams = [int(match[1]) if (match := _STREAM.match(line.name)) else 0 for line in lines]
        for number, line in zip(streams, lines, strict=True):
            rows.thread_names[device, number] = line.name
        stream = np.array(streams, np.int64)[found.line]
        lane = np.array(rows.lanes.of([(device, each) for each in streams]), np.int64)[found.line]
        known = {code: device_category(self.events.get(code, "")) for code in np.unique(found.name).tolist()}
        category = [known[code] for code in found.name.tolist()]
        texts = found.texts("kernel_details")
        # A block of which no event has any shows none
        said = {each for each, text in zip(category, texts, strict=True) if text}
        details = {"grid": _triples(texts, _GRID), "block": _triples(texts, _BLOCK)}
        rows.add_each(
            category,
            dict.fromkeys(known.values()),
            start_ns=found.start_ns,
            end_ns=found.end_ns,
            name=self._names(rows, found.name),
            lane=lane,
            stream=stream,
            device=np.full(len(stream), device),
            correlation=found.integers("correlation_id"),
            details=lambda i: {key: each[i].tolist() for key, each in details.items()} if category[i] in said else {},
        )

    def _add_ranges(self, rows: RowBlocks, lines: list[_Line], device: int) -> None:
        """Steps and runs of programs, as ranges on a track of their own."""
        found = _Events(self, lines)
        if not len(found.start_ns):
            return
        for line in lines:
            rows.thread_names[device, line.name] = line.name
        lane = np.array(rows.lanes.of([(device, line.name) for line in lines]), np.int64)[found.line]
        rows.add(
            "gpu_user_annotation",
            start_ns=found.start_ns,
            end_ns=found.end_ns,
            name=self._names(rows, found.name),
            lane=lane,
            device=device,
        )

    def _add_threads(self, rows: RowBlocks, lines: list[_Line]) -> None:
        found = _Events(self, lines)
        if not len(found.start_ns):
            return
        for line in lines:
            rows.thread_names[self.name, line.number] = line.name
        lane = np.array(rows.lanes.of([(self.name, line.number) for line in lines]), np.int64)[found.line]
        name, correlation = self._names(rows, found.name), found.integers("correlation_id")
        categories: dict[str, int] = {}
        of_event = coded_pairs(
            found.name,
            (correlation > 0).astype(np.int64),
            lambda code, linked: categories.setdefault(
                _host_category(self.events.get(code, ""), linked), len(categories)
            ),
        )
        spelled = list(categories)
        ops = found.texts("hlo_op")
        launched = np.array([bool(op) for op in ops], np.bool_) & (correlation > 0)
        rows.add(
            "cpu_op",
            start_ns=found.start_ns[launched],
            end_ns=found.end_ns[launched],
            name=rows.name_codes(ops[i] for i in np.flatnonzero(launched).tolist()),
            lane=lane[launched],
        )
        rows.add_each(
            [spelled[code] for code in of_event.tolist()],
            spelled,
            start_ns=found.start_ns,
            end_ns=found.end_ns,
            name=name,
            lane=lane,
            correlation=correlation,
        )

    def _names(self, rows: RowBlocks, name: Ints) -> Ints:
        return rows.names_of(name, lambda code: self.events.get(code, f"(event {code})"))


class _Events:
    """The events of some lines of a plane, with their statistics. ``line`` indexes the lines, ``name`` is a number."""

    def __init__(self, plane: _Plane, lines: list[_Line]) -> None:
        self._plane = plane
        nothing = [np.zeros(0, np.int64)]
        starts = np.concatenate([line.starts for line in lines] or nothing)
        ends = np.concatenate([line.ends for line in lines] or nothing)
        integers = (_NAME_ID, _OFFSET_PS, _DURATION_PS)
        events = plane.wire.columns(starts, ends, integers, (_STATS,))
        self.line = np.repeat(np.arange(len(lines)), [len(line.starts) for line in lines])
        self.name = events.integers[_NAME_ID]
        begun = np.array([line.start_ns for line in lines], np.int64)[self.line] if lines else nothing[0]
        self.start_ns = begun + events.integers[_OFFSET_PS] // _PS_PER_NS
        self.end_ns = self.start_ns + events.integers[_DURATION_PS] // _PS_PER_NS
        self._count = len(starts)
        self._spans = events.spans[_STATS]
        self._found = plane.wire.columns(
            self._spans.start, self._spans.end, (_STAT_ID, _STAT_UINT, _STAT_INT, _STAT_REF), (_STAT_TEXT,)
        )

    def _of(self, name: str) -> npt.NDArray[np.bool_]:
        wanted = [code for code, text in self._plane.stats.items() if text == name]
        return np.isin(self._found.integers[_STAT_ID], wanted)

    def integers(self, name: str) -> Ints:
        """A statistic per event; -1 where it has none."""
        here, values = self._of(name), np.full(self._count, -1, np.int64)
        found = self._found
        value = np.where(found.there[_STAT_UINT], found.integers[_STAT_UINT], found.integers[_STAT_INT])
        values[self._spans.owner[here]] = value[here]
        return values

    def texts(self, name: str) -> list[str]:
        """A statistic per event as text, "" where it has none: by reference, or its own."""
        here, texts = self._of(name), [""] * self._count
        for i in np.flatnonzero(here & self._found.there[_STAT_REF]).tolist():
            texts[int(self._spans.owner[i])] = self._plane.stats.get(int(self._found.integers[_STAT_REF][i]), "")
        own = self._found.spans[_STAT_TEXT]
        for i, start, end in zip(own.owner.tolist(), own.start.tolist(), own.end.tolist(), strict=True):
            if here[i]:
                texts[int(self._spans.owner[i])] = self._plane.wire.text(start, end)
        return texts


_PROPERTIES = {
    "memory_size": "totalGlobalMem",
    "core_count": "numSms",
    "compute_cap_major": "computeMajor",
    "compute_cap_minor": "computeMinor",
}


def _line(wire: Wire, start: int, end: int) -> _Line:
    others: list[tuple[int, int, int]] = []
    starts, ends, damage = wire.repeated(start, end, _EVENTS, others)
    if damage >= 0:
        raise WireError(damage)
    line = _Line(starts, ends)
    for number, value, stop in others:
        if number == _LINE_NAME and stop >= 0:
            line.name = wire.text(value, stop)
        elif number == _LINE_ID and stop < 0:
            line.number = value
        elif number == _LINE_NS and stop < 0:
            line.start_ns = value
    return line


def _named(wire: Wire, start: int, end: int) -> dict[int, str]:
    """An entry of a map from numbers to messages whose field 2 is a name."""
    key, name = 0, ""
    for number, value, stop in wire.fields(start, end):
        if number == 1 and stop < 0:
            key = value
        elif number == 2 and stop >= 0:
            name = next((wire.text(v, s) for n, v, s in wire.fields(value, stop) if n == 2 and s >= 0), "")
    return {key: name}


def _triples(texts: list[str], pattern: re.Pattern[str]) -> Array:
    known: defaultdict[str, tuple[int, ...]] = defaultdict(lambda: (1, 1, 1))
    for text in dict.fromkeys(texts):
        if match := pattern.search(text):
            known[text] = tuple(map(int, match.groups()))
    return np.array([known[text] for text in texts], np.int64)


def _host_category(name: str, correlation: int) -> str:
    if correlation > 0 and (match := _CALL.match(name)):
        return "hip_runtime" if match[0].startswith("hip") else "cuda_runtime"
    return "python_function" if name.startswith("$") else "user_annotation"
