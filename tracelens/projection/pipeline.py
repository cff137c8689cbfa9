"""A pipeline schedule run as an event graph: a task starts when its rank is free and what it needs has arrived."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tracelens.errors import UsageError
from tracelens.projection.schedules import Kind, Route, Task

#: ``[rank][chunk]``.
PerChunk: TypeAlias = Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What the ranks of a pipeline did. Times in microseconds from the first task's start.

    ``starts_us`` and ``ends_us`` of a rank are those of its tasks in order. ``busy_us`` of a rank is the time of its
    tasks; ``transfer_us`` what it waited for transfers that were under way. ``kept_bytes``: the most activations that
    it kept at once.
    """

    time_us: float
    starts_us: tuple[tuple[float, ...], ...]
    ends_us: tuple[tuple[float, ...], ...]
    busy_us: tuple[float, ...]
    transfer_us: tuple[float, ...]
    kept_bytes: tuple[float, ...]


def run(
    tasks: Sequence[Sequence[Task]],
    routes: Sequence[Route],
    *,
    times_us: Mapping[Kind, PerChunk],
    kept_bytes: PerChunk,
    later_bytes: PerChunk,
    hops_us: Sequence[float],
) -> Pipeline:
    """Runs what a schedule orders. ``hops_us[r]`` passes between rank r and the next, both ways; the last one and the
    first are neighbors too.

    A transfer keeps neither rank from its next task, but the next transfer the same way waits for it.
    ``kept_bytes`` of a micro-batch live from its forward, ``later_bytes`` of them from the input's to the weights'
    gradient. UsageError when the schedule waits for itself.
    """
    places = _Places(routes, hops_us)
    ranks = len(tasks)
    starts: list[list[float]] = [[] for _ in tasks]
    ends: list[list[float]] = [[] for _ in tasks]
    waited, free, position = [0.0] * ranks, [0.0] * ranks, [0] * ranks
    arrived, sent = places.arrived, places.sent
    waiting = set(range(ranks))
    while waiting:
        advanced = False
        for rank in sorted(waiting):
            mine, at, now = tasks[rank], position[rank], free[rank]
            first, last = at, len(mine)
            while at < last:
                kind, m, chunk = mine[at]
                due = now
                if kind != "W":
                    came = arrived.get(
                        (kind == "F", rank, chunk, m), places.enters.get((rank, chunk)) if kind == "F" else None
                    )
                    if came is None:
                        break
                    if came > now:
                        due = came
                        waited[rank] += min(came - now, places.hop.get((kind == "F", rank, chunk), 0.0))
                starts[rank].append(due)
                now = due + times_us[kind][rank][chunk]
                ends[rank].append(now)
                at += 1
                if kind == "W":
                    continue
                place = places.next_of.get((kind == "F", rank, chunk))
                if place is None:
                    if kind == "F":
                        arrived[False, rank, chunk, m] = now
                    continue
                to, link, hop = place
                leaves = max(now, sent[link])
                sent[link] = leaves + hop
                arrived[kind == "F", to[0], to[1], m] = leaves + hop
            advanced |= at > first
            position[rank], free[rank] = at, now
            if at == last:
                waiting.discard(rank)
        if not advanced:
            raise UsageError(f"the schedule waits for itself on ranks {sorted(waiting)}")
    return Pipeline(
        time_us=max(free),
        starts_us=tuple(map(tuple, starts)),
        ends_us=tuple(map(tuple, ends)),
        busy_us=tuple(sum(times_us[task.kind][rank][task.chunk] for task in mine) for rank, mine in enumerate(tasks)),
        transfer_us=tuple(waited),
        kept_bytes=tuple(_peak(mine, kept_bytes[rank], later_bytes[rank]) for rank, mine in enumerate(tasks)),
    )


class _Places:
    """Where results go. Keys begin with whether the pass is forward; links are (from, to, whether to the next rank)."""

    def __init__(self, routes: Sequence[Route], hops_us: Sequence[float]) -> None:
        ranks = len(hops_us)
        self.arrived: dict[tuple[bool, int, int, int], float] = {}
        self.sent: dict[tuple[int, int, bool], float] = {}
        self.enters = {route[0]: 0.0 for route in routes}
        self.next_of: dict[tuple[bool, int, int], tuple[tuple[int, int], tuple[int, int, bool], float]] = {}
        self.hop: dict[tuple[bool, int, int], float] = {}
        for route in routes:
            for here, there in itertools.pairwise(route):
                self._join(True, here, there, ranks, hops_us)
                self._join(False, there, here, ranks, hops_us)

    def _join(
        self, forward: bool, here: tuple[int, int], there: tuple[int, int], ranks: int, hops_us: Sequence[float]
    ) -> None:
        onward = there[0] == (here[0] + 1) % ranks
        hop = 0.0 if here[0] == there[0] else hops_us[here[0] if onward else there[0]]
        link = (here[0], there[0], forward)
        self.sent.setdefault(link, 0.0)
        self.next_of[forward, *here] = (there, link, hop)
        self.hop[forward, *there] = hop


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
