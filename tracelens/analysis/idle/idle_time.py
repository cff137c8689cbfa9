"""Idle time of the device by cause, from the launch queue and the host's calls, and the window as parts.

The parts are device events, each with the time that is its own, then idle time; together they are the whole window. An
event that overlaps another brings nothing by becoming shorter, so every moment belongs to one part.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity, streams_of
from tracelens.analysis.attribution.host_time import HOST_CAUSES, HostCalls, HostTime, named
from tracelens.analysis.attribution.steps import LONGEST_LATENCY_NS
from tracelens.analysis.grouping import Codes, by_number, distinct_rows, numbered
from tracelens.analysis.intervals import Bools, Ints, Spans, idle_within, intersections
from tracelens.trace.narrow_columns import Column, narrowed
from tracelens.trace.table import Kind, RowColumn, TraceTable
from tracelens.trace.tree import OpTree
from tracelens.types.records import Record, pd
from tracelens.types.units import NS_PER_US

#: When an event was launched if neither its launch nor a bound of it is known.
NEVER = np.iinfo(np.int64).max

_WAITS_FOR_EVENT = re.compile(r"^(?:cuda|hip|cu)StreamWaitEvent")
# A word of memory that another device or rank writes: symmetric memory, signals between ranks.
_WAITS_FOR_VALUE = re.compile(r"^(?:cuda|hip|cu)Stream(?:WaitValue|BatchMemOp)")


class Queue(Record, frozen=True, kw_only=True, eq=False):
    """Columns over all device ``events`` of a file, times in ns.

    ``lane``: which of the file's streams each ran on. ``launch``: row of the launch, -1 where it is not known.
    ``called``: start of the launch call; a stream runs its events in order, so one without a recorded launch had been
    launched by the time at which any later one of its stream was: just before that call; ``NEVER`` where nothing says
    when. ``launched``: when the launch was done: the end of the call, at the latest the start of the first event of
    that launch, and this start of a call that waits for the copy that it launches. ``after_event``, ``after_value``: no
    launch of the thread lies between a call that let a stream wait (for an event, for a value in memory) and this
    launch.
    """

    events: DeviceActivity
    lane: Codes
    launch: RowColumn
    called: Ints
    launched: Ints
    after_event: Bools
    after_value: Bools

    def places(self, part: DeviceActivity) -> Codes:
        """Where these of the ``events`` stand among them."""
        if len(part) == len(self.events):
            return np.arange(len(part), dtype=np.int32)
        return np.searchsorted(self.events.rows, part.rows).astype(np.int32)


def queue(table: TraceTable, tree: OpTree, host: HostCalls, events: DeviceActivity) -> Queue:
    """``events`` must be all device events of the file: what runs later bounds what has no launch."""
    launch = tree.launch[events.rows]
    linked = launch >= 0
    calls = (table.kind == Kind.RUNTIME) | (table.kind == Kind.DRIVER)
    after_event = _directly_after(table, launch, named(table, _WAITS_FOR_EVENT, calls))
    after_value = _directly_after(table, launch, named(table, _WAITS_FOR_VALUE, calls))
    called, done = np.full(len(launch), NEVER), np.full(len(launch), NEVER)
    called[linked] = table.start_ns[launch[linked]]
    is_call = np.zeros(len(launch), np.bool_)
    is_call[linked] = np.isin(table.kind[launch[linked]], (Kind.RUNTIME, Kind.DRIVER))
    returns = is_call.copy()
    returns[is_call] = ~host.blocking[launch[is_call]]
    done[returns] = table.ends_ns(launch[returns])
    # Of a launch that is known only as its op, the op's start is all that is known
    early = linked & (~is_call | (~returns & (after_event | after_value)))
    done[early] = called[early]
    number = numbered(launch)
    starts = np.full(int(number.max(initial=-1)) + 1, NEVER)
    np.minimum.at(starts, number, events.start)
    first = np.where(linked, starts[number], events.start)
    lane = narrowed(streams_of(table, events)[1])
    called = np.where(linked, called, _latest_call(lane, events.start, called))
    return Queue(
        events=events,
        lane=lane,
        launch=launch,
        called=called,
        launched=np.minimum(np.where(linked, done, called), first),
        after_event=after_event,
        after_value=after_value,
    )


def _latest_call(lane: Codes, start: Ints, called: Ints) -> Ints:
    """Just before the earliest call that launched any later event of the stream; ``NEVER`` where none is known."""
    order = np.lexsort((start, lane))[::-1]
    bound = called[order]
    for part in np.split(np.arange(len(order)), np.flatnonzero(np.diff(lane[order])) + 1):
        bound[part] = np.minimum.accumulate(bound[part])
    result = np.empty(len(order), np.int64)
    result[order] = bound - (bound != NEVER)
    return result


def _directly_after(table: TraceTable, launch: RowColumn, wanted: npt.NDArray[np.bool_]) -> Bools:
    """Which launches have one of the ``wanted`` calls of their thread before them and no other launch between."""
    found = np.zeros(len(launch), np.bool_)
    calls = np.flatnonzero(wanted)
    if not len(calls):
        return found
    launches = distinct_rows(launch[launch >= 0], len(table))
    launches_of = {lane: launches[at] for lane, at in by_number(table.lane[launches])}
    follow = [launches[:0]]
    for lane, at in by_number(table.lane[calls]):
        waits = np.sort(table.start_ns[calls[at]])
        own = launches_of.get(lane, launches[:0])
        own = own[np.argsort(table.start_ns[own], kind="stable")]
        time = table.start_ns[own]
        before = np.concatenate(([np.iinfo(np.int64).min], time[:-1]))
        follows = np.searchsorted(waits, time) > np.searchsorted(waits, before[: len(time)])
        follow.append(own[follows])
    return np.isin(launch, np.concatenate(follow))


EVENT_WAIT = "event wait"
ANOTHER_RANK = "another rank"
COPY_ENGINE = "copy engine busy"
STREAM_DEPENDENCY = "stream dependency"
BEFORE_RECORDING = "work from before recording"
UNRECORDED = "device wait, cause not recorded"
QUEUED = "between queued kernels"
LATENCY = "launch latency"
UNKNOWN = "unknown"
#: What kept a device that had work in its queue.
DEVICE_CAUSES = (
    EVENT_WAIT, ANOTHER_RANK, COPY_ENGINE, STREAM_DEPENDENCY, BEFORE_RECORDING, UNRECORDED, QUEUED, LATENCY,
)  # fmt: skip
#: Every cause; those of the host first.
CAUSES = (*HOST_CAUSES, *DEVICE_CAUSES, UNKNOWN)
#: Gaps that the sheet of single gaps lists; the causes count all of them.
MAX_GAPS = 100
_WITHIN_A_DEVICE = re.compile(r"DtoD|Device -> Device|D2D")
# When a stream became free for the first event of it that was recorded.
_NOT_KNOWN = np.iinfo(np.int64).min
# Gaps that are taken at a time: the columns made on the way stay small.
_BLOCK = 1 << 14


class IdleGaps(Record, frozen=True, kw_only=True, eq=False):
    """The gaps of a window in order of time.

    ``cause`` indexes ``CAUSES``: the one with the largest share of the gap, ``share`` its ns. ``empty_until``: till
    then the queue was empty, because the host had launched nothing. ``after``, ``before``: positions in ``rows``, the
    table's rows of device events, of the event that ended the gap, -1 where the recording ended first, and of the one
    that ran last, -1 for a gap at the window's start. By cause: ``idle`` ns, the number of ``gaps`` that have it, its
    ``longest`` share of one. ``window_ns``: length of the window.
    """

    start: Ints
    end: Ints
    cause: npt.NDArray[np.int8]
    share: Ints
    empty_until: Ints
    after: RowColumn
    before: RowColumn
    rows: RowColumn
    idle: Ints
    gaps: Ints
    longest_ns: Ints
    window_ns: int

    @property
    def total_ns(self) -> int:
        return int((self.end - self.start).sum())

    def by_cause(self) -> pd.DataFrame:
        """One row per cause that occurs, the longest first; ``idle_us`` adds up to the window's idle time."""
        shown = [i for i in sorted(range(len(CAUSES)), key=lambda i: (-self.idle[i], CAUSES[i])) if self.gaps[i]]
        idle, gaps = self.idle[shown], self.gaps[shown]
        total = self.total_ns
        return pd.DataFrame(
            {
                "cause": [CAUSES[i] for i in shown],
                "gaps": gaps,
                "idle_us": idle / NS_PER_US,
                "idle_us_mean": idle / NS_PER_US / gaps,
                "idle_us_max": self.longest_ns[shown] / NS_PER_US,
                "percent_of_idle": 100 * idle / total if total else idle * 0.0,
                "percent_of_window": 100 * idle / self.window_ns if self.window_ns else idle * 0.0,
            }
        )

    def longest(self, table: TraceTable, tree: OpTree, *, most: int = MAX_GAPS) -> pd.DataFrame:
        """The ``most`` longest gaps; ``start_us`` counts from the trace's first event."""
        length = self.end - self.start
        order = np.lexsort((self.start, -length))[:most]
        base = int(table.start_ns.min()) if len(table) else 0
        rows = np.append(self.rows, -1)
        after, before = rows[self.after[order]].tolist(), rows[self.before[order]].tolist()
        op = [int(tree.op[row]) if row >= 0 else -1 for row in after]
        return pd.DataFrame(
            {
                "start_us": (self.start[order] - base) / NS_PER_US,
                "idle_us": length[order] / NS_PER_US,
                "cause": [CAUSES[i] for i in self.cause[order].tolist()],
                "percent_of_gap": 100 * self.share[order] / length[order],
                "queue_empty_us": (self.empty_until - self.start)[order] / NS_PER_US,
                "kernel_before": [table.name_of(row) if row >= 0 else None for row in before],
                "kernel_after": [table.name_of(row) if row >= 0 else None for row in after],
                "op_after": [table.name_of(row) if row >= 0 else None for row in op],
            }
        )


class IdleParts(Record, frozen=True, kw_only=True, eq=False):
    """Parts of gaps in order of time, each of one cause (index into ``CAUSES``).

    What a host thread did by turns is one part for each cause; which of them came first is not kept.
    ``row``: table row of the launch that the host was late with, or of the device event that waited; -1 without one.
    """

    start: Ints
    end: Ints
    cause: npt.NDArray[np.int8]
    row: RowColumn

    @property
    def by_cause(self) -> Ints:
        """How long (ns) the device was idle for each of ``CAUSES``."""
        total = np.zeros(len(CAUSES), np.int64)
        np.add.at(total, self.cause, self.end - self.start)
        return total


class IdleTime:
    """The gaps of ``activity`` in ``spans`` and their causes; ``queued``: also what lies outside of them.

    A gap is split where the queue stopped being empty: at the end of the first launch call of anything that ran after
    the gap. Until then the host was late, and what the launching thread was at says why, to the nanosecond. From then
    on the device waited: for an event or a value where the stream had just been told to, else as
    ``_DeviceWaits.causes`` says. The time before a launch that was not recorded is ``unknown``.
    """

    def __init__(
        self, table: TraceTable, tree: OpTree, host: HostCalls, activity: DeviceActivity, queued: Queue, spans: Spans
    ) -> None:
        self._table, self._spans = table, spans
        self._rows = np.append(queued.events.rows, np.int32(-1))
        self._gaps = _gaps(table, queued, activity, spans)
        self._time = HostTime(table, tree, host)

    def gaps(self) -> IdleGaps:
        """All gaps, each with its largest cause."""
        return self._whole[0]

    @cached_property
    def _whole(self) -> tuple[IdleGaps, IdleParts]:
        """All gaps and their parts, which are two views of the same shares."""
        gaps, count = self._gaps, len(self._gaps.start)
        gap, parts = self._parts(np.arange(count), gaps.start, gaps.end)
        ns, share, cause = parts.end - parts.start, np.zeros(count, np.int64), np.zeros(count, np.int8)
        np.maximum.at(share, gap, ns)
        largest = np.flatnonzero(ns == share[gap])[::-1]
        # Of several as large the first one, as the last value stays
        cause[gap[largest]] = parts.cause[largest]
        longest_ns = np.zeros(len(CAUSES), np.int64)
        np.maximum.at(longest_ns, parts.cause, ns)
        whole = IdleGaps(
            **{key: getattr(gaps, key) for key in ("start", "end", "empty_until", "after", "before")},
            cause=cause,
            share=share,
            rows=self._rows[:-1],
            idle=parts.by_cause,
            gaps=np.bincount(parts.cause, minlength=len(CAUSES)),
            longest_ns=longest_ns,
            window_ns=int((self._spans[1] - self._spans[0]).sum()),
        )
        return whole, parts

    def within(self, spans: Spans) -> IdleParts:
        """What lies in ``spans``, which are in order and apart; each moment has the cause that it has in ``gaps``."""
        if all(np.array_equal(own, other) for own, other in zip(self._spans, spans, strict=True)):
            return self._whole[1]
        return self._parts(*intersections((self._gaps.start, self._gaps.end), spans))[1]

    def _parts(self, at: Ints, start: Ints, end: Ints) -> tuple[Ints, IdleParts]:
        """(of which of these each is, the parts of the gaps ``at`` from ``start`` to ``end``, cause behind cause)."""
        found = []
        for low in range(0, max(len(at), 1), _BLOCK):
            block = slice(low, low + _BLOCK)
            gaps, first = self._gaps.part(at[block]), start[block]
            shares = self._shares(gaps, first, end[block])
            number, cause = np.nonzero(shares)
            ns = shares[number, cause]
            before = np.cumsum(ns) - ns
            begin = first[number] + before - before[np.searchsorted(number, number)]
            launch = np.where(cause < len(HOST_CAUSES), gaps.launch[number], -1)
            row = np.where(launch >= 0, launch, self._rows[gaps.after[number]])
            found.append((low + number, begin, begin + ns, cause.astype(np.int8), row.astype(np.int32)))
        gap, begins, ends, causes, rows = (np.concatenate(column) for column in zip(*found, strict=True))
        return gap, IdleParts(start=begins, end=ends, cause=causes, row=rows)

    def _shares(self, gaps: _Gaps, start: Ints, end: Ints) -> Ints:
        """(gaps, ``CAUSES``): ns by cause of the part ``[start, end)`` of each gap."""
        empty_until = np.clip(gaps.empty_until, start, end)
        shares = np.zeros((len(start), len(CAUSES)), np.int64)
        known = np.flatnonzero((gaps.launch >= 0) & (empty_until > start))
        lane = self._table.lane[gaps.launch[known]].astype(np.int64)
        shares[known, : len(HOST_CAUSES)] = self._time.shares(lane, start[known], empty_until[known])
        unknown = np.flatnonzero(gaps.launch < 0)
        shares[unknown, CAUSES.index(UNKNOWN)] = (empty_until - start)[unknown]
        shares[np.arange(len(shares)), gaps.device_cause] += end - empty_until
        return shares


class _Gaps(Record, frozen=True, kw_only=True, eq=False):
    """``after``, ``before``: positions of the device events round the gap, -1 without one. ``launch``: row of the call
    that the device waited for, -1 where it is not known. ``device_cause``: why the device waited once it had been made.
    """

    start: Ints
    empty_until: Ints
    end: Ints
    after: RowColumn
    before: RowColumn
    launch: RowColumn
    device_cause: npt.NDArray[np.int8]

    def part(self, at: slice | Ints) -> _Gaps:
        return _Gaps(**{key: getattr(self, key)[at] for key in self.__struct_fields__})


def _gaps(table: TraceTable, queued: Queue, activity: DeviceActivity, spans: Spans) -> _Gaps:
    everything = queued.events
    start, end = idle_within(activity.start, activity.end, spans)
    by_start = np.argsort(everything.start, kind="stable").astype(np.int32)
    at = np.searchsorted(everything.start[by_start], end)
    # Whatever runs after the gap was in the queue from its launch on: the earliest of these launches ends the emptiness
    earliest = np.append(np.minimum.accumulate(queued.launched[by_start][::-1])[::-1], NEVER)
    empty_until = np.clip(earliest[at], start, end)
    after = np.append(by_start, np.int32(-1))[at]
    del by_start, earliest, at
    by_end = np.argsort(activity.end, kind="stable").astype(np.int32)
    last = np.searchsorted(activity.end[by_end], start, side="right")
    before_row = np.append(np.int32(-1), activity.rows[by_end])[last]
    before = np.where(before_row >= 0, np.searchsorted(everything.rows, before_row), -1).astype(np.int32)
    # Where the recording ends first, the thread that launched last is the one to look at
    launch = np.append(queued.launch, np.int32(-1))[np.where(after >= 0, after, before)]
    gaps = _Gaps(
        start=start, empty_until=empty_until, end=end, after=after, before=before, launch=launch,
        device_cause=np.zeros(len(start), np.int8),
    )  # fmt: skip
    waits = _DeviceWaits(table, queued)
    for low in range(0, len(start), _BLOCK):
        block = slice(low, low + _BLOCK)
        gaps.device_cause[block] = waits.causes(gaps.part(block))
    return gaps


class _DeviceWaits:
    """Why a device did not start what it had in its queue."""

    def __init__(self, table: TraceTable, queued: Queue) -> None:
        self._queued, everything = queued, queued.events
        self._recorded_from = int(table.start_ns.min()) if len(table) else 0
        order = np.lexsort((everything.start, queued.lane))
        free_since = np.empty(len(order), np.int64)
        for part in np.split(order, np.flatnonzero(np.diff(queued.lane[order])) + 1) if len(order) else ():
            free_since[part[0]] = _NOT_KNOWN
            free_since[part[1:]] = np.maximum.accumulate(everything.end[part])[:-1]
        self._free_since = free_since
        # Copies within a device are kernels' work, not a copy engine's
        is_copy = table.kind == Kind.MEMCPY
        self._copies = (is_copy & ~named(table, _WITHIN_A_DEVICE, is_copy))[everything.rows]

    def causes(self, gaps: _Gaps) -> npt.NDArray[np.int8]:
        """Index into ``CAUSES`` by the event that ended each gap; the first that holds.

        Its stream had just been told to wait for a value that another rank writes (a collective that has not started
        waits for its stream, as any kernel does, and for other ranks only once it runs). The first kernel of its stream
        waited, and for longer than the recording had lasted when it was launched: what was launched before had to end.
        Its stream had just been told to wait for an event. Longer than launches take: a copy waited for the copy
        engine, a kernel for something not recorded. Launched before the gap began, with its own stream free: it
        followed what ended there on another stream, a copy after a copy on the engine that both need. Launched before
        the gap began: it followed its own stream. Else it started as late as launches take.
        """
        event, queued = np.maximum(gaps.after, 0), self._queued
        is_copy, long = self._copies[event], gaps.end - gaps.empty_until > LONGEST_LATENCY_NS
        waited = gaps.empty_until <= gaps.start
        free = waited & (self._free_since[event] < gaps.start) & (queued.launched[event] < gaps.start)
        after_copy = (gaps.before >= 0) & self._copies[np.maximum(gaps.before, 0)]
        early = queued.launched[event] < self._recorded_from + (gaps.end - gaps.empty_until)
        first = long & early & (self._free_since[event] == _NOT_KNOWN)
        causes = {
            UNKNOWN: gaps.after < 0,
            ANOTHER_RANK: queued.after_value[event],
            BEFORE_RECORDING: first & ~is_copy,
            EVENT_WAIT: queued.after_event[event],
            COPY_ENGINE: is_copy & (long | (free & after_copy)),
            UNRECORDED: long,
            STREAM_DEPENDENCY: free,
            QUEUED: waited,
        }
        numbers = [CAUSES.index(cause) for cause in causes]
        return np.select(list(causes.values()), numbers, CAUSES.index(LATENCY)).astype(np.int8)


Narrow: TypeAlias = Column[np.int64]
#: Of each device event: from when the time is its own, how long from there to where that ends, how much in between is
#: its own, in ns; 0 where none is.
OwnTime: TypeAlias = tuple[Ints, Narrow, Narrow]


class WindowTime(Record, frozen=True, kw_only=True, eq=False):
    """``own_ns`` of every part: of the ``events`` device events in their order, then of the parts of ``idle``.

    ``own_from``, ``own_span_ns``: of each event, where its own time begins, and how long it is to where that ends.
    """

    events: int
    idle: IdleParts
    own_ns: Narrow
    own_from: Ints
    own_span_ns: Narrow

    @classmethod
    def of(cls, own: OwnTime, idle: IdleParts) -> WindowTime:
        """``idle`` holds all time in which no event ran."""
        own_from, own_span_ns, own_ns = own
        own_ns = Column(np.concatenate((own_ns[:], idle.end - idle.start)), np.int64)
        return cls(events=len(own_from), idle=idle, own_ns=own_ns, own_from=own_from, own_span_ns=own_span_ns)


def own_time(activity: DeviceActivity, window: tuple[int, int]) -> OwnTime:
    """When each event is what keeps the device busy in the window; together its busy time.

    Computation comes before communication, that before copies, as in the timeline; of one class what began first.
    """
    start, end = np.clip(activity.start, *window), np.clip(activity.end, *window)
    copies = activity.memcpy & ~activity.communication
    own_from, span, own = np.empty_like(start), np.empty_like(start), np.empty_like(start)
    taken = start[:0], end[:0]
    for mine in (~activity.communication & ~copies, activity.communication, copies):
        at = np.flatnonzero(mine).astype(np.int32)
        at = at[np.lexsort((-end[at], start[at]))]
        first, last = start[at], end[at]
        # What each adds to those that began before it: nothing where first is last
        first[1:] = np.maximum(first[1:], np.maximum.accumulate(last)[:-1])
        last = np.maximum(last, first)
        own_from[at], until, own[at] = _left_free(taken, first, last)
        span[at] = until - own_from[at]
        taken = np.concatenate((taken[0], first)), np.concatenate((taken[1], last))
    return own_from, Column(span, np.int64), Column(own, np.int64)


def _left_free(taken: Spans, first: Ints, last: Ints) -> tuple[Ints, Ints, Ints]:
    """Of each span what others leave free of it: from when, until when, how long; until = from where nothing."""
    opens, closes = _union(taken)
    if not len(opens):
        return first, last, last - first
    before = np.concatenate(([0], np.cumsum(closes - opens)))
    at_first, at_last = np.searchsorted(opens, first, side="right"), np.searchsorted(opens, last)
    under, over = (closes[np.maximum(at - 1, 0)] - time for at, time in ((at_first, first), (at_last, last)))
    under = np.where(at_first > 0, np.maximum(under, 0), 0)
    covered = before[at_last] - before[at_first] + under - np.where(at_last > 0, np.maximum(over, 0), 0)
    own = last - first - covered
    until = np.where((at_last > 0) & (over >= 0), opens[np.maximum(at_last - 1, 0)], last)
    return np.where(own > 0, first + under, first), np.where(own > 0, until, first), own


def _union(spans: Spans) -> Spans:
    """The union of spans, in order, with time between them."""
    order = np.argsort(spans[0], kind="stable")
    opens, closes = spans[0][order], np.maximum.accumulate(spans[1][order])
    opens[1:] = np.maximum(opens[1:], closes[:-1])
    some = closes > opens
    opens, closes = opens[some], closes[some]
    apart = np.ones(len(opens) + 1, bool)
    apart[1:-1] = opens[1:] > closes[:-1]
    return opens[apart[:-1]], closes[apart[1:]]
