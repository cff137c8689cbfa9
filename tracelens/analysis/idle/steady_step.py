"""How long a step takes when it is done again and again, as recorded or with something different about it.

The steps that are replayed are taken for one round: what the first of them followed on its stream, waited for, or did
next on its thread, it follows of the round before. A round then takes as long as the slowest circle of dependencies:
of the host alone, of the device alone, or of both where the host waits for the device. So the head start that the host
had in the recording gains nothing, and kernels that become shorter than the host's own time gain nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.analysis.attribution.host_time import HostCalls
from tracelens.analysis.attribution.steps import RecordedStep, typical_step
from tracelens.analysis.attribution.window import Window
from tracelens.analysis.idle.dependency_replay import NONE, Changes, DependencyPaths, DependencyReplay, Ways, period
from tracelens.analysis.intervals import Bools, Ints
from tracelens.lazy.records import dataclass
from tracelens.trace.table import Kind, RowColumn, TraceTable
from tracelens.trace.tree import OpTree

#: Device events of complete steps that are replayed together, beyond the typical one's.
MOST_EVENTS = 5_000
#: Device events of a file without steps beyond which a part of it is replayed.
MOST_OF_FILE = 20_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Divided:
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
        kept = inside | _before(table, tree, everything, inside, (since, begin))
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
        """For each node of the graph: the same of the next round where it is of the round before, itself otherwise; -1
        where a round has none like it.
        """
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

    def without_device(self, changes: Changes | None = None) -> float:
        """How long a round takes when no device event takes any time: what the host needs."""
        changes = changes or self.graph.recorded
        return self.round_ns(replace(changes, length=np.zeros(self.graph.events)))

    def without_host(self, changes: Changes | None = None) -> float:
        """How long a round takes when the host's own work takes no time: what the device needs."""
        return self.round_ns(replace(changes or self.graph.recorded, host=0.0))


def steady_steps(window: Window) -> list[int]:
    """Positions of the steps that are replayed: the typical one and those around it, as far as they have together no
    more than ``MOST_EVENTS`` device events; none without steps.
    """
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


def _before(table: TraceTable, tree: OpTree, events: DeviceActivity, inside: Bools, span: tuple[int, int]) -> Bools:
    """Which device events were launched in a ``span`` before those ``inside``, or ran before them without a launch."""
    launch = tree.launch[events.rows]
    first = int(events.start[inside].min(initial=np.iinfo(np.int64).max))
    called = np.where(launch >= 0, table.start_ns[launch], np.where(events.start < first, span[0], span[1]))
    found: Bools = (called >= span[0]) & (called < span[1]) & ~inside
    return found


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
