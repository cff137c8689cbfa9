"""Traces in SQLite: Nsight Systems (``nsys export --type sqlite``), rocpd of ROCm's profilers, rocmProfileData."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.errors import InputError
from tracelens.trace.reading.formats.rocprof import (
    call_category,
    copy_name,
    gpu_properties,
    launch_details,
    rocm_recorder,
)
from tracelens.trace.reading.source import Ints, RowBlocks, Source, coded, coded_pairs, own_correlation, reader
from tracelens.trace.table import DramSamples, Recorder, TraceTable, node_ids
from tracelens.types.signature import OpSignature, freeze

if TYPE_CHECKING:
    import sqlite3

MAGIC = b"SQLite format 3\x00"
WholeNumbers = npt.NDArray[np.int64]
#: A missing value of an integer column.
ABSENT = -1
# Text and blobs beyond this are not names: SQLite refuses them.
_LONGEST_TEXT_BYTES = 16 << 20
_ROWS = 20_000
# Of rows with text: as many as the longest texts may be held before they are counted.
_TEXT_ROWS = 16
# An integer takes up to 20 characters where it is spelled.
_LONGEST_INTEGER = 20
# A row takes at least its length, its number, a header and a value.
_LEAST_ROW_BYTES = 4


class Database:
    """What readers ask of a database: the integer columns of a table, and texts by their number.

    All SQL is made of names that stand in this package (of tables with a process's number behind them: those that a
    pattern of hexadecimal digits allows). No index: rows come in the order of their table. Only plain tables are read:
    a view, a virtual table or a generated column would run what the file says.
    """

    def __init__(self, connection: sqlite3.Connection, source: Source, file_bytes: int) -> None:
        self._connection = connection
        self._source = source
        self._file_bytes = file_bytes
        self._most_rows = file_bytes // _LEAST_ROW_BYTES
        tables = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchmany(_ROWS)
        self.tables = frozenset(name for name, sql in tables if isinstance(sql, str) and sql.startswith("CREATE TABLE"))

    def columns(self, table: str) -> frozenset[str]:
        """Names of a table's stored columns; none when there is no such table."""
        if table not in self.tables:
            return frozenset()
        found = self._connection.execute(f'PRAGMA table_xinfo("{table}")').fetchmany(_ROWS)
        return frozenset(name for _, name, _, _, _, _, hidden in found if not hidden)

    def integers(self, table: str, *wanted: str) -> dict[str, WholeNumbers]:
        """Columns of a table, in the order of its rows; all ``ABSENT`` where the table does not have one."""
        there = self.columns(table)
        known = [name for name in wanted if name in there]
        found = {name: np.zeros(0, np.int64) for name in wanted}
        if known:
            spelled = ", ".join(f'COALESCE(CAST("{name}" AS INTEGER), {ABSENT})' for name in known)
            parts = [
                np.array(rows, np.int64).reshape(len(rows), len(known))
                for rows in self._rows(f'SELECT {spelled} FROM "{table}" NOT INDEXED')  # noqa: S608
            ]
            if parts:
                block = np.concatenate(parts)
                found = {name: np.full(len(block), ABSENT) for name in wanted}
                found |= {name: np.ascontiguousarray(block[:, i]) for i, name in enumerate(known)}
        return found

    def texts(self, table: str, *wanted: str) -> list[tuple[str, ...]]:
        """Columns of a small table as text; empty where the table does not have one."""
        there = self.columns(table)
        if not there.intersection(wanted):
            return []
        spelled = ", ".join(f"COALESCE(CAST(\"{name}\" AS TEXT), '')" if name in there else "''" for name in wanted)
        return list(self._text_rows(f'SELECT {spelled} FROM "{table}"'))  # noqa: S608

    def text_of(self, table: str, key: str, value: str, numbers: Iterable[int]) -> dict[int, str]:
        """The texts of some numbers: ``value`` of the rows whose ``key`` each is."""
        if not {key, value} <= self.columns(table):
            return {}
        wanted = set(numbers)
        statement = f'SELECT CAST("{key}" AS INTEGER), CAST("{value}" AS TEXT) FROM "{table}" NOT INDEXED'  # noqa: S608
        return {number: text for number, text in self._text_rows(statement) if number in wanted and text is not None}

    def _text_rows(self, statement: str) -> Iterator[tuple[Any, ...]]:
        """Rows whose texts together are no longer than the file: cells of a hostile one may share their bytes."""
        length = 0
        for rows in self._rows(statement, _TEXT_ROWS):
            for row in rows:
                length += sum(len(text) for text in row if isinstance(text, str) and len(text) > _LONGEST_INTEGER)
            if length > self._file_bytes:
                raise InputError(f"{self._source.name} is damaged: a table of it has more text than fits into the file")
            yield from rows

    def _rows(self, statement: str, at_a_time: int = _ROWS) -> Iterator[list[tuple[Any, ...]]]:
        cursor = self._connection.execute(statement)
        cursor.arraysize = at_a_time
        count = 0
        while rows := cursor.fetchmany():
            count += len(rows)
            if count > self._most_rows:
                raise InputError(f"{self._source.name} is damaged: a table of it has more rows than fit into the file")
            self._source.limit.check(self._source.name, text_bytes=self._file_bytes, file_bytes=self._file_bytes)
            yield rows


@contextmanager
def opened(source: Source) -> Iterator[Database]:
    """The database of a file; InputError where SQLite finds it damaged."""
    import sqlite3

    path = source.file()
    try:
        with closing(_connection(path)) as connection:
            yield Database(connection, source, path.stat().st_size)
    except (sqlite3.Error, OverflowError, UnicodeError) as error:
        raise InputError(f"{source.name} is a SQLite database, but damaged ({error}): export it again") from error


def holds(source: Source, *tables: str) -> bool:
    """Whether the content is a database with one of these tables."""
    if not source.start.startswith(MAGIC):
        return False
    try:
        with opened(source) as database:
            return not database.tables.isdisjoint(tables)
    except InputError:
        return False


def _connection(path: Path) -> sqlite3.Connection:
    import sqlite3

    allowed = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_PRAGMA, sqlite3.SQLITE_FUNCTION)
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None)
    connection.text_factory = lambda text: text.decode("utf-8", "replace")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_TEXT_BYTES)
    for pragma in ("trusted_schema=OFF", "query_only=ON", "cell_size_check=ON", "mmap_size=0", "temp_store=MEMORY"):
        connection.execute(f"PRAGMA {pragma}")
    connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in allowed else sqlite3.SQLITE_DENY)
    return connection


def _nvtx_op(text: str) -> tuple[str, int, str] | None:
    """(name, sequence number, sizes) of what torch.autograd.profiler.emit_nvtx says: "aten::mm, seq = 7, op_id = 12,
    sizes = [[2, 3], [3, 4]]"."""
    head, found, rest = text.partition(", op_id = ")
    # A range of the program itself has PyTorch's form too: "ProfilerStep#3, op_id = 5".
    if not found or "#" in head:
        return None
    name, _, number = head.partition(", seq = ")
    sizes = rest.partition(", sizes = ")[2].partition(", input_op_ids = ")[0]
    return name, int(number) if number.isdecimal() and len(number) < 19 else -1, sizes


def add_ranges(rows: RowBlocks, texts: list[str], start_ns: Ints, end_ns: Ints, lane: Ints) -> None:
    """The ranges as rows: ops with sequence number and shapes where PyTorch wrote them, else annotations."""
    ops = [_nvtx_op(text) for text in texts]
    is_op = np.array([op is not None for op in ops], np.bool_)
    name = rows.name_codes(
        text.partition(", op_id = ")[0] if op is None else op[0] for op, text in zip(ops, texts, strict=True)
    )
    here = ~is_op
    rows.add("user_annotation", start_ns=start_ns[here], end_ns=end_ns[here], name=name[here], lane=lane[here])
    known = [op for op in ops if op is not None]
    codes = {sizes: _signature(rows, sizes) for sizes in dict.fromkeys(sizes for _, _, sizes in known)}
    rows.add(
        "cpu_op",
        start_ns=start_ns[is_op],
        end_ns=end_ns[is_op],
        name=name[is_op],
        lane=lane[is_op],
        sequence_number=np.array([number for _, number, _ in known], np.int64),
        signature=np.array([codes[sizes] for _, _, sizes in known], np.int64),
    )


def _signature(rows: RowBlocks, sizes: str) -> int:
    try:
        shapes = msgspec.json.decode(sizes, type=list)
    except (msgspec.DecodeError, RecursionError):
        return -1
    return rows.signatures.code_of(OpSignature(name="", shapes=freeze(shapes)))


_KERNELS, _COPIES, _SETS, _CALLS, _SYNCS = (
    f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION")
)
_RANGES, _NODES = "NVTX_EVENTS", "CUDA_GRAPH_NODE_EVENTS"
#: How often a node is copied: a graph is instantiated, or cloned before.
_MOST_COPIES = 4
NSIGHT_SYSTEMS = Recorder(
    file="a database of Nsight Systems",
    no_shapes="Nsight Systems records none of its own",
    no_stacks="Nsight Systems' samples of stacks are not read",
    shapes_option="torch.autograd.profiler.emit_nvtx(record_shapes=True)",
)
# ENUM_NSYS_EVENT_TYPE: NvtxPushPopRange, NvtxStartEndRange, and the same of NVTX in text form.
_RANGE_TYPES = (59, 60, 70, 71)
# ENUM_NSYS_EVENT_CLASS: TRACE_PROCESS_EVENT_CUDA_DRIVER.
_DRIVER_CLASS = 1
# ENUM_CUDA_MEMCPY_OPER and ENUM_CUDA_MEM_KIND, as Kineto spells them.
_COPY_KINDS = (
    "Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP", "HtoD", "DtoH", "DtoD",
)  # fmt: skip
_MEMORY_KINDS = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
# ENUM_CUPTI_SYNC_TYPE, as Kineto spells it.
_SYNC_KINDS = ("Unknown", "Event Sync", "Stream Wait Event", "Stream Sync", "Context Sync")
# The version of an entry point: cudaLaunchKernel_v7000.
_VERSION = re.compile(r"_v\d{4,6}$")
# A serialized GlobalId: 24 bits of the thread below 24 bits of the process.
_THREAD_BITS = 24
_NUMBER = (1 << _THREAD_BITS) - 1
# What tells the same number of another context, of another process, apart.
_NEXT_CONTEXT_STREAM = 100_000


@reader(
    "nsight_systems",
    recognizes=lambda source: holds(source, _KERNELS, _CALLS, _RANGES, "TARGET_INFO_SESSION_START_TIME"),
)
def read_nsight_systems(source: Source) -> TraceTable:
    """Kernels, copies, memsets, CUDA calls and NVTX ranges. Of several processes each correlation is made unique.

    What ran in a graph has the node that a capture's call made, of which the instantiated graph has a copy.
    """
    rows = RowBlocks(source.name)
    with opened(source) as database:
        report = _NsightReport(database, rows)
        report.add_calls()
        report.add_kernels()
        report.add_copies()
        report.add_syncs()
        report.add_ranges()
        report.add_names()
        report.add_gpu_metrics()
    return rows.table(NSIGHT_SYSTEMS)


class _NsightReport:
    """One pass over the tables of a report."""

    def __init__(self, database: Database, rows: RowBlocks) -> None:
        self._database = database
        self._rows = rows
        self._processes: dict[int, int] = {}
        self._numbers: dict[tuple[int, ...], int] = {}
        self._contexts: dict[int, dict[int, int]] = {}
        self._nodes = database.integers(_NODES, "start", "globalTid", "graphNodeId", "originalGraphNodeId")
        copies = self._nodes["originalGraphNodeId"] > 0
        process = (self._nodes["globalTid"][copies] >> _THREAD_BITS).tolist()
        node, original = (self._nodes[key][copies].tolist() for key in ("graphNodeId", "originalGraphNodeId"))
        self._copied_from = dict(zip(zip(process, node, strict=True), original, strict=True))

    def add_calls(self) -> None:
        found = self._database.integers(_CALLS, "start", "end", "eventClass", "globalTid", "correlationId", "nameId")
        names = self._names(found["nameId"], lambda name: _VERSION.sub("", name))
        lane, correlation = self._thread_lanes(found["globalTid"]), self._correlation(found, "globalTid")
        # By call the graph node that was made during it, -1 for none; a driver's call within another has it too
        result = np.full(len(found["start"]), -1)
        own = self._nodes["originalGraphNodeId"] <= 0
        threads, start, node = (self._nodes[key][own] for key in ("globalTid", "start", "graphNodeId"))
        for thread in np.unique(threads).tolist():
            made, mine = threads == thread, np.flatnonzero(found["globalTid"] == thread)
            mine = mine[np.argsort(found["start"][mine], kind="stable")]
            last = np.searchsorted(found["start"][mine], start[made], "right") - 1
            for at in (last - 1, last) if len(mine) else ():
                rows = mine[np.maximum(at, 0)]
                during = (at >= 0) & (found["end"][rows] >= start[made])
                result[rows[during]] = node[made][during]
        self._rows.add_each(
            np.where(found["eventClass"] == _DRIVER_CLASS, "cuda_driver", "cuda_runtime").tolist(),
            ("cuda_runtime", "cuda_driver"),
            start_ns=found["start"],
            end_ns=found["end"],
            name=names,
            lane=lane,
            correlation=correlation,
            graph_node=result,
        )

    def _original_node(self, process: int, node: int) -> int:
        for _ in range(_MOST_COPIES):
            node = self._copied_from.get((process, node), node)
        return node

    def add_kernels(self) -> None:
        grid, block = (tuple(f"{what}{axis}" for axis in "XYZ") for what in ("grid", "block"))
        found = self._database.integers(_KERNELS, *_DEVICE_COLUMNS, "demangledName", "shortName", *grid, *block)
        name = np.where(found["demangledName"] > 0, found["demangledName"], found["shortName"])
        details = {
            "grid": np.stack([found[axis] for axis in grid], axis=1),
            "block": np.stack([found[axis] for axis in block], axis=1),
        }
        self._add_device("kernel", found, name=self._names(name), details=details)

    def add_copies(self) -> None:
        found = self._database.integers(_COPIES, *_DEVICE_COLUMNS, "bytes", "copyKind", "srcKind", "dstKind")
        kinds = coded_pairs(found["srcKind"], found["dstKind"], lambda a, b: (a & 15) << 4 | (b & 15))

        def name(copy: int, memory: int) -> int:
            ends = f"{_spelled(_MEMORY_KINDS, memory >> 4)} -> {_spelled(_MEMORY_KINDS, memory & 15)}"
            (code,) = self._rows.names.of([f"Memcpy {_spelled(_COPY_KINDS, copy)} ({ends})"])
            return code

        self._add_device(
            "gpu_memcpy",
            found,
            name=coded_pairs(found["copyKind"], kinds, name),
            signature=self._rows.copied_bytes(found["bytes"]),
        )
        found = self._database.integers(_SETS, *_DEVICE_COLUMNS, "bytes", "memKind")

        set_names = self._rows.names_of(found["memKind"], lambda kind: f"Memset ({_spelled(_MEMORY_KINDS, kind)})")
        self._add_device("gpu_memset", found, name=set_names, signature=self._rows.copied_bytes(found["bytes"]))

    def add_syncs(self) -> None:
        found = self._database.integers(_SYNCS, *_DEVICE_COLUMNS, "syncType")
        names = self._rows.names_of(found["syncType"], lambda kind: _spelled(_SYNC_KINDS, kind))
        self._add_device("cuda_sync", found, name=names)

    def add_ranges(self) -> None:
        found = self._database.integers(_RANGES, "start", "end", "eventType", "globalTid", "textId")
        chosen = np.isin(found["eventType"], _RANGE_TYPES) & (found["end"] >= found["start"]) & (found["end"] > 0)
        registered = self._database.text_of("StringIds", "id", "value", found["textId"][chosen].tolist())
        texts = self._database.texts(_RANGES, "text")
        spelled = [
            (texts[row][0] if texts else "") or registered.get(number, "")
            for row, number in zip(np.flatnonzero(chosen).tolist(), found["textId"][chosen].tolist(), strict=True)
        ]
        lane = self._thread_lanes(found["globalTid"][chosen])
        add_ranges(self._rows, spelled, found["start"][chosen], found["end"][chosen], lane)

    def add_names(self) -> None:
        rows, database = self._rows, self._database
        pids = {pid for pid, _ in rows.lanes.values()}
        for pid, name in database.texts("PROCESSES", "pid", "name"):
            if pid.isdecimal() and int(pid) in pids:
                rows.process_names[int(pid)] = name
        threads = database.integers("ThreadNames", "nameId", "globalTid")
        names = database.text_of("StringIds", "id", "value", threads["nameId"].tolist())
        lanes = set(rows.lanes.values())
        for number, thread in zip(threads["nameId"].tolist(), threads["globalTid"].tolist(), strict=True):
            lane = (thread >> _THREAD_BITS & _NUMBER, thread & _NUMBER)
            if lane in lanes and number in names:
                rows.thread_names[lane] = names[number]
        rows.set_devices(self._devices())

    def add_gpu_metrics(self) -> None:
        """Samples of ``nsys profile --gpu-metrics-devices``: shares of the memory's peak rate, as bytes.

        The lowest byte of a type is the number of the GPU, as in NVIDIA's recipes.
        """
        meanings = self._metric_meanings()
        if not meanings:
            return
        found = self._database.integers("GPU_METRICS", "timestamp", "typeId", "metricId", "value")
        figures = coded_pairs(found["typeId"], found["metricId"], lambda *key: meanings.get(key, -1))
        at = np.flatnonzero((figures >= 0) & (found["value"] >= 0) & (found["value"] <= 100))
        gpus = self._database.integers("TARGET_INFO_GPU", "id", "cuDevice", "memoryBandwidth")
        rates = {
            gpu: (cu if cu >= 0 else gpu, rate)
            for gpu, cu, rate in zip(*(gpus[key].tolist() for key in gpus), strict=True)
        }
        parts = [
            part
            for gpu, (device, rate) in rates.items()
            if rate in _MEMORY_RATES
            and 0 <= device < _MOST_DEVICES
            and (part := self._sampled(found, at[(found["typeId"][at] & _GPU_OF_TYPE) == gpu], figures, (device, rate)))
        ]
        if parts:
            self._rows.dram_samples = DramSamples(
                **{key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
            )

    def _metric_meanings(self) -> dict[tuple[int, int], int]:
        """Which of ``_SAMPLED`` a metric is, by its type and number."""
        told = self._database.integers("TARGET_INFO_GPU_METRICS", "typeId", "metricId")
        texts = [name for (name,) in self._database.texts("TARGET_INFO_GPU_METRICS", "metricName")]
        return {
            (kind, metric): figure
            for kind, metric, text in zip(told["typeId"].tolist(), told["metricId"].tolist(), texts, strict=False)
            for figure, start in enumerate(_SAMPLED)
            if text.startswith(start)
        }

    def _sampled(self, found: dict[str, Ints], at: Ints, figure: Ints, gpu: tuple[int, int]) -> dict[str, Any] | None:
        """The columns of one GPU's samples; ``gpu``: its number, and its memory's peak rate in bytes per second."""
        time, place = np.unique(found["timestamp"][at], return_inverse=True)
        if len(time) < 2:
            return None
        percent = np.full((len(_SAMPLED), len(time)), np.nan)
        percent[figure[at], place] = found["value"][at]
        seconds = np.append(np.diff(time), np.median(np.diff(time))) / 1e9
        read, written = (share / 100 * gpu[1] * seconds for share in percent[:2])
        return {
            "lane": self._rows.lane_codes(np.full(len(time), gpu[0]), np.zeros(len(time), np.int64)).astype(np.int32),
            "time_ns": time, "read_bytes": read, "written_bytes": written, "moved_bytes": read + written,
            "tensor_percent": percent[2], "sm_active_percent": percent[3],
        }  # fmt: skip

    def _devices(self) -> dict[int, dict[str, Any]]:
        table = "TARGET_INFO_GPU"
        wanted = ("id", "cuDevice", "totalMemory", "smCount", "threadsPerWarp", "computeMajor", "computeMinor")
        found = self._database.integers(table, *wanted)
        names = [name for (name,) in self._database.texts(table, "name")]
        devices: dict[int, dict[str, Any]] = {}
        for row, name in enumerate(names[: len(found["id"])]):
            number = int(found["cuDevice" if found["cuDevice"][row] >= 0 else "id"][row])
            known = {key: int(found[column][row]) for key, column in _DEVICE_KEYS.items() if found[column][row] >= 0}
            if 0 <= number < _MOST_DEVICES:
                devices[number] = {"name": name, **known}
        return devices

    def _add_device(self, category: str, found: dict[str, Ints], **columns: Any) -> None:
        # Streams of a device's second context, and of further ones, have numbers in a range of their own
        context = coded_pairs(
            found["globalPid"] >> _THREAD_BITS,
            found["contextId"],
            lambda *key: self._numbers.setdefault(key, len(self._numbers)),
        )
        stream, offset = found["streamId"], coded_pairs(found["deviceId"], context, self._context_offset)
        self._rows.add(
            category,
            start_ns=found["start"],
            end_ns=found["end"],
            device=found["deviceId"],
            stream=np.where(stream >= 0, stream + offset, stream),
            correlation=self._correlation(found, "globalPid"),
            graph_node=node_ids(
                found["graphId"],
                coded_pairs(found["globalPid"] >> _THREAD_BITS, found["graphNodeId"], self._original_node),
            ),
            **columns,
        )

    def _context_offset(self, device: int, context: int) -> int:
        known = self._contexts.setdefault(device, {})
        return _NEXT_CONTEXT_STREAM * known.setdefault(context, len(known))

    def _correlation(self, found: dict[str, Ints], who: str) -> Ints:
        """Correlations count within a process: those of a second one, and of further ones, are moved apart."""
        process = coded(found[who] >> _THREAD_BITS, lambda pid: self._processes.setdefault(pid, len(self._processes)))
        return own_correlation(found["correlationId"], process)

    def _thread_lanes(self, thread: Ints) -> Ints:
        return self._rows.lane_codes(thread >> _THREAD_BITS & _NUMBER, thread & _NUMBER)

    def _names(self, number: Ints, spelled: Callable[[str], str] = str) -> Ints:
        texts = self._database.text_of("StringIds", "id", "value", number.tolist())
        return self._rows.names_of(number, lambda key: spelled(texts.get(key, f"(string {key})")))


_DEVICE_COLUMNS = (
    "start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "graphId", "graphNodeId",
)  # fmt: skip
_DEVICE_KEYS = {
    "totalGlobalMem": "totalMemory",
    "numSms": "smCount",
    "warpSize": "threadsPerWarp",
    "computeMajor": "computeMajor",
    "computeMinor": "computeMinor",
}
_MOST_DEVICES = 1024
#: How names of GPU metrics begin that are read, all in percent; peak rates of memory that are one, in bytes per second.
_SAMPLED = ("DRAM Read Bandwidth", "DRAM Write Bandwidth", "Tensor Active", "SMs Active")
_MEMORY_RATES, _GPU_OF_TYPE = range(10**10, 10**14), 0xFF


def _spelled(names: tuple[str, ...], number: int) -> str:
    return names[number] if 0 <= number < len(names) else "Unknown"


ROCPD = rocm_recorder("a rocpd database", "ROCm's profilers record")
# Tables of one process each carry its number; no other text of the file comes into a statement.
_TABLE = re.compile(r"rocpd_(?:kernel_dispatch|region|memory_copy|op|api)((?:_[0-9a-fA-F]{1,40}){0,8})")
_SIZES = tuple(f"{what}_size_{axis}" for what in ("workgroup", "grid") for axis in "xyz")
_TRACK = ("pid", "tid", "agent_id", "queue_id", "stream_id")
_PLACE = ("start", "end", "start_id", "end_id", "track_id", *_TRACK, "event_id")


@reader("rocpd", recognizes=lambda source: source.start.startswith(MAGIC) and b"rocpd_" in source.start)
def read_rocpd(source: Source) -> TraceTable:
    """Kernels, copies, calls and ranges of every process of a database."""
    rows = RowBlocks(source.name)
    with opened(source) as database:
        runs = sorted({match[1] for name in database.tables if (match := _TABLE.fullmatch(name))})
        for number, run in enumerate(runs):
            if f"rocpd_op{run}" in database.tables:
                _add_old(rows, database, run)
            else:
                _RocpdRun(rows, database, run, number).add()
    return rows.table(ROCPD)


class _RocpdRun:
    """The tables of one process."""

    def __init__(self, rows: RowBlocks, database: Database, run: str, number: int) -> None:
        self._rows, self._database, self._run, self._number = rows, database, run, number
        agents = rocpd_devices(database, run)
        self._devices = {agent: number for agent, (_, number) in agents.items()}
        texts = self._texts("info_agent", "product_name", "name", "extdata")
        rows.set_devices(
            {number: _properties(texts[row][0] or texts[row][1], texts[row][2]) for row, number in agents.values()}
        )
        self._strings = _pairs(database, f"rocpd_string{run}", "string")
        events = self._integers("event", "id", "stack_id", "correlation_id")
        numbers = np.where(events["stack_id"] > 0, events["stack_id"], events["correlation_id"])
        self._correlations = dict(zip(events["id"].tolist(), numbers.tolist(), strict=True))
        processes, threads = self._integers("info_process", "id", "pid"), self._integers("info_thread", "id", "tid")
        self._processes = dict(zip(processes["id"].tolist(), processes["pid"].tolist(), strict=True))
        self._threads = dict(zip(threads["id"].tolist(), threads["tid"].tolist(), strict=True))
        named = self._texts("info_process", "command", "name")
        for pid, (command, name) in zip(processes["pid"].tolist(), named, strict=False):
            if command or name:
                rows.process_names[pid] = name or command.partition(" ")[0].rpartition("/")[2]

    def add(self) -> None:
        found = rocpd_events(self._database, self._run, "kernel_dispatch", "kernel_id", *_SIZES)
        symbols = self._integers("info_kernel_symbol", "id")["id"].tolist()
        texts = self._texts("info_kernel_symbol", "display_name", "kernel_name")
        kernels = {number: shown or name for number, (shown, name) in zip(symbols, texts, strict=False)}
        block, threads = (np.stack([found[size] for size in sizes], axis=1) for sizes in (_SIZES[:3], _SIZES[3:]))
        name = self._rows.names_of(found["kernel_id"], lambda number: kernels.get(number, f"(kernel {number})"))
        self._add_device("kernel", found, name, found["agent_id"], details=launch_details(block, threads))
        ends = ("dst_agent_id", "src_agent_id")
        found = rocpd_events(self._database, self._run, "memory_copy", "name_id", *ends, "size")
        to, origin = (found[end] for end in ends)
        name = self._rows.names_of(found["name_id"], lambda number: copy_name(self._strings.get(number, "Copy")))
        agent = np.where(np.isin(to, list(self._devices)), to, origin)
        self._add_device("gpu_memcpy", found, name, agent, signature=self._rows.copied_bytes(found["size"]))
        self._add_regions()

    def _add_regions(self) -> None:
        found = rocpd_events(self._database, self._run, "region", "name_id")
        events = self._integers("event", "id", "category_id")
        extdata = [text for (text,) in self._texts("event", "extdata")]
        known = _pairs(self._database, f"rocpd_info_category{self._run}", "name") or self._strings
        row = {number: i for i, number in enumerate(events["id"].tolist())}
        at = [row.get(number, -1) for number in found["event_id"].tolist()]
        categories = [known.get(int(events["category_id"][i]), "") if i >= 0 else "" for i in at]
        messages = [_message(extdata[i]) if 0 <= i < len(extdata) else "" for i in at]
        texts = [self._strings.get(number, f"(string {number})") for number in found["name_id"].tolist()]
        names = [message or text for message, text in zip(messages, texts, strict=True)]
        process = coded(found["pid"], lambda number: self._processes.get(number, number))
        thread = coded(found["tid"], lambda number: self._threads.get(number, number))
        self._rows.add_each(
            [call_category(text) for text in categories],
            start_ns=found["start"],
            end_ns=found["end"],
            name=self._rows.name_codes(names),
            lane=self._rows.lane_codes(process, thread),
            correlation=self._correlation(found),
        )

    def _add_device(self, category: str, found: dict[str, Ints], name: Ints, agent: Ints, **columns: Any) -> None:
        device = coded(agent, lambda number: self._devices.get(number, 0))
        stream = np.maximum(found["stream_id" if (found["stream_id"] > 0).any() else "queue_id"], 0)
        self._rows.add(
            category,
            start_ns=found["start"],
            end_ns=found["end"],
            name=name,
            device=device,
            stream=stream,
            correlation=self._correlation(found),
            **columns,
        )

    def _correlation(self, found: dict[str, Ints]) -> Ints:
        number = coded(found["event_id"], lambda event: self._correlations.get(event, ABSENT))
        return own_correlation(number, self._number)

    def _integers(self, table: str, *wanted: str) -> dict[str, Ints]:
        return self._database.integers(f"rocpd_{table}{self._run}", *wanted)

    def _texts(self, table: str, *wanted: str) -> list[tuple[str, ...]]:
        return self._database.texts(f"rocpd_{table}{self._run}", *wanted)


def rocpd_events(database: Database, run: str, table: str, *wanted: str) -> dict[str, Ints]:
    """Columns of a table of events, with times and places that newer schemas keep in tables of their own."""
    found = database.integers(f"rocpd_{table}{run}", *_PLACE, *wanted)
    if (found["start_id"] > 0).any():
        stamps = database.integers(f"rocpd_timestamp{run}", "id", "value")
        time = dict(zip(stamps["id"].tolist(), stamps["value"].tolist(), strict=True))
        for side in ("start", "end"):
            found[side] = coded(found[f"{side}_id"], lambda number: time.get(number, 2**62))
    if (found["track_id"] > 0).any():
        tracks = database.integers(f"rocpd_track{run}", "id", *_TRACK)
        row = {number: i for i, number in enumerate(tracks["id"].tolist())}
        at = coded(found["track_id"], lambda number: row.get(number, ABSENT))
        for key in _TRACK:
            of_track = np.append(tracks[key], ABSENT)[at]
            found[key] = np.where(found[key] >= 0, found[key], of_track)
    return found


def rocpd_devices(database: Database, run: str) -> dict[int, tuple[int, int]]:
    """Of each agent that is a GPU its row and the number of its device."""
    agents = database.integers(f"rocpd_info_agent{run}", "id", "type_index")
    kinds = [kind for (kind,) in database.texts(f"rocpd_info_agent{run}", "type")]
    found: dict[int, tuple[int, int]] = {}
    for row, (agent, index, kind) in enumerate(zip(*(each.tolist() for each in agents.values()), kinds, strict=False)):
        if kind == "GPU":
            found[agent] = row, index if 0 <= index < _MOST_DEVICES else len(found)
    return found


def _add_old(rows: RowBlocks, database: Database, run: str) -> None:
    """rocmProfileData: calls and operations, joined by a table of pairs."""
    strings = _pairs(database, f"rocpd_string{run}", "string")
    calls = database.integers(f"rocpd_api{run}", "id", "pid", "tid", "start", "end", "apiName_id")
    ops = database.integers(f"rocpd_op{run}", "id", "gpuId", "queueId", "start", "end", "description_id", "opType_id")
    pairs = database.integers(f"rocpd_api_ops{run}", "api_id", "op_id")
    launched = dict(zip(pairs["op_id"].tolist(), pairs["api_id"].tolist(), strict=True))
    rows.add(
        "hip_runtime",
        start_ns=calls["start"],
        end_ns=calls["end"],
        name=rows.name_codes(strings.get(number, f"(string {number})") for number in calls["apiName_id"].tolist()),
        lane=rows.lane_codes(calls["pid"], calls["tid"]),
        correlation=calls["id"],
    )
    kinds = [strings.get(number, "") for number in ops["opType_id"].tolist()]
    names = [
        strings.get(number, "") or kind for number, kind in zip(ops["description_id"].tolist(), kinds, strict=True)
    ]
    rows.add_each(
        ["gpu_memcpy" if k.startswith("Copy") else "gpu_memset" if k.startswith("Fill") else "kernel" for k in kinds],
        start_ns=ops["start"],
        end_ns=ops["end"],
        name=rows.name_codes(names),
        device=ops["gpuId"],
        stream=ops["queueId"],
        correlation=coded(ops["id"], lambda number: launched.get(number, ABSENT)),
    )


def _pairs(database: Database, table: str, value: str) -> dict[int, str]:
    numbers = database.integers(table, "id")["id"].tolist()
    return dict(zip(numbers, [text for (text,) in database.texts(table, value)], strict=False))


def _message(extdata: str) -> str:
    """What a ROCTX range says."""
    if '"message"' not in extdata:
        return ""
    try:
        value = msgspec.json.decode(extdata.encode())
    except (msgspec.DecodeError, RecursionError):
        return ""
    message = value.get("message") if isinstance(value, dict) else None
    return message if isinstance(message, str) else ""


def _properties(name: str, extdata: str) -> dict[str, Any]:
    try:
        said = msgspec.json.decode(extdata.encode() or b"{}")
    except (msgspec.DecodeError, RecursionError):
        said = None
    said = said if isinstance(said, dict) else {}
    return gpu_properties(name, units=said.get("cu_count"), wave=said.get("wave_front_size"))
