"""A pipeline schedule run as an event graph, and what hops between stages and communication add to computing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

from tracelens.errors import UsageError
from tracelens.predict.network.algorithms import collective_us
from tracelens.predict.network.topology import Group, Topology, Values
from tracelens.predict.projection.schedules import Kind, Route, Task
from tracelens.types.records import Record

#: An overlapped collective takes SMs and bandwidth: computing takes so much longer while they share the device.
#: Measured 19 % in the mean and at most 40 (arXiv 2507.03114); of 0.1, 0.2 and 0.3 the one with which families of
#: published steps that were left out of the fit are nearest, dense 5.1, 4.9 and 4.6 % (``fit_profiles.py``).
OVERLAP_COST = 0.3
#: Bytes per element of gradients on the wire: fp32 buffers, and 16 bits where FSDP reduces what it computed.
REDUCED_BYTES = {0: 4, 1: 4, 2: 4, 3: 2}


def exposed_us(transfer_us: Values, compute_us: Values) -> Values:
    """What an overlapped transfer adds to computing: the slowdown while both run, and the rest of the transfer."""
    slow = 1 + OVERLAP_COST
    return np.maximum(transfer_us - compute_us, np.minimum(transfer_us, slow * compute_us) * (1 - 1 / slow))


def hop_us(nbytes: Values, group: Group, topology: Topology) -> Values:
    """The mean over the hops between neighbors of a pipeline of ``group``, of which some leave the node."""
    if group.ranks == 1:
        return 0.0 * nbytes
    node = topology.ranks_per_node
    far = group.domains(node) - 1 if node is not None else 0
    near = group.ranks - 1 - far
    total: Values = 0.0 * nbytes
    if near:
        total = total + near * collective_us("send", nbytes, Group(ranks=2, stride=group.stride), topology)[0]
    if far and node is not None:
        total = total + far * collective_us("send", nbytes, Group(ranks=2, stride=node), topology)[0]
    return total / (group.ranks - 1)


def hops_us(nbytes: float, group: Group, topology: Topology) -> list[float]:
    """Send time from each rank of a pipeline to the next, the last to the first: fast within a node, else slow."""
    node = topology.ranks_per_node
    found: dict[bool, float] = {}
    hops = []
    for rank in range(group.ranks):
        here, there = rank * group.stride, (rank + 1) % group.ranks * group.stride
        far = node is not None and here // node != there // node
        if far not in found:
            stride = max(group.stride, node) if far and node is not None else group.stride
            found[far] = float(collective_us("send", nbytes, Group(ranks=2, stride=stride), topology)[0][0])
        hops.append(found[far])
    return hops


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


class TaskCosts(Record, frozen=True, kw_only=True):
    """What tasks take.

    ``of`` by kind as ``[rank][chunk]``; ``late`` by (rank, position in its order) takes precedence. ``pairs`` of rank,
    forward and backward: the two of a forward and the backward after it that overlap.
    """

    of: Mapping[Kind, Sequence[Sequence[Cost]]]
    late: Mapping[tuple[int, int], LateCost] = msgspec.field(default_factory=dict)
    pairs: Callable[[int, Task, Task], tuple[Cost, Cost] | None] | None = None


class Pipeline(Record, frozen=True, kw_only=True):
    """What the ranks of a pipeline did. Times in microseconds from the first task's start.

    ``starts_us``, ``ends_us`` and ``launches_us`` (when the host began) of a rank are those of its tasks in order.
    ``busy_us`` of a rank is the time of its tasks; ``transfer_us`` what it waited for transfers that were under way.
    ``kept_bytes``: the most activations that it kept at once. ``pairs``: positions of forwards that ran beside the
    backward after them. ``ports`` by rank, kind and chunk: when results came in and went out.
    """

    time_us: float
    starts_us: Sequence[Sequence[float]]
    ends_us: Sequence[Sequence[float]]
    launches_us: Sequence[Sequence[float]]
    busy_us: tuple[float, ...]
    transfer_us: tuple[float, ...]
    kept_bytes: tuple[float, ...]
    pairs: tuple[frozenset[int], ...]
    ports: Sequence[Mapping[Kind, Sequence[Port]]]

    def received_us(self, rank: int, task: Task) -> tuple[float, float] | None:
        """When what a task needs left its sender, and came; None for what needs nothing from another rank."""
        port = self.ports[rank][task.kind][task.chunk]
        return _travel(port.source, task.micro_batch, port.hop_in_us)

    def sent_us(self, rank: int, task: Task) -> tuple[float, float] | None:
        """When a task's result left, and came where it is needed; None for what no other rank needs."""
        port = self.ports[rank][task.kind][task.chunk]
        return _travel(port.target, task.micro_batch, port.hop_out_us)


def _travel(came: Sequence[float | None] | None, micro_batch: int, hop_us: float) -> tuple[float, float] | None:
    due = came[micro_batch] if came is not None and hop_us else None
    return None if due is None else (due - hop_us, due)


class Port(NamedTuple):
    """Where tasks of one kind and chunk take what they need from, and put their result: when it is there, by
    micro-batch, None until then. ``link``: until when transfers the same way are under way.
    """

    source: list[float | None] | None
    hop_in_us: float
    target: list[float | None] | None
    hop_out_us: float
    link: list[float]
    cost: Cost


def run(
    tasks: Sequence[Sequence[Task]],
    routes: Sequence[Route],
    *,
    costs: TaskCosts,
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
    ports = _ports(tasks, routes, costs, hops_us)
    ranks = [_Rank(rank, mine, costs, ports[rank]) for rank, mine in enumerate(tasks)]
    _finish(ranks)
    return Pipeline(
        time_us=max(rank.free for rank in ranks),
        starts_us=[rank.starts for rank in ranks],
        ends_us=[rank.ends for rank in ranks],
        launches_us=[rank.launches for rank in ranks],
        busy_us=tuple(rank.busy for rank in ranks),
        transfer_us=tuple(rank.waited for rank in ranks),
        kept_bytes=tuple(_peak(mine, kept_bytes[rank], later_bytes[rank]) for rank, mine in enumerate(tasks)),
        pairs=tuple(frozenset(rank.pairs) for rank in ranks),
        ports=ports,
    )


def _ports(
    tasks: Sequence[Sequence[Task]], routes: Sequence[Route], costs: TaskCosts, hops_us: Sequence[float]
) -> list[dict[Kind, list[Port]]]:
    """What each rank receives and sends; both backwards do alike, and weights' gradients do neither."""
    ranks, chunks = len(tasks), sum(len(route) for route in routes) // len(tasks)
    micro_batches = 1 + max(task.micro_batch for task in tasks[0])
    links: dict[tuple[int, int, bool], list[float]] = {}
    source: dict[tuple[bool, int, int], tuple[list[float | None], float]] = {}
    target: dict[tuple[bool, int, int], tuple[list[float | None], float, list[float]]] = {}
    for route in routes:
        turn: list[float | None] = [None] * micro_batches
        target[True, *route[-1]] = turn, 0.0, [0.0]
        source[False, *route[-1]] = turn, 0.0
        for here, there in itertools.pairwise(route):
            for forward, sender, receiver in ((True, here, there), (False, there, here)):
                onward = receiver[0] == (sender[0] + 1) % ranks
                hop = 0.0 if sender[0] == receiver[0] else hops_us[sender[0] if onward else receiver[0]]
                came: list[float | None] = [None] * micro_batches
                link = links.setdefault((sender[0], receiver[0], forward), [0.0])
                target[forward, *sender] = came, hop, link
                source[forward, *receiver] = came, hop

    def port(kind: Kind, rank: int, chunk: int) -> Port:
        key = (kind == "F", rank, chunk)
        came, hop_in = source.get(key, (None, 0.0)) if kind != "W" else (None, 0.0)
        goes, hop_out, link = target.get(key, (None, 0.0, [0.0])) if kind != "W" else (None, 0.0, [0.0])
        return Port(came, hop_in, goes, hop_out, link, costs.of[kind][rank][chunk])

    return [{kind: [port(kind, rank, chunk) for chunk in range(chunks)] for kind in costs.of} for rank in range(ranks)]


class _Rank:
    """One rank's progress."""

    def __init__(
        self, index: int, tasks: Sequence[Task], costs: TaskCosts, ports: Mapping[Kind, Sequence[Port]]
    ) -> None:
        self.index, self.tasks, self.ports, self.beside = index, tasks, ports, costs.pairs
        # A schedule that has whole backwards splits some off where it fills: those run alone
        self.paired = "B" if any(task.kind == "B" for task in tasks) else "D"
        self.late = {at: cost for (rank, at), cost in costs.late.items() if rank == index}
        self.position = 0
        self.free = self.host = self.busy = self.waited = 0.0
        self.starts: list[float] = []
        self.ends: list[float] = []
        self.launches: list[float] = []
        self.pairs: set[int] = set()
        self.parted: set[int] = set()

    def part(self) -> bool:
        """Gives up the pair that it waits to run, where its forward could run alone: a backward may follow from it."""
        kind, micro_batch, chunk = self.tasks[self.position]
        source = self.ports[kind][chunk].source
        ready = source is None or source[micro_batch] is not None
        if not ready or self._pair(self.position) is None:
            return False
        self.parted.add(self.position)
        return True

    def advance(self) -> bool:
        """Runs what it can; whether that was anything."""
        first, tasks, ports, late = self.position, self.tasks, self.ports, self.late
        for at in range(first, len(tasks)):
            # A pair has run the task after its forward too
            if at < self.position:
                continue
            kind, micro_batch, chunk = tasks[at]
            port = ports[kind][chunk]
            due = 0.0 if port.source is None else port.source[micro_batch]
            if due is None:
                break
            pair = None if self.beside is None else self._pair(at)
            if pair is not None:
                if not self._run_pair(at, pair):
                    break
                continue
            start = self.free
            if due > start:
                self.waited += min(due - start, port.hop_in_us)
                start = due
            cost = late[at](start) if at in late else port.cost
            self.free = self._run(micro_batch, port, cost, start, due)
            self.busy += self.free - start
        return self.position > first

    def _run(self, micro_batch: int, port: Port, cost: Cost, start: float, due: float) -> float:
        """When the task ends."""
        time_us, host_us, launch_us = cost
        launch = due if port.hop_in_us and due > self.host else self.host
        end = max(start + time_us, launch + host_us)
        self.host = launch + launch_us
        self.starts.append(start)
        self.ends.append(end)
        self.launches.append(launch)
        self.position += 1
        if port.target is not None:
            came = end
            if port.hop_out_us:
                came = max(end, port.link[0]) + port.hop_out_us
                port.link[0] = came
            port.target[micro_batch] = came
        return end

    def _pair(self, at: int) -> tuple[Cost, Cost] | None:
        """Durations of an overlapped forward/backward pair."""
        task, late = self.tasks[at], self.late
        if self.beside is None or task.kind != "F" or at + 1 == len(self.tasks) or at in self.parted:
            return None
        after = self.tasks[at + 1]
        if after.kind != self.paired or after.micro_batch == task.micro_batch or at in late or at + 1 in late:
            return None
        return self.beside(self.index, task, after)

    def _run_pair(self, at: int, costs: tuple[Cost, Cost]) -> bool:
        """Both start when both can; whether they could."""
        (first, second), (ahead, back) = self.tasks[at : at + 2], costs
        one, other = self.ports[first.kind][first.chunk], self.ports[second.kind][second.chunk]
        due = 0.0 if one.source is None else one.source[first.micro_batch]
        came = 0.0 if other.source is None else other.source[second.micro_batch]
        if due is None or came is None:
            return False
        start = max(self.free, due, came)
        if start > self.free:
            self.waited += min(start - self.free, one.hop_in_us if due >= came else other.hop_in_us)
        self.pairs.add(at)
        end = self._run(first.micro_batch, one, ahead, start, due)
        self.free = max(end, self._run(second.micro_batch, other, back, start, came))
        self.busy += self.free - start
        return True


def _finish(waiting: Sequence[_Rank]) -> None:
    """Runs every rank as far as it can, until all have run all. UsageError where none can go on."""
    while waiting:
        advanced = [rank.advance() for rank in waiting]
        if not any(advanced) and not any(rank.part() for rank in waiting):
            raise UsageError(f"the schedule deadlocks on ranks {[rank.index for rank in waiting]}")
        waiting = [rank for rank in waiting if rank.position < len(rank.tasks)]


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


def layer_counts(layers: int, parts: int) -> tuple[int, ...]:
    """Layers of each of ``parts`` parts of the model, in order.

    Even where it comes out; else embedding and head count as a layer each where that comes out; else the last parts,
    where the head is, are short. UsageError for a part with nothing in it.
    """
    each, more = divmod(layers, parts)
    if not more:
        return (each,) * parts
    if (layers + 2) % parts == 0:
        even = (layers + 2) // parts
        return (even - 1, *(even,) * (parts - 2), even - 1)
    if not each:
        raise UsageError(f"{layers} layers cannot be divided into {parts} chunks (pp * vpp)")
    short, counts = parts * (each + 1) - layers, [each + 1] * parts
    for part in reversed(range(parts)):
        taken = min(short, each)
        counts[part] -= taken
        short -= taken
    return tuple(counts)
