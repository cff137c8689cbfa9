"""XPlane: what JAX, TensorFlow and PyTorch/XLA record (``.xplane.pb``, XSpace of tsl's xplane.proto)."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.trace.reading.formats.base import reader
from tracelens.trace.reading.row_blocks import Array, Ints, RowBlocks, coded
from tracelens.trace.reading.source import Source
from tracelens.trace.reading.wire import Columns, Wire, WireError
from tracelens.trace.table import Recorder, TraceTable

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
    """Streams of devices, host threads, and the HLO op round each launch."""
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
    if devices:
        rows.metadata["deviceProperties"] = [devices.get(n, {"id": n}) for n in range(max(devices) + 1)]
    return rows.table(RECORDER, truncated=bool(rows.notes))


@dataclass(slots=True, eq=False)
class _Line:
    """One thread or stream: its number and name, and where its events stand."""

    number: int = 0
    name: str = ""
    start_ns: int = 0
    events: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Plane:
    """A host or a device."""

    wire: Wire
    name: str = ""
    lines: list[_Line] = field(default_factory=list)
    events: dict[int, str] = field(default_factory=dict)
    stats: dict[int, str] = field(default_factory=dict)
    own: list[tuple[int, int]] = field(default_factory=list)

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
            devices[number] = self._properties(number)
            rows.process_names[number] = self.name
            streams = [line for line in self.lines if _STREAM.match(line.name)]
            for line in streams or [line for line in self.lines if line.name == _OPS_LINE]:
                self._add_stream(rows, line, number)
        elif self.name.startswith("/host:"):
            for line in self.lines:
                if line.events:
                    self._add_thread(rows, line)

    def _properties(self, number: int) -> dict[str, Any]:
        known: dict[str, Any] = {"id": number}
        for start, end in self.own:
            stat = self.wire.message(start, end)
            name = self.stats.get(stat.get(_STAT_ID, 0), "")
            value = next((stat[key] for key in (_STAT_UINT, _STAT_INT) if key in stat), None)
            if isinstance(value, int) and name in _PROPERTIES:
                known[_PROPERTIES[name]] = value
            if name == "device_vendor" and stat.get(_STAT_TEXT) == b"AMD":
                known["warpSize"] = 64
        return known

    def _add_stream(self, rows: RowBlocks, line: _Line, device: int) -> None:
        found, stats = self._events_of(line)
        match = _STREAM.match(line.name)
        stream = int(match[1]) if match else 0
        (lane,) = rows.lanes.of([(device, stream)])
        rows.thread_names[device, stream] = line.name
        categories = {
            code: _device_category(self.events.get(code, "")) for code in set(found.integers[_NAME_ID].tolist())
        }
        of_event = np.array([categories[code] for code in found.integers[_NAME_ID].tolist()], object)
        start, end = _times(line, found)
        texts = stats.texts("kernel_details")
        for category in sorted(set(categories.values())):
            here = of_event == category
            details = [texts[i] for i in np.flatnonzero(here).tolist()]
            rows.add(
                category,
                start_ns=start[here],
                end_ns=end[here],
                name=self._names(rows, found)[here],
                lane=lane,
                stream=stream,
                device=device,
                correlation=stats.integers("correlation_id")[here],
                details={"grid": _triples(details, _GRID), "block": _triples(details, _BLOCK)}
                if any(details)
                else None,
            )

    def _add_thread(self, rows: RowBlocks, line: _Line) -> None:
        found, stats = self._events_of(line)
        (lane,) = rows.lanes.of([(self.name, line.number)])
        rows.thread_names[self.name, line.number] = line.name
        start, end = _times(line, found)
        name, correlation = self._names(rows, found), stats.integers("correlation_id")
        category = [
            _host_category(self.events.get(code, ""), number)
            for code, number in zip(found.integers[_NAME_ID].tolist(), correlation.tolist(), strict=True)
        ]
        of_event = np.array(category, object)
        ops = stats.texts("hlo_op")
        launched = np.array([bool(op) for op in ops], np.bool_) & (correlation > 0)
        rows.add(
            "cpu_op",
            start_ns=start[launched],
            end_ns=end[launched],
            name=rows.name_codes(ops[i] for i in np.flatnonzero(launched).tolist()),
            lane=lane,
        )
        for each in sorted(set(category)):
            here = of_event == each
            columns = {"name": name[here], "lane": lane, "correlation": correlation[here]}
            rows.add(each, start_ns=start[here], end_ns=end[here], **columns)

    def _events_of(self, line: _Line) -> tuple[Columns, _Stats]:
        spans = np.array(line.events, np.int64).reshape(-1, 2)
        integers = (_NAME_ID, _OFFSET_PS, _DURATION_PS)
        found = self.wire.columns(spans[:, 0].copy(), spans[:, 1].copy(), integers, (_STATS,))
        return found, _Stats(self, found, len(spans))

    def _names(self, rows: RowBlocks, found: Columns) -> Ints:
        return coded(
            found.integers[_NAME_ID], lambda code: rows.names.of([self.events.get(code, f"(event {code})")])[0]
        )


class _Stats:
    """The statistics of a line's events."""

    def __init__(self, plane: _Plane, events: Columns, count: int) -> None:
        self._plane, self._count = plane, count
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
    line = _Line()
    for number, value, stop in wire.fields(start, end):
        if number == _EVENTS and stop >= 0:
            line.events.append((value, stop))
        elif number == _LINE_NAME and stop >= 0:
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


def _times(line: _Line, found: Columns) -> tuple[Ints, Ints]:
    start = line.start_ns + found.integers[_OFFSET_PS] // _PS_PER_NS
    return start, start + found.integers[_DURATION_PS] // _PS_PER_NS


def _triples(texts: list[str], pattern: re.Pattern[str]) -> Array:
    known: defaultdict[str, tuple[int, ...]] = defaultdict(lambda: (1, 1, 1))
    for text in dict.fromkeys(texts):
        if match := pattern.search(text):
            known[text] = tuple(map(int, match.groups()))
    return np.array([known[text] for text in texts], np.int64)


def _device_category(name: str) -> str:
    lower = name[:6].lower()
    return "gpu_memcpy" if lower == "memcpy" else "gpu_memset" if lower == "memset" else "kernel"


def _host_category(name: str, correlation: int) -> str:
    if correlation > 0 and (match := _CALL.match(name)):
        return "hip_runtime" if match[0].startswith("hip") else "cuda_runtime"
    return "python_function" if name.startswith("$") else "user_annotation"
