"""Pieces of a large event list turned into columns by forked processes, and their columns joined: the result is the
same as in one process.

Columns that another process made of a part of the events, with codes of its own: taken there, joined here.

Codes count by first appearance. A process whose parts come in file order sees what is new in each of them in file
order, too: numbering that anew, part after part, gives the codes that one process gives.

Pieces of a large event list turned into columns by forked processes, with the same result as in one.

This process cuts the text where it would cut it if nothing in it were damaged; whoever parses a piece finds out whether
that holds. From the first batch on where it does not, or whose process died, this process reads alone again.

Text and columns go through anonymous shared memory, which is no file, and not limited in containers as /dev/shm is.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from mmap import mmap
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens.executors import available_cores
from tracelens.files.memory_limit import private_bytes
from tracelens.lazy.records import dataclass
from tracelens.trace.reading.chrome.chunks import PieceIndex, PieceMark, Pieces
from tracelens.trace.reading.chrome.event_columns import (
    FIRST_POINTER_STREAM,
    GROUPS,
    MOST_CATEGORIES,
    TableBuilder,
    needs_text_times,
)
from tracelens.trace.reading.chrome.event_json import FAILURES, decoded
from tracelens.trace.table import Identifier

Array = npt.NDArray[Any]

# Columns begin at multiples of this in shared memory.
_ALIGNED_BYTES = 8
#: Which tables of codes a part tells the news of.
_TABLES = ("categories", "names", "lanes", "signatures", "pointers", "flow_ids")


@dataclass(slots=True, kw_only=True)
class EventPart:
    """What a builder took in since its last part, except the columns themselves: ``lengths`` of each of ``GROUPS``.

    ``new``: what its tables of codes have more than before; ``repairs``: values that were not of their field's type.
    """

    lengths: tuple[int, ...]
    new: dict[str, list[Any]]
    counts: Counter[str]
    events_total: int
    no_events: int
    untimed_events: int
    repaired_durations: int
    process_names: dict[Identifier, str]
    process_labels: dict[Identifier, str]
    thread_names: dict[tuple[Identifier, Identifier], str]
    repairs: int = 0


class PartTaker:
    """Takes parts from a builder. Events that depend on what an earlier part holds (begins and ends) are in none."""

    def __init__(self) -> None:
        self._known = dict.fromkeys(_TABLES, 0)
        self.builder = TableBuilder()

    def taken(self, room: mmap) -> EventPart | None:
        """The builder's events since the last part, their columns in ``room``; None where that cannot be done."""
        builder = self.builder
        if builder.counts["B"] or builder.counts["E"] or len(builder.categories) > MOST_CATEGORIES:
            return None
        groups = {group: builder.taken(group) for group in GROUPS}
        lengths = tuple(len(next(iter(columns.values()))) for columns in groups.values())
        if _size(lengths) > len(room):
            return None
        for group, key, target in _views(room, lengths):
            target[:] = groups[group][key]
        part = EventPart(
            lengths=lengths,
            new={table: getattr(builder, table).newest(known) for table, known in self._known.items()},
            counts=builder.counts,
            events_total=builder.events_total,
            no_events=builder.no_events,
            untimed_events=builder.untimed_events,
            repaired_durations=builder.repaired_durations,
            process_names=builder.process_names,
            process_labels=builder.process_labels,
            thread_names=builder.thread_names,
        )
        for table, values in part.new.items():
            self._known[table] += len(values)
        builder.counts = Counter()
        builder.events_total = builder.no_events = builder.untimed_events = builder.repaired_durations = 0
        builder.process_names, builder.process_labels, builder.thread_names = {}, {}, {}
        return part


class PartJoiner:
    """Adds the parts of one other process to a builder."""

    def __init__(self, builder: TableBuilder) -> None:
        self._builder = builder
        # The last place stays -1: that is where -1, "not recorded", leads
        self._codes = {table: np.full(1, -1, np.int64) for table in _TABLES}

    def join(self, part: EventPart, room: mmap) -> bool:
        """Adds a part, whose columns are in ``room``; False, with nothing added, where codes would run out."""
        builder = self._builder
        if len(builder.categories) + len(part.new["categories"]) > MOST_CATEGORIES:
            return False
        for table, new in part.new.items():
            if new:
                numbered = np.array([*self._numbered(table, new), -1], np.int64)
                self._codes[table] = np.concatenate((self._codes[table][:-1], numbered))
        columns: dict[str, dict[str, Array]] = {group: {} for group in GROUPS}
        for group, key, values in _views(room, part.lengths):
            columns[group][key] = self._own(group, key, values)
        for group, length in zip(GROUPS, part.lengths, strict=True):
            if length:
                builder.append(group, columns[group])
        builder.counts.update(part.counts)
        builder.events_total += part.events_total
        builder.no_events += part.no_events
        builder.untimed_events += part.untimed_events
        builder.repaired_durations += part.repaired_durations
        builder.process_names.update(part.process_names)
        builder.process_labels.update(part.process_labels)
        builder.thread_names.update(part.thread_names)
        return True

    def _numbered(self, table: str, values: list[Any]) -> list[int]:
        if table == "lanes":
            return [self._builder.lanes.code(lane) for lane in values]
        if table == "signatures":
            return [self._builder.signatures.code_of_text(text) for text in values]
        codes: list[int] = getattr(self._builder, table).of(values)
        return codes

    def _own(self, group: str, key: str, values: Array) -> Array:
        """A column with this process's codes, as an array of its own."""
        dtype = GROUPS[group][key]
        table = _TABLE_OF_COLUMN.get(key)
        if table is not None:
            codes: Array = self._codes[table][values].astype(dtype)
            return codes
        if key == "file_index":
            return np.add(values, self._builder.events_total, dtype=dtype)
        if group != "waits" and key in ("stream", "device", "device_type"):
            return _replaced(values, values >= FIRST_POINTER_STREAM, FIRST_POINTER_STREAM, self._codes["pointers"])
        if group == "flows" and key == "id":
            return -2 - _replaced(-2 - values, values < -1, 0, self._codes["flow_ids"])
        return values.copy()


_TABLE_OF_COLUMN = {"category": "categories", "name": "names", "lane": "lanes", "signature": "signatures"}


def _replaced(values: Array, is_code: npt.NDArray[np.bool_], first: int, codes: Array) -> Array:
    """A copy with the codes, which count from ``first``, translated."""
    values = values.copy()
    if is_code.any():
        values[is_code] = codes[values[is_code] - first] + first
    return values


def _views(room: mmap, lengths: Iterable[int]) -> Iterator[tuple[str, str, Array]]:
    """Group, name and place in ``room`` of every column."""
    offset = 0
    for (group, columns), length in zip(GROUPS.items(), lengths, strict=True):
        for key, dtype in columns.items():
            yield group, key, np.frombuffer(room, dtype, length, offset)
            offset += _column_bytes(length, dtype)


def _size(lengths: Iterable[int]) -> int:
    return sum(
        _column_bytes(length, dtype)
        for columns, length in zip(GROUPS.values(), lengths, strict=True)
        for dtype in columns.values()
    )


def _column_bytes(length: int, dtype: Any) -> int:
    size: int = length * np.dtype(dtype).itemsize
    return -(-size // _ALIGNED_BYTES) * _ALIGNED_BYTES


#: How much text a process is given at a time.
BATCH_BYTES = 2 << 20
#: One process inflates, cuts and joins for no more than this.
MOST_PROCESSES = 4
# While a process works on one batch, the next one is ready for it.
_ROOMS = 2
# A piece can be larger than a batch by what one read gives. Pages that nobody writes to take no memory.
_TEXT_ROOM_BYTES = 8 << 20
# An event of 20 bytes takes 70 in columns.
_COLUMN_ROOM_BYTES = 4 * _TEXT_ROOM_BYTES
# A batch takes 0.02 s of a core: a process that does not answer for so long will not, whatever the reason.
_PATIENCE_S = 60.0
# So many processes for each core want to run: a third more took 1.15 times the wall time of one, then.
_BUSY = 2
_STOPPING = (signal.SIGINT, signal.SIGTERM)

#: What a process is told of a batch: its room, whether times are taken as digits, and the lengths of its pieces.
_Order: TypeAlias = tuple[int, bool, tuple[int, ...]]
#: What it answers: the part, the number of events of each piece, and the bytes of memory that only it uses.
_Answer: TypeAlias = tuple[EventPart, list[int], int]


def usable_processes() -> int:
    """How many processes may read for this one; 1 where all cores have work already, and where forking is not safe.

    A fork copies the calling thread alone: a lock that another thread holds stays locked in the copy.
    """
    if (
        sys.platform != "linux"
        or threading.active_count() > 1
        or threading.current_thread() is not threading.main_thread()
        or multiprocessing.parent_process() is not None
        or "mpi4py.MPI" in sys.modules
        or os.getloadavg()[0] > _BUSY * (os.cpu_count() or 1)
    ):
        return 1
    return min(available_cores(), MOST_PROCESSES)


def read_ahead(pieces: Pieces, builder: TableBuilder, index: PieceIndex, may_go_on: Callable[[int], bool]) -> bool:
    """Adds pieces for as long as they are as presumed, and leaves the others; False where it is no use to try again.

    ``may_go_on`` is asked after every batch, with the bytes of memory that the other processes take.
    """
    count = usable_processes()
    readers = _started(count) if count > 1 else []
    if not readers:
        return False
    try:
        return _Joining(pieces, builder, index, readers).run(may_go_on)
    finally:
        pieces.forget(None)
        for reader in readers:
            reader.stop()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Batch:
    """Pieces that were given to a process: where they are in the text, and where the batch begins."""

    mark: PieceMark
    places: tuple[tuple[int, int], ...]


class _Joining:
    """Gives batches to processes in turn, and adds what they make of them in file order."""

    def __init__(self, pieces: Pieces, builder: TableBuilder, index: PieceIndex, readers: Sequence[_Reader]) -> None:
        self._pieces = pieces
        self._builder = builder
        self._index = index
        self._readers = readers
        self._joiners = [PartJoiner(builder) for _ in readers]
        self._memory = [0] * len(readers)
        self._waiting: deque[_Batch] = deque()
        self._given = 0

    def run(self, may_go_on: Callable[[int], bool]) -> bool:
        """False where it was told not to go on."""
        gives = may = True
        while gives or self._waiting:
            if self._waiting and (not gives or len(self._waiting) == _ROOMS * len(self._readers)):
                if not may or not self._join(self._waiting[0]):
                    self._pieces.go_back(self._waiting[0].mark)
                    return may
                self._waiting.popleft()
                may = may_go_on(sum(self._memory))
            gives = gives and self._give()
        return may

    def _give(self) -> bool:
        """Cuts the next batch; False where there is none, or it is not for others."""
        reader, room = self._place(self._given)
        text = reader.rooms[room][0]
        mark, used = self._pieces.mark(), 0
        places: list[tuple[int, int]] = []
        while used < BATCH_BYTES and (found := self._pieces.presumed()) is not None:
            offset, piece = found
            if used + len(piece) > len(text):
                self._pieces.go_back(mark)
                return False
            text[used : used + len(piece)] = piece
            used += len(piece)
            places.append((offset, len(piece)))
        if places:
            reader.give((room, self._pieces.text_times, tuple(length for _, length in places)))
            self._waiting.append(_Batch(mark=mark, places=tuple(places)))
            self._given += 1
        return bool(places)

    def _join(self, batch: _Batch) -> bool:
        number = self._given - len(self._waiting)
        reader, room = self._place(number)
        answer = reader.answer()
        if answer is None:
            return False
        part, events, memory = answer
        first = self._builder.events_total
        if not self._joiners[number % len(self._readers)].join(part, reader.rooms[room][1]):
            return False
        for (offset, length), count in zip(batch.places, events, strict=True):
            self._index.add_text(offset, length, first)
            first += count
        self._pieces.repairs += part.repairs
        self._memory[number % len(self._readers)] = memory
        if len(self._waiting) > 1:
            self._pieces.forget(self._waiting[1].mark)
        return True

    def _place(self, number: int) -> tuple[_Reader, int]:
        """Which process has the batch of that number, and in which of its rooms."""
        turn, place = divmod(number, len(self._readers))
        return self._readers[place], turn % _ROOMS


class _Reader:
    """A forked process, and the memory that it shares with this one: ``rooms`` for text and for columns."""

    def __init__(self, before: Sequence[_Reader]) -> None:
        """``before``: the processes started before; OSError where the system gives no other one, or no memory."""
        self.rooms = [(mmap(-1, _TEXT_ROOM_BYTES), mmap(-1, _COLUMN_ROOM_BYTES)) for _ in range(_ROOMS)]
        self._connection, there = multiprocessing.Pipe()
        # Copies of this end would hide from the process that this one has ended
        here = [self._connection, *(reader._connection for reader in before)]
        fork = multiprocessing.get_context("fork")
        self._process = fork.Process(target=_serve, args=(there, here, self.rooms), daemon=True)
        with warnings.catch_warnings():
            # Python 3.12 warns of any thread of the process; ours are counted, and those of libraries do not matter to
            # what a reader calls
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        there.close()

    def give(self, order: _Order) -> None:
        with contextlib.suppress(OSError):  # it died, which its missing answer tells
            self._connection.send(order)

    def answer(self) -> _Answer | None:
        """What it made of the oldest batch not answered yet; None where that is nothing, or the process died."""
        try:
            answer: _Answer | None = self._connection.recv() if self._connection.poll(_PATIENCE_S) else None
        except (EOFError, OSError):
            return None
        return answer

    def stop(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.join()
        with contextlib.suppress(ValueError):  # whoever ignores SIGCHLD never hears that it has ended
            self._process.close()


def _started(count: int) -> list[_Reader]:
    readers: list[_Reader] = []
    with _no_stopping():
        try:
            for _ in range(count):
                readers.append(_Reader(readers))
        except (OSError, RuntimeError):  # a subinterpreter may not fork
            for reader in readers:
                reader.stop()
            return []
    return readers


@contextlib.contextmanager
def _no_stopping() -> Iterator[None]:
    """Signals that would stop this process arrive after the block: a process forked in it has its own way with them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection, others: Sequence[Connection], rooms: Sequence[tuple[mmap, mmap]]) -> None:
    """What a forked process does until the other one has gone, or it cannot do what it is asked for."""
    # Ctrl-C reaches all processes of a terminal: the other one decides
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
    # It would walk, and so copy, what the other process made
    gc.disable()
    for other in others:
        other.close()
    taker = PartTaker()
    # What goes wrong here goes wrong again in the process that reads alone then, and is told there
    with contextlib.suppress(Exception):
        while (answer := _answer(connection.recv(), rooms, taker)) is not None:
            connection.send(answer)
    os._exit(0)


def _answer(order: _Order, rooms: Sequence[tuple[mmap, mmap]], taker: PartTaker) -> _Answer | None:
    room, text_times, lengths = order
    text, columns = rooms[room]
    counts, repairs, end = [], 0, 0
    for length in lengths:
        start, end = end, end + length
        try:
            events, coerced = decoded(b"".join((b"[", memoryview(text)[start:end], b"]")), text_times=text_times)
        except FAILURES:
            return None
        if not text_times and needs_text_times(events):
            return None
        taker.builder.add(events, text_times)
        counts.append(len(events))
        repairs += coerced
        del events
    part = taker.taken(columns)
    if part is None:
        return None
    part.repairs = repairs
    return part, counts, private_bytes()
