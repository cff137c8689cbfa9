"""The dependency graph of host and device events; its longest path, the critical path of a window; and its replay with
other durations, by which a step is done again and again (``SteadyStep``). longest.c computes paths where a compiler is
there.

Known are calls of a thread in their order, a launch before its kernel, kernels of a stream in their order, a recorded
event before the stream or the host that waits for it, work on the device before the call that waits for it. Each
dependency has a length: how long after the one thing the other can be at the earliest.

The critical path through one step is the longest chain of these that led to its end. Time of a chain counts where
somebody worked in it, and where something that was ready took no longer to start than is usual; it does not count where
the chain only waited. So a chain is never longer than the step, and as the kernels of a stream are one, the longest is
at least as long as the busiest stream was busy.

While the device is idle, the whole step waits: such time is on the path, under the cause that idle time has everywhere.

A host that never rests makes a chain as long as the step, also while the device is never idle. Of chains of nearly
the same length the one with less host work is taken: less host work would not shorten such a step.

Replayed, a node is a point in time: a device event starts, its stream is done with it, a host thread reaches a call.
Each follows the latest of what it depends on, by the dependency's length, and by what was recorded beyond that: a delay
that nothing recorded explains (another rank, a data loader) is kept as it was. So nothing changed gives every time as
recorded, and as no length is negative, a shorter event never makes anything later.

The steps that are replayed are taken for one round: what the first of them followed on its stream, waited for, or did
next on its thread, it follows of the round before. A round then takes as long as the slowest circle of dependencies:
of the host alone, of the device alone, or of both where the host waits for the device. So the head start that the host
had in the recording gains nothing, and kernels that become shorter than the host's own time gain nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_double, c_int64, c_void_p
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity, streams_of
from tracelens.analysis.attribution.host_time import COMMUNICATION as COMMUNICATION_ON_HOST
from tracelens.analysis.attribution.host_time import DATA_LOADING, HOST_CAUSES, REQUESTS, HostCalls, HostTime
from tracelens.analysis.attribution.steps import LONGEST_LATENCY_NS, RecordedStep, typical_step
from tracelens.analysis.attribution.window import Window
from tracelens.analysis.grouping import by_number
from tracelens.analysis.idle.idle_time import CAUSES, IdleTime
from tracelens.analysis.intervals import Bools, Covered, Floats, Ints, Spans, idle_within, intersections
from tracelens.errors import UsageError
from tracelens.files.compiled import address, library
from tracelens.trace.table import DEVICE_KINDS, Kind, RowColumn, TraceTable
from tracelens.trace.tree import OpTree
from tracelens.types.records import Record, pd
from tracelens.types.units import NS_PER_US

COMPUTATION = "computation"
COMMUNICATION = "communication"
COPY = "copies"
#: What the path waits for while the device is busy; ``IDLE`` begins the kinds of time in which it is idle.
QUEUED = "GPU busy: between queued kernels"
STREAM_WAIT = "GPU busy: wait for another stream"
LAUNCH = "GPU busy: launch latency"
RETURN = "GPU busy: return of a synchronization"
CALLS = "host ops and launches"
OUTSIDE = "host work outside of ops"
#: The cause follows.
IDLE = "idle: "
KINDS = (
    COMPUTATION, COMMUNICATION, COPY, QUEUED, STREAM_WAIT, LAUNCH, RETURN, CALLS, OUTSIDE,
    *(f"{IDLE}{cause}" for cause in CAUSES),
)  # fmt: skip

#: How many things follow each other at the same time, at most.
_MOST_AT_ONCE = 32
_NEVER, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
#: None.
NO_ANCHORS: tuple[RowColumn, Ints] = (np.zeros(0, np.int32), np.zeros(0, np.int64))


class Device:
    """The device events of the window, stream by stream; ``end`` is when the stream was done with all so far.

    ``called``: when the launch was called, ``_NEVER`` without one. ``usual``: how long (ns) what is ready takes to
    start: the median from launch to start on a device with nothing else to do; where it never was, the median gap of a
    stream before a kernel that had been launched.
    """

    def __init__(self, table: TraceTable, tree: OpTree, events: DeviceActivity, window: tuple[int, int]) -> None:
        streams, lane = streams_of(table, events)
        order = np.lexsort((events.rows, events.end, events.start, lane))
        events, self.lane = events.select(order), lane[order]
        self.rows = events.rows.astype(np.int64)
        self.lane_of = {(d, s): i for i, (d, s) in enumerate(streams.tolist())}
        self.bounds = np.searchsorted(self.lane, np.arange(len(streams) + 1)).tolist()
        self.start = np.maximum(events.start, window[0])
        self.end = self._running(np.minimum(events.end, window[1]))
        self.kind = np.select(
            [events.communication, events.memcpy],
            [KINDS.index(COMMUNICATION), KINDS.index(COPY)],
            KINDS.index(COMPUTATION),
        )
        self.launch = tree.launch[events.rows].astype(np.int64)
        self.called = np.where(self.launch >= 0, table.start_ns[self.launch], _NEVER)
        # Clocks of host and device differ by a little: what seems to begin before its launch began with it
        early = (self.called > self.start) & (self.called - self.start <= LONGEST_LATENCY_NS)
        self.called[early] = self.start[early]
        self.called_so_far = self._running(self.called)
        self.by_end = np.argsort(self.end, kind="stable")
        self.end_sorted = self.end[self.by_end]
        self.usual = self._usual_latency(window[0])

    def previous_end(self, first: int) -> Ints:
        """When the stream was done with what came before each event; ``first`` for the first of a stream."""
        before = np.concatenate(([first], self.end[:-1]))
        before[self.bounds[:-1]] = first
        return before

    def ready(self, waits: Pairs, first: int) -> Ints:
        """When all that is known to come before each event on the device was done."""
        ready = self.previous_end(first)
        source, target = _columns(waits)
        np.maximum.at(ready, target, self.end[source])
        return ready

    def last_launched(self, lane: int, before: int) -> int:
        """The stream's last event that was launched before a time, -1 without one."""
        low, high = self.bounds[lane], self.bounds[lane + 1]
        at = low + int(np.searchsorted(self.called_so_far[low:high], before))
        return at - 1 if at > low else -1

    def first_launched(self, lane: int, after: int) -> int:
        """The stream's first event that was launched at a time or after it, -1 without one."""
        low, high = self.bounds[lane], self.bounds[lane + 1]
        at = low + int(np.searchsorted(self.called_so_far[low:high], after))
        return at if at < high else -1

    def last_ended(self, lane: int | None, until: int) -> int:
        """The event of one stream, or of any, that ended last up to a time; -1 without one."""
        if lane is None:
            at = int(np.searchsorted(self.end_sorted, until, side="right"))
            return int(self.by_end[at - 1]) if at else -1
        low, high = self.bounds[lane], self.bounds[lane + 1]
        at = low + int(np.searchsorted(self.end[low:high], until, side="right"))
        return at - 1 if at > low else -1

    def _running(self, values: Ints) -> Ints:
        parts = [np.maximum.accumulate(part) for part in np.split(values, self.bounds[1:-1])]
        return np.concatenate(parts)

    def _usual_latency(self, first: int) -> int:
        order = np.argsort(self.start, kind="stable")
        idle_since = np.empty(len(order), np.int64)
        idle_since[order] = np.concatenate(([first], np.maximum.accumulate(self.end[order])[:-1]))
        free = (self.called >= idle_since) & (self.called <= self.start)
        gap = self.start - np.where(free, self.called, self.previous_end(first))
        queued = (self.called != _NEVER) & (self.called < self.previous_end(first)) & (gap > 0)
        # What takes longer waited for something, as the first event may have that is seen here
        free &= gap <= LONGEST_LATENCY_NS
        known = free if free.any() else queued
        return int(np.median(gap[known])) if known.any() else 0


class Threads:
    """Anchors: points of host threads, thread by thread in order of time.

    They are where a thread or the window begins, calls that launch, ends of calls that wait, both sides of a change of
    thread; ``also`` are more of them, rows and times.
    """

    def __init__(
        self,
        table: TraceTable,
        host: HostCalls,
        device: Device,
        window: tuple[int, int],
        *,
        also: tuple[RowColumn, Ints] = NO_ANCHORS,
    ) -> None:
        first, last = window
        self.launches = np.unique(device.launch[(device.called >= first) & (device.called < last)])
        processes = np.unique(host.process[table.lane[device.launch[device.launch >= 0]]])

        def near(rows: RowColumn) -> RowColumn:
            rows = rows[(table.start_ns[rows] < last) & (table.ends_ns(rows) > first)]
            return rows[np.isin(host.process[table.lane[rows]], processes)]

        def covered(rows: RowColumn) -> Covered:
            return Covered(table.lane[rows], table.start_ns[rows], table.ends_ns(rows))

        calls, waits = near(host.outermost), near(np.flatnonzero(host.blocking).astype(np.int32))
        self.waits = waits[table.ends_ns(waits) <= last]
        calls = calls[np.lexsort((table.start_ns[calls], table.lane[calls]))]
        opening = calls[np.concatenate(([True], np.diff(table.lane[calls]) != 0))[: len(calls)]]
        since = np.full(len(table.lanes), _LATEST)
        np.minimum.at(since, table.lane[host.outermost], table.start_ns[host.outermost])
        leaving, entering = _handovers(table, host, calls, window)
        parts: tuple[tuple[npt.NDArray[np.integer], Ints], ...] = (
            (opening, np.maximum(since[table.lane[opening]], first)),
            (self.launches, table.start_ns[self.launches]),
            (self.waits, table.ends_ns(self.waits)),
            (leaving, table.ends_ns(leaving)),
            (entering, table.start_ns[entering]),
            also,
        )
        rows, time = (np.concatenate(column) for column in zip(*parts, strict=True))
        lane = table.lane[rows].astype(np.int64)
        # At the same time, what ends comes before what begins after it
        turn = np.repeat((0, 2, 1, 1, 2, 2), [len(part) for part, _ in parts])
        order = np.lexsort((turn, time, lane))
        self.rows, self.time, self.lane = rows[order], time[order], lane[order]
        cuts = np.cumsum([len(part) for part, _ in parts])[:-1]
        _, self.of_launch, self.of_wait, self.left, self.entered, _ = np.split(np.argsort(order), cuts)
        self._keep_clock(device)
        self._calls, self._waits, self._host = covered(calls), covered(waits), host

    def _keep_clock(self, device: Device) -> None:
        """Launches are no later than what they launched by the device's clock, nor is what the thread did before."""
        at = np.searchsorted(self.launches, device.launch)
        known = np.flatnonzero(at < len(self.launches))
        known = known[self.launches[at[known]] == device.launch[known]]
        if not (device.called[known] < self.time[self.of_launch[at[known]]]).any():
            return
        np.minimum.at(self.time, self.of_launch[at[known]], device.called[known])
        for part in np.split(np.arange(len(self.time)), np.flatnonzero(np.diff(self.lane)) + 1):
            self.time[part] = np.minimum.accumulate(self.time[part][::-1])[::-1]

    def spent(self, lane: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """How much (ns) of each span the thread was in calls that do not wait, and its whole process in none."""
        work = self._calls.within(lane, start, end) - self._waits.within(lane, start, end)
        return work, end - start - self._host.calls.within(self._host.process[lane], start, end)


def _handovers(
    table: TraceTable, host: HostCalls, calls: RowColumn, window: tuple[int, int]
) -> tuple[RowColumn, RowColumn]:
    """(calls that end, calls of another thread that are the next of the process to begin)."""
    order = np.lexsort((table.start_ns[calls], host.process[table.lane[calls]]))
    calls = calls[order]
    begin, end = table.start_ns[calls], table.ends_ns(calls)
    process, lane = host.process[table.lane[calls]], table.lane[calls]
    latest = np.arange(len(calls))
    for part in np.split(latest, np.flatnonzero(np.diff(process)) + 1):
        running = np.maximum.accumulate(end[part])
        latest[part] = np.maximum.accumulate(np.where(end[part] == running, part, 0))
    one, following = latest[:-1], np.arange(1, len(calls))
    change = (process[one] == process[following]) & (lane[one] != lane[following]) & (end[one] <= begin[following])
    change &= (end[one] >= window[0]) & (begin[following] < window[1])
    return calls[one[change]], calls[following[change]]


#: (device event waited for, device event or anchor that waited).
Pairs = list[tuple[int, int]]


def recorded_waits(table: TraceTable, device: Device) -> Pairs:
    """Waits of a stream for an event of another one, from the trace's synchronization records."""
    waits = table.event_waits
    rows = table.rows_of((Kind.SYNC,))
    rows = rows[(table.stream[rows] >= 0) & np.isin(table.correlation[rows], waits.correlation)]
    recorded = _event_waits(table)
    began = _called_at(table, np.concatenate((waits.correlation, waits.record)))
    pairs: Pairs = []
    for row in rows.tolist():
        stream, record = recorded[int(table.correlation[row])]
        number = int(table.device[row])
        source, target = device.lane_of.get((number, stream)), device.lane_of.get((number, int(table.stream[row])))
        called, recorded_at = began.get(int(table.correlation[row])), began.get(record)
        if source is None or target is None or source == target or called is None or recorded_at is None:
            continue
        pair = device.last_launched(source, recorded_at), device.first_launched(target, called)
        if min(pair) >= 0:
            pairs.append(pair)
    return pairs


def inferred_waits(device: Device, known: set[int], first: int) -> Pairs:
    """What nothing recorded explains: events that had been launched, and began later than a launch takes."""
    ready = np.maximum(device.previous_end(first), device.called)
    late = np.flatnonzero(device.start - ready > device.usual)
    late = late[~np.isin(late, list(known))]
    before = np.searchsorted(device.end_sorted, device.start[late], side="right") - 1
    late, before = late[before >= 0], before[before >= 0]
    source = device.by_end[before]
    fits = (device.lane[source] != device.lane[late]) & (device.end[source] > ready[late])
    return list(zip(source[fits].tolist(), late[fits].tolist(), strict=True))


def host_waits(table: TraceTable, device: Device, threads: Threads) -> Pairs:
    """Calls that waited for the device: their own copy, a recorded event, a stream, or else whatever ended last."""
    if not len(threads.waits):
        return []
    own = dict(zip(device.launch.tolist(), range(len(device.launch)), strict=True))
    events = _event_waits(table)
    began = _called_at(table, table.event_waits.record)
    syncs = table.rows_of((Kind.SYNC,))
    syncs = syncs[np.isin(table.correlation[syncs], table.correlation[threads.waits])]
    stream_of = {
        int(table.correlation[row]): device.lane_of.get((int(table.device[row]), int(table.stream[row])))
        for row in syncs.tolist()
    }
    pairs: Pairs = []
    for row, anchor in zip(threads.waits.tolist(), threads.of_wait.tolist(), strict=True):
        correlation = int(table.correlation[row])
        if row in own:
            source = own[row]
        elif correlation in events and events[correlation][1] in began:
            stream, record = events[correlation]
            lane = next((lane for (_, s), lane in device.lane_of.items() if s == stream), None)
            source = -1 if lane is None else device.last_launched(lane, began[record])
        else:
            source = device.last_ended(stream_of.get(correlation), int(threads.time[anchor]))
        if source >= 0 and table.start_ns[row] < device.end[source] <= threads.time[anchor]:
            pairs.append((source, anchor))
    return pairs


def _event_waits(table: TraceTable) -> dict[int, tuple[int, int]]:
    """Correlation of a waiting call -> (stream of the event, correlation of the call that recorded it)."""
    waits = table.event_waits
    values = zip(waits.stream.tolist(), waits.record.tolist(), strict=True)
    return dict(zip(waits.correlation.tolist(), values, strict=True))


def _called_at(table: TraceTable, correlations: Ints) -> dict[int, int]:
    """Correlation -> start (ns) of the runtime or driver call that has it."""
    rows = table.rows_of((Kind.RUNTIME, Kind.DRIVER))
    rows = rows[np.isin(table.correlation[rows], correlations)]
    return dict(zip(table.correlation[rows].tolist(), table.start_ns[rows].tolist(), strict=True))


class Edges:
    """The graph. Nodes: starts of the device events, then when their stream was done with them, then anchors."""

    def __init__(self, device: Device, threads: Threads) -> None:
        self.device, self.threads = device, threads
        self.time = np.concatenate((device.start, device.end, threads.time))
        self._parts: list[tuple[Ints, Ints, Ints, Ints, Ints]] = []

    def add(self, source: Ints, target: Ints, length: Ints, kind: Ints | str, row: Ints) -> None:
        kinds = np.full(len(source), KINDS.index(kind)) if isinstance(kind, str) else kind
        self._parts.append((source, target, length, kinds, row))

    @property
    def columns(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """(source, target, length, kind, row) of all"""
        source, target, length, kind, row = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        return source, target, length, kind, row

    @property
    def position(self) -> Ints:
        """The position of each node in an order in which all dependencies lead forward."""
        n = len(self.device.start)
        rank = np.concatenate((2 * np.arange(n), 2 * np.arange(n) + 1, np.arange(-len(self.threads.time), 0)))
        # Of what is recorded at the same time, what the other follows comes first
        source, target = self.columns[:2]
        at_once = np.flatnonzero(self.time[source] == self.time[target])
        source, target = source[at_once], target[at_once]
        behind = np.zeros(len(self.time), np.int64)
        for _ in range(_MOST_AT_ONCE):
            before = behind.copy()
            np.maximum.at(behind, target, before[source] + 1)
            if np.array_equal(before, behind):
                break
        return np.argsort(np.lexsort((rank, behind, self.time)))

    def add_events(self, length: Ints) -> None:
        """Device events, each of a ``length`` (ns)."""
        n = np.arange(len(self.device.start))
        self.add(n, n + len(n), length, self.device.kind, self.device.rows)

    def add_neighbors(self) -> None:
        """From each device event to the next of its stream."""
        device, (one, following) = self.device, self.neighbors
        gap = device.start[following] - device.end[one]
        joins = gap < 0
        step = device.start[following[joins]] - device.start[one[joins]]
        self.add(one[joins], following[joins], step, device.kind[one[joins]], device.rows[one[joins]])
        one, following, gap = one[~joins], following[~joins], gap[~joins]
        queued = (device.called[following] != _NEVER) & (device.called[following] < device.end[one])
        length = np.where(queued, np.minimum(gap, device.usual), 0)
        self.add(one + len(device.start), following, length, QUEUED, device.rows[following])

    @property
    def neighbors(self) -> tuple[Ints, Ints]:
        """(device event, the next one of its stream)."""
        one = np.flatnonzero(self.device.lane[:-1] == self.device.lane[1:])
        return one, one + 1

    def add_threads(self) -> None:
        """Threads from anchor to anchor, and from one thread to another."""
        threads, base = self.threads, 2 * len(self.device.start)
        one = np.flatnonzero(np.diff(threads.lane) == 0)
        work, outside = threads.spent(threads.lane[one], threads.time[one], threads.time[one + 1])
        self.add(base + one, base + one + 1, work + outside, CALLS, threads.rows[one + 1])
        gap = threads.time[threads.entered] - threads.time[threads.left]
        self.add(base + threads.left, base + threads.entered, gap, OUTSIDE, threads.rows[threads.entered])

    def add_launches(self, ready: Ints) -> None:
        """From the call to its kernels, those that had nothing else to wait for when they were launched (``ready``)."""
        device, threads = self.device, self.threads
        at = np.searchsorted(threads.launches, device.launch)
        late = (device.called >= ready) & (device.called <= device.start)
        found = np.flatnonzero((at < len(threads.launches)) & late)
        found = found[threads.launches[at[found]] == device.launch[found]]
        anchor = threads.of_launch[at[found]] + 2 * len(device.start)
        latency = np.minimum(device.start[found] - device.called[found], device.usual)
        self.add(anchor, found, latency, LAUNCH, device.rows[found])

    def add_stream_waits(self, pairs: Pairs) -> None:
        """(source, target) device events: the target's stream waited for the source."""
        source, target = _columns(pairs)
        gap = self.device.start[target] - self.device.end[source]
        source, target, gap = source[gap >= 0], target[gap >= 0], gap[gap >= 0]
        n = len(self.device.start)
        self.add(source + n, target, np.minimum(gap, self.device.usual), STREAM_WAIT, self.device.rows[target])

    def add_host_waits(self, pairs: Pairs) -> None:
        """(device event, anchor at which the call that waited for it returned)."""
        source, anchor = _columns(pairs)
        n = len(self.device.start)
        gap = self.threads.time[anchor] - self.device.end[source]
        self.add(source + n, anchor + 2 * n, np.minimum(gap, self.device.usual), RETURN, self.threads.rows[anchor])


def _columns(pairs: Pairs) -> tuple[Ints, Ints]:
    found = np.array(pairs, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


#: What the table of kinds calls the rest of the step.
REST = "not on the path"
#: Device events of a step beyond which no path is looked for: the search visits them one by one.
MAX_EVENTS = 50_000
#: A chain with host work is taken if it is longer than others by more than one part in so many of that work.
HOST_TIE = 20
#: Segments that the sheet lists; the kinds count all of them.
MAX_SEGMENTS = 300


class CriticalPath(Record, frozen=True, kw_only=True, eq=False):
    """The path's segments in order of time; times in ns on the trace's clock.

    ``window_ns``: the step's time, of which the path is a part. ``kind`` indexes ``KINDS``. ``row``: table row of the
    kernel that ran, or was to run; of host work the call that it led to, -1 where there is none.
    ``busiest_stream_ns``: union of the device events of the stream with most of it.
    """

    window_ns: int
    start: Ints
    length: Ints
    kind: Ints
    row: Ints
    busiest_stream_ns: int

    @property
    def length_ns(self) -> int:
        return int(self.length.sum())

    def by_kind(self, step: int | None) -> pd.DataFrame:
        """One row per kind on the path, the longest first, then the rest of the step; together the step's time.

        ``step``: its number, None for a window that is none.
        """
        total = np.zeros(len(KINDS), np.int64)
        np.add.at(total, self.kind, self.length)
        count = np.bincount(self.kind, minlength=len(KINDS))
        shown = [i for i in sorted(range(len(KINDS)), key=lambda i: (-total[i], KINDS[i])) if count[i]]
        length = np.append(total[shown], self.window_ns - self.length_ns)
        return pd.DataFrame(
            {
                "kind": [*(KINDS[i] for i in shown), REST],
                "step": pd.array([step] * len(length), "Int64"),
                "segments": pd.array([*count[shown].tolist(), None], "Int64"),
                "time_us": length / NS_PER_US,
                "percent_of_path": np.append(100 * total[shown] / max(self.length_ns, 1), np.nan),
                "percent_of_step": 100 * length / max(self.window_ns, 1),
            }
        )

    def segments(self, table: TraceTable, *, most: int = MAX_SEGMENTS) -> pd.DataFrame:
        """The ``most`` longest segments in order of time; ``start_us`` counts from the trace's first event."""
        kept = np.sort(np.lexsort((self.start, -self.length))[:most])
        rows = self.row[kept].tolist()
        on_device = [row >= 0 and Kind(int(table.kind[row])) in DEVICE_KINDS for row in rows]
        streams = [int(table.stream[row]) if device else None for row, device in zip(rows, on_device, strict=True)]
        return pd.DataFrame(
            {
                "start_us": (self.start[kept] - int(table.start_ns.min())) / NS_PER_US,
                "time_us": self.length[kept] / NS_PER_US,
                "kind": [KINDS[i] for i in self.kind[kept].tolist()],
                "name": [table.name_of(row) if row >= 0 else None for row in rows],
                "stream": pd.array(streams, "Int64"),
            }
        )


def critical_path(
    table: TraceTable, tree: OpTree, host: HostCalls, everything: DeviceActivity, idle: IdleTime, spans: Spans
) -> CriticalPath | None:
    """The longest path to the last device event in ``spans``, or to another stream's last where that is longer.

    ``spans``: the step, or its parts in order of time where something is left out of it. All of that time in which
    ``idle`` has a cause and no event of the path ran is on the path, also before its first.

    None without device events in the window, or with more than ``MAX_EVENTS``. What a stream waited for is known where
    the trace has synchronization records; else a kernel that starts later than a launch takes, on a stream that had
    nothing to do, is taken to wait for the event of another stream that ended last.
    """
    window = int(spans[0][0]), int(spans[1][-1])
    inside: Bools = (everything.start < window[1]) & (everything.end > window[0])
    if not inside.any() or inside.sum() > MAX_EVENTS:
        return None
    device = Device(table, tree, everything.select(inside), window)
    threads = Threads(table, host, device, window)
    edges = Edges(device, threads)
    edges.add_events(device.end - device.start)
    edges.add_neighbors()
    edges.add_threads()
    recorded = recorded_waits(table, device)
    edges.add_launches(device.ready(recorded, window[0]))
    edges.add_stream_waits(recorded)
    edges.add_stream_waits(inferred_waits(device, {target for _, target in recorded}, window[0]))
    edges.add_host_waits(host_waits(table, device, threads))
    return _longest(edges, tree, idle, spans)


def _longest(edges: Edges, tree: OpTree, idle: IdleTime, spans: Spans) -> CriticalPath:
    """The longest path, as ``critical_path`` says where it ends."""
    source, target, length, kind, row = edges.columns
    window_ns = int((spans[1] - spans[0]).sum())
    device = edges.device
    busy = np.maximum(device.end - np.maximum(device.start, device.previous_end(int(spans[0][0]))), 0)
    busiest = int(np.add.reduceat(busy, device.bounds[:-1]).max())
    by_host = np.isin(kind, [KINDS.index(CALLS), KINDS.index(OUTSIDE)])
    at = _on_longest(edges, source, target, length - by_host * (length // HOST_TIE), busiest)
    start, length, kind, row = _segments(edges, at, idle, spans)
    op = np.where(row >= 0, tree.op_parent[row], -1).astype(np.int64)
    return CriticalPath(
        window_ns=window_ns,
        start=start,
        length=length,
        kind=kind,
        row=np.where(op >= 0, op, row),
        busiest_stream_ns=busiest,
    )


def _on_longest(edges: Edges, source: Ints, target: Ints, length: Ints, busiest: int) -> Ints:
    """The edges of the longest path, in order of time."""
    n, position = len(edges.device.start), edges.position
    forward = np.flatnonzero(position[source] < position[target])
    kept = forward[np.argsort(position[target[forward]], kind="stable")]
    best, via = [0] * len(edges.time), [-1] * len(edges.time)
    steps = zip(kept.tolist(), source[kept].tolist(), target[kept].tolist(), length[kept].tolist(), strict=True)
    for edge, one, other, weight in steps:
        reached = best[one] + weight
        if reached > best[other] or via[other] < 0:
            best[other], via[other] = reached, edge
    ends = np.array(edges.device.bounds[1:]) - 1 + n
    reached_at = np.array(best)[ends]
    last = int(ends[np.lexsort((reached_at, edges.time[ends]))[-1]])
    if best[last] < busiest:
        last = int(ends[np.lexsort((edges.time[ends], reached_at))[-1]])
    path = []
    while via[last] >= 0:
        path.append(via[last])
        last = int(source[path[-1]])
    return np.array(path[::-1], np.int64)


def _segments(edges: Edges, at: Ints, idle: IdleTime, spans: Spans) -> tuple[Ints, Ints, Ints, Ints]:
    """(start, length, kind, row) along the path's edges ``at``: idle time where no event of it ran, and the rest."""
    source, target, length, kind_of, row = (column[at] for column in edges.columns)
    begin, finish = edges.time[source], edges.time[target]
    ran = np.isin(kind_of, [KINDS.index(kind) for kind in (COMPUTATION, COMMUNICATION, COPY)])
    parts = idle.within(idle_within(begin[ran], finish[ran], spans))
    at, start, end = intersections((begin, finish), idle_within(parts.start, parts.end, spans))
    # What is ready starts within the first of it, and then only waits
    until = np.minimum(end, (begin + length)[at])
    kind, on_thread = kind_of[at], kind_of[at] == KINDS.index(CALLS)
    lane = edges.threads.lane[source[at[on_thread]] - 2 * len(edges.device.start)]
    in_calls, outside = until - start, np.zeros(len(at), np.int64)
    in_calls[on_thread], outside[on_thread] = edges.threads.spent(lane, start[on_thread], end[on_thread])
    pieces = (
        (parts.start, start, start + in_calls),
        (parts.end - parts.start, in_calls, outside),
        (parts.cause + KINDS.index(f"{IDLE}{CAUSES[0]}"), kind, np.full(len(at), KINDS.index(OUTSIDE))),
        (parts.row, row[at], row[at]),
    )
    columns = [np.concatenate(piece).astype(np.int64) for piece in pieces]
    shown = np.flatnonzero(columns[1] > 0)
    order = shown[np.argsort(columns[0][shown], kind="stable")]
    return columns[0][order], columns[1][order], columns[2][order], columns[3][order]


_SOURCE, _LAYOUT = Path(__file__).with_name("longest.c"), 1
#: When a node is that only follows others.
NONE = np.iinfo(np.int64).min
# Of times in ns: what is nearer than that is equal
_NEAR = 1e-3


class DependencyPaths(Record, frozen=True, kw_only=True, eq=False):
    """Dependencies between ``nodes`` numbered points in time: the target comes ``length`` (ns) after the source, or
    later."""

    nodes: int
    source: Ints
    target: Ints
    length: Ints


class Ways(Record, frozen=True, kw_only=True, eq=False):
    """Dependencies from a node of one round to one of the next, ``length`` (ns) later."""

    source: Ints
    target: Ints
    length: Ints


def longest(paths: DependencyPaths, time: Ints) -> Ints:
    """When each node is; ``time``: the earliest it can be by itself, ``NONE`` for one that only follows others."""
    found, compiled = np.array(time, np.int64), library(_SOURCE, _LAYOUT)
    source, target, length = (np.ascontiguousarray(c, np.int64) for c in (paths.source, paths.target, paths.length))
    if compiled is not None:
        arrays = (source, target, length, found)
        compiled.tracelens_longest(c_int64(len(source)), *(c_void_p(address(array)) for array in arrays))
        return found
    plain = found.tolist()
    for one, other, weight in zip(source.tolist(), target.tolist(), length.tolist(), strict=True):
        reached = plain[one] + weight
        if reached > plain[other] and plain[one] != NONE:
            plain[other] = reached
    return np.array(plain, np.int64)


def period(paths: DependencyPaths, ways: Ways) -> tuple[float, Floats]:
    """(ns of a round in the long run, lead of each way): the largest mean cycle along ``paths`` and ``ways``."""
    start = np.zeros(len(ways.source))
    compiled = library(_SOURCE, _LAYOUT)
    if compiled is None:
        return _plain_period(paths, ways, start.tolist())
    edges = [np.ascontiguousarray(c, np.int64) for c in (paths.source, paths.target, paths.length)]
    across = [np.ascontiguousarray(c, np.int64) for c in (ways.source, ways.target, ways.length)]
    n, k = paths.nodes, len(start)
    room = np.empty(n), np.empty(n, np.int64), np.empty(k, np.int64), np.empty(k), np.empty(k, np.int64)
    function = compiled.tracelens_period
    function.restype = c_double
    found = function(
        c_int64(n), c_int64(len(edges[0])), *(c_void_p(address(array)) for array in edges),
        c_int64(k), *(c_void_p(address(array)) for array in (*across, start, *room)),
    )  # fmt: skip
    return float(found), start


def _plain_period(paths: DependencyPaths, ways: Ways, lead: list[float]) -> tuple[float, Floats]:
    edges = list(zip(paths.source.tolist(), paths.target.tolist(), paths.length.tolist(), strict=True))
    across = list(zip(ways.source.tolist(), ways.target.tolist(), ways.length.tolist(), strict=True))
    found = 0.0
    for _ in range(4 * len(lead) + 4):
        time, origin = [-np.inf] * paths.nodes, [-1] * paths.nodes
        for way, (_, first, _) in enumerate(across):
            if lead[way] > time[first]:
                time[first], origin[first] = lead[way], way
        for one, other, weight in edges:
            reached = time[one] + weight
            if reached > time[other]:
                time[other], origin[other] = reached, origin[one]
        before = [origin[last] for last, _, _ in across]
        reached_at = [time[last] + weight for last, _, weight in across]
        weights = [r - lead[b] if b >= 0 else 0.0 for r, b in zip(reached_at, before, strict=True)]
        mean = _largest_mean(before, weights)
        changed = mean > found + _NEAR
        found = mean if changed else found
        for way, way_before in enumerate(before):
            if way_before >= 0 and reached_at[way] - found > lead[way] + _NEAR:
                lead[way], changed = reached_at[way] - found, True
        if not changed:
            break
    return found, np.array(lead, np.float64)


def _largest_mean(before: list[int], weight: list[float]) -> float:
    """Of the cycles of a graph in which each node has one predecessor or -1."""
    best, seen = -np.inf, [-1] * len(before)
    for start in range(len(before)):
        at = start
        while at >= 0 and seen[at] < 0:
            seen[at], at = start, before[at]
        if at >= 0 and seen[at] == start:
            first, total, count = at, weight[at], 1
            while (at := before[at]) != first:
                total, count = total + weight[at], count + 1
            best = max(best, total / count)
    return best


#: So long no step is.
_CENTURIES_NS = 2.0**62
#: What a thread of the host does whether or not its kernels are launched as graphs.
_IN_NO_GRAPH = (DATA_LOADING, COMMUNICATION_ON_HOST, REQUESTS)


class NewTimes(Record, frozen=True, kw_only=True, eq=False):
    """When everything happens, in ns: ``start`` of each device event, ``done`` when its stream is done with all so far
    (both by position in ``DependencyReplay.device``), and ``reached`` each anchor of a thread."""

    start: Ints
    done: Ints
    reached: Ints


class Changes(Record, frozen=True, kw_only=True, eq=False):
    """What is different. ``length``: of each device event, in ns; ``removed``: those that are not there any more.

    ``host``: what the host's own time is multiplied with; ``without``: spans of threads (lane, start, end) that fall
    away. ``detached``: events that nothing on another stream or behind them on theirs waits for. ``gap``: kernels are
    launched as graphs, one for each stretch between synchronizations, in which one starts at most so many ns after
    the one before. ``sooner``: how much of the delay before each
    device event that nothing recorded explains falls away, in ns.
    """

    length: Floats
    removed: Bools
    detached: Bools
    host: float = 1.0
    without: tuple[Ints, Ints, Ints] | None = None
    gap: int | None = None
    sooner: Ints | None = None


class DependencyReplay:
    """The graph of a trace, and its times as recorded."""

    def __init__(
        self,
        table: TraceTable,
        tree: OpTree,
        host: HostCalls,
        events: DeviceActivity,
        *,
        on_host: tuple[int, int] | None = None,
        also: tuple[RowColumn, Ints] = NO_ANCHORS,
    ) -> None:
        """``events``: all device events of the file, or those of a part of it that the host launched in the span
        ``on_host``. ``also``: rows and times that are anchors too.
        """
        window = int(table.start_ns.min()), int((table.start_ns + table.duration_ns).max()) + 1
        blocking = np.flatnonzero(host.blocking).astype(np.int32)
        if on_host is not None:
            blocking = blocking[(table.start_ns[blocking] >= on_host[0]) & (table.start_ns[blocking] < on_host[1])]
        rows, times = np.concatenate((blocking, also[0])), np.concatenate((table.start_ns[blocking], also[1]))
        self.device = Device(table, tree, events, window)
        self.threads = Threads(table, host, self.device, on_host or window, also=(rows, times))
        #: Position of each of the device's events in ``events``.
        self.at = np.searchsorted(events.rows, self.device.rows)
        self._host_time = partial(HostTime, table, tree, host)
        self._own = events.end[self.at] - events.start[self.at]
        launch = self.device.launch
        #: Of each device event: the thread of the call that launched it, -1 without one, and when that returned.
        self._launched_by = np.where(launch >= 0, table.lane[launch], -1).astype(np.int64)
        self._returned = np.where(launch >= 0, table.ends_ns(launch.astype(np.int32)), self.device.start)
        edges = Edges(self.device, self.threads)
        edges.add_threads()
        edges.add_launches(np.full(len(self.device.start), NONE))
        recorded = recorded_waits(table, self.device)
        edges.add_stream_waits(recorded)
        edges.add_stream_waits(inferred_waits(self.device, {target for _, target in recorded}, window[0]))
        edges.add_stream_waits(_collective_waits(table, self.device))
        #: Number of device events.
        self.events = len(self.device.start)
        self._waits(
            edges,
            host_waits(table, self.device, self.threads) + _all_streams(table, self.device, self.threads),
        )
        edges.add_events(self._own)
        one, following = (each + self.events for each in edges.neighbors)
        edges.add(one, following, np.zeros(len(one), np.int64), QUEUED, np.full(len(one), -1))
        edges.add_neighbors()
        self._order(edges)

    def _waits(self, edges: Edges, pairs: Pairs) -> None:
        """Adds calls that wait for events: each returns as long after any of them as after the last, at most."""
        source, anchor = np.array(pairs, np.int64).reshape(-1, 2).T
        gap = self.threads.time[anchor] - self.device.end[source]
        least = np.full(len(self.threads.time), self.device.usual)
        np.minimum.at(least, anchor, gap)
        edges.add(
            source + self.events,
            anchor + 2 * self.events,
            least[anchor],
            RETURN,
            self.threads.rows[anchor],
        )

    def _order(self, edges: Edges) -> None:
        source, target, length, kind, _ = edges.columns
        position = edges.position
        # Which dependencies are those on a thread's own beginning where another thread hands over to it then.
        threads, base = self.threads, 2 * self.events
        begins = np.concatenate(([True], np.diff(threads.lane) != 0))
        entered = np.isin(np.arange(len(begins)), threads.entered)
        at, following = source - base, target - base
        found: Bools = (at >= 0) & (following == at + 1)
        at, following = at[found], following[found]
        found[found] = begins[at] & entered[following] & (threads.time[at] == threads.time[following])
        forward = np.flatnonzero((position[source] < position[target]) & ~found)
        kept = forward[np.argsort(position[target[forward]], kind="stable")]
        #: When each node was recorded to be: starts of device events, ends of them, anchors of threads.
        self.node_times, self._position = edges.time, position
        self._source, self._target, self._length, self._kind = (c[kept] for c in (source, target, length, kind))
        #: Dependencies of calls on what they wait for.
        self._returns = np.flatnonzero(self._kind == KINDS.index(RETURN))
        reached = np.full(len(self.node_times), NONE)
        np.maximum.at(reached, self._target, self.node_times[self._source] + self._length)
        #: What was recorded beyond the dependencies, by node.
        self._beyond = np.where(reached == NONE, 0, np.maximum(self.node_times - reached, 0))
        #: Which nodes follow no other.
        self.follows_none = reached == NONE

    def forget_delay(self, start_ns: int) -> None:
        """What began then was late for work from before recording that was not recorded: no loop would repeat that."""
        self._beyond[: self.events][self.device.start == start_ns] = 0

    @property
    def queued_gaps(self) -> Ints:
        """How long (ns) a stream was idle before each kernel that was in its queue."""
        device = self.device
        before = device.previous_end(NONE)
        queued = (device.called < before) & (device.start >= before) & (before != NONE)
        return (device.start - before)[queued]

    @property
    def recorded(self) -> Changes:
        """Nothing changed."""
        nothing = np.zeros(self.events, bool)
        return Changes(length=self._own.astype(np.float64), removed=nothing, detached=nothing)

    def times(self, changes: Changes, *, delays: bool = True) -> NewTimes:
        """When everything happens. Without ``delays``: what the dependencies alone explain."""
        found = longest(self.paths(changes, delays=delays), np.where(self.follows_none, self.node_times, NONE))
        n = self.events
        return NewTimes(start=found[:n], done=found[n : 2 * n], reached=found[2 * n :])

    def paths(self, changes: Changes, *, delays: bool = True) -> DependencyPaths:
        """What holds after the changes. UsageError where that takes longer than a number of ns can say."""
        source, target, length = self._dependencies(changes, delays)
        if not abs(float(length.sum(dtype=np.float64))) < _CENTURIES_NS:
            raise UsageError("this change makes the step longer than can be computed: give a smaller factor")
        return DependencyPaths(nodes=len(self.node_times), source=source, target=target, length=length)

    def _dependencies(self, changes: Changes, delays: bool) -> tuple[Ints, Ints, Ints]:
        """(source, target, length) of what holds after the changes, in an order in which they lead forward."""
        n = self.events
        beyond = self._beyond.copy() if delays else np.zeros_like(self._beyond)
        beyond[:n][changes.removed] = 0
        kept = np.ones(len(self._source), bool)
        if changes.without is not None:
            # Anchors in spans of a thread that fall away
            away, time = Covered(*changes.without), self.threads.time
            gone = np.zeros(len(self.node_times), bool)
            gone[2 * n :] = away.within(self.threads.lane, time - 1, time) > 0
            beyond[gone] = 0
            kept[self._returns[gone[self._target[self._returns]]]] = False
            # A delay in which the launch still ran, as one that loads a library does, is time of its thread
            called, until = self.device.called, np.minimum(self._returned, self.device.start)
            has_call = (self._launched_by >= 0) & (called < until)
            spared = away.within(
                np.where(has_call, self._launched_by, -1), np.where(has_call, called, 0), np.where(has_call, until, 0)
            )
            beyond[:n] = np.maximum(beyond[:n] - spared, 0)
        if changes.sooner is not None:
            beyond[:n] = np.maximum(beyond[:n] - changes.sooner, 0)
        length = self._lengths(changes)
        source, target = self._source, self._target
        if changes.gap is not None:
            beyond[:n][~np.isin(np.arange(n), self._target[self._kind == KINDS.index(STREAM_WAIT)])] = 0
            gaps = (self._source >= n) & (self._source < 2 * n) & (self._target < n)
            gaps &= self._kind == KINDS.index(QUEUED)
            # A graph makes no gap longer
            length[gaps] = np.minimum(
                changes.gap, np.maximum(self.node_times[target[gaps]] - self.node_times[source[gaps]], 0)
            )
        length += beyond[target]
        if changes.detached.any():
            kept &= ~(
                (source >= n)
                & (source < 2 * n)
                & (target < 2 * n)
                & np.append(changes.detached, False)[np.where((source >= n) & (source < 2 * n), source - n, n)]
            )
            before, after = self._passing(changes.detached)
            source, target = np.concatenate((source[kept], before + n)), np.concatenate((target[kept], after))
            length = np.concatenate((length[kept], np.zeros(len(before), np.int64)))
            order = np.argsort(self._position[target], kind="stable")
            return source[order], target[order], length[order]
        if kept.all():
            return source, target, length
        return source[kept], target[kept], length[kept]

    def _passing(self, detached: Bools) -> tuple[Ints, Ints]:
        """(event, next one of its stream) among the detached ones, and among the others."""
        n = np.arange(self.events)
        pairs = []
        for group in (detached, ~detached):
            own = n[group]
            same = self.device.lane[own[:-1]] == self.device.lane[own[1:]]
            pairs.append((own[:-1][same], own[1:][same]))
        before, after = (np.concatenate(part) for part in zip(*pairs, strict=True))
        return before, after

    @cached_property
    def _parts(self) -> tuple[Ints, Ints, Ints]:
        """The dependencies that are device events, joins of overlapping events, and host time."""
        source, target, n = self._source, self._target, self.events
        on_host = np.isin(self._kind, (KINDS.index(CALLS), KINDS.index(OUTSIDE)))
        of_event = source < n
        parts = of_event & (target == source + n), of_event & (target < n), on_host
        events, joins, host = (np.flatnonzero(part) for part in parts)
        return events, joins, host

    def _lengths(self, changes: Changes) -> Ints:
        """The length of every dependency."""
        length, (whole, joins, on_host) = self._length.copy(), self._parts
        new = np.rint(np.where(changes.removed, 0.0, changes.length)).astype(np.int64)
        length[whole] = new[self._source[whole]]
        event = self._source[joins]
        joined = np.rint(length[joins] * (new[event] / np.maximum(self._own[event], 1))).astype(np.int64)
        if changes.removed.any():
            # What comes before a removed event still takes its time: where both run at once, that time is the length
            length[np.append(changes.removed, False)[np.minimum(self._target, self.events)]] = 0
        length[joins] = joined
        if changes.gap is not None or changes.without is not None or changes.host != 1:
            length[on_host] = self._host_lengths(on_host, changes)
        return length

    def _host_lengths(self, at: Ints, changes: Changes) -> Ints:
        """The lengths of dependencies between anchors, as far as these are of one thread."""
        length, ends = self._length[at], (self._source[at], self._target[at])
        lane, other = (self.threads.lane[node - 2 * self.events] for node in ends)
        own = np.where(lane == other, lane, -1), *(self.node_times[node] for node in ends)
        if changes.gap is not None:
            shares = self._host_time().shares(*own)
            stays: Ints = shares[:, [HOST_CAUSES.index(cause) for cause in _IN_NO_GRAPH]].sum(axis=1)
            return np.minimum(length, stays)
        if changes.without is not None:
            length = np.maximum(length - Covered(*changes.without).within(*own), 0)
        return np.rint(length * changes.host).astype(np.int64)


def _collective_waits(table: TraceTable, device: Device) -> Pairs:
    """A collective's stream waits for what its thread had launched by then, on whatever stream that was.

    So PyTorch's ProcessGroupNCCL has it (``syncStream``), recorded or not. Where one began before that was done, it
    waits for something else.
    """
    launched = np.flatnonzero(device.launch >= 0)
    thread, sent = (
        table.lane[device.launch[launched]],
        device.kind[launched] == KINDS.index(COMMUNICATION),
    )
    works = device.kind[launched] == KINDS.index(COMPUTATION)
    pairs: Pairs = []
    works_of = {lane: launched[works][at] for lane, at in by_number(thread[works])}
    for lane, at in by_number(thread[sent]):
        own, collectives = works_of.get(lane, launched[:0]), launched[sent][at]
        own = own[np.argsort(device.called[own], kind="stable")]
        before = np.searchsorted(device.called[own], device.called[collectives]) - 1
        source, target = own[before[before >= 0]], collectives[before >= 0]
        waits = (device.lane[source] != device.lane[target]) & (device.end[source] <= device.start[target])
        pairs += zip(source[waits].tolist(), target[waits].tolist(), strict=True)
    return pairs


def _all_streams(table: TraceTable, device: Device, threads: Threads) -> Pairs:
    """Calls that wait for a whole device: the last event of each stream that had been launched by then."""
    names = ("cudaDeviceSynchronize", "hipDeviceSynchronize", "cuCtxSynchronize", "hipCtxSynchronize")
    codes = [code for code, name in enumerate(table.names) if name in names]
    waits = np.flatnonzero(np.isin(table.name[threads.waits], codes)).tolist()
    pairs: Pairs = []
    for wait in waits:
        row, anchor = int(threads.waits[wait]), int(threads.of_wait[wait])
        for lane in range(len(device.bounds) - 1):
            event = device.last_launched(lane, int(table.start_ns[row]))
            if event >= 0 and device.end[event] <= threads.time[anchor]:
                pairs.append((event, anchor))
    return pairs


#: Device events of complete steps that are replayed together, beyond the typical one's.
MOST_EVENTS = 5_000
#: Device events of a file without steps beyond which a part of it is replayed.
MOST_OF_FILE = 20_000


class _Divided(Record, frozen=True, kw_only=True, eq=False):
    """Of the dependencies with this ``source``: those within a round (``inner``, with their ends), those from one round
    to the next (``across``), and all ways from one to the next: from node ``last`` to ``first``.
    """

    source: Ints
    inner: Ints
    inner_source: Ints
    inner_target: Ints
    across: Ints
    last: Ints
    first: Ints


class SteadyStep:
    """Some complete steps of a trace, or all of it without steps, or a part of that.

    ``chosen``: positions of the steps; none without. ``part``: the device events that are in a part, instead of steps.
    ``rows``: table rows of the device events that are replayed.
    """

    def __init__(
        self,
        table: TraceTable,
        tree: OpTree,
        host: HostCalls,
        window: Window,
        chosen: Sequence[int],
        part: Bools | None = None,
    ) -> None:
        self.chosen = tuple(chosen)
        self._is_first = 0 in chosen
        self._of: _Divided | None = None
        everything, steps = window.everything, window.times.steps
        if not chosen:
            events = everything if part is None else everything.select(part)
            on_host = None if part is None else _launching(table, tree, events)
            self.graph = DependencyReplay(table, tree, host, events, on_host=on_host)
            self._earlier = np.zeros(self.graph.events, bool)
            self.span = int(events.start.min()), int(events.end.max())
            return
        first, last = chosen[0], chosen[-1]
        begin = steps[first].start_ns
        end = steps[last + 1].start_ns if last + 1 < len(steps) else max(steps[last].end_ns, begin + 1)
        step_of = window.everything_step_of
        inside = (step_of >= first) & (step_of <= last)
        since = steps[first - 1].start_ns if first else int(NONE)
        # Which device events were launched from ``since`` to ``begin``, or ran before those inside without a launch.
        launch = tree.launch[everything.rows]
        earliest = int(everything.start[inside].min(initial=np.iinfo(np.int64).max))
        called = np.where(launch >= 0, table.start_ns[launch], np.where(everything.start < earliest, since, begin))
        kept = inside | ((called >= since) & (called < begin))
        self.span = begin, max(end, int(everything.end[inside].max()))
        self.graph = DependencyReplay(
            table, tree, host, everything.select(kept), on_host=(begin, end),
            also=_ends_of(table, tree, everything.rows[inside], steps[first], (begin, end)),
        )  # fmt: skip
        self._earlier = ~inside[kept][self.graph.at]
        if self._is_first and window.times.unseen_ns:
            self.graph.forget_delay(begin + window.times.unseen_ns)

    @property
    def rows(self) -> Ints:
        return self.graph.device.rows

    @cached_property
    def by_row(self) -> tuple[Ints, Ints]:
        """(``rows`` in their order, where each of them stands)."""
        order = np.argsort(self.rows)
        return self.rows[order], order

    @property
    def steps(self) -> int:
        """How many steps a round has; 1 without steps."""
        return max(len(self.chosen), 1)

    @cached_property
    def _again(self) -> Ints:
        """Per node the same node of the next round, itself if it is of this one; -1 where a round has none like it."""
        n, device = self.graph.events, self.graph.device
        found = np.arange(n)
        for low, high in zip(device.bounds[:-1], device.bounds[1:], strict=True):
            at = np.arange(low, high)
            earlier, own = at[self._earlier[low:high]], at[~self._earlier[low:high]]
            found[earlier] = -1
            both = min(len(earlier), len(own))
            found[earlier[len(earlier) - both :]] = own[len(own) - both :]
        anchors = np.arange(2 * n, 2 * n + len(self.graph.threads.time))
        return np.concatenate((found, np.where(found < 0, -1, found + n), anchors))

    @cached_property
    def _ways(self) -> tuple[Ints, Ints]:
        """(last, first) node of each thread, and of each stream that did nothing before the first step."""
        n, device, threads = self.graph.events, self.graph.device, self.graph.threads
        begins = np.flatnonzero(np.diff(threads.lane, prepend=-1))
        ends = np.append(begins[1:], len(threads.lane))[: len(begins)] - 1
        firsts, lasts = [begins + 2 * n], [ends + 2 * n]
        for low, high in zip(device.bounds[:-1], device.bounds[1:], strict=True):
            if high > low and not self._earlier[low:high].any():
                firsts.append(np.array([low]))
                lasts.append(np.array([high - 1 + n]))
        return np.concatenate(lasts), np.concatenate(firsts)

    @cached_property
    def recorded_ns(self) -> float:
        """How long a round takes as recorded."""
        return self.round_ns(self.graph.recorded)

    def round_ns(self, changes: Changes) -> float:
        """How long a round takes after ``changes``; without steps, the time from the first device event to the end."""
        if not self.chosen:
            times = self.graph.times(changes)
            there = np.flatnonzero(~changes.removed)
            return float(times.done[there].max() - times.start[there].min()) if len(there) else 0.0
        paths = self.graph.paths(changes)
        if self._of is None or self._of.source is not paths.source:
            self._of = self._divided(paths)
        inner, across, last, first = self._of.inner, self._of.across, self._of.last, self._of.first
        lengths = np.concatenate((paths.length[across], np.zeros(len(last) - len(across), np.int64)))
        source, target = self._of.inner_source, self._of.inner_target
        inside = DependencyPaths(nodes=paths.nodes, source=source, target=target, length=paths.length[inner])
        return period(inside, Ways(source=last, target=first, length=lengths))[0]

    def _divided(self, paths: DependencyPaths) -> _Divided:
        is_earlier = np.zeros(paths.nodes, bool)
        n = self.graph.events
        is_earlier[:n] = is_earlier[n : 2 * n] = self._earlier
        of_round, from_before = ~is_earlier[paths.target], is_earlier[paths.source]
        inner = np.flatnonzero(of_round & ~from_before)
        across = of_round & from_before & (self._again[paths.source] >= 0)
        if self._is_first:
            # That the host waited for what was in the queue as recording began is of the recording, as in StepTimes
            across &= paths.target < 2 * n
        at, (last, first) = np.flatnonzero(across), self._ways
        return _Divided(
            source=paths.source,
            inner=inner,
            inner_source=paths.source[inner],
            inner_target=paths.target[inner],
            across=at,
            last=np.concatenate((self._again[paths.source[at]], last)),
            first=np.concatenate((paths.target[at], first)),
        )


def steady_steps(window: Window) -> list[int]:
    """Positions of replayed steps: the typical one and those around it, up to ``MOST_EVENTS`` events; else none."""
    complete = list(window.selected)
    if not complete:
        return []
    events = window.times.device_events
    at = complete.index(typical_step(window.times, complete))
    low, high = at, at

    def fits(low: int, high: int) -> bool:
        if low < 0 or high >= len(complete) or high - low != complete[high] - complete[low]:
            return False
        return int(events[complete[low : high + 1]].sum()) <= MOST_EVENTS

    while fits(low, high + 1) or fits(low - 1, high):
        low, high = (low, high + 1) if fits(low, high + 1) else (low - 1, high)
    return complete[low : high + 1]


def parts_of(window: Window) -> Ints | None:
    """The part of each device event of a file without steps that is too large to be replayed at once; else None."""
    everything = window.everything
    if window.selected or len(everything) <= MOST_OF_FILE:
        return None
    rank = np.empty(len(everything), np.int64)
    rank[np.argsort(everything.start, kind="stable")] = np.arange(len(everything))
    return rank // MOST_OF_FILE


def _launching(table: TraceTable, tree: OpTree, events: DeviceActivity) -> tuple[int, int]:
    """From the first to the last launch of device events, or their own time without any."""
    launch = tree.launch[events.rows]
    called = table.start_ns[launch[launch >= 0]] if (launch >= 0).any() else events.start
    return int(called.min()), int(called.max()) + 1


def _ends_of(
    table: TraceTable, tree: OpTree, rows: RowColumn, step: RecordedStep, span: tuple[int, int]
) -> tuple[RowColumn, Ints]:
    """Anchors where the steps begin and end on the thread of their annotation, else on the one that launches most."""
    launches = tree.launch[rows]
    launches = launches[launches >= 0]
    if not len(launches):
        return np.zeros(0, np.int32), np.zeros(0, np.int64)
    lanes = np.bincount(table.lane[launches], minlength=len(table.lanes))
    marks = np.flatnonzero((table.start_ns == step.start_ns) & (table.kind == Kind.USER_ANNOTATION))
    marks = marks[lanes[table.lane[marks]] > 0]
    busiest = int(launches[np.argmax(table.lane[launches] == lanes.argmax())])
    row = int(marks[0]) if len(marks) else busiest
    return np.full(2, row, np.int32), np.array(span, np.int64)
