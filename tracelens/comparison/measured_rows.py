"""The rows of a comparison on one side, calls, kernels, time and rates per step, and how far a change may be chance."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from tracelens.analysis.grouping import Codes, first_of_each, numbered
from tracelens.analysis.intervals import Ints
from tracelens.comparison.call_matching import Numbered
from tracelens.comparison.compared import KernelShare, RowSide, on_grid
from tracelens.comparison.sides import (
    COMMUNICATION,
    COPY,
    Call,
    CallWork,
    Floats,
    by_step,
    call_role,
    host_by_step,
    kernel_time_by_step,
    weights,
)
from tracelens.types.records import Record
from tracelens.types.units import NS_PER_MS, NS_PER_US, TERA_PER_S_IN_PER_US

#: Share of repetitions whose interval holds the true change.
CONFIDENCE = 0.99
#: Share of repetitions in which all of several intervals do.
ALL_TOGETHER = 0.98
_RESAMPLES = 2000
_SEED = 1
#: Degrees of freedom up to which Student's quantile is computed; towards more it goes to the normal one, as 1 / these.
_MOST_FREEDOM = 200


class Interval(Record, frozen=True, kw_only=True, eq=False):
    """Bounds of each row's change, in the unit of what was resampled."""

    low: Floats
    high: Floats


class Noise:
    """Intervals of the change of a mean step, by the bootstrap over steps (Efron, 1979).

    Few steps tell their own spread badly: half widths are those of the bootstrap times ``sqrt(n / (n - 1))`` and the
    ratio of Student's to the normal quantile, with Welch's degrees of freedom. A side of one step is taken to spread as
    the other one does; with one step on both nothing is known, and ``is_known`` is False.
    """

    def __init__(self, a: Floats, b: Floats) -> None:
        self._a, self._b = a, b
        self.is_known = max(a.shape[1], b.shape[1]) > 1
        random = np.random.default_rng(_SEED)
        # The same draws for the same side, whichever of the two is called A
        order = sorted((0, 1), key=lambda side: ((a, b)[side].shape[1], (a, b)[side].sum()))
        steps = {side: (a, b)[side].shape[1] for side in order if self.is_known}
        drawn: dict[int, Floats] = {
            side: random.multinomial(n, np.full(n, 1 / n), size=_RESAMPLES).T / n for side, n in steps.items()
        }
        self._weights = [drawn[side] for side in sorted(drawn)]

    def interval(self, rows: slice | list[int] = slice(None), *, together: bool = False, tests: int = 1) -> Interval:
        """Of each of these rows, or of their sum; as one of so many intervals that together hold (Bonferroni)."""
        a, b = self._a[rows], self._b[rows]
        if together:
            a, b = a.sum(axis=0, keepdims=True), b.sum(axis=0, keepdims=True)
        change = b.mean(axis=1) - a.mean(axis=1)
        if not self.is_known:
            nothing = np.full(len(change), np.nan)
            return Interval(low=nothing, high=nothing)
        variance = [_variance_of_mean(a), _variance_of_mean(b)]
        drawn = [steps @ weights - steps.mean(axis=1, keepdims=True)
                 for steps, weights in zip((a, b), self._weights, strict=True)]  # fmt: skip
        for one, other in ((0, 1), (1, 0)):
            if (a, b)[one].shape[1] == 1:
                variance[one], drawn[one] = variance[other], drawn[other][:, ::-1]
        tail = (1 - CONFIDENCE) / 2
        low, high = np.quantile(drawn[1] - drawn[0], (tail, 1 - tail), axis=1)
        wider = self._wider(tests, *variance)
        return Interval(low=change + low * wider, high=change + high * wider)

    def sums(self, rows: list[int]) -> tuple[Floats, Floats]:
        """Of these rows, by step of A and of B."""
        return self._a[rows].sum(axis=0), self._b[rows].sum(axis=0)

    def change(self, rows: list[int]) -> float:
        """Of the sum of these rows."""
        a, b = self.sums(rows)
        return float(b.mean() - a.mean())

    def _wider(self, tests: int, of_a: Floats, of_b: Floats) -> Floats:
        """What the bootstrap's quantiles are multiplied by, per row."""
        steps = [self._a.shape[1], self._b.shape[1]]
        steps = [count if count > 1 else max(steps) for count in steps]
        total = of_a + of_b
        parts = of_a**2 / (steps[0] - 1) + of_b**2 / (steps[1] - 1)
        freedom = np.divide(total**2, parts, out=np.full(len(total), float(sum(steps) - 2)), where=parts > 0)
        if 1 in (self._a.shape[1], self._b.shape[1]):
            freedom = np.minimum(freedom, max(steps) - 1)
        least = min(steps)
        outside = min(1 - CONFIDENCE, (1 - ALL_TOGETHER) / tests)
        ratio = _student(freedom, outside) / NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2)
        return ratio * math.sqrt(least / (least - 1))


def _variance_of_mean(steps: Floats) -> Floats:
    count = steps.shape[1]
    if count == 1:
        return np.zeros(len(steps))
    found: Floats = steps.var(axis=1, ddof=1) / count
    return found


@cache
def _student_quantiles(outside: float) -> tuple[Floats, Floats]:
    """(1 / degrees of freedom, log of Student's quantile with this share outside of it on both sides).

    With ``t = sqrt(freedom) tan(angle)`` the density is ``cos(angle) ** (freedom - 1)``, here summed from pi / 2 down.
    """
    inverse = np.linspace(1 / _MOST_FREEDOM, 1, 40)
    beside = np.append(np.geomspace(1e-12, 0.1, 400), np.linspace(0.1, math.pi / 2, 600)[1:])
    density = np.sin(beside) ** (1 / inverse[:, None] - 1)
    mass = np.cumsum((density[:, 1:] + density[:, :-1]) / 2 * np.diff(beside), axis=1)
    angle = [np.interp(outside * own[-1], own, beside[1:]) for own in mass]
    quantiles = np.sqrt(1 / inverse) / np.tan(angle)
    normal = NormalDist().inv_cdf(1 - outside / 2)
    return np.append(0.0, inverse), np.log(np.append(normal, quantiles))


def _student(freedom: Floats, outside: float) -> Floats:
    """Student's quantile with this share outside of it on both sides."""
    inverse, quantiles = _student_quantiles(outside)
    found: Floats = np.exp(np.interp(1 / freedom, inverse, quantiles))
    return found


#: Share of kernels that another overlap hides at least.
_LEAST_HIDDEN = 0.02


def gap_of(a: Floats, b: Floats) -> float:
    """How far all of one side lie above all of the other; negative where they do not."""
    return float(max(b.min() - a.max(), a.min() - b.max()))


class HostChange(Record, frozen=True, kw_only=True):
    """Host calls of a name that say a ``cause`` of idle time: calls and ms a step in A and in B."""

    cause: str
    name: str
    calls: tuple[float, float]
    ms: tuple[float, float]

    @property
    def change_ms(self) -> float:
        return self.ms[1] - self.ms[0]


def host_changes(a: MeasuredSide, b: MeasuredSide) -> tuple[HostChange, ...]:
    """Those of which the steps of one side have more than those of the other, by more than they are apart themselves,
    or which take longer, or shorter, than chance explains.
    """
    sides = host_by_step(a.numbered.side), host_by_step(b.numbered.side)
    none = [tuple(np.zeros(side.steps.shape[1]) for _ in range(2)) for side in (a, b)]
    keys = dict.fromkeys((*sides[0], *sides[1]))
    found = []
    for key in keys:
        (count_a, ns_a), (count_b, ns_b) = (side.get(key, own) for side, own in zip(sides, none, strict=True))
        is_other = gap_of(count_a, count_b) > max(np.ptp(count_a), np.ptp(count_b))
        interval = Noise(ns_a[None], ns_b[None]).interval(tests=len(keys))
        if not is_other and not (interval.low[0] > 0 or interval.high[0] < 0):
            continue
        calls, ns = (tuple(float(each.mean()) for each in both) for both in ((count_a, count_b), (ns_a, ns_b)))
        ms = ns[0] / NS_PER_MS, ns[1] / NS_PER_MS
        found.append(HostChange(cause=key[0], name=key[1], calls=(calls[0], calls[1]), ms=ms))
    return tuple(found)


def at_equal_work(a: MeasuredSide, b: MeasuredSide) -> Noise:
    """Of the kernel time of each row that is not that of its number of calls at what one takes in the mean of both.

    Steps that run other shapes, or more of them, are as far from each other as their kernels' speeds are.
    """
    each = ns_of_a_call(a, b)[:, None]
    (time_a, calls_a), (time_b, calls_b) = a.kernel_steps, b.kernel_steps
    return Noise(time_a - each * calls_a, time_b - each * calls_b)


def ns_of_a_call(a: MeasuredSide, b: MeasuredSide) -> Floats:
    """Of each row that both sides have, the kernel time of a call in the mean of both; 0 of other rows."""
    (time_a, calls_a), (time_b, calls_b) = a.kernel_steps, b.kernel_steps
    both = calls_a.any(axis=1) & calls_b.any(axis=1)
    calls = calls_a.mean(axis=1) + calls_b.mean(axis=1)
    found: Floats = np.divide(time_a.mean(axis=1) + time_b.mean(axis=1), calls, out=np.zeros(len(calls)), where=both)
    return found


def behind_others(a: MeasuredSide, b: MeasuredSide) -> Noise:
    """Of the kernel time of each row that is not its part of the step: what runs at the same time has that."""
    return Noise(a.kernel_steps[0] - a.steps, b.kernel_steps[0] - b.steps)


class Intervals(Record, frozen=True):
    """In ms, of changes of rows that have these numbers in what was resampled, each as one of so many that all hold.

    ``equal_work``: as ``noise``, of how long the same work takes; ``hidden``: of what runs behind other work.
    """

    noise: Noise
    numbers: Sequence[int]
    equal_work: Noise | None = None
    hidden: Noise | None = None

    def of_speed(self, rows: Sequence[int], change_ms: float, tests: int = 1) -> tuple[float, float] | None:
        """Around a change of this size, of kernels that take longer for the same work; None where that is not known."""
        return self._around(self.equal_work, rows, change_ms, tests)

    def of_overlap(self, rows: Sequence[int], change_ms: float, tests: int = 1) -> tuple[float, float] | None:
        """So of kernels of which less runs behind others."""
        found = self._around(self.hidden, rows, -change_ms, tests)
        return None if found is None else (-found[1], -found[0])

    def hides_otherwise(self, rows: Sequence[int]) -> bool:
        """Whether of these kernels every step of one side hides a larger share than any of the other.

        By more than the steps of a side are apart.
        """
        if self.hidden is None or not self.hidden.is_known:
            return False
        at = [self.numbers[row] for row in rows]
        hidden, own = self.hidden.sums(at), self.noise.sums(at)
        shares = [part / np.maximum(part + rest, 1) for part, rest in zip(hidden, own, strict=True)]
        return gap_of(*shares) > max(*map(np.ptp, shares), _LEAST_HIDDEN)

    def _around(
        self, noise: Noise | None, rows: Sequence[int], change_ms: float, tests: int
    ) -> tuple[float, float] | None:
        if noise is None or not noise.is_known or not len(rows):
            return None
        at = [self.numbers[row] for row in rows]
        found = noise.interval(at, together=True, tests=tests)
        low, high = float(found.low[0]) / NS_PER_MS, float(found.high[0]) / NS_PER_MS
        middle = noise.change(at) / NS_PER_MS
        # In proportion: of what the kernels take longer the step may have a part
        scale = change_ms / middle if middle else 1.0
        return (low * scale, high * scale) if scale > 0 else None

    def of_sum(self, rows: Sequence[int], tests: int = 1) -> tuple[float, float] | None:
        """None where nothing is known of chance."""
        if not self.noise.is_known or not len(rows):
            return None
        found = self.noise.interval([self.numbers[at] for at in rows], together=True, tests=tests)
        return float(found.low[0]) / NS_PER_MS, float(found.high[0]) / NS_PER_MS

    def of_each(self, tests: int) -> list[tuple[float, float]] | None:
        """Of all rows; None where nothing is known of chance."""
        if not self.noise.is_known or not self.numbers:
            return None
        found = self.noise.interval(list(self.numbers), tests=tests)
        return list(zip((found.low / NS_PER_MS).tolist(), (found.high / NS_PER_MS).tolist(), strict=True))


#: Share of a row's kernel time that calls of known work must have for their rate to stand for it.
_LEAST_KNOWN = 0.5
#: Times the median of its kernel from which a launch did not take as long as it needed, and the largest share of such.
_FAR, _MOST_STALLED = 10, 0.1


class MeasuredSide:
    """``steps`` and ``ranks``: ns of every step by row, see ``by_step``. Figures are of the mean step."""

    def __init__(self, numbered_side: Numbered, rows: Sequence[Ints], count: int) -> None:
        self.numbered = numbered_side
        side = numbered_side.side
        self.steps, self.ranks = by_step(side, rows, count)
        (time, self.kernel_ranks), (number, self.call_ranks) = kernel_time_by_step(side, rows, count)
        self.kernel_steps = time, number
        self._rows, self._calls = np.concatenate(list(rows)), np.concatenate(numbered_side.call_of)
        each = weights(side)
        lengths = [len(one.call) for one in side.recordings]
        self._weight = np.repeat(each, lengths)
        self._kernel_ns = np.concatenate([one.kernel_ns for one in side.recordings]) * self._weight
        self._count = count
        self._ms = [on_grid(ns / NS_PER_MS) for ns in self.steps.mean(axis=1).tolist()]
        self._kernel_ms = self._sum(self._kernel_ns) / NS_PER_MS
        self._repeats = np.concatenate([one.repeats for one in side.recordings])
        # Shares of steps leave whole numbers a rounding error apart
        self._number = np.round(self._sum(self._weight * self._repeats), 9)
        self._kernels = self._kernels_by_row(rows, each)
        self._calls_of_row = self._calls_by_row()
        self._rates()

    def row(self, number: int) -> RowSide | None:
        """None where the side has nothing of that row."""
        if not self._number[number]:
            return None
        calls = [self.numbered.calls[c] for c in self._calls_of_row[number]]
        return RowSide(
            ops=tuple(dict.fromkeys(call.label for call in calls)),
            calls=float(self._number[number]),
            ms=self._ms[number],
            kernel_ms=float(self._kernel_ms[number]),
            kernels=tuple(self._kernels[number]),
            shapes=tuple(dict.fromkeys(call.shapes for call in calls if call.shapes)),
            dtypes=tuple(dict.fromkeys(call.dtypes for call in calls if call.dtypes)),
            tflops_s=_known(self._tflops[number]),
            hbm_tb_s=_known(self._hbm[number]),
            of_roofline=_known(self._of_roofline[number]),
            flops=_known(self._flops[number]),
            bound=self._bound.get(number),
        )

    def _sum(self, values: Floats) -> Floats:
        return np.bincount(self._rows, values, minlength=self._count).astype(np.float64)

    def _calls_by_row(self) -> dict[int, list[int]]:
        """The distinct calls of each row, in order of appearance."""
        group = numbered(self._rows, self._calls)
        found: dict[int, list[int]] = defaultdict(list)
        for at in sorted(first_of_each(group).tolist()):
            found[int(self._rows[at])].append(int(self._calls[at]))
        return found

    def _kernels_by_row(self, rows: Sequence[Ints], each: Sequence[float]) -> dict[int, list[KernelShare]]:
        """The kernels of each row, the longest first."""
        codes: dict[str, int] = {}
        row, name, ns, weight = [], [], [], []
        for one, own, share in zip(self.numbered.side.recordings, rows, each, strict=True):
            code = np.array([codes.setdefault(text, len(codes)) for text in one.kernel_names] or [0], np.int64)
            row.append(own[one.event_unit])
            name.append(code[one.event_kernel])
            ns.append(one.event_ns * share)
            weight.append(np.full(len(one.event_ns), share))
        rows_of, names_of = np.concatenate(row), np.concatenate(name)
        group, texts = numbered(rows_of, names_of), list(codes)
        first = first_of_each(group)
        weights_of, ns_of = np.concatenate(weight), np.concatenate(ns)
        total, count = np.bincount(group, ns_of), np.round(np.bincount(group, weights_of), 9)
        event_ns = np.concatenate([one.event_ns for one in self.numbered.side.recordings])
        middle, of_time = _medians(group, event_ns)
        long = event_ns > _FAR * middle[group]
        stalls = [np.bincount(group, values * long).tolist() for values in (weights_of, ns_of / NS_PER_MS)]
        is_known = self.numbered.side.first.is_ordered
        found: dict[int, list[KernelShare]] = defaultdict(list)
        columns = (
            rows_of[first].tolist(), names_of[first].tolist(), count.tolist(), (total / NS_PER_MS).tolist(),
            (of_time / NS_PER_US).tolist(),
        )  # fmt: skip
        for at, code, number, ms, median_us, *stalled in zip(*columns, *stalls, strict=True):
            few = is_known and 0 < stalled[0] <= _MOST_STALLED * number
            stalls_of = (stalled[0], stalled[1]) if few else None
            found[at].append(KernelShare(name=texts[code], count=number, ms=ms, median_us=median_us, stalls=stalls_of))
        for kernels in found.values():
            kernels.sort(key=lambda kernel: (-kernel.ms, kernel.name))
        return found

    def _rates(self) -> None:
        """Work over the kernel time of the calls whose work is known."""
        rate_of: dict[Call, CallWork] = {}
        for one in self.numbered.side.recordings:
            for call, rates in zip(one.calls, one.rates, strict=True):
                rate_of.setdefault(call, rates)
        known = [rate_of[call] for call in self.numbered.calls]

        def per_unit(key: str) -> Floats:
            values: Floats = np.array([getattr(rates, key) for rates in known] or [np.nan])
            return values[self._calls]

        def ratio(amount: Floats, scale: float) -> Floats:
            said = ~np.isnan(amount) & (self._kernel_ns > 0)
            ns = self._sum(np.where(said, self._kernel_ns, 0.0))
            total = self._sum(np.where(said, amount * self._weight * self._repeats, 0.0))
            enough = (ns > 0) & (ns >= _LEAST_KNOWN * self._sum(self._kernel_ns))
            found: Floats = np.divide(total * scale, ns, out=np.full(self._count, np.nan), where=enough)
            return found

        flops, hbm_bytes = per_unit("flops"), per_unit("hbm_bytes")
        self.coverage = self._covered(~(np.isnan(flops) & np.isnan(hbm_bytes)))
        per_us = NS_PER_US / TERA_PER_S_IN_PER_US
        self._tflops, self._hbm = ratio(flops, per_us), ratio(hbm_bytes, per_us)
        self._of_roofline = ratio(per_unit("roofline_us"), NS_PER_US)
        unknown = self._sum(np.where(np.isnan(flops), self._weight, 0.0)) > 0
        self._flops = np.where(unknown, np.nan, self._sum(np.nan_to_num(flops) * self._weight * self._repeats))
        self._bound = {
            row: bound for row, calls in self._calls_of_row.items() for call in calls if (bound := known[call].bound)
        }

    def _covered(self, is_known: npt.NDArray[np.bool_]) -> float | None:
        """The share of the kernel time of computation in units of known work."""
        computes = np.array([call_role(call) not in (COMMUNICATION, COPY) for call in self.numbered.calls] or [False])
        ns = self._kernel_ns * computes[self._calls]
        return float(ns[is_known].sum() / ns.sum()) if ns.any() else None


def _medians(group: Codes, ns: Ints) -> tuple[Ints, Ints]:
    """Of each group the median, the lower one of two, and the value up to which half of the sum is."""
    order = np.lexsort((ns, group))
    count, ordered = np.bincount(group), ns[order]
    last = np.cumsum(count)
    total = np.concatenate(([0], np.cumsum(ordered)))
    half = (total[last - count] + total[last] + 1) // 2
    middle = last - count + (count - 1) // 2
    of_sum = np.clip(np.searchsorted(total[1:], half), last - count, last - 1)
    return ordered[middle], ordered[of_sum]


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
