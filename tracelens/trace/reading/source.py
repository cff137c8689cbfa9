"""What a format's reader works with: the trace file as a source, the mark ``@reader``, blocks of columns."""

from __future__ import annotations

import itertools
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.errors import InputError
from tracelens.files.memory_limit import MemoryLimit
from tracelens.files.remote import is_address
from tracelens.registry import mark
from tracelens.trace import table as trace_table
from tracelens.trace.reading.bytestream import TRACE_ENDINGS, ByteStream, PlainFile, unpacked
from tracelens.trace.reading.chrome.decoded_events import TIME_LIMIT_NS
from tracelens.trace.reading.chrome.event_columns import Codes, TableBuilder, with_usable_times
from tracelens.trace.reading.chrome.event_list import FIRST_BYTES, PIECE_BYTES, Progress
from tracelens.types.records import Record
from tracelens.types.signature import OpSignature

Decoded = TypeVar("Decoded")


class Source(Record, frozen=False, kw_only=True):
    """``start``: the first bytes of the content, already taken from ``stream``; ``is_whole``: there are no more."""

    name: str
    path: Path
    stream: ByteStream
    start: bytes
    is_whole: bool
    limit: MemoryLimit
    piece_bytes: int = PIECE_BYTES
    progress: Progress | None = None
    _open: ExitStack = msgspec.field(default_factory=ExitStack)
    _file: Path | None = None

    @classmethod
    @contextmanager
    def opened(
        cls, path: Path, *, limit: MemoryLimit, piece_bytes: int = PIECE_BYTES, progress: Progress | None = None
    ) -> Iterator[Source]:
        """The file, unpacked; InputError when it is not there, is a folder, or is empty."""
        path = _in_folder(path)
        try:
            file = path.open("rb")
        except FileNotFoundError as error:
            raise InputError(f"there is no file {str(path)!r}{_hint(path)}") from error
        except IsADirectoryError as error:
            raise InputError(
                f"{str(path)!r} is a folder, not a trace file: name one, "
                f"or report on all its ranks with tracelens collectives {path}"
            ) from error
        with file:
            stream = unpacked(path, file, limit)
            blocks, length = [], 0
            while length < FIRST_BYTES and (block := stream.read()):
                blocks.append(block)
                length += len(block)
            source = cls(
                name=path.name,
                path=path,
                stream=stream,
                start=b"".join(blocks),
                is_whole=length < FIRST_BYTES,
                limit=limit,
                piece_bytes=piece_bytes,
                progress=progress,
            )
            with source._open:
                yield source

    def blocks(self) -> Iterator[bytes]:
        """The content from its start, once. The stream looks at the memory in use."""
        yield self.start
        while block := self.stream.read():
            if self.progress is not None:
                self.progress(self.stream.consumed, self.stream.size)
            yield block

    def whole(self) -> bytes:
        return b"".join(self.blocks())

    def decoded(self, type_: type[Decoded], what: str) -> Decoded:
        """All of the content as JSON of that type; InputError, which calls it ``what``, where it is none."""
        try:
            return msgspec.json.Decoder(type_, strict=False).decode(self.whole())
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self.damage(what) from error

    def file(self) -> Path:
        """The content as a file: the file itself, or what it unpacks to, for as long as the source is open."""
        if self._file is None:
            self._file = self.path
            if not isinstance(self.stream, PlainFile):
                folder = self._open.enter_context(tempfile.TemporaryDirectory(prefix="tracelens-"))
                self._file, written = Path(folder) / "content", 0
                with self._file.open("wb") as target:
                    for block in self.blocks():
                        written += len(block)
                        self.limit.check_unpacked(self.name, written)
                        target.write(block)
        return self._file

    def damage(self, what: str, position: int | None = None) -> InputError:
        """The sentence on content that is damaged."""
        place = "" if position is None else f" at byte {position:,}"
        return InputError(f"{self.name} is {what}, but damaged{place}: record or export it again")


def _hint(path: Path) -> str:
    """What helps where the path was a URL, of whose two slashes a path keeps one."""
    store, slash, rest = str(path).partition(":/")
    if not slash or not is_address(f"{store}://{rest}"):
        return ""
    return ": commands fetch what a URL names; in Python, load(fsspec.open_local('simplecache::URL'))"


def _in_folder(path: Path) -> Path:
    """The one trace below a folder, as TensorBoard's profilers leave it; the folder itself where there is a choice."""
    if not path.is_dir():
        return path
    found = itertools.islice((p for p in sorted(path.rglob("*")) if is_trace(p)), 2)
    traces = list(found)
    return traces[0] if len(traces) == 1 else path


def is_trace(path: Path) -> bool:
    """Whether a file is called like a trace, and is not what JAX shows of the XPlane profile beside it."""
    if not path.name.endswith(TRACE_ENDINGS):
        return False
    stem = path.name.removesuffix(".trace.json.gz")
    return stem == path.name or not path.with_name(f"{stem}.xplane.pb").is_file()


#: From an opened file to its events as columns; InputError, in one sentence, when it cannot.
Reader: TypeAlias = Callable[[Source], trace_table.TraceTable]
#: Whether the content of a file is of a format, by ``Source.start``.
Recognizer: TypeAlias = Callable[[Source], bool]


def reader(name: str, *, recognizes: Recognizer) -> Callable[[Reader], Reader]:
    """Marks the function that reads files of the format ``name``; ``recognizes`` looks at the content, not the name."""
    return mark("reader", name, recognizes=recognizes)


Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
Details: TypeAlias = Mapping[str, Array] | Callable[[int], Mapping[str, Any]]
# From here on (52 days) times count from the earliest: as µs, a float keeps less than a ns of them.
_EPOCH_NS = 2**52


class RowBlocks:
    """Collects blocks of events of one category each; ``table()`` joins them.

    ``details`` of a block are what ``TraceTable.args`` shows beside the columns, by the name that Kineto gives it
    (``grid``, ``block``): one row of an array per event, or a function of the event's number in the block.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self.names: Codes[str] = Codes()
        self.lanes: Codes[tuple[trace_table.Identifier, trace_table.Identifier]] = Codes()
        self.signatures = trace_table.SignatureStore()
        self.process_names: dict[trace_table.Identifier, str] = {}
        self.process_labels: dict[trace_table.Identifier, str] = {}
        self.thread_names: dict[tuple[trace_table.Identifier, trace_table.Identifier], str] = {}
        self.notes: list[str] = []
        self.metadata: dict[str, Any] = {}
        self.event_waits: trace_table.EventWaits | None = None
        self.allocations: trace_table.Allocations | None = None
        self.dram_samples: trace_table.DramSamples | None = None
        self._categories: Codes[str] = Codes()
        self._parts: dict[str, list[Array]] = {key: [] for key in trace_table.COLUMNS}
        self._details: list[tuple[int, Details]] = []
        self._rows = 0
        self._untimed = 0
        self._repaired = 0

    def __len__(self) -> int:
        return self._rows

    def add(
        self, category: str, *, start_ns: Ints, end_ns: Ints, details: Details | None = None, **columns: Array | int
    ) -> None:
        """Events of one category: ``name``, ``lane`` (codes) and any other column of ``TraceTable``, -1 by default.

        Without a ``lane`` they are on that of their device and stream. Events without a usable time are left out,
        negative durations are 0; both are counted.
        """
        usable = (np.abs(start_ns) < TIME_LIMIT_NS) & (np.abs(end_ns) < TIME_LIMIT_NS)
        self._untimed += int((~usable).sum())
        duration = np.where(usable, end_ns, 0) - np.where(usable, start_ns, 0)
        self._repaired += int((duration < 0).sum())
        (code,) = self._categories.of([category])
        if "lane" not in columns:
            columns["lane"] = self.lane_codes(np.asarray(columns["device"]), np.asarray(columns["stream"]))
        given: dict[str, Any] = {
            **columns,
            "kind": int(trace_table.kind_of_category(category)),
            "category": code,
            "start_ns": start_ns,
            "duration_ns": np.maximum(duration, 0),
            "file_index": np.arange(self._rows, self._rows + len(start_ns)),
        }
        for key, dtype in trace_table.COLUMNS.items():
            values, info = np.broadcast_to(np.asarray(given.get(key, -1)), start_ns.shape)[usable], np.iinfo(dtype)
            if values.dtype != dtype and len(values) and (values.max() > info.max or values.min() < info.min):
                values = np.where((values > info.max) | (values < info.min), -1, values)  # too large for its column
            self._parts[key].append(values.astype(dtype))
        self._details.append((self._rows, details or {}))
        self._rows += len(start_ns)

    def add_each(self, categories: Sequence[str], order: Iterable[str] | None = None, **columns: Any) -> None:
        """Events with a category each, as ``add`` takes those of one: a block for each of ``order``, else sorted.

        Every column is an array, and ``details`` have one row per event.
        """
        of_event = np.array(categories, object)
        for category in sorted(set(categories)) if order is None else order:
            here = np.flatnonzero(of_event == category)
            details = columns.get("details") or {}
            given = {key: values[here] for key, values in columns.items() if key != "details"}
            if callable(details):
                self.add(category, **given, details=lambda i, of=details, rows=here: of(int(rows[i])))
            else:
                self.add(category, **given, details={key: values[here] for key, values in details.items()})

    def name_codes(self, texts: Iterable[str]) -> Ints:
        return np.array(self.names.of(list(texts)), np.int64)

    def names_of(self, numbers: Array, spelled: Callable[[int], str]) -> Ints:
        """Codes of the names that numbers stand for, one per event."""
        return coded(numbers, lambda number: self.names.of([spelled(number)])[0])

    def copied_bytes(self, counts: Array) -> Ints:
        """Codes of the signatures of copies, by how many bytes each has; -1 where that is not known."""
        code = self.signatures.code_of
        return coded(counts, lambda n: code(OpSignature(name="", attributes=(("bytes", n),))) if n >= 0 else -1)

    def set_devices(self, devices: Mapping[int, Mapping[str, Any]]) -> None:
        """What is known of devices, by number, as Kineto's metadata lists it."""
        if devices:
            self.metadata["deviceProperties"] = [{"id": n, **devices.get(n, {})} for n in range(max(devices) + 1)]

    def lane_codes(self, pids: Array, tids: Array) -> Ints:
        """Codes of lanes, by the process and the thread of each event."""
        return coded_pairs(pids, tids, lambda pid, tid: self.lanes.of([(pid, tid)])[0])

    def table(self, recorder: trace_table.Recorder, *, truncated: bool = False) -> trace_table.TraceTable:
        """All blocks; InputError when they hold no events."""
        columns: dict[str, Any] = {
            key: np.concatenate(parts) if parts else np.zeros(0, trace_table.COLUMNS[key])
            for key, parts in self._parts.items()
        }
        self._parts.clear()
        if not len(columns["start_ns"]):
            raise InputError(f"{self._source} is {recorder.file}, but no event in it has a time: record again")
        columns, untimed, impossible = with_usable_times(columns)
        self._untimed += untimed
        self._repaired += impossible
        base = int(columns["start_ns"].min())
        if base >= _EPOCH_NS:
            columns["start_ns"] -= base
            if self.dram_samples is not None:
                self.dram_samples.time_ns -= base
            self.metadata["baseTimeNanoseconds"] = base
        notes = list(self.notes)
        for count, one, many in (
            (self._untimed, "event has no usable time", "events have no usable time"),
            (self._repaired, "impossible duration is now 0", "impossible durations are now 0"),
        ):
            notes += [f"{count:,} {one if count == 1 else many}"] if count else []
        self.signatures.forget_recorded()
        nothing = TableBuilder().fields()
        lookup = _ColumnEvents(details=self._details)
        lookup.table = trace_table.TraceTable(
            source=self._source,
            **columns,
            categories=self._categories.values(),
            names=self.names.values(),
            lanes=self.lanes.values(),
            signatures=self.signatures,
            flows=nothing["flows"],
            event_waits=self.event_waits or nothing["event_waits"],
            allocations=self.allocations or nothing["allocations"],
            dram_samples=self.dram_samples or nothing["dram_samples"],
            lookup=lookup,
            metadata=self.metadata,
            process_names=self.process_names,
            process_labels=self.process_labels,
            thread_names=self.thread_names,
            events_total=self._rows,
            counts_by_phase={"X": self._rows},
            losses=trace_table.Losses(
                damaged_events=self._untimed, truncated=truncated, notes=tuple(notes), repaired=self._repaired
            ),
            recorder=recorder,
        )
        return lookup.table


def device_category(name: str) -> str:
    """What a device event is by its name, where CUPTI or roctracer gave it."""
    start = name[:6].lower()
    return "gpu_memcpy" if start == "memcpy" else "gpu_memset" if start == "memset" else "kernel"


def own_correlation(number: Ints, process: Ints | int) -> Ints:
    """Correlations that count within a process, made unique by its number; -1 where they are none."""
    usable = (number > 0) & (number < 1 << _PROCESS_BITS)
    return np.where(usable, number + (process << _PROCESS_BITS), -1)


_PROCESS_BITS = 32


def coded_pairs(first: Array, second: Array, code: Callable[[int, int], int]) -> Ints:
    """``code(a, b)`` per event, asked once for each distinct pair."""
    of_first, place = np.unique(first, return_inverse=True)
    of_second, place_2 = np.unique(second, return_inverse=True)
    pairs, inverse = np.unique(place * max(len(of_second), 1) + place_2, return_inverse=True)
    codes = [
        code(a, b)
        for a, b in zip(
            of_first[pairs // max(len(of_second), 1)].tolist(), of_second[pairs % max(len(of_second), 1)].tolist(),
            strict=True,
        )
    ]  # fmt: skip
    return np.array(codes, np.int64)[inverse]


def coded(values: Array, code: Callable[[int], int]) -> Ints:
    """``code(a)`` per event, asked once for each distinct value."""
    distinct, inverse = np.unique(values, return_inverse=True)
    return np.array([code(value) for value in distinct.tolist()], np.int64)[inverse.reshape(-1)]


class _ColumnEvents(Record, frozen=False, eq=False):
    """Events made from the columns of a table, and the details of their blocks."""

    details: list[tuple[int, Details]]
    table: trace_table.TraceTable | None = None

    def event(self, file_index: int) -> dict[str, Any]:
        table = self.table
        row = -1 if table is None else int(np.searchsorted(table.file_index, file_index))
        if table is None or row == len(table) or table.file_index[row] != file_index:
            return {}
        event = trace_table.made_event(table, row)
        block = bisect_right(self.details, file_index, key=lambda each: each[0]) - 1
        if block >= 0:
            first, details = self.details[block]
            if callable(details):
                event["args"].update(details(file_index - first))
                return event
            for key, values in details.items():
                if file_index - first < len(values):
                    event["args"][key] = values[file_index - first].tolist()
        return event
