"""Reads the event list of a Chrome trace (Kineto's JSON), in pieces that are turned into columns and dropped."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracelens.errors import InputError
from tracelens.files.memory_limit import MemoryLimit
from tracelens.trace.reading.bytestream import ByteStream, MemoryStream
from tracelens.trace.reading.chrome import metadata
from tracelens.trace.reading.chrome.chunks import Pieces
from tracelens.trace.reading.chrome.event_columns import TableBuilder
from tracelens.trace.reading.chrome.lookup import PieceIndex
from tracelens.trace.reading.chrome.scanned_columns import add_scanned
from tracelens.trace.reading.chrome.scanned_events import ScannedEvents
from tracelens.trace.table import Losses, TraceTable

#: Called with (bytes of the file used, size of the file).
Progress = Callable[[int, int], None]

PIECE_BYTES = 512 * 1024
FIRST_BYTES = 64 * 1024
#: Other processes help to read a file with more than this: to start them takes as long as reading 5 MB.
LEAST_SHARED_BYTES = 64 << 20
# What is left free for what they do until they are asked again.
_ROOM_BYTES = 32 << 20
_FIRST_WAIT_BYTES = 4 << 20
_UTF8_MARK = b"\xef\xbb\xbf"
_BLANK_BYTES = b" \t\r\n\x00"
_ADVICE = "hand over what torch.profiler's export_chrome_trace wrote"


def read_events(
    events: Sequence[Mapping[str, Any]],
    values: Mapping[str, Any] | None = None,
    *,
    source: str = "events",
    piece_bytes: int = PIECE_BYTES,
) -> TraceTable:
    """A table from event dictionaries and the metadata around them, decoded as a file would be."""
    text = json.dumps({**(values or {}), "traceEvents": list(events)})
    return EventList(MemoryStream(text.encode()), source, piece_bytes=piece_bytes).table()


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
        limit: MemoryLimit | None = None,
    ) -> None:
        self._limit = limit
        self._stream = stream
        self._source = source
        self._piece_bytes = max(piece_bytes, 1)
        self._progress = progress
        self._window = start

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
        self._collect(pieces, builder, index)
        self._stream.close()
        if not in_object and builder.events_total and not builder.counts:
            raise InputError(f"{self._source} is a JSON list without profiler events: {_ADVICE}")
        around = metadata.Metadata(values={})
        if in_object:
            around = metadata.load_metadata(head.removeprefix(_UTF8_MARK), pieces.tail)
        losses = self._losses(pieces, builder, around)
        return TraceTable(
            source=self._source,
            **builder.fields(),
            lookup=index,
            metadata=around.values,
            process_names=builder.process_names,
            process_labels=builder.process_labels,
            thread_names=builder.thread_names,
            pair_ends=builder.pair_ends,
            events_total=builder.events_total,
            counts_by_phase=dict(builder.counts),
            losses=losses,
        )

    def _collect(self, pieces: Pieces, builder: TableBuilder, index: PieceIndex) -> None:
        """All pieces; of a large file that is not scanned most by other processes, which begin anew behind what they
        cannot read."""
        wait = _FIRST_WAIT_BYTES
        next_try: float = 0
        for piece in pieces:
            index.add(piece, builder.events_total)
            if isinstance(piece.events, ScannedEvents):
                add_scanned(builder, piece.events)
            else:
                builder.add(piece.events, piece.text_times)
            del piece
            self._tell_progress()
            if pieces.scans:
                continue
            if (offset := pieces.offset) >= next_try and self._promises(offset, LEAST_SHARED_BYTES):
                from tracelens.trace.reading.chrome.forked_reading import read_ahead

                if read_ahead(pieces, builder, index, self._has_room):
                    wait = max(_FIRST_WAIT_BYTES, 2 * wait - (pieces.offset - offset))
                    next_try = pieces.offset + wait
                else:
                    next_try = math.inf

    def _promises(self, used: int, more: int) -> bool:
        """Whether more text than that is to be expected behind ``used`` bytes of it, going by what they took in the
        file."""
        stream = self._stream
        return used * (stream.size - stream.consumed) > more * stream.consumed

    def _has_room(self, others_bytes: int) -> bool:
        """Tells the progress; whether other processes that take so much memory may go on."""
        self._tell_progress()
        return self._limit is None or self._limit.leaves(others_bytes + _ROOM_BYTES)

    def _tell_progress(self) -> None:
        if self._progress is not None:
            self._progress(self._stream.consumed, self._stream.size)

    def _find_list(self) -> tuple[int, bool]:
        """(position behind the ``[`` of the event list, whether it is the ``traceEvents`` of an object)."""
        self._grow(FIRST_BYTES)
        text = self._window.removeprefix(_UTF8_MARK)
        start = len(self._window) - len(text.lstrip(_BLANK_BYTES))
        first = self._window[start : start + 1]
        if first == b"[":
            return start + 1, False
        if first != b"{":
            raise InputError(self._no_json(text))
        while (position := metadata.find_events(self._window[start:])) is None:
            if not self._grow(2 * len(self._window)):
                position = metadata.first_events(self._window[start:])
                if position is None:
                    raise InputError(self._no_events(self._window[start:]))
                break
        return start + position, True

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
            return f"{self._source} holds nothing but white space: record the trace again"
        what = "is text, but no JSON" if text[:200].isascii() and b"\x00" not in text[:200] else "is no JSON"
        return f"{self._source} {what}: {_ADVICE}"

    def _no_events(self, text: bytes) -> str:
        values = metadata.load_object(text)
        if values is None:
            return (
                f"{self._source} starts like JSON but is damaged or cut off before any 'traceEvents': record it again"
            )
        if "nodes" in values and "schema" in values:
            return f"{self._source} is a PyTorch execution trace (it has no 'traceEvents'): {_ADVICE}"
        keys = ", ".join(repr(key[:40]) for key in list(values)[:4])
        return f"{self._source} is JSON without a list 'traceEvents' (it has {keys or 'nothing'}): {_ADVICE}"

    def _losses(self, pieces: Pieces, builder: TableBuilder, around: metadata.Metadata) -> Losses:
        damaged = pieces.damaged_events + builder.no_events + builder.untimed_events
        repaired = pieces.repairs + builder.repaired_durations + around.repairs
        truncated = pieces.tail is None or self._stream.truncated
        notes = [f"{problem}; what was readable before it is used" for problem in self._stream.problems]
        if truncated:
            where = (
                f"inside event {builder.events_total + 1:,}" if pieces.unfinished else "before its list of events does"
            )
            notes.append(f"the file ends {where}; {builder.events_total:,} events are used")
        notes += [
            f"{count:,} {one if count == 1 else many}"
            for count, one, many in (
                (pieces.damaged_events, "event is damaged and left out", "events are damaged and left out"),
                (builder.no_events, "element of the list is no event", "elements of the list are no events"),
                (builder.untimed_events, "event has no usable time", "events have no usable time"),
                (builder.repaired_durations, "impossible duration is now 0", "impossible durations are now 0"),
                (builder.unmatched_pairs, "begin or end has no counterpart", "begins and ends have no counterpart"),
                (pieces.repairs, "value was put right", "values were put right"),
            )
            if count
        ]  # fmt: skip
        if not around.is_whole:
            notes.append("the metadata around the events is damaged; part of it is lost")
        return Losses(damaged_events=damaged, truncated=truncated, notes=tuple(notes), repaired=repaired)
