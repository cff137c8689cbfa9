"""A pipeline schedule run as an event graph: a task starts when its rank is free and what it needs has arrived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracelens.errors import UsageError
from tracelens.projection.schedules import Order, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What the ranks of a pipeline did. Times in microseconds from the first task's start.

    ``busy_us`` of rank r is the time of its tasks; ``kept[r]`` per chunk of r: how many micro-batches' activations it
    held when their sum, weighted with ``kept_bytes``, was largest.
    """

    time_us: float
    busy_us: tuple[float, ...]
    kept_bytes: tuple[float, ...]


def run(
    order: Order,
    *,
    forward_us: Sequence[Sequence[float]],
    backward_us: Sequence[Sequence[float]],
    kept_bytes: Sequence[Sequence[float]],
    transfer_us: float,
    micro_batches: int,
) -> Pipeline:
    """Runs ``order`` with times and bytes as ``[rank][chunk]``; ``transfer_us`` passes between neighbors, both ways.

    A transfer keeps neither rank from its next task. UsageError when the schedule waits for itself.
    """
    ranks, chunks = len(forward_us), len(forward_us[0])
    tasks = [order.tasks(r, ranks=ranks, chunks=chunks, micro_batches=micro_batches) for r in range(ranks)]
    last = ranks * chunks - 1
    ends: dict[tuple[str, int, int], float] = {}
    free, position = [0.0] * ranks, [0] * ranks
    hop_us = transfer_us if ranks > 1 else 0.0

    def ready_us(task: Task, part: int) -> float | None:
        if task.kind == "F":
            if part == 0:
                return 0.0
            arrived = ends.get(("F", part - 1, task.micro_batch))
        elif part == last:
            own = ends.get(("F", part, task.micro_batch))
            return own
        else:
            arrived = ends.get(("B", part + 1, task.micro_batch))
        return None if arrived is None else arrived + hop_us

    waiting = set(range(ranks))
    while waiting:
        advanced = False
        for rank in sorted(waiting):
            mine = tasks[rank]
            while position[rank] < len(mine):
                task = mine[position[rank]]
                part = task.chunk * ranks + rank
                ready = ready_us(task, part)
                if ready is None:
                    break
                cost = (forward_us if task.kind == "F" else backward_us)[rank][task.chunk]
                free[rank] = max(free[rank], ready) + cost
                ends[task.kind, part, task.micro_batch] = free[rank]
                position[rank] += 1
                advanced = True
            if position[rank] == len(mine):
                waiting.discard(rank)
        if not advanced:
            raise UsageError(f"the schedule waits for itself on ranks {sorted(waiting)}")
    per_rank = [sum(f) + sum(b) for f, b in zip(forward_us, backward_us, strict=True)]
    return Pipeline(
        time_us=max(free),
        busy_us=tuple(micro_batches * each for each in per_rank),
        kept_bytes=tuple(_peak(mine, kept_bytes[rank]) for rank, mine in enumerate(tasks)),
    )


def _peak(tasks: Sequence[Task], nbytes: Sequence[float]) -> float:
    """Activations are kept from the start of a forward to the end of its backward."""
    held = peak = 0.0
    for task in tasks:
        if task.kind == "F":
            held += nbytes[task.chunk]
            peak = max(peak, held)
        else:
            held -= nbytes[task.chunk]
    return peak
