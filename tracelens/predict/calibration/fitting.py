"""Fitting positive constants to measured times, least mean error within bounds; and those of a norm of costs,
``launch_us + (sum of (constant * cost) ** overlap) ** (1 / overlap)``.

Damped Gauss-Newton on the logarithms of the constants with weights 1/|error|, which leads to the least mean of
|estimate / measured - 1|: first on logarithms of the times, which also see by how much an estimate is too small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from tracelens.backends.base import Floats
from tracelens.backends.kernels.kernel_costs import Costs, KernelRates, combined_us, missed_us
from tracelens.types.records import Record

FloatArray = npt.NDArray[np.float64]
_LONGEST_STEP = 0.7
_SIMPLEX = 0.15
# A logarithm this near a bound sits on it; a mean error that moves by less says nothing.
_ON_BOUND, _FLAT = 1e-3, 2e-4
# Rounds of a coordinate search, each over every constant, and by how much its steps fall per round.
_SEARCH_ROUNDS, _SHRINK = 4, 2.5
#: Bounds of one constant: start, least, most. A fraction of a peak is at most 1.
Bounds = tuple[float, float, float]


class Fit(Record, frozen=True, kw_only=True):
    """Constants, the mean error with them, and those that the data do not determine.

    ``undetermined``: a change by 10 % moves the mean error by less than 0.02 %, or the constant sits on its bound.
    """

    constants: dict[str, float]
    error: float
    undetermined: tuple[str, ...] = ()


class Descent(Record, frozen=True, kw_only=True):
    """How `gauss_newton` goes: an error below ``noise`` weighs no less, since times are not measured to better.

    ``step``: over which slopes are taken; it ends when a round gains less than ``tolerance`` of the error.
    """

    rounds: int
    noise: float
    step: float
    tolerance: float = 1e-4


_ROUGH = Descent(rounds=25, noise=0.05, step=0.02)


def relative(logarithm: FloatArray) -> FloatArray:
    """``|estimate / measured - 1|``, of which reports print the mean."""
    off: FloatArray = np.expm1(logarithm)
    return off


def logarithmic(logarithm: FloatArray) -> FloatArray:
    """``|ln(estimate / measured)|``: half as much weighs as much as twice."""
    return logarithm


def fitted(
    estimate: Callable[[dict[str, float]], FloatArray],
    measured: FloatArray,
    bounds: Mapping[str, Bounds],
    *,
    error_of: Callable[[FloatArray], FloatArray] = relative,
    evaluations: int = 300,
) -> Fit:
    """``bounds``: name -> (start, least, most), all above 0; ``error_of`` says what is minimized: on logarithms first,
    by a simplex search from there (ceilings make the error rough), then as it is.
    """
    names = list(bounds)
    low, high = (np.log([bounds[name][side] for name in names]) for side in (1, 2))
    start = np.log([bounds[name][0] for name in names])
    target = np.log(measured)

    def constants(x: FloatArray) -> dict[str, float]:
        inside = zip(names, np.exp(x).tolist(), strict=True)
        return {name: min(max(value, bounds[name][1]), bounds[name][2]) for name, value in inside}

    def logarithm(x: FloatArray) -> FloatArray:
        return np.log(estimate(constants(x))) - target

    def residual(x: FloatArray) -> FloatArray:
        return error_of(logarithm(x))

    x, _ = gauss_newton(logarithm, start, low, high, _ROUGH)
    x, _ = _simplex(lambda z: float(np.abs(residual(np.clip(z, low, high))).mean()), x, evaluations)
    x, error = gauss_newton(residual, np.clip(x, low, high), low, high, _ROUGH)
    found = constants(x)

    def cost(tried: dict[str, float]) -> float:
        return float(np.abs(error_of(np.log(estimate(tried)) - target)).mean())

    on_bound = {name for i, name in enumerate(names) if min(x[i] - low[i], high[i] - x[i]) < _ON_BOUND}
    flat = on_bound.union(undetermined(cost, found, bounds))
    return Fit(constants=found, error=error, undetermined=tuple(name for name in names if name in flat))


def undetermined(
    cost: Callable[[dict[str, float]], float], constants: Mapping[str, float], bounds: Mapping[str, Bounds]
) -> tuple[str, ...]:
    """Constants whose change by a tenth, within their bounds, moves the mean error by less than 0.02 %."""
    least, at = cost(dict(constants)), dict(constants)
    flat = []
    for name, (_, low, high) in bounds.items():
        moved = (min(max(at[name] * by, low), high) for by in (0.9, 1.1))
        if max(abs(cost(at | {name: value}) - least) for value in moved) < _FLAT:
            flat.append(name)
    return tuple(flat)


def coordinate_search(
    loss: Callable[[dict[str, float]], float], start: Mapping[str, float], steps: Mapping[str, float]
) -> dict[str, float]:
    """One constant after the other, as long as a step makes the loss smaller; smaller steps in each round."""
    values, steps = dict(start), dict(steps)
    best = loss(values)
    for _ in range(_SEARCH_ROUNDS):
        for name in values:
            for step in (steps[name], -steps[name]):
                while (worth := loss(tried := values | {name: values[name] + step})) < best:
                    values, best = tried, worth
        steps = {name: step / _SHRINK for name, step in steps.items()}
    return values


def _shifted(x: FloatArray, i: int, by: float) -> FloatArray:
    moved = x.copy()
    moved[i] += by
    return moved


def gauss_newton(
    residual: Callable[[FloatArray], FloatArray],
    x: FloatArray,
    low: FloatArray,
    high: FloatArray,
    descent: Descent,
    slopes: Callable[[FloatArray, FloatArray], FloatArray] | None = None,
) -> tuple[FloatArray, float]:
    """The ``x`` between ``low`` and ``high`` with the least mean ``|residual(x)|`` near the given one, and that mean.

    Damped, with weights 1/|residual|. ``slopes``: a column per element of ``x``, of ``x`` and its residual; by
    differences where absent.
    """

    def differences(x: FloatArray, r: FloatArray) -> FloatArray:
        steps = np.where(x + descent.step <= high, descent.step, -descent.step)
        return np.stack([(residual(_shifted(x, i, h)) - r) / h for i, h in enumerate(steps.tolist())], axis=1)

    r = residual(x)
    best, damping = float(np.abs(r).mean()), 1e-2
    for _ in range(descent.rounds):
        weights = 1 / np.maximum(np.abs(r), descent.noise)
        slope = (slopes or differences)(x, r)
        normal, gradient = slope.T @ (weights[:, None] * slope), slope.T @ (weights * r)
        ridge = np.diag(np.diag(normal) + 1e-6 * np.trace(normal) + 1e-12)
        before = best
        for _ in range(6):
            step = np.clip(-np.linalg.solve(normal + damping * ridge, gradient), -_LONGEST_STEP, _LONGEST_STEP)
            there = np.clip(x + step, low, high)
            r_there = residual(there)
            error = float(np.abs(r_there).mean())
            if error < best:
                x, r, best, damping = there, r_there, error, max(damping / 4, 1e-5)
                break
            damping *= 5
        if before - best < descent.tolerance * best:
            break
    return x, best


def _simplex(cost: Callable[[FloatArray], float], start: FloatArray, evaluations: int) -> tuple[FloatArray, float]:
    """Nelder and Mead, 1965, with the usual coefficients."""
    points = [start, *(_shifted(start, i, _SIMPLEX) for i in range(len(start)))]
    costs = [cost(point) for point in points]
    used = len(points)
    while used < evaluations:
        order = np.argsort(costs, kind="stable")
        points, costs = [points[i] for i in order], [costs[i] for i in order]
        middle = np.mean(points[:-1], axis=0)
        reflected = 2 * middle - points[-1]
        at = cost(reflected)
        used += 1
        if at < costs[0]:
            further = 3 * middle - 2 * points[-1]
            at_further = cost(further)
            used += 1
            points[-1], costs[-1] = (further, at_further) if at_further < at else (reflected, at)
        elif at < costs[-2]:
            points[-1], costs[-1] = reflected, at
        else:
            towards = points[-1] if at >= costs[-1] else reflected
            closer = middle + 0.5 * (towards - middle)
            at_closer = cost(closer)
            used += 1
            if at_closer < min(at, costs[-1]):
                points[-1], costs[-1] = closer, at_closer
            else:
                points = [points[0], *(points[0] + 0.5 * (point - points[0]) for point in points[1:])]
                costs = [costs[0], *(cost(point) for point in points[1:])]
                used += len(points) - 1
    best = int(np.argmin(costs))
    return points[best], costs[best]


_DESCENT = Descent(rounds=40, noise=0.03, step=1e-3)
_LEAST = {"launch_us": 0.02, "overlap": 1.0, "hbm": 0.01, "cache": 0.3}
_MOST = {"launch_us": 5000.0, "host_us": 5000.0, "overlap": 6.0, "hbm": 50.0, "cache": 1.5}
_USUAL_LEAST, _USUAL_MOST = 1e-3, 1000.0
_STARTS = (1.2, 2.5)
# A constant that is a factor e away from that of all devices costs as much as so much mean error; launches are free to
# differ, since hosts do.
_INERTIA, _LAUNCH_INERTIA = 0.004, 0.0004


class MeasuredCalls(Record, frozen=True, kw_only=True, eq=False):
    """Measured calls: their costs at the data sheet's rates, the least that they can take, and their times in us.

    ``rates`` may hold a value per call, where they are of several devices.
    """

    costs: Costs
    rates: KernelRates
    least_us: Floats
    time_us: Floats

    def take(self, rows: np.ndarray) -> MeasuredCalls:
        """Some of the calls."""
        streamed, held = (None if each is None else each[rows] for each in (self.costs.streamed, self.costs.held))
        us = {name: us[rows] for name, us in self.costs.us.items()}
        costs = self.costs._replace(us=us, streamed=streamed, held=held)
        l2_bytes, hbm = (
            np.broadcast_to(each, len(self.time_us))[rows] for each in (self.rates.l2_bytes, self.rates.hbm)
        )
        rates = self.rates._replace(l2_bytes=l2_bytes, hbm=hbm)
        return MeasuredCalls(costs=costs, rates=rates, least_us=self.least_us[rows], time_us=self.time_us[rows])

    @classmethod
    def joined(cls, parts: list[MeasuredCalls]) -> MeasuredCalls:
        """One after the other."""
        names = list(parts[0].costs.us)
        each = [len(part.time_us) for part in parts]
        streamed = [part.costs.streamed for part in parts if part.costs.streamed is not None]
        held = [part.costs.held for part in parts if part.costs.held is not None]
        l2_bytes, hbm = (
            np.concatenate([np.broadcast_to(getattr(part.rates, name), n) for part, n in zip(parts, each, strict=True)])
            for name in ("l2_bytes", "hbm")
        )
        return cls(
            costs=parts[0].costs._replace(
                us={name: np.concatenate([part.costs.us[name] for part in parts]) for name in names},
                streamed=np.concatenate(streamed) if streamed else None,
                held=np.concatenate(held) if held else None,
            ),
            rates=parts[0].rates._replace(l2_bytes=l2_bytes, hbm=hbm),
            least_us=np.concatenate([part.least_us for part in parts]),
            time_us=np.concatenate([part.time_us for part in parts]),
        )

    def estimate(self, constants: Mapping[str, float]) -> Floats:
        """Times in us."""
        return np.maximum(combined_us(self.costs, self.rates, constants), self.least_us)

    def errors(self, constants: Mapping[str, float]) -> Floats:
        """|estimate / measured - 1| in percent."""
        return np.abs(self.estimate(constants) / self.time_us - 1) * 100

    def usual(self) -> dict[str, float]:
        """A start for every constant: costs that would share the time evenly."""
        least = max(float(np.percentile(self.time_us, 2)) * 0.9, 0.05)
        found = {"launch_us": least / 2, "host_us": least / 2, "overlap": _STARTS[0]}
        for name, us in self.costs.us.items():
            if float(np.ptp(us)) > 0:
                found[name] = float(np.median(self.time_us / np.maximum(us, 1e-9))) / len(self.costs.us)
        return found if self.costs.streamed is None else {**found, "hbm": 1.2, "cache": 0.8}


def slopes(calls: MeasuredCalls, constants: Mapping[str, float], us: Floats) -> Floats:
    """By how much each time grows with the logarithm of each constant, relative to the time; see ``combined_us``."""
    costs, power = calls.costs, constants.get("overlap", 1.0)
    inner = 1.0 if costs.chained else power
    terms = {
        name: (constants[name] * each) ** inner
        for name, each in costs.us.items()
        if name in constants and name not in costs.after
    }
    if "hbm" in constants:
        terms["hbm"] = missed_us(costs, calls.rates, constants) ** inner
    zero = np.zeros(len(us))
    total = np.maximum(sum(terms.values(), zero), 1e-30)
    overlapped = total ** (power / inner) + constants.get("host_us", 0.0) ** power
    outer: Floats = overlapped ** (1 / power - 1)

    def moved_by(name: str) -> Floats:
        return combined_us(costs, calls.rates, {**constants, name: constants[name] * np.exp(_DESCENT.step)})

    def slope(name: str) -> Floats:
        if name == "launch_us":
            return zero + constants[name]
        if costs.beneath:
            return (moved_by(name) - us) / _DESCENT.step
        if name == "host_us":
            return np.asarray(outer * constants[name] ** power)
        if name in terms:
            return np.asarray(outer * total ** (power / inner - 1) * terms[name])
        if name in costs.after:
            return constants[name] * costs.us[name]
        return (moved_by(name) - us) / _DESCENT.step

    return np.stack([slope(name) / us for name in constants], axis=1)


def fitted_norm(calls: MeasuredCalls, start: Mapping[str, float], inertia: float = 0.0) -> dict[str, float]:
    """The constants of ``start`` with the least mean error; ``inertia`` 1 holds them near it, see above."""
    names = list(start)
    low = np.log([_LEAST.get(name, _USUAL_LEAST) for name in names])
    high = np.log([_MOST.get(name, _USUAL_MOST) for name in names])
    origin = np.clip(np.log([start[name] for name in names]), low, high)
    held = np.array([_LAUNCH_INERTIA if name == "launch_us" else _INERTIA for name in names]) * inertia

    def constants(x: Floats) -> dict[str, float]:
        return dict(zip(names, np.exp(x).tolist(), strict=True))

    def us(x: Floats) -> Floats:
        return combined_us(calls.costs, calls.rates, constants(x))

    def descended(x: Floats, of: Callable[[Floats], Floats], slope_of: Callable[[Floats], Floats]) -> Floats:
        """``of`` the ratio of estimate and measurement, whose slope by the ratio's logarithm is ``slope_of`` it."""
        count = len(calls.time_us)

        def residual(x: Floats) -> Floats:
            off = of(us(x) / calls.time_us)
            return np.concatenate([off, held * count * (x - origin)]) if inertia else off

        def by_ratio(x: Floats, _: Floats) -> Floats:
            now = us(x)
            by = slopes(calls, constants(x), now) * slope_of(now / calls.time_us)[:, None]
            return np.concatenate([by, np.diag(held * count)]) if inertia else by

        return gauss_newton(residual, x, low, high, _DESCENT, by_ratio)[0]

    x = descended(origin, np.log, np.ones_like)
    return constants(descended(x, lambda ratio: ratio - 1, lambda ratio: ratio))


def fitted_fresh(calls: MeasuredCalls, start: Mapping[str, float]) -> dict[str, float]:
    """The better of fits from ``start`` with much and with little overlap."""
    tried = [fitted_norm(calls, {**start, "overlap": overlap}) for overlap in _STARTS]
    return min(tried, key=lambda constants: calls.errors(constants).mean())
