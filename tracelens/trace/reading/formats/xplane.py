"""XPlane: what JAX, TensorFlow and PyTorch/XLA record (``.xplane.pb``, XSpace of tsl's xplane.proto)."""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.trace.reading.formats.hlo import Program, fields_of, recorded_op
from tracelens.trace.reading.source import Array, Ints, RowBlocks, Source, coded_pairs, device_category, reader
from tracelens.trace.reading.wire import Wire, WireError
from tracelens.trace.table import XLA_PROGRAMS, XLA_STEPS, Recorder, TraceTable
from tracelens.types.records import Record
from tracelens.types.signature import OpSignature

RECORDER = Recorder(
    file="an XPlane profile (JAX, TensorFlow or PyTorch/XLA)",
    no_shapes="the profile holds no HLO programs",
    no_stacks="Python functions were not recorded (python_tracer_level)",
    shapes_option="profiles of jax.profiler hold them with the HLO programs",
)
# A plane, its id, its name: XSpace.planes, XPlane.id, XPlane.name.
_START = re.compile(
    rb"\n[\x80-\xff]{0,9}+[\x00-\x7f](?:\x08[\x80-\xff]{0,9}+[\x00-\x7f])?\x12[\x00-\x7f]"
    rb"(?:/(?:host|device|virtualdevice):|#Chip|Task Environment|Host CPUs|Syscalls)"
)
# Field numbers of the messages.
_PLANES = 1
_PLANE_NAME, _LINES, _EVENT_NAMES, _STAT_NAMES, _PLANE_STATS = 2, 3, 4, 5, 6
_LINE_ID, _LINE_NAME, _LINE_NS, _EVENTS = 1, 2, 3, 4
_NAME_ID, _OFFSET_PS, _DURATION_PS, _STATS = 1, 2, 3, 4
_STAT_ID, _STAT_DOUBLE, _STAT_UINT, _STAT_INT, _STAT_TEXT, _STAT_BYTES, _STAT_REF = 1, 2, 3, 4, 5, 6, 7
_DEVICE = re.compile(r"/device:([A-Za-z_]{1,20}):(\d{1,4})")
_STREAM = re.compile(r"Stream #(\d{1,9})")
#: The plane that holds the programs.
_PROGRAMS = "/host:metadata"
#: On devices without streams (TPU): the line of what ran, one op after the other.
_OPS_LINE = "XLA Ops"
_TRIPLE = r"(\d{1,10}),(\d{1,10}),(\d{1,10})"
_GRID, _BLOCK = (re.compile(rf"\b{what}:{_TRIPLE}") for what in ("grid", "block"))
_SIZE = re.compile(r"\bsize:(\d{1,15})")
_CALL = re.compile(r"(?:hip|cuda|cu)[A-Z]")
_PS_PER_NS = 1000


@reader("xplane", recognizes=lambda source: _START.match(source.start) is not None)
def read(source: Source) -> TraceTable:
    """Streams of devices, their steps and programs, host threads, and the HLO op round each launch."""
    rows = RowBlocks(source.name)
    wire = Wire(source.whole())
    devices: dict[int, dict[str, Any]] = {}
    planes: list[_Plane] = []
    damage: WireError | None = None
    try:
        for number, start, end in wire.fields(0, len(wire.data)):
            if number == _PLANES and end >= 0:
                planes.append(_Plane.of(wire, start, end))
    except WireError as error:
        damage = error
    programs = _Programs(rows)
    for plane in planes:
        try:
            programs.add(plane)
        except WireError as error:
            damage = damage or error
    # Which kernels a call launched is known of the devices
    for plane in sorted(planes, key=lambda plane: _DEVICE.fullmatch(plane.name) is None):
        try:
            plane.add_to(rows, devices, programs)
        except WireError as error:
            damage = damage or error
    if damage is not None:
        if not len(rows):
            raise source.damage("an XPlane profile", damage.position) from damage
        rows.notes.append(f"the file is damaged at byte {damage.position:,}; what stands before is used")
    rows.set_devices(devices)
    return rows.table(RECORDER, truncated=bool(rows.notes))


class _Programs:
    """The HLO programs of a profile, and the signatures of the ops that they are made of."""

    def __init__(self, rows: RowBlocks) -> None:
        self.rows = rows
        self._calls = 0
        self._of_number: dict[int, tuple[_Plane, int, int] | Program] = {}
        self._of_name: dict[str, set[int]] = {}
        self._codes: dict[tuple[int, str, str], int] = {}
        self.launched: list[tuple[Ints, Ints]] = []  # (correlation, name) of kernels

    def number_calls(self, count: int) -> Ints:
        """Numbers of so many calls of ops, each once in the file."""
        self._calls += count
        return np.arange(self._calls - count, self._calls)

    def kernels_of(self, correlation: Ints) -> Ints:
        """The name of the first kernel of each launch; -1 without one."""
        known, names = (
            (np.concatenate(each) for each in zip(*self.launched, strict=True)) if self.launched else ((), ())
        )
        known, first = np.unique(known, return_index=True)
        if not len(known):
            return np.full(len(correlation), -1, np.int64)
        at = np.minimum(np.searchsorted(known, correlation), len(known) - 1)
        return np.where(known[at] == correlation, names[first[at]], -1)

    def add(self, plane: _Plane) -> None:
        """Those of the plane, if it is the one of programs; a later one of the same number is the same."""
        if plane.name != _PROGRAMS:
            return
        for number, text in plane.events.items():
            span = plane.known_of(number).get("Hlo Proto")
            if isinstance(span, tuple):
                self._of_number[number] = plane, *span
                self._of_name.setdefault(text.rpartition("(")[0] or text, set()).add(number)

    def _program(self, number: int, module: str) -> Program | None:
        """By its number, else by the name of its module, where one alone has it."""
        if number not in self._of_number:
            named = self._of_name.get(module, set())
            number = next(iter(named)) if len(named) == 1 else -1
        found = self._of_number.get(number)
        if isinstance(found, tuple):
            plane, start, end = found
            try:
                found = self._of_number[number] = Program(plane.wire, start, end)
            except WireError as error:
                self.rows.notes.append(
                    f"program {number} is damaged at byte {error.position:,}: its ops have no shapes"
                )
                del self._of_number[number]
                return None
        return found

    def ops_of(self, events: _Events, wanted: npt.NDArray[np.bool_]) -> tuple[Ints, Ints, Ints]:
        """Which of the ``wanted`` events are of an op, line by line in order of time; codes of the names of the ops and
        of their signatures, -1 where their program does not say.
        """
        ops = events.texts("hlo_op")
        at = np.flatnonzero(wanted & np.array([bool(op) for op in ops], np.bool_))
        at = at[np.lexsort((events.start_ns[at], events.line[at]))]
        names = [ops[i] for i in at.tolist()]
        codes = np.full(len(at), -1, np.int64)
        if self._of_number and len(at):
            modules = events.texts("hlo_module")
            of_event = [modules[i] for i in at.tolist()]
            for i, key in enumerate(zip(events.number[at].tolist(), names, of_event, strict=True)):
                if key not in self._codes:
                    signature = self.op(*key)
                    self._codes[key] = -1 if signature is None else self.rows.signatures.code_of(signature)
                codes[i] = self._codes[key]
        return at, self.rows.name_codes(names), codes

    def op(self, number: int, op: str, module: str = "") -> OpSignature | None:
        """What a program says of its op of this name; None where it does not."""
        program = self._program(number, module)
        try:
            return None if program is None else program.signature(op)
        except (WireError, RecursionError):
            return None


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
    about: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict)

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
                # What events of a kind are called, and where the rest of what is known of them stands
                entry = fields_of(wire, first, last)
                if 2 in entry and entry[2][-1][1] >= 0:
                    plane.about[entry[1][-1][0] if 1 in entry else 0] = entry[2][-1]
                    plane.events.update(_named(wire, first, last))
            elif number == _STAT_NAMES:
                plane.stats.update(_named(wire, first, last))
            elif number == _PLANE_STATS:
                plane.own.append((first, last))
        return plane

    def stat(self, start: int, end: int) -> tuple[str, Any]:
        """(name, value) of a statistic: a number, a text, or where bytes stand; None for another kind."""
        found = {number: (value, stop) for number, value, stop in self.wire.fields(start, end)}
        name = self.stats.get(found.get(_STAT_ID, (0, -1))[0], "")
        for number in (_STAT_UINT, _STAT_INT):
            if number in found:
                return name, found[number][0]
        if _STAT_REF in found:
            return name, self.stats.get(found[_STAT_REF][0], "")
        if _STAT_TEXT in found and found[_STAT_TEXT][1] >= 0:
            return name, self.wire.text(*found[_STAT_TEXT])
        return name, found.get(_STAT_BYTES)

    def known_of(self, code: int) -> dict[str, Any]:
        """The statistics that all events of a kind share."""
        given = fields_of(self.wire, *self.about[code]) if code in self.about else {}
        return dict(self.stat(value, stop) for value, stop in given.get(5, ()) if stop >= 0)

    def add_to(self, rows: RowBlocks, devices: dict[int, dict[str, Any]], programs: _Programs) -> None:
        if match := _DEVICE.fullmatch(self.name):
            number = int(match[2])
            devices[number] = self._properties()
            rows.process_names[number] = self.name
            streams = [line for line in self.lines if _STREAM.match(line.name)]
            if streams:
                self._add_streams(rows, streams, number, programs)
            else:
                self._add_ops(rows, [line for line in self.lines if line.name == _OPS_LINE], number, programs)
            self._add_ranges(rows, [line for line in self.lines if line.name in (XLA_STEPS, XLA_PROGRAMS)], number)
        elif self.name.startswith("/host:"):
            self._add_threads(rows, [line for line in self.lines if len(line.starts)], programs)

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
            if name == "device_type_string":
                known["name"] = str(self.stat(start, end)[1] or "")
        return known

    def _add_streams(self, rows: RowBlocks, lines: list[_Line], device: int, programs: _Programs) -> None:
        found = _Events(self, lines)
        if not len(found.start_ns):
            return
        streams = [int(match[1]) for line in lines if (match := _STREAM.match(line.name))]
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
        name, correlation = self._names(rows, found.name), found.integers("correlation_id")
        programs.launched.append((correlation, name))
        signature, call = rows.copied_bytes(_sizes(found.texts("memcpy_details"))), np.full(len(stream), -1, np.int64)
        at, op, known_as = programs.ops_of(found, np.array([each == "kernel" for each in category], np.bool_))
        signature[at] = known_as
        numbers = calls_of(np.stack((found.line[at], found.number[at], op)), name[at])
        call[at] = programs.number_calls(int(numbers.max(initial=-1)) + 1)[numbers]
        rows.add_each(
            category,
            dict.fromkeys(known.values()),
            start_ns=found.start_ns,
            end_ns=found.end_ns,
            name=name,
            lane=lane,
            stream=stream,
            device=np.full(len(stream), device),
            correlation=correlation,
            signature=signature,
            sequence_number=np.where(signature >= 0, call, -1),
            details=lambda i: {key: each[i].tolist() for key, each in details.items()} if category[i] in said else {},
        )

    def _add_ops(self, rows: RowBlocks, lines: list[_Line], device: int, programs: _Programs) -> None:
        """What a TPU core ran, op by op; a loop in parts, where none of the ops in it ran."""
        found = _Events(self, lines)
        if not len(found.start_ns):
            return
        rows.thread_names[device, 0] = _OPS_LINE
        owner, start_ns, end_ns = own_parts(found.line, found.start_ns, found.end_ns)
        holds = np.bincount(owner, minlength=len(found.line)) > 1
        codes = found.name * 2 + holds
        kinds = {code: self._kind(code >> 1, bool(code & 1), programs) for code in np.unique(codes).tolist()}
        name, signature = (np.array([kinds[code][i] for code in codes.tolist()], np.int64) for i in (0, 1))
        rows.add(
            "kernel",
            start_ns=start_ns,
            end_ns=end_ns,
            name=name[owner],
            signature=signature[owner],
            lane=rows.lanes.of([(device, 0)])[0],
            stream=0,
            device=device,
            sequence_number=programs.number_calls(len(holds))[owner],
        )

    def _kind(self, code: int, holds: bool, programs: _Programs) -> tuple[int, int]:
        """Codes of the name and of the signature of a TPU's op. ``holds``: others ran in it, so its work is theirs."""
        about = fields_of(self.wire, *self.about[code]) if code in self.about else {}
        shown = self.wire.text(*about[4][-1]) if 4 in about and about[4][-1][1] >= 0 else ""
        text = self.events.get(code, "")
        name = shown or text.partition(" = ")[0].removeprefix("%") or f"(event {code})"
        signature = recorded_op(self.wire, name, text, self.known_of(code), programs.op, holds=holds)
        names = programs.rows.names.of([name])
        return names[0], -1 if signature is None else programs.rows.signatures.code_of(signature)

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

    def _add_threads(self, rows: RowBlocks, lines: list[_Line], programs: _Programs) -> None:
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
        launched, op, signature = programs.ops_of(found, correlation > 0)
        call = calls_of(
            np.stack((found.line[launched], found.number[launched], op)), programs.kernels_of(correlation[launched])
        )
        first = np.flatnonzero(np.diff(call, prepend=call[:1] - 1))
        rows.add(
            "cpu_op",
            start_ns=found.start_ns[launched[first]],
            end_ns=np.maximum.reduceat(found.end_ns[launched], first) if len(first) else first,
            name=op[first],
            lane=lane[launched[first]],
            signature=signature[first],
        )
        category, known_as = [spelled[code] for code in of_event.tolist()], np.full(len(name), -1, np.int64)
        # What XLA's CPU backend ran itself
        ran, op, signature = programs.ops_of(found, correlation <= 0)
        own = op == name[ran]
        known_as[ran[own]] = signature[own]
        for i in ran[own].tolist():
            category[i] = "cpu_op"
        rows.add_each(
            category,
            dict.fromkeys((*spelled, "cpu_op")),
            start_ns=found.start_ns,
            end_ns=found.end_ns,
            name=name,
            lane=lane,
            correlation=correlation,
            signature=known_as,
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
        # Not of the duration alone: what follows without a gap still does
        self.end_ns = begun + (events.integers[_OFFSET_PS] + events.integers[_DURATION_PS]) // _PS_PER_NS
        self._count = len(starts)
        self._spans = events.spans[_STATS]
        self._found = plane.wire.columns(
            self._spans.start, self._spans.end, (_STAT_ID, _STAT_UINT, _STAT_INT, _STAT_REF), (_STAT_TEXT,)
        )

    @cached_property
    def number(self) -> Ints:
        """The program of each event; -1 where it is not recorded."""
        return self.integers("program_id")

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
        for i, start, end in self._found.spans[_STAT_TEXT]:
            if here[i]:
                texts[int(self._spans.owner[i])] = self._plane.wire.text(start, end)
        return texts


def own_parts(line: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """(event, start, end) of the time of each event in which none of its line runs within it; at least one part each.

    >>> [part.tolist() for part in own_parts(np.zeros(3, int), np.array([0, 2, 5]), np.array([9, 4, 9]))]
    [[0, 1, 0, 2], [0, 2, 4, 5], [2, 4, 5, 9]]
    """
    order = np.lexsort((-end, start, line))
    lines, starts, ends = line[order], start[order], end[order]
    if not ((starts[1:] < ends[:-1]) & (lines[1:] == lines[:-1])).any():
        return order, starts, ends
    close, parts, running = dict(zip(order.tolist(), ends.tolist(), strict=True)), array("q"), list[int]()
    at, given, never = 0, set[int](), int(end.max())

    def give(until: int) -> int:
        """Gives the time from ``at`` on to what began last and still runs."""
        free = at
        while running and (free < until or close[running[-1]] <= free):
            event = running[-1]
            stop = max(min(close[event], until), free)
            if stop > free or event not in given:
                parts.extend((event, free, stop))
                given.add(event)
            free = stop
            if close[event] <= free:
                running.pop()
        return free

    for event, begun, fresh in zip(order.tolist(), starts.tolist(), np.diff(lines, prepend=-1).tolist(), strict=True):
        give(never if fresh else begun)
        at = begun
        running.append(event)
    give(never)
    found = np.frombuffer(parts, np.int64).reshape(-1, 3)
    return found[:, 0], found[:, 1], found[:, 2]


def calls_of(keys: Array, kernel: Ints) -> Ints:
    """Numbers of the calls of ops that launches are of, in order: an op launches one kernel or several.

    ``keys``: columns of what tells ops, threads and programs apart. Launches that follow each other are of one call of
    their op, unless the names of their kernels repeat as a whole.

    >>> calls_of(np.array([[7, 7, 7, 7, 8]]), np.array([1, 2, 1, 2, 1])).tolist()
    [0, 0, 1, 1, 2]
    """
    fresh = np.ones(keys.shape[1], np.bool_)
    fresh[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    begins = np.flatnonzero(fresh)
    lengths = np.diff(np.append(begins, len(fresh)))
    for begin, length in zip(begins[lengths > 1].tolist(), lengths[lengths > 1].tolist(), strict=True):
        names = kernel[begin : begin + length]
        # What repeats begins again with its first name
        again = np.flatnonzero(names[1:] == names[0]) + 1
        period = next((n for n in again.tolist() if length % n == 0 and (names[n:] == names[:-n]).all()), length)
        fresh[begin : begin + length : period] = True
    return np.cumsum(fresh) - 1


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


def _sizes(texts: list[str]) -> Ints:
    """Bytes of copies; -1 where none are named."""
    known = {text: int(match[1]) if (match := _SIZE.search(text)) else -1 for text in dict.fromkeys(texts)}
    return np.array([known[text] for text in texts], np.int64)


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
