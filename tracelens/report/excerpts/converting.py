"""A whole trace in another format: Kineto's JSON, Perfetto's protobuf, Parquet, or a Chakra execution trace of what
ran on a device; and a trace for Perfetto with what each kernel achieved, by what it is bound and how far it is.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.errors import NothingToAnalyzeError, UsageError
from tracelens.files.atomic_write import whole_file
from tracelens.perf_models.collective import Collective
from tracelens.trace.reading.wire import number_field, text_field, varint
from tracelens.trace.rewriting import microseconds, rewrite, write_packets
from tracelens.trace.table import DEVICE_KINDS, RowColumn, TraceTable
from tracelens.types.dtypes import DType

if TYPE_CHECKING:
    from tracelens.analysis.analyze import Analysis

# NodeType and CollectiveCommType of et_def.proto (MLCommons Chakra, schema 0.0.4).
_WORK, _COLLECTIVE = 4, 7
_COLLECTIVES = {
    "all_reduce": 0, "reduce": 1, "all_gather": 2, "gather": 3, "scatter": 4, "broadcast": 5, "all_to_all": 6,
    "reduce_scatter": 7, "barrier": 9,
}  # fmt: skip
_SCHEMA = "0.0.4"
_NS_PER_US = 1000


def write_chakra(table: TraceTable, path: Path) -> int:
    """Writes ``path``, whole or not at all; returns how many nodes.

    A node per device event, in the order of their starts. It waits for the last event on its stream, and for the last
    on every other stream that had ended when it started: all that it can have waited for. Time that the device waited
    for something else, the host mostly, is a node of its own, so that a replay without a network takes as long as the
    recording did. Collectives whose kind or size was not recorded are work of their duration.
    NothingToAnalyzeError without device events.
    """
    rows = table.rows_of(DEVICE_KINDS)
    if not len(rows):
        raise NothingToAnalyzeError(f"{table.source}: nothing ran on a device, so there is nothing to simulate")
    with whole_file(path) as file:
        written = 0
        for node in (
            text_field(1, _SCHEMA.encode()),
            *_nodes(table, rows[np.argsort(table.start_ns[rows], kind="stable")]),
        ):
            file.write(varint(len(node)) + node)
            written += 1
    return written - 1


class _Order:
    """What ran before, by stream: (node, when it ended), those that may still run last."""

    def __init__(self) -> None:
        self._of_stream: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def before(self, stream: tuple[int, int], start: int) -> tuple[set[int], int | None]:
        """The nodes that one starting now on a stream waits for, and when the last of them ended."""
        waits: set[int] = set()
        free: int | None = None
        for other, ran in self._of_stream.items():
            while len(ran) > 1 and (other == stream or ran[1][1] <= start):
                ran.pop(0)
            node, end = ran[0]
            if other == stream or end <= start:
                waits.add(node)
                free = end if free is None else max(free, end)
        return waits, free

    def add(self, stream: tuple[int, int], node: int, end: int) -> None:
        self._of_stream.setdefault(stream, []).append((node, end))


def _nodes(table: TraceTable, rows: RowColumn) -> Iterator[bytes]:
    order, node = _Order(), 0
    for row in rows.tolist():
        start, duration = int(table.start_ns[row]), int(table.duration_ns[row])
        stream = int(table.device[row]), int(table.stream[row])
        waits, free = order.before(stream, start)
        if free is not None and (gap := round((start - free) / _NS_PER_US)) > 0:
            yield _node(node, "(waiting for the host)", _WORK, waits, gap, [_flag("is_cpu_op", True)])
            waits, node = {node}, node + 1
        attributes, kind = _collective(table, row), _COLLECTIVE
        if not attributes:
            kind = _WORK
        attributes = [_flag("is_cpu_op", False), *attributes]
        yield _node(node, table.name_of(row), kind, waits, round(duration / _NS_PER_US), attributes)
        order.add(stream, node, start + duration)
        node += 1


def _collective(table: TraceTable, row: int) -> list[bytes]:
    """Attributes of a kernel whose arguments say which collective it is, of how many bytes; else none."""
    said = dict(table.signature_of(row).attributes)
    elements, dtype = said.get("In msg nelems"), DType.parse(str(said.get("dtype", "")))
    if not isinstance(elements, int) or dtype is None or "Collective name" not in said:
        return []
    word = Collective(kind=str(said["Collective name"]), elements_in=elements, elements_out=0, ranks=None).word
    if word not in _COLLECTIVES:
        return []
    found = [_whole("comm_type", _COLLECTIVES[word]), _whole("comm_size", int(elements * dtype.width_bytes))]
    group = said.get("Process Group Name")
    if isinstance(group, str) and group:
        found.append(text_field(1, b"pg_name") + text_field(29, group.encode("utf-8", "replace")))
    return found


def _node(node: int, name: str, kind: int, waits: set[int], duration_us: int, attributes: list[bytes]) -> bytes:
    content = number_field(1, node) + text_field(2, name.encode("utf-8", "replace")) + number_field(3, kind)
    if waits:
        content += text_field(5, b"".join(varint(each) for each in sorted(waits)))
    return content + number_field(7, duration_us) + b"".join(text_field(10, attribute) for attribute in attributes)


def _flag(name: str, value: bool) -> bytes:
    return text_field(1, name.encode()) + number_field(27, int(value))


def _whole(name: str, value: int) -> bytes:
    return text_field(1, name.encode()) + number_field(9, value)


def convert(table: TraceTable, path: Path) -> int:
    """Writes ``path``, whole or not at all; returns how many records. UsageError for an ending that says no format."""
    name = path.name.lower()
    name = name.removesuffix(".gz") if name.removesuffix(".gz").endswith(_PACKED) else name
    for ending, write in _WRITERS.items():
        if name.endswith(ending):
            return write(table, path)
    endings = f"{', '.join(_WRITERS)}, or {' or '.join(_PACKED)} with .gz behind"
    raise UsageError(f"{path.name} names no format to write: end it in {endings}")


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

#: Arguments of an event: (name shown in Perfetto, column of ``unified_perf_summary``).
_SHOWN = (
    ("TFLOPS/s", "tflops_s_mean"),
    ("HBM TB/s", "hbm_tb_s_mean"),
    ("bound by", "roofline_bound"),
    ("% of roofline", "percent_of_roofline_mean"),
)
#: Rates that are tracks of their own, as counters.
_COUNTERS = ("TFLOPS/s", "HBM TB/s", "% of roofline")
#: The process of our tracks, which no recorded one has: Kineto's are numbers of processes and devices.
_PID = "tracelens"


def write_perfetto(analysis: Analysis, path: str | PathLike[str]) -> int:
    """Writes ``path`` (gzip when it ends in ``.gz``), whole or not at all; returns how many events it has.

    A rate of a kernel is that of its op call's row, the mean of such calls; what is not known is left out.
    """
    table, activity = analysis.trace.table, analysis.activity
    row_of = np.full(len(table), -1, np.int64)
    if analysis.row_of_event is not None:
        row_of[activity.rows] = analysis.row_of_event
    said = _said_of_kernels(analysis)

    def edit(row: int, event: dict[str, Any]) -> dict[str, Any] | None:
        if row < 0 or row_of[row] < 0:
            return event
        recorded = event.get("args")
        return {**event, "args": {**(recorded if isinstance(recorded, dict) else {}), **said[row_of[row]]}}

    return rewrite(table, path, edit, added=(*_finding_tracks(analysis), *_rate_counters(analysis, said)))


def _said_of_kernels(analysis: Analysis) -> list[dict[str, Any]]:
    """Arguments by row of the sheet."""
    from tracelens.analysis.sheets import perf_summary

    rows = analysis.frames[perf_summary.UNIFIED_PERF_SUMMARY_TITLE]
    said: list[dict[str, Any]] = [{"category (tracelens)": str(name)} for name in rows["category"]]
    for name, key in _SHOWN:
        for at, value in enumerate(rows.get(key, ())):
            if value is not None and value == value:
                said[at][name] = value if isinstance(value, str) else round(float(value), 3)
    return said


def _rate_counters(analysis: Analysis, said: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rates of what runs, zero where nothing does or its rate is unknown; of kernels at a time the first one's."""
    activity, rows = analysis.activity, analysis.row_of_event
    if rows is None:
        return
    order = np.lexsort((activity.end, activity.start))
    for name in _COUNTERS:
        free = None
        for at in order.tolist():
            value = said[rows[at]].get(name) if rows[at] >= 0 else None
            start, end = int(activity.start[at]), int(activity.end[at])
            if value is None or (free is not None and start < free):
                continue
            for time, shown in ((start, value), (end, 0)):
                yield {"ph": "C", "pid": _PID, "name": name, "ts": microseconds(time), "args": {name: shown}}
            free = end


def _finding_tracks(analysis: Analysis) -> Iterator[dict[str, Any]]:
    """A track for each finding, over the whole window: findings speak of many places of it."""
    first = int(analysis.activity.start.min()) if len(analysis.activity) else 0
    last = int(analysis.activity.end.max()) if len(analysis.activity) else 0
    yield {"ph": "M", "pid": _PID, "name": "process_name", "args": {"name": "tracelens: rates and findings"}}
    for number, finding in enumerate(analysis.findings, 1):
        yield {"ph": "M", "pid": _PID, "tid": number, "name": "thread_name", "args": {"name": f"finding {number}"}}
        yield {
            "ph": "X", "pid": _PID, "tid": number, "cat": "finding", "name": finding.why,
            "ts": microseconds(first), "dur": microseconds(last - first),
            "args": {"gain ms": None if finding.gain_us is None else finding.gain_us / 1000, "try": finding.remedy},
        }  # fmt: skip
