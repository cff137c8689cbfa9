"""Zero-bubble schedules, which move the weights' gradients to where a rank would idle: ZB-H1, ZB-1P, and V shapes
from a repeated building block (Qi et al., 2024, arXiv 2405.15362).

In a V a micro-batch passes down the ranks with their first chunks, up with the second ones, and back. In each rank the
next micro-batch does the same six time slots later, one for each forward, input gradient and weights' gradient of two
chunks. How far apart neighbors are decides how long activations live, and nothing else does.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from typing import ClassVar, TypeAlias

import msgspec

from tracelens.errors import UsageError
from tracelens.predict.projection.schedules.orders import (
    Kind,
    Order,
    Plan,
    Route,
    Task,
    in_turn,
    schedule,
    v_shaped_routes,
)
from tracelens.types.records import Record


def filled(plan: Plan, routes: Sequence[Route], wanted: Sequence[Sequence[Task]], limit: int) -> list[list[Task]]:
    """``wanted``, forwards and input gradients of each rank in order, with weights' gradients between them.

    They run where the rank would wait for at least as long, and before a forward for which there is no room: at most
    ``limit`` chunks of activations are kept. UsageError when that leaves nothing to run.
    """
    return _Filling(plan, routes, wanted, limit).run()


#: What a task of a rank needs: the rank, then the task's kind, micro-batch and chunk.
_Input: TypeAlias = tuple[int, Kind, int, int]


class _Rank(Record, frozen=False, kw_only=True):
    """``left``: what is still to do, in order. ``later``: weights' gradients that can run. ``kept``: chunks whose
    weights' gradients are not done. ``waits`` for what no rank has computed yet.
    """

    left: deque[Task]
    done: list[Task] = msgspec.field(default_factory=list)
    later: deque[Task] = msgspec.field(default_factory=deque)
    kept: int = 0
    waits: bool = False


class _Filling:
    """The schedule while it is played: ``clock`` has when each rank is free, ``arrived`` when it can run a task."""

    def __init__(self, plan: Plan, routes: Sequence[Route], wanted: Sequence[Sequence[Task]], limit: int) -> None:
        self.plan, self.limit = plan, limit
        pairs = [pair for route in routes for pair in itertools.pairwise(route)]
        self.after = dict(pairs)
        self.before = {there: here for here, there in pairs}
        self.arrived: dict[_Input, float] = {
            (rank, "F", m, chunk): 0.0 for (rank, chunk), *_ in routes for m in range(plan.micro_batches)
        }
        self.ranks = [_Rank(left=deque(tasks)) for tasks in wanted]
        self.clock = [(0.0, rank) for rank in range(plan.ranks)]

    def run(self) -> list[list[Task]]:
        while self.clock:
            now, at = heapq.heappop(self.clock)
            free = self._advance(now, at)
            if free is not None:
                heapq.heappush(self.clock, (free, at))
        stuck = [index for index, rank in enumerate(self.ranks) if rank.left]
        if stuck:
            raise UsageError(f"the schedule deadlocks on ranks {stuck}")
        return [rank.done for rank in self.ranks]

    def _advance(self, now: float, at: int) -> float | None:
        """When rank ``at`` can go on; None where it has done all, or waits for another rank."""
        rank = self.ranks[at]
        if not rank.left:
            rank.done += rank.later
            return None
        task = rank.left[0]
        due = self.arrived.get((at, *task))
        full = task.kind == "F" and rank.kept >= self.limit
        if full and not rank.later:
            raise UsageError(f"the schedule needs more than {self.limit} chunks of activations per rank")
        # Half a weights' gradient late is as good as half of it idle
        if rank.later and (full or due is None or due >= now + self.plan.wgrad_us / 2):
            rank.done.append(rank.later.popleft())
            rank.kept -= 1
            return now + self.plan.wgrad_us
        rank.waits = due is None
        return due if due is None or due > now else self._run_next(now, at)

    def _run_next(self, now: float, at: int) -> float:
        """When the rank's next task is done."""
        rank = self.ranks[at]
        task = rank.left.popleft()
        rank.done.append(task)
        if task.kind == "F":
            rank.kept += 1
            end = now + self.plan.forward_us
        else:
            rank.later.append(Task("W", task.micro_batch, task.chunk))
            end = now + self.plan.dgrad_us
        needed = self._needed_by(task, at)
        if needed is not None:
            came = end if needed[0] == at else end + self.plan.transfer_us
            self.arrived[needed] = came
            other = self.ranks[needed[0]]
            if other.waits and other.left[0] == needed[1:]:
                other.waits = False
                heapq.heappush(self.clock, (came, needed[0]))
        return end

    def _needed_by(self, task: Task, at: int) -> _Input | None:
        """The task that cannot run before this one, if any; a forward through all of the model turns back."""
        kind, micro_batch, chunk = task
        place = (self.after if kind == "F" else self.before).get((at, chunk))
        if place is not None:
            return place[0], kind, micro_batch, place[1]
        return (at, "D", micro_batch, chunk) if kind == "F" else None


@schedule("zb-h1")
class ZBH1(Order):
    """Balanced stages take m(F + D + W) + (p-1)(F + D - W) where W is no longer than F and D; every stage keeps at most
    min(p, m) micro-batches.

    Stage r puts the weights' gradients off by r micro-batches, which is what it keeps less than stage 0 in 1F1B.
    """

    def tasks(self, plan: Plan) -> Sequence[Sequence[Task]]:
        return [self._of(rank, plan) for rank in range(plan.ranks)]

    def _of(self, rank: int, plan: Plan) -> list[Task]:
        m = plan.micro_batches
        ahead = min(plan.ranks - rank - 1, m)
        order = [Task("F", i, 0) for i in range(ahead)]
        for i in range(m):
            if ahead + i < m:
                order.append(Task("F", ahead + i, 0))
            order.append(Task("D", i, 0))
            if i >= rank:
                order.append(Task("W", i - rank, 0))
        return order + [Task("W", i, 0) for i in range(max(m - rank, 0), m)]


@schedule("zb-1p")
class ZB1P(Order):
    """1F1B's forwards and input gradients; weights' gradients wherever a rank would idle, at times that were given.

    Every stage keeps at most min(p, m) micro-batches, as in ZB-H1, and the bubble is that of ZB-H1 where all take as
    long: (p-1)(F + D - W). The paper's search looks further; this is its greedy start.
    """

    def tasks(self, plan: Plan) -> Sequence[Sequence[Task]]:
        wanted = [in_turn(plan, plan.ranks - rank - 1, "D") for rank in range(plan.ranks)]
        return filled(plan, self.routes(plan.ranks, 1), wanted, min(plan.ranks, plan.micro_batches))


#: Slots of one micro-batch in a rank's repeating pattern.
INTERVAL = 6
_PASSES = (("F", 0), ("F", 1), ("D", 1), ("D", 0))


class BuildingBlock(Record, frozen=True, kw_only=True):
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
        # Slots from one pass's end to the next one's start on the rank where it turns, shortest first
        for turns in sorted(itertools.product(range(1, 7), repeat=3), key=lambda turns: (sum(turns), turns)):
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
    block: ClassVar[BuildingBlock]

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


@schedule("zb-v")
class ZBV(VShaped):
    """Where all six passes take as long, a step is 6m + p - 1 passes. Stages keep p micro-batches."""

    block = BuildingBlock(down=4, up=2, back_down=4, back_up=2)


@schedule("v-half")
class VHalf(VShaped):
    """Stages keep p/2 micro-batches and at most 1.5 more.

    The bubble is about half that of 1F1B where all six passes take as long, and more where they do not.
    """

    block = BuildingBlock(down=2, up=1, back_down=2, back_up=1)


@schedule("v-min")
class VMin(VShaped):
    """Stages keep p/3 micro-batches and at most 1.5 more.

    The bubble is about two thirds of 1F1B's where all six passes take as long. Where they do not, every micro-batch
    adds to it.
    """

    block = BuildingBlock(down=1, up=1, back_down=1, back_up=1)
