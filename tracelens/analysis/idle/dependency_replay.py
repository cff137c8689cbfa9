"""Replay of the dependencies with other durations: new start and end times by longest paths, and the period of
repeated steps. The longest paths are computed by longest.c where a compiler is there.

The dependencies of a trace or a part of it, from which all its times follow when some of them change.

A node is a point in time: a device event starts, its stream is done with it, a host thread reaches a call. Each follows
the latest of what it depends on, by the dependency's length, and by what was recorded beyond that: a delay that nothing
recorded explains (another rank, a data loader) is kept as it was. So nothing changed gives every time as recorded, and
as no length is negative, a shorter event never makes anything later.
"""

from __future__ import annotations

from ctypes import c_double, c_int64, c_void_p
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.analysis.attribution.host_time import COMMUNICATION as COMMUNICATION_ON_HOST
from tracelens.analysis.attribution.host_time import DATA_LOADING, HOST_CAUSES, REQUESTS, HostCalls, HostTime
from tracelens.analysis.idle.dependencies import (
    CALLS,
    COMMUNICATION,
    COMPUTATION,
    KINDS,
    NO_ANCHORS,
    OUTSIDE,
    QUEUED,
    RETURN,
    STREAM_WAIT,
    Device,
    Edges,
    Pairs,
    Threads,
    host_waits,
    inferred_waits,
    recorded_waits,
)
from tracelens.analysis.intervals import Covered, Ints
from tracelens.errors import UsageError
from tracelens.lazy.compiled import address, library
from tracelens.lazy.records import dataclass
from tracelens.trace.table import RowColumn, TraceTable
from tracelens.trace.tree import OpTree

Floats = npt.NDArray[np.float64]

_SOURCE, _LAYOUT = Path(__file__).with_name("longest.c"), 1
#: When a node is that only follows others.
NONE = np.iinfo(np.int64).min
# Of times in ns: what is nearer than that is equal
_NEAR = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DependencyPaths:
    """Dependencies between ``nodes`` numbered points in time: the target comes ``length`` (ns) after the source, or
    later."""

    nodes: int
    source: Ints
    target: Ints
    length: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ways:
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


def period(paths: DependencyPaths, ways: Ways, lead: Floats | None = None) -> tuple[float, Floats]:
    """(how long a round takes in the long run, the lead of each way): the largest mean length of the cycles that lead
    along ``paths`` within a round and along ``ways`` from one to the next.

    ``lead``: of each way how much later than others its target begins, where that is known from a like graph.
    """
    start = np.zeros(len(ways.source)) if lead is None else np.array(lead, np.float64)
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


Bools = npt.NDArray[np.bool_]

#: So long no step is.
_CENTURIES_NS = 2.0**62
#: What a thread of the host does whether or not its kernels are launched as graphs.
_IN_NO_GRAPH = (DATA_LOADING, COMMUNICATION_ON_HOST, REQUESTS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NewTimes:
    """When everything happens, in ns: ``start`` of each device event, ``done`` when its stream is done with all so far
    (both by position in ``DependencyReplay.device``), and ``reached`` each anchor of a thread."""

    start: Ints
    done: Ints
    reached: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changes:
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
        self._n = len(self.device.start)
        self._waits(
            edges, host_waits(table, self.device, self.threads) + _all_streams(table, self.device, self.threads)
        )
        self._stretches(edges)
        self._order(edges)

    @property
    def events(self) -> int:
        """Number of device events."""
        return self._n

    def _waits(self, edges: Edges, pairs: Pairs) -> None:
        """Adds calls that wait for events: each returns as long after any of them as after the last, at most."""
        source, anchor = np.array(pairs, np.int64).reshape(-1, 2).T
        gap = self.threads.time[anchor] - self.device.end[source]
        least = np.full(len(self.threads.time), self.device.usual)
        np.minimum.at(least, anchor, gap)
        edges.add(source + self._n, anchor + 2 * self._n, least[anchor], RETURN, self.threads.rows[anchor])

    def _stretches(self, edges: Edges) -> None:
        """Adds what follows on a stream, whose lengths are those of the events."""
        device, n = self.device, np.arange(self._n)
        none = np.full(self._n, -1)
        edges.add(n, n + self._n, self._own, device.kind, device.rows)
        one, following = n[:-1], n[1:]
        same = device.lane[one] == device.lane[following]
        one, following = one[same], following[same]
        edges.add(one + self._n, following + self._n, np.zeros(len(one), np.int64), QUEUED, none[one])
        gap = device.start[following] - device.end[one]
        joins = gap < 0
        step = device.start[following[joins]] - device.start[one[joins]]
        edges.add(one[joins], following[joins], step, device.kind[one[joins]], device.rows[one[joins]])
        one, following, gap = one[~joins], following[~joins], gap[~joins]
        queued = device.called[following] < device.end[one]
        length = np.where(queued, np.minimum(gap, device.usual), 0)
        edges.add(one + self._n, following, length, QUEUED, device.rows[following])

    def _order(self, edges: Edges) -> None:
        source, target, length, kind, _ = edges.columns
        position = edges.position
        forward = np.flatnonzero((position[source] < position[target]) & ~self._opens(source, target))
        kept = forward[np.argsort(position[target[forward]], kind="stable")]
        #: When each node was recorded to be: starts of device events, ends of them, anchors of threads.
        self.node_times, self._position = edges.time, position
        self._source, self._target, self._length, self._kind = (c[kept] for c in (source, target, length, kind))
        reached = np.full(len(self.node_times), NONE)
        np.maximum.at(reached, self._target, self.node_times[self._source] + self._length)
        #: What was recorded beyond the dependencies, by node.
        self._beyond = np.where(reached == NONE, 0, np.maximum(self.node_times - reached, 0))
        #: Which nodes follow no other.
        self.follows_none = reached == NONE

    def _opens(self, source: Ints, target: Ints) -> Bools:
        """Which dependencies are those on a thread's own beginning where another thread hands over to it then."""
        threads, base = self.threads, 2 * self._n
        begins = np.concatenate(([True], np.diff(threads.lane) != 0))
        entered = np.isin(np.arange(len(begins)), threads.entered)
        at, following = source - base, target - base
        found: Bools = (at >= 0) & (following == at + 1)
        at, following = at[found], following[found]
        found[found] = begins[at] & entered[following] & (threads.time[at] == threads.time[following])
        return found

    def forget_delay(self, start_ns: int) -> None:
        """What began then was late for work from before recording that was not recorded: no loop would repeat that."""
        self._beyond[: self._n][self.device.start == start_ns] = 0

    @property
    def queued_gaps(self) -> Ints:
        """How long (ns) a stream was idle before each kernel that was in its queue."""
        device = self.device
        before = device.previous_end(NONE)
        queued = (device.called < before) & (device.start >= before) & (before != NONE)
        found: Ints = (device.start - before)[queued]
        return found

    @property
    def recorded(self) -> Changes:
        """Nothing changed."""
        nothing = np.zeros(self._n, bool)
        return Changes(length=self._own.astype(np.float64), removed=nothing, detached=nothing)

    def times(self, changes: Changes, *, delays: bool = True) -> NewTimes:
        """When everything happens. Without ``delays``: what the dependencies alone explain."""
        found = longest(self.paths(changes, delays=delays), np.where(self.follows_none, self.node_times, NONE))
        n = self._n
        return NewTimes(start=found[:n], done=found[n : 2 * n], reached=found[2 * n :])

    def paths(self, changes: Changes, *, delays: bool = True) -> DependencyPaths:
        """What holds after the changes. UsageError where that takes longer than a number of ns can say."""
        source, target, length = self._dependencies(changes, delays)
        if not abs(float(length.sum(dtype=np.float64))) < _CENTURIES_NS:
            raise UsageError("with this change the step would take centuries: give a smaller factor")
        return DependencyPaths(nodes=len(self.node_times), source=source, target=target, length=length)

    def _dependencies(self, changes: Changes, delays: bool) -> tuple[Ints, Ints, Ints]:
        """(source, target, length) of what holds after the changes, in an order in which they lead forward."""
        n = self._n
        beyond = self._beyond.copy() if delays else np.zeros_like(self._beyond)
        beyond[:n][changes.removed] = 0
        kept = np.ones(len(self._source), bool)
        if changes.without is not None:
            gone = self._anchors_without(changes.without)
            beyond[gone] = 0
            kept[self._returns[gone[self._target[self._returns]]]] = False
            # A delay in which the launch still ran, as one that loads a library does, is time of its thread
            called, until = self.device.called, np.minimum(self._returned, self.device.start)
            has_call = (self._launched_by >= 0) & (called < until)
            spared = Covered(*changes.without).within(
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
        n = np.arange(self._n)
        pairs = []
        for group in (detached, ~detached):
            own = n[group]
            same = self.device.lane[own[:-1]] == self.device.lane[own[1:]]
            pairs.append((own[:-1][same], own[1:][same]))
        before, after = (np.concatenate(part) for part in zip(*pairs, strict=True))
        return before, after

    @cached_property
    def _returns(self) -> Ints:
        """Dependencies of calls on what they wait for."""
        return np.flatnonzero(self._kind == KINDS.index(RETURN))

    def _anchors_without(self, spans: tuple[Ints, Ints, Ints]) -> Bools:
        """Which nodes are anchors in spans of a thread that fall away."""
        found, time = np.zeros(len(self.node_times), bool), self.threads.time
        found[2 * self._n :] = Covered(*spans).within(self.threads.lane, time - 1, time) > 0
        return found

    @cached_property
    def _parts(self) -> tuple[Ints, Ints, Ints]:
        """The dependencies that are device events, that join an event to one that began before it ended, and the host's
        own time.
        """
        source, target, n = self._source, self._target, self._n
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
            length[np.append(changes.removed, False)[np.minimum(self._target, self._n)]] = 0
        length[joins] = joined
        if changes.gap is not None or changes.without is not None or changes.host != 1:
            length[on_host] = self._host_lengths(on_host, changes)
        return length

    def _host_lengths(self, at: Ints, changes: Changes) -> Ints:
        length, own = self._length[at], self._threads_at(at)
        if changes.gap is not None:
            shares = self._host_time().shares(*own)
            stays: Ints = shares[:, [HOST_CAUSES.index(cause) for cause in _IN_NO_GRAPH]].sum(axis=1)
            return np.minimum(length, stays)
        if changes.without is not None:
            length = np.maximum(length - Covered(*changes.without).within(*own), 0)
        scaled: Ints = np.rint(length * changes.host).astype(np.int64)
        return scaled

    def _threads_at(self, at: Ints) -> tuple[Ints, Ints, Ints]:
        """(lane, start, end) of dependencies between anchors; the lane is -1 where they are of different threads."""
        source, target = self._source[at], self._target[at]
        lane = self.threads.lane[source - 2 * self._n]
        same = lane == self.threads.lane[target - 2 * self._n]
        return np.where(same, lane, -1), self.node_times[source], self.node_times[target]


def _collective_waits(table: TraceTable, device: Device) -> Pairs:
    """A collective's stream waits for what its thread had launched by then, on whatever stream that was.

    So PyTorch's ProcessGroupNCCL has it (``syncStream``), recorded or not. Where one began before that was done, it
    waits for something else.
    """
    launched = np.flatnonzero(device.launch >= 0)
    thread, sent = table.lane[device.launch[launched]], device.kind[launched] == KINDS.index(COMMUNICATION)
    works = device.kind[launched] == KINDS.index(COMPUTATION)
    pairs: Pairs = []
    for lane in np.unique(thread[sent]).tolist():
        own, collectives = launched[(thread == lane) & works], launched[(thread == lane) & sent]
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
