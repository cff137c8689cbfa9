"""Replay of the dependencies with other durations: new start and end times by longest paths, and how long a step
takes when it is done again and again (``SteadyStep``). longest.c computes the paths where a compiler is there.

A node is a point in time: a device event starts, its stream is done with it, a host thread reaches a call. Each follows
the latest of what it depends on, by the dependency's length, and by what was recorded beyond that: a delay that nothing
recorded explains (another rank, a data loader) is kept as it was. So nothing changed gives every time as recorded, and
as no length is negative, a shorter event never makes anything later.

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

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.analysis.attribution.host_time import COMMUNICATION as COMMUNICATION_ON_HOST
from tracelens.analysis.attribution.host_time import DATA_LOADING, HOST_CAUSES, REQUESTS, HostCalls, HostTime
from tracelens.analysis.attribution.steps import RecordedStep, typical_step
from tracelens.analysis.attribution.window import Window
from tracelens.analysis.grouping import by_number
from tracelens.analysis.idle import dependencies
from tracelens.analysis.intervals import Bools, Covered, Floats, Ints
from tracelens.errors import UsageError
from tracelens.files.compiled import address, library
from tracelens.trace.table import Kind, RowColumn, TraceTable
from tracelens.trace.tree import OpTree
from tracelens.types.records import Record

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
        also: tuple[RowColumn, Ints] = dependencies.NO_ANCHORS,
    ) -> None:
        """``events``: all device events of the file, or those of a part of it that the host launched in the span
        ``on_host``. ``also``: rows and times that are anchors too.
        """
        window = int(table.start_ns.min()), int((table.start_ns + table.duration_ns).max()) + 1
        blocking = np.flatnonzero(host.blocking).astype(np.int32)
        if on_host is not None:
            blocking = blocking[(table.start_ns[blocking] >= on_host[0]) & (table.start_ns[blocking] < on_host[1])]
        rows, times = np.concatenate((blocking, also[0])), np.concatenate((table.start_ns[blocking], also[1]))
        self.device = dependencies.Device(table, tree, events, window)
        self.threads = dependencies.Threads(table, host, self.device, on_host or window, also=(rows, times))
        #: Position of each of the device's events in ``events``.
        self.at = np.searchsorted(events.rows, self.device.rows)
        self._host_time = partial(HostTime, table, tree, host)
        self._own = events.end[self.at] - events.start[self.at]
        launch = self.device.launch
        #: Of each device event: the thread of the call that launched it, -1 without one, and when that returned.
        self._launched_by = np.where(launch >= 0, table.lane[launch], -1).astype(np.int64)
        self._returned = np.where(launch >= 0, table.ends_ns(launch.astype(np.int32)), self.device.start)
        edges = dependencies.Edges(self.device, self.threads)
        edges.add_threads()
        edges.add_launches(np.full(len(self.device.start), NONE))
        recorded = dependencies.recorded_waits(table, self.device)
        edges.add_stream_waits(recorded)
        edges.add_stream_waits(dependencies.inferred_waits(self.device, {target for _, target in recorded}, window[0]))
        edges.add_stream_waits(_collective_waits(table, self.device))
        #: Number of device events.
        self.events = len(self.device.start)
        self._waits(
            edges,
            dependencies.host_waits(table, self.device, self.threads) + _all_streams(table, self.device, self.threads),
        )
        edges.add_events(self._own)
        one, following = (each + self.events for each in edges.neighbors)
        edges.add(one, following, np.zeros(len(one), np.int64), dependencies.QUEUED, np.full(len(one), -1))
        edges.add_neighbors()
        self._order(edges)

    def _waits(self, edges: dependencies.Edges, pairs: dependencies.Pairs) -> None:
        """Adds calls that wait for events: each returns as long after any of them as after the last, at most."""
        source, anchor = np.array(pairs, np.int64).reshape(-1, 2).T
        gap = self.threads.time[anchor] - self.device.end[source]
        least = np.full(len(self.threads.time), self.device.usual)
        np.minimum.at(least, anchor, gap)
        edges.add(
            source + self.events,
            anchor + 2 * self.events,
            least[anchor],
            dependencies.RETURN,
            self.threads.rows[anchor],
        )

    def _order(self, edges: dependencies.Edges) -> None:
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
        self._returns = np.flatnonzero(self._kind == dependencies.KINDS.index(dependencies.RETURN))
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
            beyond[:n][
                ~np.isin(np.arange(n), self._target[self._kind == dependencies.KINDS.index(dependencies.STREAM_WAIT)])
            ] = 0
            gaps = (self._source >= n) & (self._source < 2 * n) & (self._target < n)
            gaps &= self._kind == dependencies.KINDS.index(dependencies.QUEUED)
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
        on_host = np.isin(
            self._kind, (dependencies.KINDS.index(dependencies.CALLS), dependencies.KINDS.index(dependencies.OUTSIDE))
        )
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


def _collective_waits(table: TraceTable, device: dependencies.Device) -> dependencies.Pairs:
    """A collective's stream waits for what its thread had launched by then, on whatever stream that was.

    So PyTorch's ProcessGroupNCCL has it (``syncStream``), recorded or not. Where one began before that was done, it
    waits for something else.
    """
    launched = np.flatnonzero(device.launch >= 0)
    thread, sent = (
        table.lane[device.launch[launched]],
        device.kind[launched] == dependencies.KINDS.index(dependencies.COMMUNICATION),
    )
    works = device.kind[launched] == dependencies.KINDS.index(dependencies.COMPUTATION)
    pairs: dependencies.Pairs = []
    works_of = {lane: launched[works][at] for lane, at in by_number(thread[works])}
    for lane, at in by_number(thread[sent]):
        own, collectives = works_of.get(lane, launched[:0]), launched[sent][at]
        own = own[np.argsort(device.called[own], kind="stable")]
        before = np.searchsorted(device.called[own], device.called[collectives]) - 1
        source, target = own[before[before >= 0]], collectives[before >= 0]
        waits = (device.lane[source] != device.lane[target]) & (device.end[source] <= device.start[target])
        pairs += zip(source[waits].tolist(), target[waits].tolist(), strict=True)
    return pairs


def _all_streams(table: TraceTable, device: dependencies.Device, threads: dependencies.Threads) -> dependencies.Pairs:
    """Calls that wait for a whole device: the last event of each stream that had been launched by then."""
    names = ("cudaDeviceSynchronize", "hipDeviceSynchronize", "cuCtxSynchronize", "hipCtxSynchronize")
    codes = [code for code, name in enumerate(table.names) if name in names]
    waits = np.flatnonzero(np.isin(table.name[threads.waits], codes)).tolist()
    pairs: dependencies.Pairs = []
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
