"""What ranks cost by coming late on their own: not because they waited for others before."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from tracelens.analysis.intervals import Covered, Ints
from tracelens.analysis.ranks.matching import JobCalls
from tracelens.analysis.ranks.waits import Instances, is_between_two, matched_rows
from tracelens.lazy.records import dataclass


def own_cost_ns(calls: JobCalls, found: Instances, waited: Ints) -> Ints:
    """By collective: how much sooner it could have begun if its last rank had been on time; 0 for sends and receives.

    Two things are left out of how late that rank came. What it had itself waited for others since its last call of
    the same channel (while nothing computed) is not its own: a rank that comes late to one group because it waited in
    another is not late. And what it has cost already since that call is not counted again: a rank that every all-reduce
    of its tensor-parallel group waits for comes late to that of its data-parallel group by their sum. Ranks late
    together in one group cost each in their others, though either alone could not come sooner.
    """
    rows = matched_rows(calls)
    order = rows[np.lexsort((calls.start[rows], calls.instance[rows]))]
    since, blocked = _since(calls, rows), _blocked_ns(calls, rows, waited)
    arrived = calls.start[order] - blocked[order]
    at = np.searchsorted(calls.instance[order], np.arange(calls.instances + 1))
    is_late = (found.present > 1) & (found.latest_start > found.earliest_start) & ~is_between_two(calls)
    cost, ledger = np.zeros(calls.instances, np.int64), _Ledger(defaultdict(list))
    for i in np.flatnonzero(is_late)[np.argsort(found.latest_start[is_late], kind="stable")].tolist():
        *others, last = order[at[i] : at[i + 1]].tolist()
        own_ns = int(arrived[at[i + 1] - 1] - arrived[at[i] : at[i + 1] - 1].max())
        if own_ns <= 0:
            continue
        rank, start = int(calls.rank[last]), int(calls.start[last])
        before = ledger.between(rank, int(since[last]), start)
        on_time = max(int(calls.start[o]) - _credit(before, calls, o, int(since[o])) for o in others)
        cost[i] = max(0, min(own_ns, start - on_time) - sum(charge.ns for charge in before))
        if cost[i]:
            ranks = frozenset(calls.rank[order[at[i] : at[i + 1]]].tolist())
            ledger.of_rank[rank].append(_Charge(at=start, ns=int(cost[i]), ranks=ranks))
    return cost


@dataclass(frozen=True, slots=True)
class _Charge:
    """A rank that came ``at`` this time cost the ``ranks`` of a collective so much."""

    at: int
    ns: int
    ranks: frozenset[int]


@dataclass(frozen=True, slots=True)
class _Ledger:
    """The charges of each rank, in order of time."""

    of_rank: dict[int, list[_Charge]]

    def between(self, rank: int, after: int, until: int) -> Sequence[_Charge]:
        charges = self.of_rank[rank]
        return charges[bisect_right(charges, after, key=_time) : bisect_right(charges, until, key=_time)]


def _credit(charges: Sequence[_Charge], calls: JobCalls, call: int, since: int) -> int:
    """How much of these a call's rank had waited for between that time and the call."""
    rank, start = int(calls.rank[call]), int(calls.start[call])
    return sum(charge.ns for charge in charges if since < charge.at <= start and rank in charge.ranks)


def _time(charge: _Charge) -> int:
    return charge.at


def _since(calls: JobCalls, rows: Ints) -> Ints:
    """By call: when the last call of the same rank in the same channel ended; of the first one, before everything."""
    channel = calls.channel_of[calls.instance[rows]]
    order = rows[np.lexsort((calls.start[rows], channel, calls.rank[rows]))]
    again = (np.diff(calls.rank[order]) == 0) & (np.diff(calls.channel_of[calls.instance[order]]) == 0)
    found = np.full(len(calls.start), np.iinfo(np.int64).min)
    found[order[1:][again]] = calls.end[order[:-1][again]]
    since: Ints = np.minimum(found, calls.start)
    return since


def _blocked_ns(calls: JobCalls, rows: Ints, waited: Ints) -> Ints:
    """By call: how long its rank has waited in other channels, computing nothing, since its last call in this one."""
    begin = calls.start[rows]
    waits = Covered(calls.rank[rows], begin, begin + np.minimum(waited, calls.exposed)[rows])
    found = np.zeros(len(calls.start), np.int64)
    since = _since(calls, rows)
    found[rows] = waits.before(calls.rank[rows], begin) - waits.before(calls.rank[rows], since[rows])
    return found
