"""From the events of pieces to the columns of a table: interning, flows, metadata events, begin/end pairs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Raw

from tracelens.trace.narrow_columns import GrowingColumns
from tracelens.trace.reading.chrome import decoded_events
from tracelens.trace.reading.chrome.scanned_events import ScannedEvents, by_appearance
from tracelens.trace.table import (
    COLUMNS,
    DEVICE_KINDS,
    NARROW_COLUMNS,
    NARROW_FLOW_COLUMNS,
    Allocations,
    DramSamples,
    EventWaits,
    Flows,
    Identifier,
    Kind,
    SignatureStore,
    kind_of_category,
    node_ids,
)

Array = npt.NDArray[Any]

_ROWS_AT_ONCE = 1 << 17


def renumber(columns: Sequence[Array], count: int) -> list[int]:
    """Changes codes below ``count`` in place: by appearance in the columns, one column after the other.

    Returns the former code of each; those that no row has come last. Negative ones, for nothing, stay.
    """
    order = _order(columns, count)
    codes = np.empty(count + 1, np.int64)
    codes[order] = np.arange(count)
    codes[count] = -1
    if (codes[:count] != np.arange(count)).any():
        for column in columns:
            for start in range(0, len(column), _ROWS_AT_ONCE):
                rows = column[start : start + _ROWS_AT_ONCE]
                rows[:] = codes[rows]
    return order


def _order(columns: Sequence[Array], count: int) -> list[int]:
    order: list[int] = []
    is_new = np.ones(count + 1, bool)
    is_new[count] = False
    for column in columns:
        for start in range(0, len(column), _ROWS_AT_ONCE):
            rows = column[start : start + _ROWS_AT_ONCE]
            new = rows[is_new[rows]]
            if len(new):
                found = by_appearance(new, count)
                order += found.tolist()
                is_new[found] = False
    return order + np.flatnonzero(is_new[:count]).tolist()


Key = TypeVar("Key", bound=Hashable)

#: A stream recorded as the text of a pointer gets a number from here on, by first appearance.
FIRST_POINTER_STREAM = 2**30

_MOST_CATEGORIES = 32_000
_MORE_CATEGORIES = "(more categories)"

#: PyTorch 1.8's category of ops, and its name for a step.
_OLD_OPS, _STEP = "Operator", re.compile(r"ProfilerStep#\d+")

#: The columns of all that a builder collects: rows, arrows, waits, allocations and measured traffic.
GROUPS: dict[str, Mapping[str, Any]] = {
    "rows": COLUMNS,
    "flows": {"is_start": np.bool_, "category": np.int16, "id": np.int64, "lane": np.int32, "time_ns": np.int64},
    "waits": {"lane": np.int32, "correlation": np.int64, "stream": np.int64, "record": np.int64},
    "allocations": {
        "lane": np.int32, "time_ns": np.int64, "bytes": np.int64, "allocated": np.int64, "reserved": np.int64,
        "device_type": np.int32, "device": np.int32,
    },
    "dram": {
        "lane": np.int32, "time_ns": np.int64, "read_bytes": np.float64, "written_bytes": np.float64,
        "moved_bytes": np.float64, "tensor_percent": np.float64, "sm_active_percent": np.float64,
    },
}  # fmt: skip
#: Fields of a table that a builder has under the same name.
_KEPT = ("process_names", "process_labels", "thread_names", "pair_ends", "events_total")
#: Which of them a table keeps narrow.
NARROW = {"rows": NARROW_COLUMNS, "flows": NARROW_FLOW_COLUMNS}
#: How PyTorch's profiler names what its caching allocators do.
_ALLOCATION = "[memory]"

_COMPLETE, _START, _FINISH, _INSTANT, _COUNTER = b"XsfiC"
_INT32 = np.iinfo(np.int32)
#: By kind; host calls and Python functions have no signature: most of a trace skips the look-up.
_IN_GRAPHS = np.array([k in (*DEVICE_KINDS, Kind.RUNTIME, Kind.DRIVER) for k in Kind])
_SIGNED = np.array([k not in (Kind.RUNTIME, Kind.DRIVER, Kind.PYTHON_FUNCTION, Kind.SYNC) for k in Kind])
#: By kind.
_ON_DEVICE = np.array([k in DEVICE_KINDS for k in Kind])


class Codes(Generic[Key]):
    """Value -> code by first appearance. From ``limit`` values on, all new ones share the code of ``overflow``."""

    def __init__(self, *, limit: int | None = None, overflow: Key | None = None) -> None:
        self._codes: dict[Key, int] = {}
        self._limit = limit
        self._overflow = overflow

    def of(self, values: Sequence[Key]) -> list[int]:
        """The code of every value; a value not seen before gets the next one."""
        code_of = self._codes.__getitem__
        try:
            return list(map(code_of, values))
        except KeyError:
            codes = self._codes
            for value in dict.fromkeys(values):
                if value in codes:
                    continue
                if self._limit is None or self._overflow is None or len(codes) < self._limit:
                    codes[value] = len(codes)
                else:
                    codes[value] = codes.setdefault(self._overflow, self._limit)
            return list(map(code_of, values))

    def values(self) -> list[Key]:
        distinct = {code: value for value, code in reversed(self._codes.items())}
        return [distinct[code] for code in range(len(distinct))]


_Events: TypeAlias = ScannedEvents | decoded_events.DecodedEvents


def with_usable_times(rows: dict[str, Any]) -> tuple[dict[str, Any], int, int]:
    """The rows whose times can be added up; how many are left out, how many durations are 0 instead.

    What begins further than ``LONGEST_NS`` from the rest has no usable time. A longer duration is impossible; so is any
    above its share of ``TIME_LIMIT_NS`` in a file where all together exceed that.
    """
    start, duration, untimed = rows["start_ns"], rows["duration_ns"], 0
    if not len(start):
        return rows, 0, 0
    # In floats: whole numbers would wrap
    if float(start.max()) - float(start.min()) > decoded_events.LONGEST_NS:
        middle = np.partition(start, len(start) // 2)[len(start) // 2]
        near = np.abs(start.astype(np.float64) - float(middle)) <= decoded_events.LONGEST_NS / 2
        untimed = int((~near).sum())
        rows = {key: column[near] for key, column in rows.items()}
        duration = rows["duration_ns"]
    most, longest = decoded_events.LONGEST_NS, float(duration.max(initial=0))
    if longest * len(duration) < decoded_events.TIME_LIMIT_NS and longest <= most:
        return rows, untimed, 0
    if duration.sum(dtype=np.float64, where=duration <= most) >= decoded_events.TIME_LIMIT_NS:
        most = decoded_events.TIME_LIMIT_NS // len(duration)
    impossible = duration > most
    rows["duration_ns"] = np.where(impossible, 0, duration)
    return rows, untimed, int(impossible.sum())


class TableBuilder:
    """Collects one array per piece and column; ``fields()`` joins them, dropping each piece as it goes."""

    def __init__(self) -> None:
        self.categories: Codes[str] = Codes(limit=_MOST_CATEGORIES, overflow=_MORE_CATEGORIES)
        self.names: Codes[str] = Codes()
        self.lanes: Codes[tuple[Identifier, Identifier]] = Codes()
        self.signatures = SignatureStore()
        self.counts: Counter[str] = Counter()
        self.events_total = 0
        self.process_names: dict[Identifier, str] = {}
        self.process_labels: dict[Identifier, str] = {}
        self.thread_names: dict[tuple[Identifier, Identifier], str] = {}
        self.pair_ends: dict[int, int] = {}
        self.untimed_events = 0
        self.no_events = 0
        self.repaired_durations = 0
        self._power_counters: list[Array] = []
        self._kind_of_category = np.zeros(0, np.uint8)
        self.flow_ids: Codes[str] = Codes()
        self.pointers: Codes[str] = Codes()
        self._open: dict[tuple[Identifier, Identifier], list[tuple[int, decoded_events.AnyEvent]]] = {}
        self._stray_ends = 0
        self._groups = {group: GrowingColumns(types) for group, types in GROUPS.items()}

    @property
    def unmatched_pairs(self) -> int:
        """Begin events without an end, and ends without a begin."""
        return self._stray_ends + sum(map(len, self._open.values()))

    def add(self, piece: _Events) -> None:
        """The events of the next piece, in file order."""
        first = self.events_total
        self.events_total += len(piece)
        counts = Counter(piece.counts)
        self.no_events += counts.pop("", 0)
        self.counts.update(counts)
        if counts["X"]:
            rows = np.flatnonzero(piece.phase == _COMPLETE)
            self._add_rows(piece, rows, rows + first)
        if counts["s"] or counts["f"]:
            self._add_flows(piece, np.flatnonzero((piece.phase == _START) | (piece.phase == _FINISH)))
        if counts["i"]:
            self._add_allocations(piece, np.flatnonzero(piece.phase == _INSTANT))
        if counts["C"]:
            rows = np.flatnonzero(piece.phase == _COUNTER)
            # Where counters of power stand in the file; what they hold is read when it is asked for
            codes, which = np.unique(piece.name[rows], return_inverse=True)
            named = np.array([code >= 0 and "power" in piece.strings[code].lower() for code in codes.tolist()], bool)
            self._power_counters.append((first + rows[named[which]]).astype(np.int64))
            if isinstance(piece, decoded_events.DecodedEvents):
                self._add_dram_samples(piece, rows)
        if counts["M"]:
            self._add_names(piece)
        if isinstance(piece, decoded_events.DecodedEvents) and (counts["B"] or counts["E"]):
            self._add_pairs(piece.events, first)

    def fields(self) -> dict[str, Any]:
        """The fields of ``TraceTable`` that come from events alone; the builder is empty afterwards."""
        groups: dict[str, dict[str, Any]] = {
            group: columns.take(NARROW.get(group, ())) for group, columns in self._groups.items()
        }
        rows, untimed, impossible = with_usable_times(groups["rows"])
        self.untimed_events += untimed
        self.repaired_durations += impossible
        if self.pair_ends:
            order = np.argsort(rows["file_index"], kind="stable")
            rows.update({key: column[order] for key, column in rows.items()})
        categories, names, lanes = self.categories.values(), self.names.values(), self.lanes.values()
        if _OLD_OPS in categories:
            # PyTorch 1.8 calls steps operators, as the ops in them: they are annotations
            is_step = np.array([_STEP.fullmatch(name) is not None for name in names], bool)
            steps = (rows["category"] == categories.index(_OLD_OPS)) & is_step[rows["name"]]
            rows["kind"][steps] = Kind.USER_ANNOTATION
        self.signatures.forget_recorded()
        if self.pair_ends:  # pairs are rows at the place of their begin: what only rows have is put in their order
            names = _reordered(names, renumber([rows["name"]], len(names)))
            self.signatures.reorder(renumber([rows["signature"]], len(self.signatures)))
        return {
            **rows,
            "categories": _reordered(
                categories, renumber([rows["category"], groups["flows"]["category"]], len(categories))
            ),
            "lanes": _reordered(lanes, renumber([group["lane"] for group in groups.values()], len(lanes))),
            "names": names,
            "signatures": self.signatures,
            "flows": Flows(**groups["flows"]),
            "event_waits": EventWaits(**groups["waits"]),
            "allocations": Allocations(**groups["allocations"]),
            "dram_samples": DramSamples(**groups["dram"]),
            "power_counters": np.concatenate([*self._power_counters, np.zeros(0, np.int64)]),
            "counts_by_phase": dict(self.counts),
            **{name: getattr(self, name) for name in _KEPT},
        }

    def _add_rows(self, piece: _Events, rows: Array, index: Array) -> None:
        """Complete events, by their numbers in the piece; ``index``: their numbers in the file."""
        timed = self._timed(piece, rows)
        rows, index = rows[timed], index[timed]
        duration = piece.duration_ns[rows]
        self.repaired_durations += int((duration < 0).sum())
        category = self._category_codes(piece, rows)
        known = self.categories.values()
        if len(self._kind_of_category) != len(known):
            self._kind_of_category = np.array([kind_of_category(c) for c in known], np.uint8)
        kind = self._kind_of_category[category]
        row: dict[str, Array] = {
            "kind": kind,
            "category": category,
            "name": _coded(piece.name[rows], len(piece.strings), lambda used: self.names.of(_texts(piece, used))),
            "lane": self._lane_codes(piece, rows),
            "start_ns": piece.start_ns[rows],
            "duration_ns": np.maximum(duration, 0),
            "file_index": index,
        }
        # Python functions, most of a trace with stacks, have none of these arguments
        own = np.flatnonzero(kind != Kind.PYTHON_FUNCTION)
        for key, values in self._argument_columns(piece, rows[own], kind[own]).items():
            row[key] = values if len(own) == len(rows) else np.full(len(rows), -1, values.dtype)
            row[key][own] = values
        self._fill_streams(row["stream"], kind, piece, rows)
        self._add_waits(piece, rows[kind == Kind.SYNC])
        self._groups["rows"].append(row)

    def _argument_columns(self, piece: _Events, rows: Array, kind: Array) -> dict[str, Array]:
        keys = ("correlation", "external_id", "old_external_id", "sequence_number", "stream", "device")
        correlation, external_id, old, sequence_number, stream, device = piece.values(keys, rows)
        in_graphs = np.flatnonzero(_IN_GRAPHS[kind])
        graph_node = np.full(len(rows), -1)
        graph_node[in_graphs] = node_ids(*piece.values(("graph", "graph_node"), rows[in_graphs]))
        signature = np.full(len(rows), -1, np.int32)
        signed = np.flatnonzero(_SIGNED[kind])
        signature[signed] = piece.signature_codes(rows[signed], self.signatures.code)
        return {
            "stream": self._streams(piece, stream),
            "correlation": correlation,
            "external_id": np.where(external_id == -1, old, external_id),
            "sequence_number": sequence_number,
            "graph_node": graph_node,
            "signature": signature,
            "device": self._streams(piece, device),
        }

    def _streams(self, piece: _Events, values: Array) -> Array:
        if not len(values) or (_INT32.min <= values.min() and values.max() < FIRST_POINTER_STREAM):
            return values.astype(np.int32)
        distinct, first, numbers = np.unique(values, return_index=True, return_inverse=True)
        codes = np.empty(len(distinct), np.int32)
        for place in np.argsort(first).tolist():
            value = int(distinct[place])
            codes[place] = self._stream(
                piece.strings[value - decoded_events.NO_TIME] if value < decoded_events.LAST_TEXT_NUMBER else value
            )
        return codes[numbers]

    def _stream(self, value: int | str) -> int:
        """The number of a stream or device recorded as a number or as the text of a pointer; -1 for none."""
        number = decoded_events.whole_number(value)
        if number is not None and -1 <= number < FIRST_POINTER_STREAM:
            return number
        return -1 if value == "" else FIRST_POINTER_STREAM + self.pointers.of([str(value)])[0]

    def _fill_streams(self, stream: Array, kind: Array, piece: _Events, rows: Array) -> None:
        """Kineto's device events have their stream as tid: what old files leave out of the arguments."""
        missing = np.flatnonzero((stream == -1) & _ON_DEVICE[kind])
        if len(missing):
            threads = (
                tid if isinstance(tid, int) and 0 <= tid < FIRST_POINTER_STREAM else -1 for _, tid in piece.lanes
            )
            stream[missing] = np.array(list(threads), np.int32)[piece.lane[rows[missing]]]

    def _add_flows(self, piece: _Events, rows: Array) -> None:
        """Ends of arrows."""
        rows = rows[self._timed(piece, rows)]
        ids = piece.ids(rows)
        texts = np.flatnonzero(ids < -1)
        if len(texts):
            codes = _coded(-2 - ids[texts], len(piece.strings), lambda used: self.flow_ids.of(_texts(piece, used)))
            ids[texts] = -2 - codes
        row: dict[str, Array] = {
            "is_start": piece.phase[rows] == _START,
            "category": self._category_codes(piece, rows),
            "id": ids,
            "lane": self._lane_codes(piece, rows),
            "time_ns": piece.start_ns[rows],
        }
        self._groups["flows"].append(row)

    def _add_waits(self, piece: _Events, rows: Array) -> None:
        correlation, stream, record = piece.values(("correlation", "wait_on_stream", "wait_on_record"), rows)
        waits = record > 0
        if waits.any():
            row = {"correlation": correlation, "stream": stream, "record": record}
            row = {key: values[waits] for key, values in row.items()}
            self._groups["waits"].append({"lane": self._lane_codes(piece, rows[waits]), **row})

    def _add_allocations(self, piece: _Events, rows: Array) -> None:
        """What allocators say among the instant events ``rows``."""
        if _ALLOCATION not in piece.strings:
            return
        rows = rows[piece.name[rows] == piece.strings.index(_ALLOCATION)]
        rows = rows[self._timed(piece, rows)]
        if len(rows):
            keys = ("bytes", "allocated", "reserved", "device_type", "device_id")
            nbytes, allocated, reserved, device_type, device = piece.values(keys, rows)
            row: dict[str, Array] = {
                "lane": self._lane_codes(piece, rows),
                "time_ns": piece.start_ns[rows],
                "bytes": nbytes,
                "allocated": allocated,
                "reserved": reserved,
                "device_type": self._streams(piece, device_type),
                "device": self._streams(piece, device),
            }
            self._groups["allocations"].append(row)

    def _add_dram_samples(self, piece: decoded_events.DecodedEvents, rows: Array) -> None:
        figures = piece.traffic(rows)
        measuring = ~np.isnan(figures[:, :3]).all(axis=1)
        if not measuring.any():
            return
        figures, rows = figures[measuring], rows[measuring]
        lane, timed = self._lane_codes(piece, rows), self._timed(piece, rows)
        read, written, moved, tensor, active = figures[timed].T
        row: dict[str, Array] = {
            "lane": lane[timed],
            "time_ns": piece.start_ns[rows[timed]],
            "read_bytes": read,
            "written_bytes": written,
            "moved_bytes": np.where(np.isnan(moved), read + written, moved),
            "tensor_percent": tensor,
            "sm_active_percent": active,
        }
        self._groups["dram"].append(row)

    def _add_names(self, piece: _Events) -> None:
        for number, name, labels in piece.labels:
            lane, kind = piece.lanes[piece.lane[number]], piece.strings[piece.name[number]]
            if kind == "process_name":
                self.process_names[lane[0]] = _label(name)
            elif kind == "process_labels":
                self.process_labels[lane[0]] = _label(labels)
            elif kind == "thread_name":
                self.thread_names[lane] = _label(name)

    def _timed(self, piece: _Events, rows: Array) -> npt.NDArray[np.bool_]:
        """Which of the events have a usable time; the others are counted."""
        timed: npt.NDArray[np.bool_] = piece.start_ns[rows] != decoded_events.NO_TIME
        self.untimed_events += int((~timed).sum())
        return timed

    def _category_codes(self, piece: _Events, rows: Array) -> Array:
        of = self.categories.of
        return _coded(piece.category[rows], len(piece.strings), lambda used: of(_texts(piece, used))).astype(np.int16)

    def _lane_codes(self, piece: _Events, rows: Array) -> Array:
        return _coded(
            piece.lane[rows], len(piece.lanes), lambda used: self.lanes.of([piece.lanes[number] for number in used])
        )

    def _add_pairs(self, events: Sequence[decoded_events.AnyEvent], first: int) -> None:
        """Begin and end events nest per lane; a pair becomes a row at its begin's place in the file."""
        paired: list[tuple[int, decoded_events.AnyEvent, decoded_events.AnyEvent]] = []
        for position, event in enumerate(events, first):
            if event.ph == "B":
                self._open.setdefault((event.pid, event.tid), []).append((position, event))
            elif event.ph == "E":
                if not (stack := self._open.get((event.pid, event.tid))):
                    self._stray_ends += 1
                    continue
                index, begin = stack.pop()
                self.pair_ends[index] = position
                paired.append((index, begin, event))
        if not paired:
            return
        rows: Array = np.array([i for i, _, _ in paired])
        begins, ends = [b for _, b, _ in paired], [e for _, _, e in paired]
        start, valid = decoded_events.mixed_starts_ns(begins)
        end, end_valid = decoded_events.mixed_starts_ns(ends)
        valid &= end_valid
        for i in rows[~valid].tolist():
            del self.pair_ends[i]
        for begin, end_event in zip(begins, ends, strict=True):
            if begin.args is None:
                begin.args = end_event.args
        piece = decoded_events.DecodedEvents(
            begins, np.where(valid, start, decoded_events.NO_TIME), np.where(valid, end - start, 0)
        )
        self._add_rows(piece, np.arange(len(begins)), rows)


def _coded(numbers: Array, count: int, codes_of: Callable[[list[int]], list[int]]) -> Array:
    """Codes for numbers below ``count``; ``codes_of`` is asked for those that there are, in order of appearance."""
    used = by_appearance(numbers, count)
    codes: Array = np.zeros(count, np.int32)
    codes[used] = codes_of(used.tolist())
    return codes[numbers]


def _texts(piece: _Events, numbers: list[int]) -> list[str]:
    return [piece.strings[number] for number in numbers]


def _reordered(values: list[Any], order: list[int]) -> list[Any]:
    return [values[code] for code in order]


def _label(text: Raw | bytes) -> str:
    """A name as recorded, as text; empty where there is none, and for text that is no JSON."""
    if not text:
        return ""
    try:
        value = decoded_events.load_element(bytes(text))
    except (ValueError, RecursionError):
        return ""
    return value if isinstance(value, str) else str(value)
