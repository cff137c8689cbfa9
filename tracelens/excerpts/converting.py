"""A trace of any profiler, whole, in another format: told by the ending of the file to write."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tracelens.errors import UsageError
from tracelens.excerpts.chakra import write_chakra
from tracelens.files.atomic_write import whole_file
from tracelens.trace.packet_writer import write_packets
from tracelens.trace.rewriting import rewrite
from tracelens.trace.table import TraceTable


def convert(table: TraceTable, path: Path) -> int:
    """Writes ``path``, whole or not at all; returns how many records. UsageError for an ending that says no format."""
    name = path.name.lower()
    name = name.removesuffix(".gz") if name.removesuffix(".gz").endswith(_PACKED) else name
    for ending, write in _WRITERS.items():
        if name.endswith(ending):
            return write(table, path)
    endings = f"{', '.join(_WRITERS)}, or {' or '.join(_PACKED)} with .gz behind"
    raise UsageError(f"{path.name} says no format to write: end it in {endings}")


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


def _parquet(table: TraceTable, path: Path) -> int:
    """A row per event, codes spelled out, times in ns and µs: the columns of ``TraceTable.to_pandas``."""
    try:
        pa, pq = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UsageError("writing Parquet and Arrow needs pyarrow: pip install 'tracelens-perf[lake]'") from None
    frame = table.to_pandas()
    for column in ("pid", "tid"):
        frame[column] = frame[column].astype(str)
    rows = pa.Table.from_pandas(frame, preserve_index=False)
    with whole_file(path) as file:
        if path.name.lower().endswith(".parquet"):
            pq.write_table(rows, file, compression="zstd")
        else:
            with pa.ipc.new_file(file, rows.schema) as sink:
                sink.write_table(rows)
    return len(frame)


_WRITERS: dict[str, Callable[[TraceTable, Path], int]] = {
    ".json": _kineto,
    ".pftrace": write_packets,
    ".perfetto-trace": write_packets,
    ".et": write_chakra,
    ".parquet": _parquet,
    ".arrow": _parquet,
}
#: Endings that may have .gz behind them.
_PACKED = (".json", ".pftrace", ".perfetto-trace")
