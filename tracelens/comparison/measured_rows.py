"""The rows of a comparison on one side, calls, kernels, time and rates per step, and how far a change may be chance."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist

import numpy as np

from tracelens.analysis.grouping import Codes, first_of_each, numbered
from tracelens.analysis.intervals import Ints
from tracelens.comparison.call_matching import Numbered
from tracelens.comparison.compared import AT_ONCE, EnergyCompared, KernelShare, RowSide, on_grid
from tracelens.comparison.sides import (
    COMMUNICATION,
    COPY,
    Call,
    CallWork,
    Floats,
    by_step,
    call_role,
    host_by_step,
    joules_by_step,
    weights,
)
from tracelens.types.records import Record
from tracelens.types.units import NS_PER_MS, NS_PER_S, NS_PER_US, TERA_PER_S_IN_PER_US

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


#: How far single steps of one program lie apart, as a share of what is compared, by kind of row. A recording's own
#: steps (five groups of recordings, 129 pairs) and such of other ranks and builds: computation 0.2 to 1.8 %, copies 9
#: to 30 %, collectives 17 to 74 % (they wait for others), idle time 50 to 90 % of the step's.
_COMPUTE, _COPIES, _SENT, _IDLE = range(4)
_APART = (0.015, 0.25, 0.5, 1.0)
_KIND_OF = {COMMUNICATION: _SENT, COPY: _COPIES}
#: So of the share of kernels that others hide.
_HIDDEN_APART = (0.01, 0.1, 0.1, 0.0)
#: What a row differs by beside all others, and one call of it where few repeat it: alone on its device, and where
#: kernels run at the same time, from this share of their time on. There nothing is said by a call that none repeats: of
#: 100 in those pairs one takes 7 times as long.
_ROW_APART, _CALL_APART, _LEAST_BESIDE = 0.02, (0.06, 0.12), 0.02
_NOT_REPEATED_BESIDE = 0.35
#: No two kernels are told apart by less; by half a tick where a recording's clock has one (ns).
_LEAST_APART_NS, _TICK_NS = 100.0, 1000
#: Degrees of freedom of such intervals: they were seen on about as many independent recordings.
_SEEN = 10


class Typical(Record, frozen=True, kw_only=True, eq=False):
    """What chance makes of a row where either side has one step. ``own``: variance of its repeats; ``shared``: by row
    and kind, standard deviations that rows of a kind have in common. In the unit of what ``Noise`` is of.
    """

    own: Floats
    shared: Floats

    def half_widths(self, rows: slice | list[int], outside: float, *, together: bool) -> Floats:
        """Of each of these rows, or of their sum."""
        own, shared = self.own[rows], self.shared[rows]
        if together:
            own, shared = own.sum(axis=0, keepdims=True), shared.sum(axis=0, keepdims=True)
        return np.sqrt(own + (shared**2).sum(axis=1)) * _student(np.array([float(_SEEN)]), outside)


class Noise:
    """Intervals of the change of a mean step, by the bootstrap over steps (Efron, 1979).

    Few steps tell their own spread badly: half widths are those of the bootstrap times ``sqrt(n / (n - 1))`` and the
    ratio of Student's to the normal quantile, with Welch's degrees of freedom. A side of one step is taken to spread as
    the other one does. With one step on both chance is not known, and ``is_known`` is False: intervals are then those
    of ``typical``, where there is that.
    """

    def __init__(self, a: Floats, b: Floats, typical: Typical | None = None) -> None:
        self._a, self._b, self._typical = a, b, typical
        self.is_known = max(a.shape[1], b.shape[1]) > 1
        self.is_bounded = self.is_known or typical is not None
        self.sent = [] if typical is None else np.flatnonzero(typical.shared[:, _SENT]).tolist()
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
            half = np.full(len(change), np.nan)
            if self._typical is not None:
                half = self._typical.half_widths(rows, _outside(tests), together=together)
            return Interval(low=change - half, high=change + half)
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
        ratio = _student(freedom, _outside(tests)) / NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2)
        return ratio * math.sqrt(least / (least - 1))


def _outside(tests: int) -> float:
    return min(1 - CONFIDENCE, (1 - ALL_TOGETHER) / tests)


def _variance_of_mean(steps: Floats) -> Floats:
    count = steps.shape[1]
    if count == 1:
        return np.zeros(len(steps))
    return steps.var(axis=1, ddof=1) / count


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
    return np.exp(np.interp(1 / freedom, inverse, quantiles))


#: Share of kernels that another overlap hides at least; so where either side has one step.
_LEAST_HIDDEN, _LEAST_HIDDEN_OF_ONE = 0.02, 0.2


def gap_of(a: Floats, b: Floats) -> float:
    """How far all of one side lie above all of the other; negative where they do not."""
    return float(max(b.min() - a.max(), a.min() - b.max()))


#: How joules of steps are known, what wins first.
_KINDS_OF_JOULES = ("measured", "modelled")


def energies(a: MeasuredSide, b: MeasuredSide, idle_ms: tuple[float, float]) -> tuple[EnergyCompared | None, list[str]]:
    """What the device draws in a step, and a note where one side is modelled and the other measured."""
    known = [{what: joules_by_step(each.numbered.side, what) for what in _KINDS_OF_JOULES} for each in (a, b)]
    for kind in _KINDS_OF_JOULES:
        one, other = known[0][kind], known[1][kind]
        if one is None or other is None:
            continue
        noise = Noise(one[None], other[None])
        interval = noise.interval()
        bounds = (float(interval.low[0]), float(interval.high[0])) if noise.is_known else (None, None)
        figures = _energy_of("a", a, kind, idle_ms[0]) | _energy_of("b", b, kind, idle_ms[1])
        return EnergyCompared(kind=kind, low_j=bounds[0], high_j=bounds[1], **figures), []
    said = [next((what for what in _KINDS_OF_JOULES if own[what] is not None), None) for own in known]
    return None, [f"joules of A are {said[0]}, of B {said[1]}: they are not compared"] if all(said) else []


def _energy_of(name: str, measured: MeasuredSide, kind: str, idle_ms: float) -> dict[str, float]:
    """Fields of ``EnergyCompared`` of a side (a or b), of which joules of this kind are known."""
    side, step_s = measured.numbered.side, float(measured.steps.sum(axis=0).mean()) / NS_PER_S
    wanted = {"j": kind} | ({"low_j": "low", "high_j": "high"} if kind == "modelled" else {})
    columns = {key: joules_by_step(side, what) for key, what in wanted.items()}
    found = {f"{name}_{key}": float(joules.mean()) for key, joules in columns.items() if joules is not None}
    joules = side.first.joules
    if kind == "modelled" and joules is not None and joules.idle_w is not None:
        found[f"{name}_idle_j"] = joules.idle_w * idle_ms / 1e3
    return found | {f"{name}_w": found[f"{name}_j"] / step_s if step_s else 0.0}


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
    """Host calls that one side has more of than its steps vary, or that take longer or shorter than by chance."""
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


def noises(a: MeasuredSide, b: MeasuredSide) -> tuple[Noise, Noise, Noise]:
    """Of each row: its part of the step, its kernels' time at equal work, and what of that is no part of the step.

    At equal work: less its number of calls at what one takes in the mean of both. Steps that run other shapes, or more
    of them, are as far from each other as their kernels' speeds are.
    """
    each = ns_of_a_call(a, b)[:, None]
    (time_a, calls_a), (time_b, calls_b) = a.kernel_steps, b.kernel_steps
    part, work, hidden = _typical(a, b) if a.steps.shape[1] == b.steps.shape[1] == 1 else (None, None, None)
    return (
        Noise(a.steps, b.steps, part),
        Noise(time_a - each * calls_a, time_b - each * calls_b, work),
        # What runs at the same time has the rest
        Noise(time_a - a.steps, time_b - b.steps, hidden),
    )


def _typical(a: MeasuredSide, b: MeasuredSide) -> tuple[Typical, Typical, Typical]:
    """Of single steps, see ``noises``."""
    kernels = (a.kernel_steps[0] + b.kernel_steps[0])[:, 0] / 2
    part = (a.steps + b.steps)[:, 0] / 2
    behind = np.maximum(a.kernel_steps[0] - a.steps, b.kernel_steps[0] - b.steps)[:, 0]
    repeats = _variance_of_repeats(a, b, is_beside=bool(behind.sum() > _LEAST_BESIDE * kernels.sum()))
    kind = np.full(len(a.steps), _COMPUTE)
    for side in (a, b):
        of_call = [
            _IDLE if call.is_idle else _SENT if call.category == AT_ONCE else _KIND_OF.get(call_role(call), _COMPUTE)
            for call in side.numbered.calls
        ]
        kind[side.rows] = np.array(of_call or [_COMPUTE])[side.calls]
    is_kind = kind[:, None] == np.arange(len(_APART))
    share = np.divide(part, kernels, out=np.ones(len(part)), where=kernels > 0)
    return (
        Typical(own=repeats * share**2 + (_ROW_APART * part) ** 2 + behind**2, shared=is_kind * _APART * part[:, None]),
        Typical(own=repeats + (_ROW_APART * kernels) ** 2, shared=is_kind * _APART * kernels[:, None]),
        Typical(own=np.zeros(len(part)), shared=is_kind * _HIDDEN_APART * kernels[:, None]),
    )


def share_apart(role: str, *, is_idle: bool) -> list[float]:
    """By kind, see ``_APART``: what single steps lie apart in time of this role, 0 of other kinds."""
    kind = _IDLE if is_idle else _KIND_OF.get(role, _COMPUTE)
    return [share if at == kind else 0.0 for at, share in enumerate(_APART)]


def typical_of(a: Floats, b: Floats) -> Typical:
    """Of what single steps of either side lie apart, by row and kind."""
    return Typical(own=np.zeros(len(a)), shared=(a + b) / 2)


def _variance_of_repeats(a: MeasuredSide, b: MeasuredSide, *, is_beside: bool) -> Floats:
    """By row, of the difference of its kernel time: by that of each call from the call in its place on the other side.

    What all of them changed by in proportion is no spread. Few calls are as far apart as those of all rows of their op
    are, as shares; of one without repeats, it is as usual.
    """
    count = len(a.steps)
    numbers = [np.bincount(side.rows, minlength=count) for side in (a, b)]
    calls, is_paired = np.maximum(*numbers), numbers[0] == numbers[1]
    ordered = []
    for side in (a, b):
        order = np.argsort(side.rows, kind="stable")
        ordered.append(order[is_paired[side.rows[order]]])
    rows = a.rows[ordered[0]]
    before, after = (side.unit_ns[order] for side, order in zip((a, b), ordered, strict=True))
    ops, middle = _ops(a, b), np.maximum((before + after) / 2, 1.0)
    size = int(ops.max(initial=0)) + 1
    known = np.bincount(ops[rows], minlength=size)
    alone = np.where(is_beside & (known == 1), _NOT_REPEATED_BESIDE, _CALL_APART[int(is_beside)])
    shares = np.bincount(ops[rows], (_unlike(ops[rows], before, after) / middle) ** 2 / 2, minlength=size)
    of_call = np.sqrt((shares + alone**2) / np.maximum(known, 1))[ops]
    each = (a.kernel_steps[0] + b.kernel_steps[0])[:, 0] / 2 / np.maximum(calls, 1)
    is_coarse = any((one.event_ns % _TICK_NS == 0).all() for side in (a, b) for one in side.numbered.side.recordings)
    least = (_TICK_NS / 2 if is_coarse else _LEAST_APART_NS) / len(a.numbered.side.recordings)
    squares = np.bincount(rows, _unlike(rows, before, after) ** 2, minlength=count)
    usual = 2 * np.maximum(of_call * each, least) ** 2
    return np.where(is_paired, squares + usual, calls * usual)


def _unlike(group: Ints, before: Floats, after: Floats) -> Floats:
    """What each changed by beside the factor of its group."""
    sums = np.bincount(group, (before + after) / 2)
    change = np.divide(np.bincount(group, after - before), sums, out=np.zeros(len(sums)), where=sums > 0)
    return after - before - change[group] * (before + after) / 2


def _ops(a: MeasuredSide, b: MeasuredSide) -> Ints:
    """A number by row, the same for rows of one op."""
    codes: dict[str, int] = {}
    found = np.zeros(len(a.steps), np.int64)
    for side in (b, a):
        of_call = [codes.setdefault(call.label, len(codes)) for call in side.numbered.calls]
        found[side.rows] = np.array(of_call or [0])[side.calls]
    return found


def ns_of_a_call(a: MeasuredSide, b: MeasuredSide) -> Floats:
    """Of each row that both sides have, the kernel time of a call in the mean of both; 0 of other rows."""
    (time_a, calls_a), (time_b, calls_b) = a.kernel_steps, b.kernel_steps
    both = calls_a.any(axis=1) & calls_b.any(axis=1)
    calls = calls_a.mean(axis=1) + calls_b.mean(axis=1)
    return np.divide(time_a.mean(axis=1) + time_b.mean(axis=1), calls, out=np.zeros(len(calls)), where=both)


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
        """Whether each step of one side hides more of these kernels than any of the other, beyond their spread."""
        if self.hidden is None or not self.hidden.is_bounded:
            return False
        at = [self.numbers[row] for row in rows]
        if not self.hidden.is_known:
            # A few of one step may be hidden otherwise by chance
            gaps = self._gap_of_hidden(self.hidden, at), self._gap_of_hidden(self.hidden, self.hidden.sent)
            return min(gaps) > _LEAST_HIDDEN_OF_ONE
        return self._gap_of_hidden(self.hidden, at) > _LEAST_HIDDEN

    def _gap_of_hidden(self, behind: Noise, at: list[int]) -> float:
        """Of the share of these kernels that others hide; 0 where the steps of a side are as far apart."""
        hidden, own = behind.sums(at), self.noise.sums(at)
        shares = [part / np.maximum(part + rest, 1) for part, rest in zip(hidden, own, strict=True)]
        gap = gap_of(*shares)
        return gap if gap > max(map(np.ptp, shares)) else 0.0

    def _around(
        self, noise: Noise | None, rows: Sequence[int], change_ms: float, tests: int
    ) -> tuple[float, float] | None:
        if noise is None or not noise.is_bounded or not len(rows):
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
        if not self.noise.is_bounded or not len(rows):
            return None
        found = self.noise.interval([self.numbers[at] for at in rows], together=True, tests=tests)
        return float(found.low[0]) / NS_PER_MS, float(found.high[0]) / NS_PER_MS

    def of_steps(self, rows: Sequence[int]) -> tuple[float, float] | None:
        """As ``of_sum``, where steps say it: what is typical of single ones may not be so of these."""
        return self.of_sum(rows) if self.noise.is_known else None

    def of_each(self, tests: int) -> list[tuple[float, float]] | None:
        """Of all rows; None where nothing is known of chance."""
        if not self.noise.is_bounded or not self.numbers:
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
        time, self.kernel_ranks = by_step(side, rows, count, "kernels")
        number, self.call_ranks = by_step(side, rows, count, "calls")
        self.kernel_steps = time, number
        self.rows, self.calls = np.concatenate(list(rows)), np.concatenate(numbered_side.call_of)
        each = weights(side)
        lengths = [len(one.call) for one in side.recordings]
        self._weight = np.repeat(each, lengths)
        self.unit_ns = np.concatenate([one.kernel_ns for one in side.recordings]) * self._weight
        self._count = count
        self._ms = [on_grid(ns / NS_PER_MS) for ns in self.steps.mean(axis=1).tolist()]
        self._kernel_ms = self._sum(self.unit_ns) / NS_PER_MS
        self._repeats = np.concatenate([one.repeats for one in side.recordings])
        # Shares of steps leave whole numbers a rounding error apart
        self._number = np.round(self._sum(self._weight * self._repeats), 9)
        self._kernels = self._kernels_by_row(rows, each)
        group = numbered(self.rows, self.calls)
        found: dict[int, list[int]] = defaultdict(list)
        for at in sorted(first_of_each(group).tolist()):
            found[int(self.rows[at])].append(int(self.calls[at]))
        self._calls_of_row = found
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
        return np.bincount(self.rows, values, minlength=self._count).astype(np.float64)

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
            return values[self.calls]

        def ratio(amount: Floats, scale: float) -> Floats:
            said = ~np.isnan(amount) & (self.unit_ns > 0)
            ns = self._sum(np.where(said, self.unit_ns, 0.0))
            total = self._sum(np.where(said, amount * self._weight * self._repeats, 0.0))
            enough = (ns > 0) & (ns >= _LEAST_KNOWN * self._sum(self.unit_ns))
            return np.divide(total * scale, ns, out=np.full(self._count, np.nan), where=enough)

        flops, hbm_bytes = per_unit("flops"), per_unit("hbm_bytes")
        # Of the kernel time of computation, the share in units of known work
        computes = np.array([call_role(call) not in (COMMUNICATION, COPY) for call in self.numbered.calls] or [False])
        ns = self.unit_ns * computes[self.calls]
        is_known = ~(np.isnan(flops) & np.isnan(hbm_bytes))
        self.coverage = float(ns[is_known].sum() / ns.sum()) if ns.any() else None
        per_us = NS_PER_US / TERA_PER_S_IN_PER_US
        self._tflops, self._hbm = ratio(flops, per_us), ratio(hbm_bytes, per_us)
        self._of_roofline = ratio(per_unit("roofline_us"), NS_PER_US)
        unknown = self._sum(np.where(np.isnan(flops), self._weight, 0.0)) > 0
        self._flops = np.where(unknown, np.nan, self._sum(np.nan_to_num(flops) * self._weight * self._repeats))
        self._bound = {
            row: bound for row, calls in self._calls_of_row.items() for call in calls if (bound := known[call].bound)
        }


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
