"""Reads a trace of any profiler: unpacks the file, and hands it to the reader that recognizes its content."""

from __future__ import annotations

import os
from pathlib import Path

from tracelens.errors import InputError
from tracelens.files.before_reading import before_reading
from tracelens.files.memory_limit import MemoryLimit, end_stage
from tracelens.trace.reading import formats, other_formats
from tracelens.trace.reading.chrome.ascend import is_ascend, with_categories
from tracelens.trace.reading.chrome.event_list import PIECE_BYTES, EventList, Progress
from tracelens.trace.reading.source import Source
from tracelens.trace.table import TraceTable


def read_trace(
    path: str | os.PathLike[str],
    *,
    piece_bytes: int = PIECE_BYTES,
    progress: Progress | None = None,
    max_memory_gb: float | None = None,
) -> TraceTable:
    """The events of the file as columns, its metadata, and what was lost to damage.

    ``piece_bytes``: how much text is decoded at a time. ``max_memory_gb``: what the process may take (see
    ``memory_limit.MemoryLimit``). InputError when the file is missing, unreadable, empty, too large, or of no format
    that a reader knows; a damaged trace is read as far as it goes (``TraceTable.losses``).
    """
    path = Path(path)
    before_reading(path)
    try:
        with Source.opened(
            path, limit=MemoryLimit.of_gb(max_memory_gb), piece_bytes=piece_bytes, progress=progress
        ) as source:
            read = formats.reader_of(source)
            if read is None and (what := _other_format(source)) is not None:
                raise InputError(f"{source.name} is {what}")
            table = read(source) if read is not None else _events(source)
            end_stage()
            return table
    except OSError as error:
        raise InputError(f"{path.name} cannot be read: {error.strerror or error}") from error


def _other_format(source: Source) -> str | None:
    return other_formats.named(source.start, source.name)


def _events(source: Source) -> TraceTable:
    """Kineto's JSON, whatever its damage: what no other reader claims is read as such, or refused in its words."""
    table = EventList(
        source.stream,
        source.name,
        start=source.start,
        piece_bytes=source.piece_bytes,
        progress=source.progress,
        limit=source.limit,
    ).table()
    return with_categories(table) if is_ascend(table) else table
