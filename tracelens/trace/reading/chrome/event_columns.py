"""From typed events to the columns of a table: interning, exact times, flows, metadata events, begin/end pairs."""

from __future__ import annotations

import math
import operator
import re
import struct
from collections import Counter
from collections.abc import Container, Hashable, Mapping, Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from itertools import compress
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import Raw

from tracelens.trace.narrow_columns import GrowingColumns
from tracelens.trace.reading.chrome.event_json import (
    ABSENT,
    SIGNATURE_FIELDS,
    AnyEvent,
    Args,
    Event,
    TextTimedEvent,
    load_element,
    whole_number,
)
from tracelens.trace.table import (
    DEVICE_KINDS,
    NARROW_COLUMNS,
    NARROW_FLOW_COLUMNS,
    SEPARATOR,
    Allocations,
    DramSamples,
    EventWaits,
    Flows,
    Identifier,
    Kind,
    SignatureStore,
    kind_of_category,
)

Array = npt.NDArray[Any]

_ROWS_AT_ONCE = 1 << 17


def by_appearance(codes: Array, count: int) -> Array:
    """The distinct ones of codes below ``count``, in order of appearance."""
    first = np.full(count, len(codes))
    # Of several values for one place the last one stays: the first row's
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    used = np.flatnonzero(first < len(codes))
    return used[np.argsort(first[used])]


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

#: From here on (101 days in µs) a float keeps less than a whole ns.
FLOAT_TIME_LIMIT_US = 2.0**43
#: Half of the int64 range, so that start + duration stays inside.
TIME_LIMIT_NS = 2**62
#: A stream recorded as the text of a pointer gets a number from here on, by first appearance.
FIRST_POINTER_STREAM = 2**30

_MOST_CATEGORIES = 32_000
_MORE_CATEGORIES = "(more categories)"

#: PyTorch 1.8's category of ops, and its name for a step.
_OLD_OPS, _STEP = "Operator", re.compile(r"ProfilerStep#\d+")

#: The columns of a table, and what each is made of.
COLUMNS: dict[str, Any] = {
    "kind": np.uint8, "category": np.int16, "name": np.int32, "lane": np.int32,
    "start_ns": np.int64, "duration_ns": np.int64, "stream": np.int32, "correlation": np.int64,
    "external_id": np.int64, "sequence_number": np.int64, "signature": np.int32, "device": np.int32,
    "file_index": np.int32,
}  # fmt: skip
#: The same of all that a builder collects: rows, arrows, waits, allocations and measured traffic.
GROUPS: dict[str, dict[str, Any]] = {
    "rows": COLUMNS,
    "flows": {"is_start": np.bool_, "category": np.int16, "id": np.int64, "lane": np.int32, "time_ns": np.int64},
    "waits": {"lane": np.int32, "correlation": np.int64, "stream": np.int64, "record": np.int64},
    "allocations": {
        "lane": np.int32, "time_ns": np.int64, "bytes": np.int64, "allocated": np.int64, "reserved": np.int64,
        "device_type": np.int32, "device": np.int32,
    },
    "dram": {
        "lane": np.int32, "time_ns": np.int64, "read_bytes": np.float64, "written_bytes": np.float64,
        "moved_bytes": np.float64,
    },
}  # fmt: skip
#: Which of them a table keeps narrow.
NARROW = {"rows": NARROW_COLUMNS, "flows": NARROW_FLOW_COLUMNS}
#: How PyTorch's profiler names what its caching allocators do.
ALLOCATION = "[memory]"

_NO_ARGS = Args()
_NOTHING_MEASURED = (math.nan,) * 3
_DRAM_FIGURES = operator.attrgetter("dram_read", "dram_written", "dram_moved")
_signature_parts = operator.attrgetter(*SIGNATURE_FIELDS)
#: By kind; host calls and Python functions have no signature: most of a trace skips the look-up.
SIGNED = np.array([k not in (Kind.RUNTIME, Kind.DRIVER, Kind.PYTHON_FUNCTION, Kind.SYNC) for k in Kind])
#: By kind.
ON_DEVICE = np.array([k in DEVICE_KINDS for k in Kind])


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
            for value in dict.fromkeys(values):
                if value not in self._codes:
                    self._add(value)
            return list(map(code_of, values))

    def values(self) -> list[Key]:
        """The values in the order of their codes."""
        distinct = {code: value for value, code in reversed(self._codes.items())}
        return [distinct[code] for code in range(len(distinct))]

    def _add(self, value: Key) -> None:
        codes = self._codes
        if self._limit is None or self._overflow is None or len(codes) < self._limit:
            codes[value] = len(codes)
        else:
            codes[value] = codes.setdefault(self._overflow, self._limit)


class Lanes:
    """(pid, tid) -> code by first appearance; by two look-ups, as making a tuple per event takes as long as both."""

    def __init__(self) -> None:
        self._codes: dict[Identifier, dict[Identifier, int]] = {}
        self._lanes: list[tuple[Identifier, Identifier]] = []

    def code(self, lane: tuple[Identifier, Identifier]) -> int:
        """The code of one lane."""
        self._add(*lane)
        return self._codes[lane[0]][lane[1]]

    def of(self, events: Sequence[AnyEvent]) -> list[int]:
        """The code of every event's lane."""
        codes = self._codes
        try:
            return [codes[e.pid][e.tid] for e in events]
        except KeyError:
            for lane in dict.fromkeys((e.pid, e.tid) for e in events):
                self._add(*lane)
            return [codes[e.pid][e.tid] for e in events]

    def values(self) -> list[tuple[Identifier, Identifier]]:
        """The lanes in the order of their codes."""
        return list(self._lanes)

    def _add(self, pid: Identifier, tid: Identifier) -> None:
        of_process = self._codes.setdefault(pid, {})
        if tid not in of_process:
            of_process[tid] = len(self._lanes)
            self._lanes.append((pid, tid))


class TableBuilder:
    """Collects one array per piece and column; ``fields()`` joins them, dropping each piece as it goes."""

    def __init__(self) -> None:
        self.categories: Codes[str] = Codes(limit=_MOST_CATEGORIES, overflow=_MORE_CATEGORIES)
        self.names: Codes[str] = Codes()
        self.lanes = Lanes()
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
        self._kind_of_category = np.zeros(0, np.uint8)
        self.flow_ids: Codes[str] = Codes()
        self.pointers: Codes[str] = Codes()
        self._open: dict[tuple[Identifier, Identifier], list[tuple[int, AnyEvent]]] = {}
        self._stray_ends = 0
        self._groups = {group: GrowingColumns(types) for group, types in GROUPS.items()}

    @property
    def unmatched_pairs(self) -> int:
        """Begin events without an end, and ends without a begin."""
        return self._stray_ends + sum(map(len, self._open.values()))

    def add(self, events: Sequence[AnyEvent], text_times: bool) -> None:
        """The events of the next piece, in file order."""
        if not events:
            return
        first = self.events_total
        self.events_total += len(events)
        phases = [e.ph for e in events]
        # Counting one phase is four times as fast as counting all of them, and mostly enough.
        if phases.count("X") == len(events):
            self.counts["X"] += len(events)
            self._add_rows(events, np.arange(first, first + len(events)), text_times)
            return
        counts = Counter(phases)
        self.no_events += counts.pop("", 0)
        self.counts.update(counts)
        complete = [ph == "X" for ph in phases]
        index = np.flatnonzero(complete) + first
        if len(index):
            self._add_rows(list(compress(events, complete)), index, text_times)
        self._add_other_phases(events, counts, first, text_times)

    def _add_other_phases(
        self, events: Sequence[AnyEvent], counts: Mapping[str, int], first: int, text_times: bool
    ) -> None:
        """What is no complete event, by how many of each phase there are: arrows, allocations, names, begins, ends."""
        if counts["s"] or counts["f"]:
            self._add_flows([e for e in events if e.ph in ("s", "f")], text_times)
        if counts["i"]:
            self._add_allocations([e for e in events if e.ph == "i" and e.name == ALLOCATION], text_times)
        if counts["C"]:
            self._add_dram_samples(events, text_times)
        if counts["M"]:
            self._add_names([e for e in events if e.ph == "M"])
        if counts["B"] or counts["E"]:
            self._add_pairs(events, first, text_times)

    def fields(self) -> dict[str, Any]:
        """The fields of ``TraceTable`` that come from events alone; the builder is empty afterwards."""
        groups = {group: self.taken(group, NARROW.get(group, ())) for group in GROUPS}
        rows = groups["rows"]
        if self.pair_ends:
            order = np.argsort(rows["file_index"], kind="stable")
            rows.update({key: column[order] for key, column in rows.items()})
        self._mark_steps(rows)
        categories, names, lanes = self.categories.values(), self.names.values(), self.lanes.values()
        return {
            **rows,
            "categories": _reordered(
                categories, renumber([rows["category"], groups["flows"]["category"]], len(categories))
            ),
            "lanes": _reordered(lanes, renumber([group["lane"] for group in groups.values()], len(lanes))),
            **self._in_order(rows, names),
            "flows": Flows(**groups["flows"]),
            "event_waits": EventWaits(**groups["waits"]),
            "allocations": Allocations(**groups["allocations"]),
            "dram_samples": DramSamples(**groups["dram"]),
        }

    def _in_order(self, rows: Mapping[str, Array], names: list[str]) -> dict[str, Any]:
        """What only rows have is in their order, unless pairs are rows at the place of their begin."""
        self.signatures.forget_recorded()
        if self.pair_ends:
            names = _reordered(names, renumber([rows["name"]], len(names)))
            self.signatures.reorder(renumber([rows["signature"]], len(self.signatures)))
        return {"names": names, "signatures": self.signatures}

    def _mark_steps(self, columns: dict[str, Array]) -> None:
        """PyTorch 1.8 calls steps operators, as the ops in them: they are annotations."""
        categories = self.categories.values()
        if _OLD_OPS not in categories:
            return
        is_step = np.array([_STEP.fullmatch(name) is not None for name in self.names.values()], bool)
        steps = (columns["category"] == categories.index(_OLD_OPS)) & is_step[columns["name"]]
        columns["kind"][steps] = Kind.USER_ANNOTATION

    def taken(self, group: str, narrow: Container[str] = ()) -> dict[str, Any]:
        """Every column of one of ``GROUPS``, which is empty afterwards; those ``narrow`` in the narrowest type."""
        return self._groups[group].taken(narrow)

    def append(self, group: str, columns: Mapping[str, Array]) -> None:
        """More of one of ``GROUPS``, behind what there is."""
        self._groups[group].append(columns)

    def _add_rows(self, events: Sequence[AnyEvent], index: Array, text_times: bool) -> None:
        start, valid = _starts_ns(events, text_times)
        if not valid.all():
            self.untimed_events += int((~valid).sum())
            events, index, start = list(compress(events, valid)), index[valid], start[valid]
        duration, repaired = _durations_ns(events)
        self.repaired_durations += repaired
        self._append_rows(events, index, start, duration)

    def _append_rows(self, events: Sequence[AnyEvent], index: Array, start: Array, duration: Array) -> None:
        category = _array(self.categories.of([e.cat for e in events]), np.int16)
        kind = self.kinds()[category]
        row: dict[str, Array] = {
            "kind": kind,
            "category": category,
            "name": _array(self.names.of([e.name for e in events]), np.int32),
            "lane": _array(self.lanes.of(events), np.int32),
            "start_ns": start,
            "duration_ns": duration,
            "file_index": index,
        }
        # Python functions, most of a trace with stacks, have none of these arguments: a quarter of the time here.
        rows = np.flatnonzero(kind != Kind.PYTHON_FUNCTION)
        found = self._argument_columns([events[i].args or _NO_ARGS for i in rows.tolist()], kind[rows])
        for key, values in found.items():
            row[key] = values if len(rows) == len(events) else np.full(len(events), -1, values.dtype)
            row[key][rows] = values
        self._fill_streams(row["stream"], kind, events)
        self._add_waits([events[i] for i in np.flatnonzero(kind == Kind.SYNC).tolist()])
        self.append("rows", row)

    def _argument_columns(self, args: list[Args], kind: npt.NDArray[np.uint8]) -> dict[str, Array]:
        external_id = _int64([a.external_id for a in args])
        old = [a.old_external_id for a in args]
        if old.count(-1) < len(old):
            external_id = np.where(external_id == -1, _int64(old), external_id)
        return {
            "stream": self._streams([a.stream for a in args]),
            "correlation": _int64([a.correlation for a in args]),
            "external_id": external_id,
            "sequence_number": _int64([a.sequence_number for a in args]),
            "signature": self._signature_codes(args, kind),
            "device": self._streams([a.device for a in args]),
        }

    def kinds(self) -> npt.NDArray[np.uint8]:
        """The kind of event by code of its category."""
        categories = self.categories.values()
        if len(self._kind_of_category) != len(categories):
            self._kind_of_category = np.array([kind_of_category(c) for c in categories], np.uint8)
        return self._kind_of_category

    def _signature_codes(self, args: list[Args], kind: npt.NDArray[np.uint8]) -> Array:
        codes = np.full(len(args), -1, np.int32)
        code, join = self.signatures.code, SEPARATOR.join
        for row in np.flatnonzero(SIGNED[kind]).tolist():
            a = args[row]
            if (
                a.collective is not ABSENT
                or a.kernel_backend is not ABSENT
                or a.in_elements is not ABSENT
                or a.group_size is not ABSENT
                or a.group_name is not ABSENT
                or a.kernel_num_gb is not ABSENT
                or a.kernel_flop is not ABSENT
                or a.old_dims is not ABSENT
            ):
                codes[row] = code(join(_signature_parts(a)))
            elif a.dims is not ABSENT or a.scalars is not ABSENT or a.types is not ABSENT:
                codes[row] = code(join((a.dims, a.types, a.strides, a.scalars)))
            elif a.copied is not ABSENT:
                codes[row] = code(join(_signature_parts(a)))
        return codes

    def _streams(self, values: list[int | str]) -> Array:
        try:
            streams = _array(values, np.int32)
            if not len(streams) or streams.max() < FIRST_POINTER_STREAM:
                return streams
        except struct.error:
            pass
        return np.array([self.stream(value) for value in values], np.int32)

    def stream(self, value: int | str) -> int:
        """The number of a stream or device recorded as a number or as the text of a pointer; -1 for none."""
        number = whole_number(value)
        if number is not None and -1 <= number < FIRST_POINTER_STREAM:
            return number
        return -1 if value == "" else FIRST_POINTER_STREAM + self.pointers.of([str(value)])[0]

    def _fill_streams(self, stream: Array, kind: Array, events: Sequence[AnyEvent]) -> None:
        """Kineto's device events have their stream as tid: what old files leave out of the arguments."""
        for row in np.flatnonzero((stream == -1) & ON_DEVICE[kind]).tolist():
            tid = events[row].tid
            if isinstance(tid, int) and 0 <= tid < FIRST_POINTER_STREAM:
                stream[row] = tid

    def _add_flows(self, events: Sequence[AnyEvent], text_times: bool) -> None:
        time, valid = _starts_ns(events, text_times)
        if not valid.all():
            self.untimed_events += int((~valid).sum())
            events, time = list(compress(events, valid)), time[valid]
        row: dict[str, Array] = {
            "is_start": np.array([e.ph == "s" for e in events], np.bool_),
            "category": _array(self.categories.of([e.cat for e in events]), np.int16),
            "id": self._ids([e.id for e in events]),
            "lane": _array(self.lanes.of(events), np.int32),
            "time_ns": time,
        }
        self.append("flows", row)

    def _add_waits(self, events: Sequence[AnyEvent]) -> None:
        events = [e for e in events if e.args is not None and e.args.wait_on_record > 0]
        args = [e.args for e in events if e.args is not None]
        if events:
            row = {
                "lane": _array(self.lanes.of(events), np.int32),
                "correlation": _int64([a.correlation for a in args]),
                "stream": _int64([a.wait_on_stream for a in args]),
                "record": _int64([a.wait_on_record for a in args]),
            }
            self.append("waits", row)

    def _add_allocations(self, events: Sequence[AnyEvent], text_times: bool) -> None:
        if not events:
            return
        time, valid = _starts_ns(events, text_times)
        if not valid.all():
            self.untimed_events += int((~valid).sum())
            events, time = list(compress(events, valid)), time[valid]
        args = [e.args or _NO_ARGS for e in events]
        row: dict[str, Array] = {
            "lane": _array(self.lanes.of(events), np.int32),
            "time_ns": time,
            "bytes": _int64([a.bytes for a in args]),
            "allocated": _int64([a.allocated for a in args]),
            "reserved": _int64([a.reserved for a in args]),
            "device_type": self._streams([a.device_type for a in args]),
            "device": self._streams([a.device_id for a in args]),
        }
        self.append("allocations", row)

    def _add_dram_samples(self, events: Sequence[AnyEvent], text_times: bool) -> None:
        events = [e for e in events if e.ph == "C"]
        figures = np.array([_dram_figures(e.args) for e in events], np.float64)
        measuring: npt.NDArray[np.bool_] = np.isnan(figures).sum(axis=1) < len(_NOTHING_MEASURED)
        if not measuring.any():
            return
        events = list(compress(events, measuring))
        time, valid = _starts_ns(events, text_times)
        self.untimed_events += int((~valid).sum())
        read, written, moved = figures[measuring][valid].T
        row: dict[str, Array] = {
            "lane": _array(self.lanes.of(events), np.int32)[valid],
            "time_ns": time[valid],
            "read_bytes": read,
            "written_bytes": written,
            "moved_bytes": np.where(np.isnan(moved), read + written, moved),
        }
        self.append("dram", row)

    def _ids(self, values: list[int | str | None]) -> Array:
        try:
            ids = _array(values, np.int64)
            if (ids >= 0).all():
                return ids
        except struct.error:
            pass
        return np.array([self._flow_id(value) for value in values], np.int64)

    def _flow_id(self, value: int | str | None) -> int:
        if value is None:
            return -1
        if isinstance(value, int) and 0 <= value < 2**63:
            return value
        return -2 - self.flow_ids.of([str(value)])[0]

    def _add_names(self, events: Sequence[AnyEvent]) -> None:
        """Names of processes and threads."""
        for event in events:
            args = event.args or _NO_ARGS
            if event.name == "process_name":
                self.process_names[event.pid] = label(args.name)
            elif event.name == "process_labels":
                self.process_labels[event.pid] = label(args.labels)
            elif event.name == "thread_name":
                self.thread_names[event.pid, event.tid] = label(args.name)

    def _add_pairs(self, events: Sequence[AnyEvent], first: int, text_times: bool) -> None:
        """Begin and end events nest per lane; a pair becomes a row at its begin's place in the file."""
        paired: list[tuple[int, AnyEvent, AnyEvent]] = []
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
        start, valid = _mixed_starts_ns(begins)
        end, end_valid = _mixed_starts_ns(ends)
        valid &= end_valid
        self.untimed_events += int((~valid).sum())
        for i in rows[~valid].tolist():
            del self.pair_ends[i]
        duration = np.where(valid, end - start, 0)
        self.repaired_durations += int((duration < 0).sum())
        for begin, end_event in zip(begins, ends, strict=True):
            if begin.args is None:
                begin.args = end_event.args
        self._append_rows(list(compress(begins, valid)), rows[valid], start[valid], np.maximum(duration, 0)[valid])


def _reordered(values: list[Any], order: list[int]) -> list[Any]:
    return [values[code] for code in order]


def _dram_figures(args: Args | None) -> tuple[float, ...]:
    """Bytes read, written and moved; NaN for each that is not recorded, or is no amount."""
    recorded = _NOTHING_MEASURED if args is None else _DRAM_FIGURES(args)
    return tuple(each if isinstance(each, (int, float)) and 0 <= each < math.inf else math.nan for each in recorded)


def needs_text_times(events: Sequence[AnyEvent]) -> bool:
    """Whether floats lose digits of these events' times: the piece is then decoded again as ``TextTimedEvent``."""
    times = _array([e.ts for e in events], np.float64)
    with np.errstate(invalid="ignore"):
        return bool((np.abs(times) >= FLOAT_TIME_LIMIT_US).any())


def text_time_ns(text: bytes) -> int | None:
    """A time in µs, as the digits recorded, in ns; exact, halves of a ns to even; None when it is no time."""
    try:
        us = Decimal(text.strip(b'" ').decode("ascii"))
    except (ValueError, InvalidOperation):
        return None
    if not us.is_finite() or us.adjusted() > _MOST_TIME_DIGITS or us.copy_abs() >= TIME_LIMIT_NS // 1000:
        return None
    if us.adjusted() < -_MOST_TIME_DIGITS:
        return 0
    return int(us.scaleb(3, _EXACT).to_integral_value(ROUND_HALF_EVEN))


# Enough digits for any time within the limit; traces record three or six decimals.
_EXACT = Context(prec=60)
_MOST_TIME_DIGITS = 20


def _starts_ns(events: Sequence[AnyEvent], text_times: bool) -> tuple[Array, npt.NDArray[np.bool_]]:
    if not text_times:
        return _exact_ns(_array([e.ts for e in events], np.float64))
    texts = [bytes(e.ts) for e in events if isinstance(e, TextTimedEvent)]
    return _text_times_ns(texts)


def _mixed_starts_ns(events: Sequence[AnyEvent]) -> tuple[Array, npt.NDArray[np.bool_]]:
    """As ``_starts_ns``, for events of several pieces."""
    values = [text_time_ns(repr(e.ts).encode() if isinstance(e, Event) else bytes(e.ts)) for e in events]
    valid = np.array([v is not None for v in values], np.bool_)
    return np.array([v or 0 for v in values], np.int64), valid


def _exact_ns(us: npt.NDArray[np.float64]) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Exact to three decimals below ``FLOAT_TIME_LIMIT_US``: the whole µs never meet the factor 1000 as floats."""
    with np.errstate(invalid="ignore"):
        valid = np.abs(us) < TIME_LIMIT_NS / 1000
        if not valid.all():
            us = np.where(valid, us, 0.0)
    whole = np.floor(us)
    return whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64), valid


_WHOLE = re.compile(rb"(?:\d{1,15} )+")
_THREE_DECIMALS = re.compile(rb"(?:\d{1,15}\.\d{3} )+")


def _text_times_ns(texts: list[bytes]) -> tuple[Array, npt.NDArray[np.bool_]]:
    joined = b" ".join(texts) + b" "
    for pattern, factor in ((_WHOLE, 1000), (_THREE_DECIMALS, 1)):
        if pattern.fullmatch(joined):
            digits = np.array(joined.replace(b".", b"").split(), np.bytes_)
            return digits.astype(np.int64) * factor, np.ones(len(texts), np.bool_)
    values = [text_time_ns(text) for text in texts]
    return np.array([v or 0 for v in values], np.int64), np.array([v is not None for v in values], np.bool_)


def _durations_ns(events: Sequence[AnyEvent]) -> tuple[Array, int]:
    """Durations in ns and how many were put right: negative and unusable ones are 0."""
    duration, valid = _exact_ns(_array([e.dur for e in events], np.float64))
    wrong = ~valid | (duration < 0)
    if wrong.any():
        duration[wrong] = 0
    return duration, int(wrong.sum())


_TYPE_CODES = {np.int16: "h", np.int32: "i", np.int64: "q", np.float64: "d"}


def _array(values: Sequence[Any], dtype: type[np.generic]) -> Array:
    """Numbers as a column; ``struct.error`` for anything else, and for one too large.

    By way of ``struct``, which looks at each number once: a third of what ``np.array`` takes on a list.
    """
    return np.frombuffer(bytearray(struct.pack(f"{len(values)}{_TYPE_CODES[dtype]}", *values)), dtype)


def _int64(values: list[int]) -> Array:
    try:
        return _array(values, np.int64)
    except struct.error:
        return np.array([v if -(2**63) <= v < 2**63 else -1 for v in values], np.int64)


def label(text: Raw | bytes) -> str:
    """A name as recorded, as text; empty where there is none, and for text that is no JSON."""
    if text is ABSENT:
        return ""
    try:
        value = load_element(bytes(text))
    except (ValueError, RecursionError):
        return ""
    return value if isinstance(value, str) else str(value)
