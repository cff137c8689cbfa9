"""Which ranks changed or come last to collectives, and which steps took far longer than the others of their side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracelens.analysis.intervals import Ints
from tracelens.comparison import compared
from tracelens.comparison.measured_rows import MeasuredSide, Noise, share_apart, typical_of
from tracelens.comparison.sides import COMMUNICATION, Floats, role, row_role
from tracelens.types.records import Record
from tracelens.types.units import NS_PER_MS

#: Share of the change of communication that waiting must be to be its cause.
_LEAST_SHARE = 0.5
#: Share of the largest change of a rank from which another one changed with it, and up to which it is as before.
_WITH_IT, _AS_BEFORE = 0.5, 0.1
#: Share of a step that waiting must be on both sides for another rank to be named.
_LEAST_WAITING = 0.02
#: Share of what some ranks changed in a row up to which the others together did not change in it.
_THEIRS = 0.25


class RankTimes(Record, frozen=True, kw_only=True, eq=False):
    """ns of the ranks of a side as (rank, row, step), rows as compared; ``sent``: which of these are communication.

    ``at_equal_work``: as (rank, step), ns of computation beyond what its calls take in the mean of both sides.
    ``apart``, ``apart_at_work``: by rank and kind, how far chance puts its own time, and that, in one step.
    """

    numbers: tuple[int, ...]
    ns: Floats
    sent: npt.NDArray[np.bool_]
    at_equal_work: Floats
    apart: Floats
    apart_at_work: Floats

    @classmethod
    def of(
        cls, measured: MeasuredSide, numbers: Sequence[int], rows: Sequence[compared.ComparedRow], each_ns: Floats
    ) -> RankTimes | None:
        """``each_ns``: of a call of each row; None unless every run has the same ranks, and several."""
        time, calls = measured.kernel_ranks, measured.call_ranks
        if measured.ranks is None or time is None or calls is None:
            return None
        run = measured.numbered.side.parts[0]
        ranks = tuple(at if one.rank is None else one.rank for at, one in enumerate(run))
        sent = np.array([row_role(row) == COMMUNICATION for row in rows], bool)
        at = list(numbers)
        is_own = ~sent & (each_ns > 0)
        work = (time[:, at] - each_ns[:, None] * calls[:, at])[:, is_own].sum(axis=1)
        apart = (
            np.array([share_apart(row_role(row), is_idle=row.is_idle) for row in rows]).reshape(-1, 4) * ~sent[:, None]
        )
        return cls(
            numbers=ranks, ns=measured.ranks[:, at], sent=sent, at_equal_work=work,
            apart=measured.ranks[:, at].mean(axis=2) @ apart,
            apart_at_work=time[:, at].mean(axis=2) @ (apart * is_own[:, None]),
        )  # fmt: skip

    @property
    def own(self) -> Floats:
        """(rank, step): ns outside of collectives, in which no rank waits for another."""
        return self.ns[:, ~self.sent].sum(axis=1)

    @property
    def exposed(self) -> Floats:
        """(rank, step): ns in which nothing but collectives ran; those that wait at the same time count once."""
        return self.ns[:, self.sent].sum(axis=1)


def rank_changes(before: RankTimes | None, after: RankTimes | None) -> tuple[compared.RankChange, ...]:
    """Of each rank, where both sides have the same; those that changed ``alone`` marked."""
    if before is None or after is None or before.numbers != after.numbers:
        return ()
    own, exposed = (before.own, after.own), (before.exposed, after.exposed)
    change = own[1].mean(axis=1) - own[0].mean(axis=1)
    noise = Noise(*own, typical_of(before.apart, after.apart))
    interval = noise.interval(tests=len(change))
    alone = _alone(change, interval.low, interval.high)
    if not alone.any():
        # Idle time and other shapes may hide that the same work takes longer
        typical = typical_of(before.apart_at_work, after.apart_at_work)
        speed = Noise(before.at_equal_work, after.at_equal_work, typical)
        own_speed = after.at_equal_work.mean(axis=1) - before.at_equal_work.mean(axis=1)
        interval = speed.interval(tests=len(change))
        alone = _alone(own_speed, interval.low, interval.high)
    means = [(each.mean(axis=1) / NS_PER_MS).tolist() for each in (*own, *exposed)]
    bounds = [(each / NS_PER_MS).tolist() for each in (interval.low, interval.high)]
    columns = zip(before.numbers, alone.tolist(), *means, *bounds, strict=True)
    return tuple(
        compared.RankChange(
            rank=rank, is_alone=is_alone, a_own_ms=a, b_own_ms=b, a_exposed_ms=a_sent, b_exposed_ms=b_sent,
            low_ms=low, high_ms=high,
        )
        for rank, is_alone, a, b, a_sent, b_sent, low, high in columns
    )  # fmt: skip


def _alone(change: Floats, low: Floats, high: Floats) -> npt.NDArray[np.bool_]:
    """Which ranks changed alike, more than by chance, while all others are as before; none where that is not so."""
    largest = change[np.abs(change).argmax()]
    found: npt.NDArray[np.bool_] = change / largest >= _WITH_IT if largest else np.zeros(len(change), bool)
    is_chance = (low <= 0) & (high >= 0)
    as_before = is_chance | (np.abs(change) <= _AS_BEFORE * abs(largest))
    if found.all() or (found & is_chance).any() or not as_before[~found].all():
        return np.zeros(len(change), bool)
    return found


def with_ranks_apart(
    rows: Sequence[compared.ComparedRow], times: Sequence[RankTimes | None], changes: Sequence[compared.RankChange]
) -> list[compared.ComparedRow]:
    """The rows; those that some ranks alone changed, and waiting for them, with that cause."""
    before, after = times
    alone = np.array([rank.is_alone for rank in changes], bool)
    if before is None or after is None or not alone.any():
        return list(rows)
    change = after.ns.mean(axis=2) - before.ns.mean(axis=2)
    theirs, others = change[alone].sum(axis=0), change[~alone].sum(axis=0)
    is_theirs = ~before.sent & (theirs != 0) & (np.abs(others) <= _THEIRS * np.abs(theirs))
    waiting = _waiting(rows, before, after)
    if _is_waited_for(changes):
        is_theirs[_timed(rows, before)] = True
    elif waiting is not None and _more_waited_for(*waiting[1]).rank in {rank.rank for rank in changes if rank.is_alone}:
        is_theirs[waiting[0]] = True
    of_ranks = (change[alone].mean(axis=0) / NS_PER_MS).tolist()
    return [
        replace(row, cause=compared.SOME_RANKS, of_ranks_ms=ms) if its else row
        for row, its, ms in zip(rows, is_theirs.tolist(), of_ranks, strict=True)
    ]


class Latecomer(Record, frozen=True, kw_only=True):
    """The ``rank`` that the others wait for; how much longer the mean rank does nothing but communicate, per step."""

    rank: int
    waiting_ms: float


def latecomer(times: RankTimes) -> Latecomer:
    """A collective ends everywhere at once: who comes last spends the least time in nothing but collectives."""
    exposed = times.exposed
    waiting = (exposed.mean(axis=0) - exposed.min(axis=0)).mean()
    last = int(exposed.mean(axis=1).argmin())
    return Latecomer(rank=times.numbers[last], waiting_ms=float(waiting) / NS_PER_MS)


def _more_waited_for(one: Latecomer, other: Latecomer) -> Latecomer:
    return max(one, other, key=lambda late: late.waiting_ms)


def _waiting(
    rows: Sequence[compared.ComparedRow], before: RankTimes, after: RankTimes
) -> tuple[list[int], tuple[Latecomer, Latecomer]] | None:
    """(rows of communication, who is waited for in A and in B), where waiting is most of what changed in these."""
    at = _timed(rows, before)
    change_ms = sum(rows[n].change_ms for n in at)
    one, other = latecomer(before), latecomer(after)
    more_ms = other.waiting_ms - one.waiting_ms
    if not change_ms or more_ms / change_ms < _LEAST_SHARE:
        return None
    return at, (one, other)


def _timed(rows: Sequence[compared.ComparedRow], before: RankTimes) -> list[int]:
    """The rows of communication of which waiting may be what changed."""
    timed = (
        n
        for n, row in enumerate(rows)
        if row.cause in (compared.SPEED, compared.OVERLAP, compared.QUANTIZATION, compared.WORK)
    )
    return [n for n in timed if before.sent[n]]


def _is_waited_for(changes: Sequence[compared.RankChange]) -> bool:
    """Whether the others do nothing but communicate for as much longer as the ranks alone take for themselves."""
    own, others = ([rank for rank in changes if rank.is_alone == alone] for alone in (True, False))
    more = [sum(rank.b_exposed_ms - rank.a_exposed_ms for rank in ranks) / len(ranks) for ranks in (own, others)]
    change_ms = sum(rank.change_ms for rank in own) / len(own)
    return bool(change_ms) and _LEAST_SHARE <= (more[1] - more[0]) / change_ms <= 2 - _LEAST_SHARE


def with_latecomers(
    rows: Sequence[compared.ComparedRow], times: Sequence[RankTimes | None], changes: Sequence[compared.RankChange]
) -> list[compared.ComparedRow]:
    """The rows; where waiting for a rank is most of what changed in communication, with that cause."""
    before, after = times
    waiting = None if before is None or after is None else _waiting(rows, before, after)
    if waiting is None:
        return list(rows)
    at, (one, other) = waiting
    late = _more_waited_for(one, other)
    which = f"rank {late.rank} is {'late' if late is other else 'no longer late'}"
    why = f"{which}: a rank waits {other.waiting_ms:.3g} ms for the last one, {one.waiting_ms:.3g} ms before"
    own = next((rank for rank in changes if rank.rank == late.rank), None)
    if own is not None:
        rest = [rank for rank in changes if rank is not own]
        a, b = (sum(ms) / len(rest) for ms in zip(*((rank.a_own_ms, rank.b_own_ms) for rank in rest), strict=True))
        why += f"; outside of collectives it takes {own.a_own_ms:,.3g} -> {own.b_own_ms:,.3g} ms, "
        why += f"the others {a:,.3g} -> {b:,.3g}"
    found = list(rows)
    for n in at:
        found[n] = replace(rows[n], cause=compared.LATE, why=why)
    return found


def another_latecomer(before: RankTimes | None, after: RankTimes | None) -> Iterator[str]:
    """A sentence where the others wait for another rank than before, and did then."""
    if before is None or after is None or set(before.numbers) != set(after.numbers):
        return
    one, other = latecomer(before), latecomer(after)
    waits = [
        late.waiting_ms >= _LEAST_WAITING * side.ns.sum(axis=1).mean() / NS_PER_MS
        for late, side in ((one, before), (other, after))
    ]
    if one.rank != other.rank and all(waits):
        yield (
            f"the others wait for rank {other.rank}, and waited for rank {one.rank} before: a rank waits "
            f"{other.waiting_ms:.3g} ms for the last one, {one.waiting_ms:.3g} ms before"
        )


#: Times the median from which a step is named, how many must be there to have one, and how many are named.
_FAR, _LEAST_STEPS, _MOST = 1.25, 3, 3
#: Share of the mean step that what they took more must be.
_LEAST_EXTRA = 0.02
#: Share of what they took more that a rank must have taken for itself to be what the others waited for.
_LEAST_OWN = 0.5


def unusual_steps(
    name: str, side: MeasuredSide, ranks: RankTimes | None, numbers: Sequence[int], rows: Sequence[compared.ComparedRow]
) -> list[str]:
    """A sentence for a side (``name``: A or B) that has such. ``numbers``: those of ``rows`` in ``side``."""
    step_ms = side.steps.sum(axis=0) / NS_PER_MS
    median = float(np.median(step_ms))
    far = np.flatnonzero(step_ms > _FAR * median)
    extra = float((step_ms[far] - median).sum()) / len(step_ms)
    if len(step_ms) < _LEAST_STEPS or not len(far) or extra < _LEAST_EXTRA * step_ms.mean():
        return []
    by_category: dict[str, float] = defaultdict(float)
    for number, row in zip(numbers, rows, strict=True):
        own = side.steps[number]
        by_category[row.category] += float((own[far] - np.median(own)).sum())
    most = max(by_category, key=lambda category: by_category[category])
    named = ", ".join(f"{step_ms[at]:.3g}" for at in far[:_MOST]) + (" ..." if len(far) > _MOST else "")
    which = f"step {far[0] + 1}" if len(far) == 1 else f"{len(far)} steps"
    what = "idle time" if most == compared.IDLE else most
    late = _late(ranks, far, extra) if ranks is not None and role(most) == COMMUNICATION else None
    what = what if late is None else f"waiting for rank {late}"
    of_mean = f"this adds {extra:.3g} ms to the mean step, most of it {what}"
    return [f"{name}: {which} of {len(step_ms)} took {named} ms against a median of {median:.3g} ms; {of_mean}"]


def _late(ranks: RankTimes, far: Ints, extra_ms: float) -> int | None:
    """The rank whose own time explains most of what these steps took more in the mean step."""
    own_ms = ranks.own / NS_PER_MS
    more_ms = (own_ms[:, far] - np.median(own_ms, axis=1, keepdims=True)).sum(axis=1) / own_ms.shape[1]
    last = int(more_ms.argmax())
    return ranks.numbers[last] if more_ms[last] >= _LEAST_OWN * extra_ms else None
