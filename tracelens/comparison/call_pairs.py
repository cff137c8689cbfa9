"""Which calls that only their place pairs can have become one another, and whether the sides are one program at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from tracelens.analysis.intervals import Ints
from tracelens.comparison.alignment.numbered_calls import Numbered, Row
from tracelens.comparison.alignment.work_roles import call_role
from tracelens.comparison.places import ONLY_A, ONLY_B, SAME, SAME_PLACE, SAME_WORK
from tracelens.comparison.sides import Floats
from tracelens.lazy.records import dataclass

#: How many times as long several calls may take as what they split into or fused into: a chain of ten elementwise ops
#: moves some twenty times the bytes of one kernel for all, and attention from parts gains less by fusing.
MOST_TIMES = 20.0
#: Below this a kernel's time says nothing.
_LEAST_NS = 1000.0
#: Different programs: at most this share of either side's kernel time is in the same calls or in the same work, less
#: than this share in ops of one name, and the known FLOPs of matrix work differ by more than this.
_LEAST_SAME, _LEAST_NAMED_ALIKE, _SAME_FLOPS = 0.05, 0.5, 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Two programs: the shares of A's and of B's kernel time in the same calls, and of both in ops of one name."""

    same: tuple[float, float]
    named_alike: float


def difference(rows: Sequence[Row], sides: Sequence[Numbered], units: Sequence[Sequence[Ints]]) -> Difference | None:
    """None where the sides look like one program, or where too little of their work is known to say so.

    Other shapes leave the ops, other implementations the work, so that two signs are asked for: hardly any call has the
    same arguments or the same work, and other ops take most of the time. Where the matrix FLOPs are as many on both
    sides, the same is done in another way.
    """
    flops = [_flops(side) for side in sides]
    if not all(flops) or abs(flops[0] - flops[1]) <= _SAME_FLOPS * max(flops):
        return None
    sure = np.array([row.how in (SAME, SAME_WORK) for row in rows], bool)
    times = [_row_ns(side, own, len(rows)) for side, own in zip(sides, units, strict=True)]
    same = [float(own[sure].sum() / max(own.sum(), 1.0)) for own in times]
    names = [_share_of_names(side) for side in sides]
    alike = sum(min(share, names[1][name]) for name, share in names[0].items())
    if max(same) > _LEAST_SAME or alike >= _LEAST_NAMED_ALIKE:
        return None
    return Difference(same=(same[0], same[1]), named_alike=alike)


def implausible(rows: Sequence[Row], sides: Sequence[Numbered], units: Sequence[Sequence[Ints]]) -> list[int]:
    """Rows of calls that stand in one place, but took more than ``MOST_TIMES`` as long on one side.

    One call in place of one that does the same kind of work may have become as slow as it likes.
    """
    a, b = (_row_ns(side, own, len(rows)) for side, own in zip(sides, units, strict=True))
    far = np.maximum(a, b) > MOST_TIMES * np.maximum(np.minimum(a, b), _LEAST_NS)
    return [number for number in np.flatnonzero(far).tolist() if _is_guess(rows[number], sides)]


def _is_guess(row: Row, sides: Sequence[Numbered]) -> bool:
    if row.how != SAME_PLACE or (len(row.a) == len(row.b) == 1 and _role(row.a, sides[0]) == _role(row.b, sides[1])):
        return False
    return bool(row.a and row.b)


def _role(calls: tuple[int, ...], side: Numbered) -> str:
    return call_role(side.calls[calls[0]])


def taken_apart(
    rows: Sequence[Row], sides: Sequence[Numbered], units: Sequence[Sequence[Ints]], numbers: Collection[int]
) -> tuple[list[Row], list[list[Ints]]]:
    """The rows, and those of all units, with every call of the rows of these numbers in a row of its own side."""
    found, placed = list(rows), [list(own) for own in units]
    for which, (side, own) in enumerate(zip(sides, placed, strict=True)):
        alone = {
            (row.b if which else row.a)[0]: number
            for number, row in enumerate(rows)
            if row.how == (ONLY_B if which else ONLY_A)
        }
        for at, (call, row_of) in enumerate(zip(side.call_of, own, strict=True)):
            moved = np.isin(row_of, list(numbers))
            for each in np.unique(call[moved]).tolist():
                if each not in alone:
                    alone[each] = len(found)
                    found.append(Row(a=(), b=(each,), how=ONLY_B) if which else Row(a=(each,), b=(), how=ONLY_A))
            own[at] = np.where(moved, [alone.get(each, -1) for each in call.tolist()], row_of)
    return found, placed


def _row_ns(side: Numbered, rows: Sequence[Ints], count: int) -> Floats:
    """Kernel time of each row, of all steps together over their number."""
    total, steps = np.zeros(count), 0
    for one, own in zip(side.side.recordings, rows, strict=True):
        total += np.bincount(own, one.kernel_ns, minlength=count)
        steps += len(one.durations_ns)
    return total / max(steps, 1)


def _share_of_names(side: Numbered) -> Counter[str]:
    """Name of an op, or kernel that stands for itself -> its share of the kernel time."""
    total: Counter[str] = Counter()
    for one, calls in zip(side.side.recordings, side.call_of, strict=True):
        times = np.bincount(calls, one.kernel_ns, minlength=len(side.calls))
        for number in np.flatnonzero(times).tolist():
            total[side.calls[number].label] += times[number]
    whole = sum(total.values()) or 1.0
    return Counter({name: time / whole for name, time in total.items()})


def _flops(side: Numbered) -> float:
    """Known FLOPs of a step's matrix work; 0 where none are known."""
    done, steps = 0.0, 0
    for one in side.side.recordings:
        is_matrix = [(rates.engine or "").startswith("matrix") for rates in one.rates]
        each = np.where(is_matrix or [False], [rates.flops for rates in one.rates] or [np.nan], np.nan)
        done += float(np.nansum(each[one.call] * one.repeats))
        steps += len(one.durations_ns)
    return done / max(steps, 1)
