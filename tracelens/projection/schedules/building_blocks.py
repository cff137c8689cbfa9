"""V-shaped schedules from a repeated building block (Qi et al., 2024, arXiv 2405.15362).

A micro-batch passes down the ranks with their first chunks, up with the second ones, and back. In each rank the next
micro-batch does the same six time slots later, one for each forward, input gradient and weights' gradient of two
chunks. How far apart neighbors are decides how long activations live, and nothing else does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from tracelens.lazy.records import dataclass
from tracelens.projection.schedules.base import Order, Plan, Route, Task, v_shaped_routes
from tracelens.projection.schedules.zero_bubble import filled

#: Slots of one micro-batch in a rank's repeating pattern.
INTERVAL = 6
_PASSES = (("F", 0), ("F", 1), ("D", 1), ("D", 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Slots between neighboring ranks, in both forwards and both backwards."""

    down: int
    up: int
    back_down: int
    back_up: int

    def slots(self, ranks: int) -> list[list[int]]:
        """``[rank][pass]``: the slot of each of a micro-batch's four passes, no two in the same slot of a rank.

        Each pass begins as early as that allows after the one before it.
        """
        ends = (self.down * (ranks - 1), self.up * (ranks - 1), self.back_down * (ranks - 1))
        for turns in _turns():
            first = (0, ends[0] + turns[0], sum(ends[:2]) + sum(turns[:2]), sum(ends) + sum(turns))
            starts = [
                [
                    first[0] + self.down * rank,
                    first[1] + self.up * (ranks - 1 - rank),
                    first[2] + self.back_down * rank,
                    first[3] + self.back_up * (ranks - 1 - rank),
                ]
                for rank in range(ranks)
            ]
            if all(len({slot % INTERVAL for slot in mine}) == len(mine) for mine in starts):
                return starts
        raise AssertionError(f"{self} has no turns without a collision on {ranks} ranks")

    def tasks(self, plan: Plan) -> list[list[Task]]:
        """The block repeated for every micro-batch, then pushed together."""
        slots = self.slots(plan.ranks)
        wanted = []
        for mine in slots:
            timed = [
                (INTERVAL * m + slot, Task(kind, m, chunk))  # type: ignore[arg-type]
                for m in range(plan.micro_batches)
                for slot, (kind, chunk) in zip(mine, _PASSES, strict=True)
            ]
            wanted.append([task for _, task in sorted(timed)])
        limit = max(_kept(order) for order in slots)
        return filled(plan, v_shaped_routes(plan.ranks), wanted, limit)


class VShaped(Order):
    """Two chunks per rank: the first ones down the ranks, the second ones up, as ``block`` says."""

    own_chunks = 2
    block: ClassVar[Block]

    def routes(self, ranks: int, chunks: int) -> Sequence[Route]:
        return v_shaped_routes(ranks)

    def tasks(self, plan: Plan) -> Sequence[Sequence[Task]]:
        return self.block.tasks(plan)


def _kept(slots: Sequence[int]) -> int:
    """The most chunks that a rank keeps in the repeating pattern, weights' gradients done in the next free slots."""
    free = sorted(set(range(INTERVAL)) - {slot % INTERVAL for slot in slots})
    horizon = INTERVAL * (max(slots) // INTERVAL + 2)
    events: list[int] = [0] * (2 * horizon)
    for m in range(horizon // INTERVAL):
        for slot, (kind, _) in zip(slots, _PASSES, strict=True):
            events[m * INTERVAL + slot] = 1 if kind == "F" else -1
    held = most = due = 0
    for slot, event in enumerate(events[:horizon]):
        if event > 0:
            held += 1
        elif event < 0:
            due += 1
        elif due and slot % INTERVAL in free:
            held, due = held - 1, due - 1
        most = max(most, held)
    return most


def _turns() -> Iterator[tuple[int, int, int]]:
    """Slots from one pass's end to the next one's start on the rank where it turns, shortest first."""
    every = [(a, b, c) for a in range(1, 7) for b in range(1, 7) for c in range(1, 7)]
    return iter(sorted(every, key=lambda turns: (sum(turns), turns)))
