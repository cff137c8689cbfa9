"""Columns that another process made of a part of the events, with codes of its own: taken there, joined here.

Codes count by first appearance. A process whose parts come in file order sees what is new in each of them in file
order, too: numbering that anew, part after part, gives the codes that one process gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from mmap import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.lazy.records import dataclass
from tracelens.trace.reading.chrome.event_columns import FIRST_POINTER_STREAM, GROUPS, MOST_CATEGORIES, TableBuilder
from tracelens.trace.table import Identifier

Array = npt.NDArray[Any]

# Columns begin at multiples of this in shared memory.
_ALIGNED_BYTES = 8
#: Which tables of codes a part tells the news of.
_TABLES = ("categories", "names", "lanes", "signatures", "pointers", "flow_ids")


@dataclass(slots=True, kw_only=True)
class Part:
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

    def taken(self, room: mmap) -> Part | None:
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
        part = Part(
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

    def join(self, part: Part, room: mmap) -> bool:
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
