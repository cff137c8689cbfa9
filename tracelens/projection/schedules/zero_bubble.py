"""Forwards and input gradients first, weights' gradients where a rank would idle or has no room: what zero-bubble
schedules have in common.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tracelens.errors import UsageError
from tracelens.projection.schedules.base import Plan, Route, Task


@dataclass(slots=True, kw_only=True)
class _Rank:
    """``left``: what is still to do, in order. ``kept``: chunks whose weights' gradients are not done."""

    left: deque[tuple[str, int, int]]
    done: list[Task] = field(default_factory=list)
    later: deque[tuple[int, int]] = field(default_factory=deque)
    kept: int = 0
    waits: bool = False


def filled(plan: Plan, routes: Sequence[Route], wanted: Sequence[Sequence[Task]], limit: int) -> list[list[Task]]:
    """``wanted``, forwards and input gradients of each rank in order, with weights' gradients between them.

    They run where the rank would wait for at least as long, and before a forward for which there is no room: at most
    ``limit`` chunks of activations are kept. UsageError when that leaves nothing to run.
    """
    cost = {"F": plan.forward_us, "D": plan.dgrad_us}
    after, before = _neighbors(routes)
    arrived: dict[tuple[str, int, int, int], float] = {
        ("F", *route[0], m): 0.0 for route in routes for m in range(plan.micro_batches)
    }
    ranks = [_Rank(left=deque(tasks)) for tasks in wanted]
    clock = [(0.0, rank) for rank in range(plan.ranks)]
    while clock:
        now, at = heapq.heappop(clock)
        rank = ranks[at]
        rank.waits = False
        if not rank.left:
            rank.done += [Task("W", m, c) for m, c in rank.later]
            rank.later.clear()
            continue
        kind, m, c = rank.left[0]
        due = arrived.get((kind, at, c, m))
        full = kind == "F" and rank.kept >= limit
        if full and not rank.later:
            raise UsageError(f"the schedule needs more than {limit} chunks of activations per rank")
        # Half a weights' gradient late is as good as half of it idle
        if rank.later and (full or due is None or due >= now + plan.wgrad_us / 2):
            earlier, chunk = rank.later.popleft()
            rank.done.append(Task("W", earlier, chunk))
            rank.kept -= 1
            heapq.heappush(clock, (now + plan.wgrad_us, at))
            continue
        if due is None:
            rank.waits = True
            continue
        if due > now:
            heapq.heappush(clock, (due, at))
            continue
        rank.left.popleft()
        rank.done.append(Task(kind, m, c))  # type: ignore[arg-type]
        end = now + cost[kind]
        if kind == "F":
            rank.kept += 1
        else:
            rank.later.append((m, c))
        place = (after if kind == "F" else before).get((at, c))
        to = (kind, *place, m) if place is not None else ("D", at, c, m) if kind == "F" else None
        if to is not None:
            arrived[to] = end + (plan.transfer_us if to[1] != at else 0.0)
            if ranks[to[1]].waits and ranks[to[1]].left[0] == (to[0], m, to[2]):
                ranks[to[1]].waits = False
                heapq.heappush(clock, (arrived[to], to[1]))
        heapq.heappush(clock, (end, at))
    stuck = [index for index, rank in enumerate(ranks) if rank.left]
    if stuck:
        raise UsageError(f"the schedule deadlocks on ranks {stuck}")
    return [rank.done for rank in ranks]


def _neighbors(routes: Sequence[Route]) -> tuple[dict[tuple[int, int], tuple[int, int]], ...]:
    pairs = [(route[i], route[i + 1]) for route in routes for i in range(len(route) - 1)]
    return dict(pairs), {there: here for here, there in pairs}
