"""A pipeline schedule run as an event graph: a task starts when its rank is free and what it needs has arrived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracelens.errors import UsageError
from tracelens.projection.schedules import Order, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What the ranks of a pipeline did. Times in microseconds from the first task's start.

    ``busy_us`` of a rank is the time of its tasks, ``kept_bytes`` the most activations that it kept at once.
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
    hop_us = transfer_us if ranks > 1 else 0.0
    # When each part of the model, from first to last, has finished each micro-batch; None: not yet.
    forward: list[list[float | None]] = [[None] * micro_batches for _ in range(ranks * chunks)]
    backward: list[list[float | None]] = [[None] * micro_batches for _ in range(ranks * chunks)]
    free, position = [0.0] * ranks, [0] * ranks
    waiting = set(range(ranks))
    while waiting:
        advanced = False
        for rank in sorted(waiting):
            mine, at, now = tasks[rank], position[rank], free[rank]
            first, end = at, len(mine)
            while at < end:
                task = mine[at]
                part, m = task.chunk * ranks + rank, task.micro_batch
                if task.kind == "F":
                    arrived = forward[part - 1][m] if part else -hop_us
                    ends, cost = forward, forward_us[rank][task.chunk]
                else:
                    # The last part turns round: its own forward's result does not travel.
                    last = part + 1 == len(backward)
                    arrived = forward[part][m] if last else backward[part + 1][m]
                    arrived = arrived - hop_us if last and arrived is not None else arrived
                    ends, cost = backward, backward_us[rank][task.chunk]
                if arrived is None:
                    break
                now = max(now, arrived + hop_us) + cost
                ends[part][m] = now
                at += 1
            advanced |= at > first
            position[rank], free[rank] = at, now
            if at == end:
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
