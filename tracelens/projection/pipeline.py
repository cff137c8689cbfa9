"""A pipeline schedule run as an event graph: a task starts when its rank is free and what it needs has arrived."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tracelens.errors import UsageError
from tracelens.projection.schedules import Kind, Route, Task


class Cost(NamedTuple):
    """A task's time on the device, its least time from when the host begins to launch it, and the host's time for it.

    Microseconds. Without a host the last two leave nothing to wait for.
    """

    time_us: float
    host_us: float = 0.0
    launch_us: float = 0.0


#: ``[rank][chunk]``.
PerChunk: TypeAlias = Sequence[Sequence[float]]
#: A task whose cost depends on when it starts.
LateCost: TypeAlias = Callable[[float], Cost]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What tasks take.

    ``of`` by kind as ``[rank][chunk]``; ``late`` by (rank, position in its order) takes precedence. ``pairs`` of rank,
    forward and backward: the two of a forward and the backward after it that run beside each other.
    """

    of: Mapping[Kind, Sequence[Sequence[Cost]]]
    late: Mapping[tuple[int, int], LateCost] = field(default_factory=dict)
    pairs: Callable[[int, Task, Task], tuple[Cost, Cost] | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What the ranks of a pipeline did. Times in microseconds from the first task's start.

    ``starts_us``, ``ends_us`` and ``launches_us`` (when the host began) of a rank are those of its tasks in order.
    ``received_us``: when what a task needs left its sender, and came; ``sent_us``: when its result left and came.
    ``busy_us`` of a rank is the time of its tasks; ``transfer_us`` what it waited for transfers that were under way.
    ``kept_bytes``: the most activations that it kept at once. ``pairs``: positions of forwards that ran beside the
    backward after them.
    """

    time_us: float
    starts_us: tuple[tuple[float, ...], ...]
    ends_us: tuple[tuple[float, ...], ...]
    launches_us: tuple[tuple[float, ...], ...]
    received_us: tuple[tuple[tuple[float, float] | None, ...], ...]
    sent_us: tuple[tuple[tuple[float, float] | None, ...], ...]
    busy_us: tuple[float, ...]
    transfer_us: tuple[float, ...]
    kept_bytes: tuple[float, ...]
    pairs: tuple[frozenset[int], ...]


def run(
    tasks: Sequence[Sequence[Task]],
    routes: Sequence[Route],
    *,
    costs: Costs,
    kept_bytes: PerChunk,
    later_bytes: PerChunk,
    hops_us: Sequence[float],
) -> Pipeline:
    """Runs what a schedule orders. ``hops_us[r]`` passes between rank r and the next, both ways; the last one and the
    first are neighbors too.

    A transfer keeps neither rank from its next task, but the next transfer the same way waits for it. The host waits
    for what a task receives, and else runs ahead of the device. ``kept_bytes`` of a micro-batch live from its forward,
    ``later_bytes`` of them from the input's to the weights' gradient. UsageError when the schedule waits for itself.
    """
    wires = _Wires(routes, hops_us)
    ranks = [_Rank(rank, mine, costs, wires) for rank, mine in enumerate(tasks)]
    waiting = ranks
    while waiting:
        advanced = [rank.advance() for rank in waiting]
        if not any(advanced):
            raise UsageError(f"the schedule waits for itself on ranks {[rank.index for rank in waiting]}")
        waiting = [rank for rank in waiting if rank.position < len(rank.tasks)]
    return Pipeline(
        time_us=max(rank.free for rank in ranks),
        starts_us=tuple(tuple(rank.starts) for rank in ranks),
        ends_us=tuple(tuple(rank.ends) for rank in ranks),
        launches_us=tuple(tuple(rank.launches) for rank in ranks),
        received_us=tuple(tuple(rank.received) for rank in ranks),
        sent_us=tuple(tuple(rank.sent) for rank in ranks),
        busy_us=tuple(rank.busy for rank in ranks),
        transfer_us=tuple(rank.waited for rank in ranks),
        kept_bytes=tuple(_peak(mine, kept_bytes[rank], later_bytes[rank]) for rank, mine in enumerate(tasks)),
        pairs=tuple(frozenset(rank.pairs) for rank in ranks),
    )


class _Wires:
    """What arrived where and when. Keys begin with whether the pass is forward; a link joins two ranks one way."""

    def __init__(self, routes: Sequence[Route], hops_us: Sequence[float]) -> None:
        ranks = len(hops_us)
        self.arrived: dict[tuple[bool, int, int, int], tuple[float, float]] = {}
        self.free: dict[tuple[int, int, bool], float] = {}
        self.enters = {route[0] for route in routes}
        self.next_of: dict[tuple[bool, int, int], tuple[tuple[int, int], tuple[int, int, bool], float]] = {}
        for route in routes:
            for here, there in itertools.pairwise(route):
                for forward, source, target in ((True, here, there), (False, there, here)):
                    onward = target[0] == (source[0] + 1) % ranks
                    hop = 0.0 if source[0] == target[0] else hops_us[source[0] if onward else target[0]]
                    link = (source[0], target[0], forward)
                    self.free[link] = 0.0
                    self.next_of[forward, *source] = (target, link, hop)

    def send(self, forward: bool, rank: int, chunk: int, micro_batch: int, at_us: float) -> tuple[float, float] | None:
        """Passes a result on, and says when it left and came; the last part of the model turns round."""
        onward = self.next_of.get((forward, rank, chunk))
        if onward is None:
            if forward:
                self.arrived[False, rank, chunk, micro_batch] = (at_us, at_us)
            return None
        (to, place), link, hop = onward
        leaves = max(at_us, self.free[link])
        self.free[link] = leaves + hop
        self.arrived[forward, to, place, micro_batch] = (leaves, leaves + hop)
        return (leaves, leaves + hop) if to != rank else None


class _Rank:
    """One rank's progress."""

    def __init__(self, index: int, tasks: Sequence[Task], costs: Costs, wires: _Wires) -> None:
        self.index, self.tasks, self.costs, self.wires = index, tasks, costs, wires
        self.position = 0
        self.free = self.host = self.busy = self.waited = 0.0
        self.starts: list[float] = []
        self.ends: list[float] = []
        self.launches: list[float] = []
        self.received: list[tuple[float, float] | None] = []
        self.sent: list[tuple[float, float] | None] = []
        self.pairs: set[int] = set()

    def advance(self) -> bool:
        """Runs what it can; whether that was anything."""
        first, tasks = self.position, self.tasks
        while self.position < len(tasks):
            task = tasks[self.position]
            came = self._came(task)
            if came is None:
                break
            pair = self._pair(task)
            if pair is None:
                self._wait(came)
                self._run(task, self._cost(task), came)
                self.free = self.ends[-1]
                continue
            other = self._came(tasks[self.position + 1])
            if other is None:
                break
            self._wait(max(came, other, key=lambda times: times[1]))
            start, self.pairs = self.free, self.pairs | {self.position}
            for each, cost, times in zip(tasks[self.position : self.position + 2], pair, (came, other), strict=True):
                self.free = start
                self._run(each, cost, times)
            self.free = max(self.ends[-2:])
            self.busy -= sum(end - start for end in self.ends[-2:]) - (self.free - start)
        return self.position > first

    def _came(self, task: Task) -> tuple[float, float] | None:
        """When what the task needs left its sender, and came."""
        kind, micro_batch, chunk = task
        if kind == "W" or (kind == "F" and (self.index, chunk) in self.wires.enters):
            return (0.0, 0.0)
        return self.wires.arrived.get((kind == "F", self.index, chunk, micro_batch))

    def _wait(self, came: tuple[float, float]) -> None:
        left, due = came
        if due > self.free:
            self.waited += min(due - self.free, due - left)
            self.free = due

    def _pair(self, task: Task) -> tuple[Cost, Cost] | None:
        at, pairs = self.position, self.costs.pairs
        if pairs is None or task.kind != "F" or at + 1 == len(self.tasks):
            return None
        after, late = self.tasks[at + 1], self.costs.late
        if after.kind not in "BD" or after.micro_batch == task.micro_batch:
            return None
        return None if (self.index, at) in late or (self.index, at + 1) in late else pairs(self.index, task, after)

    def _cost(self, task: Task) -> Cost:
        late = self.costs.late.get((self.index, self.position))
        return self.costs.of[task.kind][self.index][task.chunk] if late is None else late(self.free)

    def _run(self, task: Task, cost: Cost, came: tuple[float, float]) -> None:
        kind, micro_batch, chunk = task
        left, due = came
        travelled = due > left
        launch = max(self.host, due) if travelled else self.host
        start = self.free
        end = max(start + cost.time_us, launch + cost.host_us)
        self.host = launch + cost.launch_us
        self.busy += end - start
        self.starts.append(start)
        self.ends.append(end)
        self.launches.append(launch)
        self.received.append(came if travelled else None)
        self.sent.append(None if kind == "W" else self.wires.send(kind == "F", self.index, chunk, micro_batch, end))
        self.position += 1


def _peak(tasks: Sequence[Task], kept: Sequence[float], later: Sequence[float]) -> float:
    held = peak = 0.0
    for kind, _, chunk in tasks:
        if kind == "F":
            held += kept[chunk]
        elif kind == "B":
            held -= kept[chunk]
        elif kind == "D":
            held += later[chunk] - kept[chunk]
        else:
            held -= later[chunk]
        peak = max(peak, held)
    return peak
