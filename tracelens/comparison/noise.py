"""How far a change may be chance: the spread of the steps of both sides, resampled."""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import numpy as np

from tracelens.comparison.sides import Floats
from tracelens.lazy.records import dataclass

#: Share of repetitions whose interval holds the true change.
CONFIDENCE = 0.99
#: Share of repetitions in which all of several intervals do.
ALL_TOGETHER = 0.98
_RESAMPLES = 2000
_SEED = 1
#: Degrees of freedom up to which Student's quantile is computed; towards more it goes to the normal one, as 1 / these.
_MOST_FREEDOM = 200


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Interval:
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
        drawn = {side: self._drawn(random, (a, b)[side].shape[1]) for side in order if self.is_known}
        self._weights = [drawn[side] for side in sorted(drawn)]

    @staticmethod
    def _drawn(random: np.random.Generator, steps: int) -> Floats:
        counts: Floats = random.multinomial(steps, np.full(steps, 1 / steps), size=_RESAMPLES).T / steps
        return counts

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
