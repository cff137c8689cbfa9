"""Pairs of calls of two sides by number: which are plausible, and which kernels are part of a quantized exchange."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from tracelens.analysis.intervals import Ints
from tracelens.comparison.places import ONLY_A, ONLY_B, QUANTIZED_A, QUANTIZED_B, SAME, SAME_PLACE, SAME_WORK
from tracelens.comparison.sides import COMMUNICATION, STREAMING, Call, Floats, Side, call_role
from tracelens.lazy.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Calls of A (indices) that became those of B; one of the two may be empty."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    how: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Numbered:
    """The distinct ``calls`` of all recordings of a side; ``call_of``: per recording, of its units."""

    side: Side
    calls: tuple[Call, ...]
    call_of: tuple[Ints, ...]

    @classmethod
    def of(cls, side: Side) -> Numbered:
        number: dict[Call, int] = {}
        found = []
        for one in side.recordings:
            codes = np.array([number.setdefault(call, len(number)) for call in one.calls] or [0], np.int64)
            found.append(codes[one.call])
        return cls(side=side, calls=tuple(number), call_of=tuple(found))

    @cached_property
    def steps(self) -> list[Ints]:
        """The device work of each step, the typical one of a recording first; of none where it stands in no order."""
        if not self.side.first.is_ordered:
            return [np.zeros(0, np.int64)]
        busy = np.array([not call.is_idle for call in self.calls] or [False], bool)
        return [
            own[(one.step == step) & busy[own]]
            for one, own in zip(self.side.recordings, self.call_of, strict=True)
            for step in (one.typical, *np.delete(np.arange(len(one.durations_ns)), one.typical))
        ]

    @cached_property
    def sequence(self) -> Ints:
        """The step that has the calls of most steps: the one nearest to the median count of each.

        Of equally near ones it is the typical step of the first recording, else the first.
        """
        counts = np.stack([np.bincount(step, minlength=len(self.calls)) for step in self.steps])
        return self.steps[int(np.abs(counts - np.median(counts, axis=0)).sum(axis=1).argmin())]


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


#: An op, a kernel or the range around it that says so: ``dequantize``, ``encoder fp16``, ``cast_to_fp8``.
_QUANTIZES = re.compile(
    r"(?i)quant(?!ile|ity|um)|(?:encod|decod|compress|cast)\w{0,8}?.?(?:(?:mx|nv|h|b)?fp|bfloat|float|u?int|e\dm)\d"
)

Bools = npt.NDArray[np.bool_]


def with_quantized(rows: Sequence[Row], one: Numbered, other: Numbered) -> list[Row]:
    """The rows, exchanges of both sides that one of them quantizes marked as such with what does that.

    Only kernels that one side alone has, and that stand right before or after a collective that the other side has too:
    the same exchange, done in another way.
    """
    marked: dict[int, str] = {}
    for side, which, how in ((one, attrgetter("a"), QUANTIZED_A), (other, attrgetter("b"), QUANTIZED_B)):
        beside = _beside(side, [(which(row), bool(row.a and row.b)) for row in rows])
        marked |= {number: how for number, row in enumerate(rows) if which(row) and beside[list(which(row))].all()}
    return [replace(row, how=marked[number]) if number in marked else row for number, row in enumerate(rows)]


def _quantizes(call: Call) -> bool:
    around = (call.module or "").rpartition("/")[2]
    return call_role(call) == STREAMING and any(map(_QUANTIZES.search, (around, call.name, call.kernel)))


def _beside(side: Numbered, rows: Iterable[tuple[tuple[int, ...], bool]]) -> Bools:
    """By call: whether it quantizes beside an exchange, or is that; ``rows``: calls, and whether both have them."""
    quantizes, exchanges, found = np.zeros((3, len(side.calls)), bool)
    for calls, both in rows:
        for call in calls:
            exchanges[call] = both and call_role(side.calls[call]) == COMMUNICATION
            quantizes[call] = not both and _quantizes(side.calls[call])
    for step in side.steps if quantizes.any() else ():
        sent = np.flatnonzero(exchanges[step])
        for begin, end in zip(*_runs(quantizes[step]), strict=True):
            near = sent[(sent == begin - 1) | (sent == end)]
            if len(near):
                found[step[begin:end]] = True
                found[step[near]] = True
    return found


def _runs(mask: Bools) -> tuple[list[int], list[int]]:
    """Where the runs of true values begin and end."""
    edges = np.diff(np.concatenate(([0], mask.view(np.int8), [0])))
    return np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist()
