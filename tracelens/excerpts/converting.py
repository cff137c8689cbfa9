"""A trace of any profiler, whole, in another format: told by the ending of the file to write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tracelens.errors import UsageError
from tracelens.trace.packet_writer import write_packets
from tracelens.trace.rewriting import rewrite
from tracelens.trace.table import TraceTable


def convert(table: TraceTable, path: Path) -> int:
    """Writes ``path``, whole or not at all; returns how many records. UsageError for an ending that says no format."""
    name = path.name.lower().removesuffix(".gz")
    for ending, write in _WRITERS.items():
        if name.endswith(ending):
            return write(table, path)
    raise UsageError(f"{path.name} does not say what to write: end it in {', '.join(_WRITERS)}, or one with .gz behind")


def _kineto(table: TraceTable, path: Path) -> int:
    """Kineto's JSON. Names of processes and threads that the file has elsewhere become its events."""
    named = table.counts_by_phase.get("M")
    return rewrite(table, path, lambda _, event: event, added=() if named else _names(table))


def _names(table: TraceTable) -> Iterator[dict[str, Any]]:
    for pid, name in table.process_names.items():
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": name}}
    for pid, labels in table.process_labels.items():
        yield {"ph": "M", "name": "process_labels", "pid": pid, "tid": 0, "ts": 0, "args": {"labels": labels}}
    for (pid, tid), name in table.thread_names.items():
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


_WRITERS: dict[str, Callable[[TraceTable, Path], int]] = {
    ".json": _kineto,
    ".pftrace": write_packets,
    ".perfetto-trace": write_packets,
}
