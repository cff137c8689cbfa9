"""A trace written again, event by event, with some of its events changed or left out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import orjson

from tracelens.errors import InputError
from tracelens.files.atomic_write import whole_packed_file
from tracelens.trace.table import TraceTable

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
