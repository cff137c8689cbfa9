"""Texts of event lists with events of every sort, and all that a table of one holds."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tracelens.trace.reading.chrome.event_list import PIECE_BYTES, EventList
from tracelens.trace.table import TraceTable

_BLOCK_BYTES = 1 << 20


class MemoryStream:
    """A trace that is in memory already."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.problems: list[str] = []
        self.truncated = False
        self.consumed = 0
        self.size = len(data)

    def read(self) -> bytes:
        block = self._data[self.consumed : self.consumed + _BLOCK_BYTES]
        self.consumed += len(block)
        return block

    def read_at(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

    def close(self) -> None:
        pass


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


class Blocks(MemoryStream):
    """As a file that is read few bytes at a time."""

    def __init__(self, data: bytes, block_bytes: int) -> None:
        super().__init__(data)
        self._block_bytes = block_bytes

    def read(self) -> bytes:
        block = self._data[self.consumed : self.consumed + self._block_bytes]
        self.consumed += len(block)
        return block


def content(table: TraceTable) -> dict[str, Any]:
    return {
        **plain(table),
        "signatures": [table.signatures.signature("", code) for code in range(len(table.signatures))],
        "has_shapes": table.has_shapes,
        "lookup": [table.lookup.event(i) for i in range(table.events_total)],
    }


def plain(value: Any) -> Any:
    if hasattr(value, "dtype"):
        column = np.asarray(value[:])
        return str(column.dtype), column.tobytes()
    if dataclasses.is_dataclass(value):
        fields = (field.name for field in dataclasses.fields(value))
        return {name: plain(getattr(value, name)) for name in fields if name not in ("lookup", "signatures")}
    return list(value.items()) if isinstance(value, dict) else value


#: An event of every sort, sound or odd, number ``i`` of its file.
SORTS: dict[str, Callable[[int], Any]] = {
    "op": lambda i: {
        "ph": "X", "cat": "cpu_op", "name": f"op{i % 7}", "pid": i % 3, "tid": 2, "ts": i, "dur": 0.5,
        "args": {"External id": i, "Input Dims": [[i % 5, 2], []], "Sequence number": i},
    },
    "collective": lambda i: {
        "ph": "X", "cat": "cpu_op", "name": "c", "pid": 1, "tid": f"t{i % 4}", "ts": i,
        "args": {"Collective name": f"all{i % 3}", "In msg nelems": i % 2},
    },
    "kernel": lambda i: {
        "ph": "X", "cat": "kernel", "name": f"k{i % 5}", "pid": 0, "tid": 7, "ts": i + 0.125, "dur": 3,
        "args": {"correlation": i, "stream": i % 3, "device": 0},
    },
    "pointer": lambda i: {
        "ph": "X", "cat": "hip_runtime", "name": "launch", "pid": 1, "tid": 1, "ts": i, "dur": 1,
        "args": {"stream": hex(2**40 + i % 6), "device": 2**30 + 5 if i % 4 else "", "correlation": i},
    },
    "wait": lambda i: {
        "ph": "X", "cat": "cuda_sync", "name": "w", "pid": 0, "tid": 7, "ts": i, "dur": 1,
        "args": {"correlation": i, "wait_on_stream": 3, "wait_on_cuda_event_record_corr_id": i + 1},
    },
    "frame": lambda i: {"ph": "X", "cat": "python_function", "name": f"f{i % 9}", "pid": 1, "tid": 1, "ts": i, "dur": 2},
    "arrow": lambda i: {"ph": "sf"[i % 2], "cat": "ac2g", "name": "a", "id": i, "pid": 1, "tid": 1, "ts": i},
    "text arrow": lambda i: {"ph": "s", "cat": "fwdbwd", "name": "a", "id": f"x{i % 4}", "pid": 1, "tid": 1, "ts": i},
    "allocation": lambda i: {
        "ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": i, "args": {"Bytes": -i, "Device Type": 1, "Device Id": 0},
    },
    "traffic": lambda i: {"ph": "C", "name": "d", "pid": 0, "tid": 0, "ts": i, "args": {"dram__bytes_read.sum": i}},
    "name": lambda i: {"ph": "M", "name": "process_name", "pid": i % 3, "tid": 0, "ts": 0, "args": {"name": f"p{i}"}},
    "thread": lambda i: {"ph": "M", "name": "thread_name", "pid": 1, "tid": i % 5, "ts": 0, "args": {"name": f"t{i}"}},
    "category": lambda i: {"ph": "X", "cat": f"new{i % 11}", "name": "é\n", "pid": "Spans", "tid": i % 2, "ts": i},
    "begin": lambda i: {"ph": "B", "cat": "cpu_op", "name": f"b{i % 3}", "pid": 1, "tid": 9, "ts": i},
    "end": lambda i: {"ph": "E", "pid": 1, "tid": 9, "ts": i},
    "epoch": lambda i: {"ph": "X", "cat": "cpu_op", "name": "e", "pid": 1, "tid": 2, "ts": 1.7e15 + i, "dur": 1},
    "typed wrong": lambda i: {
        "ph": "X", "cat": None, "name": "w", "pid": 1, "tid": 2, "ts": str(i), "dur": None, "args": {"correlation": "0x7"},
    },
    "untimed": lambda i: {"ph": "X", "cat": "cpu_op", "name": "u", "pid": 1, "tid": 2, "dur": -1},
    "no event": lambda i: i,
    "nested": lambda i: {
        "ph": "X", "name": "n", "pid": 1, "tid": 2, "ts": i, "args": {"list": [{"ph": "X"}] * 9, "text": '}, {"ph": "X"'},
    },
}  # fmt: skip
PLAIN = ("op", "collective", "kernel", "pointer", "wait", "frame", "arrow", "text arrow", "allocation", "traffic")


def text_of(sorts: list[str]) -> bytes:
    events = [SORTS[sort](i) for i, sort in enumerate(sorts)]
    return json.dumps({"schemaVersion": 1, "traceEvents": events, "traceName": "x"}, ensure_ascii=False).encode()
