"""The dependency graph of host and device events, and its longest path: the critical path of a window.

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
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity, streams_of
from tracelens.analysis.attribution.host_time import HostCalls
from tracelens.analysis.attribution.steps import LONGEST_LATENCY_NS
from tracelens.analysis.idle.idle_time import CAUSES, IdleTime
from tracelens.analysis.intervals import Bools, Covered, Ints, Spans, idle_within, intersections
from tracelens.trace.table import DEVICE_KINDS, Kind, RowColumn, TraceTable
from tracelens.trace.tree import OpTree
from tracelens.types.records import Record
from tracelens.types.units import NS_PER_US

if TYPE_CHECKING:
    import pandas as pd


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
        """(source, target, length, kind, row) of all dependencies."""
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
        import pandas as pd

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
        import pandas as pd

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
