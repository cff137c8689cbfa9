"""Reads the event list of a Chrome trace (Kineto's JSON, or Ascend's variant of it) piece by piece into a table.

In Ascend's variant (``trace_view.json`` of torch_npu) device events and calls of CANN have no category, but processes
of their own, and arrows instead of correlations (``links.LAUNCH_FLOWS``): from a call of CANN, or from the op of the
framework, to where the device event starts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracelens.errors import InputError
from tracelens.trace.narrow_columns import Column
from tracelens.trace.reading.bytestream import ByteStream
from tracelens.trace.reading.chrome import chunks
from tracelens.trace.reading.chrome.chunks import PieceIndex, Pieces
from tracelens.trace.reading.chrome.event_columns import TableBuilder
from tracelens.trace.table import Identifier, Kind, Losses, Recorder, TraceTable

#: Called with (bytes of the file used, size of the file).
Progress = Callable[[int, int], None]

PIECE_BYTES = 512 * 1024
FIRST_BYTES = 64 * 1024
_UTF8_MARK = b"\xef\xbb\xbf"
_BLANK_BYTES = b" \t\r\n\x00"
_ADVICE = "give a file that torch.profiler's export_chrome_trace wrote"


class EventList:
    """One pass over one trace. ``start``: what of its text was already taken from ``stream``."""

    def __init__(
        self,
        stream: ByteStream,
        source: str,
        *,
        start: bytes = b"",
        piece_bytes: int = PIECE_BYTES,
        progress: Progress | None = None,
    ) -> None:
        self._stream = stream
        self._source = source
        self._piece_bytes = max(piece_bytes, 1)
        self._progress = progress
        self._window = start
        self._notes: list[str] = []

    def table(self) -> TraceTable:
        position, in_object = self._find_list()
        head = self._window[:position]
        pieces = Pieces(
            self._stream,
            window=self._window[position:],
            offset=position,
            piece_bytes=self._piece_bytes,
            in_object=in_object,
        )
        self._window = b""
        builder = TableBuilder()
        index = PieceIndex(self._stream, self._source)
        for piece in pieces:
            index.add(piece, builder.events_total)
            builder.add(piece.events)
            del piece
            if self._progress is not None:
                self._progress(self._stream.consumed, self._stream.size)
        self._stream.close()
        if not in_object and builder.events_total and not builder.counts:
            raise InputError(f"{self._source} is a JSON list without profiler events: {_ADVICE}")
        around = chunks.Metadata(values={})
        if in_object:
            text = head.removeprefix(_UTF8_MARK).lstrip(_BLANK_BYTES)
            if text[:1] != b"{":  # a zero in its place counts as a blank
                text = b"{" + (text if text[:1] == b'"' else text[1:])
            around = chunks.load_metadata(text, pieces.tail)
        fields = builder.fields()
        losses = self._losses(pieces, builder, around)
        return TraceTable(
            source=self._source,
            **fields,
            lookup=index,
            metadata=around.values,
            losses=losses,
        )

    def _find_list(self) -> tuple[int, bool]:
        """(position behind the ``[`` of the event list, whether it is the ``traceEvents`` of an object)."""
        self._grow(FIRST_BYTES)
        text = self._window.removeprefix(_UTF8_MARK)
        start = len(self._window) - len(text.lstrip(_BLANK_BYTES))
        first = self._window[start : start + 1]
        if first == b"[":
            return start + 1, False
        if first != b"{":
            if (behind := chunks.begun_badly(self._window)) is None:
                raise InputError(self._no_json(text))
            self._notes.append("the file's beginning is damaged; its list of events is used")
            return behind, True
        while (position := chunks.find_events(self._window[start:])) is None:
            if not self._grow(2 * len(self._window)):
                position = chunks.first_events(self._window[start:]) or self._misspelled(start)
                if position is None:
                    raise InputError(self._no_events(self._window[start:]))
                break
        return start + position, True

    def _misspelled(self, start: int) -> int | None:
        """Where the events of a damaged key begin, which is mended."""
        found = chunks.misspelled_events(self._window[start:])
        if found is None:
            return None
        key, position = found
        self._notes.append(f"the key of the list of events is damaged ({key!r} for 'traceEvents'); it is used")
        return position

    def _grow(self, size: int) -> bool:
        """Reads on to ``size`` bytes; False when there was nothing left."""
        before = len(self._window)
        parts, length = [self._window], before
        while length < size and (block := self._stream.read()):
            parts.append(block)
            length += len(block)
        self._window = b"".join(parts)
        return length > before

    def _no_json(self, text: bytes) -> str:
        if not text.strip(_BLANK_BYTES):
            return f"{self._source} holds only white space: record the trace again"
        what = "is text, but not JSON" if text[:200].isascii() and b"\x00" not in text[:200] else "is not JSON"
        return f"{self._source} {what}: {_ADVICE}"

    def _no_events(self, text: bytes) -> str:
        values = chunks.load_object(text)
        if values is None:
            return (
                f"{self._source} starts like JSON but is damaged or cut off before any 'traceEvents': record it again"
            )
        if "nodes" in values and "schema" in values:
            return f"{self._source} is a PyTorch execution trace (it has no 'traceEvents'): {_ADVICE}"
        keys = ", ".join(repr(key[:40]) for key in list(values)[:4])
        return f"{self._source} is JSON without a list 'traceEvents' (it has {keys or 'nothing'}): {_ADVICE}"

    def _losses(self, pieces: Pieces, builder: TableBuilder, around: chunks.Metadata) -> Losses:
        damaged = pieces.damaged_events + builder.no_events + builder.untimed_events
        repaired = pieces.repairs + builder.repaired_durations + around.repairs
        truncated = pieces.tail is None or self._stream.truncated
        notes = [
            *self._notes,
            *(f"{problem}; what was readable before it is used" for problem in self._stream.problems),
        ]
        if pieces.another is not None:
            notes.append(
                f"another list of events begins behind byte {pieces.another:,} of the text; only the first is used: "
                "make the other a file of its own"
            )
        if truncated:
            where = (
                f"inside event {builder.events_total + 1:,}" if pieces.unfinished else "before its list of events does"
            )
            notes.append(f"the file ends {where}; {builder.events_total:,} events are used")
        notes += [
            f"{count:,} {one if count == 1 else many}"
            for count, one, many in (
                (pieces.damaged_events, "event is damaged and left out", "events are damaged and left out"),
                (builder.no_events, "element of the list is not an event", "elements of the list are not events"),
                (builder.untimed_events, "event has no usable time", "events have no usable time"),
                (builder.repaired_durations, "impossible duration is now 0", "impossible durations are now 0"),
                (builder.unmatched_pairs, "begin or end has no counterpart", "begins and ends have no counterpart"),
                (pieces.repairs, "value was repaired", "values were repaired"),
            )
            if count
        ]  # fmt: skip
        if not around.is_whole:
            notes.append("the metadata around the events is damaged; part of it is lost")
        return Losses(damaged_events=damaged, truncated=truncated, notes=tuple(notes), repaired=repaired)


_DEVICE, _HOST = "Ascend Hardware", "CANN"
_WAIT = re.compile(r"(?:EVENT|NOTIFY|STREAM)_|PLACE_HOLDER|SYNC", re.IGNORECASE)
_COPY = re.compile(r"MEMCPY|SDMA", re.IGNORECASE)
_CATEGORIES = (
    ("kernel", Kind.KERNEL),
    ("gpu_memcpy", Kind.MEMCPY),
    ("npu_sync", Kind.SYNC),
    ("cann_runtime", Kind.RUNTIME),
)
_MOST_STREAMS = 2**30


def is_ascend(table: TraceTable) -> bool:
    """Whether a process is the hardware of Ascend."""
    return any(name.startswith(_DEVICE) for name in table.process_names.values())


def with_categories(table: TraceTable) -> TraceTable:
    """The table with kernels, copies and waits of the hardware, and calls of CANN on the threads that made them."""
    devices = [pid for pid, name in table.process_names.items() if name.startswith(_DEVICE)]
    hosts = {pid for pid, name in table.process_names.items() if name == _HOST}
    bare = table.kind == Kind.OTHER
    on_device = bare & _in(table, set(devices))
    calls = bare & _in(table, hosts)
    kind, category = table.kind.copy(), table.category.copy()
    categories = list(table.categories)
    told = [2 if _WAIT.match(name) else 1 if _COPY.match(name) else 0 for name in table.names]
    for number, (text, of) in enumerate(_CATEGORIES):
        here = calls if of == Kind.RUNTIME else on_device & (np.array(told or [0])[table.name] == number)
        if text not in categories:
            categories.append(text)
        kind[here], category[here] = of, categories.index(text)
    threads, numbers, moved = _of_lanes(table, devices, hosts)
    stream, device, lane = table.stream.copy(), table.device.copy(), table.lane[on_device]
    stream[on_device], device[on_device] = threads[lane], numbers[lane]
    return replace(
        table,
        kind=kind,
        category=category,
        categories=categories,
        stream=Column(stream, np.int32),
        device=Column(device, np.int32),
        lane=Column(np.where(calls, moved[table.lane], table.lane), np.int32),
        flows=replace(table.flows, lane=Column(moved[table.flows.lane], np.int32)),
        recorder=Recorder(no_shapes="record_shapes was off in torch_npu.profiler"),
        _op_signatures={},
    )


def _in(table: TraceTable, pids: set[Identifier]) -> npt.NDArray[np.bool_]:
    return np.array([pid in pids for pid, _ in table.lanes] or [False])[table.lane[:]]


def _of_lanes(table: TraceTable, devices: list[Identifier], hosts: set[Identifier]) -> npt.NDArray[np.int32]:
    """[3, lanes] The thread as a stream; which of the hardware's processes it is of; the lane of the framework's thread
    that has the number of one of CANN, else the lane itself."""
    ops = {table.lanes[code][1]: code for code in np.unique(table.lane[table.kind == Kind.CPU_OP]).tolist()}
    rows = [
        (
            tid if isinstance(tid, int) and 0 <= tid < _MOST_STREAMS else 0,
            devices.index(pid) if pid in devices else 0,
            ops.get(tid, code) if pid in hosts else code,
        )
        for code, (pid, tid) in enumerate(table.lanes)
    ]
    return np.array(rows or [(0, 0, 0)], np.int32).T
