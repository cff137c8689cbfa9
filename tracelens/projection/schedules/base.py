"""What a pipeline schedule is: an ordered list of tasks per rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from tracelens.registry import mark

T = TypeVar("T")


class Task(NamedTuple):
    """One micro-batch through one chunk of a rank's layers: ``kind`` ``"F"`` forward, ``"B"`` backward.

    A tuple, because a step of a large job has 100,000 of them, and a frozen dataclass takes 1.7 times as long.
    """

    kind: str
    micro_batch: int
    chunk: int


class Order(Protocol):
    """A schedule. Chunk c of rank r is the model's part ``c * ranks + r``."""

    def tasks(self, rank: int, *, ranks: int, chunks: int, micro_batches: int) -> Sequence[Task]:
        """What ``rank`` of ``ranks`` runs, in order. UsageError for numbers that the schedule cannot do."""
        ...


def schedule(name: str) -> Callable[[T], T]:
    """Marks a class (called without arguments) as the schedule ``name``, e.g. ``"1f1b"``."""
    return mark("schedule", name)
