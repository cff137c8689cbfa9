"""Forwards and input gradients first, weights' gradients where a rank would idle or has no room: what zero-bubble
schedules have in common.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import field
from typing import TypeAlias

from tracelens.errors import UsageError
from tracelens.lazy.records import dataclass
from tracelens.projection.schedules.base import Kind, Plan, Route, Task


def filled(plan: Plan, routes: Sequence[Route], wanted: Sequence[Sequence[Task]], limit: int) -> list[list[Task]]:
    """``wanted``, forwards and input gradients of each rank in order, with weights' gradients between them.

    They run where the rank would wait for at least as long, and before a forward for which there is no room: at most
    ``limit`` chunks of activations are kept. UsageError when that leaves nothing to run.
    """
    return _Filling(plan, routes, wanted, limit).run()


#: What a task of a rank needs: the rank, then the task's kind, micro-batch and chunk.
_Input: TypeAlias = tuple[int, Kind, int, int]


@dataclass(slots=True, kw_only=True)
class _Rank:
    """``left``: what is still to do, in order. ``later``: weights' gradients that can run. ``kept``: chunks whose
    weights' gradients are not done. ``waits`` for what no rank has computed yet.
    """

    left: deque[Task]
    done: list[Task] = field(default_factory=list)
    later: deque[Task] = field(default_factory=deque)
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
