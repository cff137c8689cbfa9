"""Fitting positive constants to measured times: least mean error, within bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from tracelens.lazy.records import dataclass

Floats = npt.NDArray[np.float64]
_LONGEST_STEP = 0.7
_SIMPLEX = 0.15
# A logarithm this near a bound sits on it; a mean error that moves by less says nothing.
_ON_BOUND, _FLAT = 1e-3, 2e-4
# By how much the steps of a coordinate search fall per round.
_SHRINK = 2.5
#: Bounds of one constant: start, least, most. A fraction of a peak is at most 1.
Bounds = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Constants, the mean error with them, and those that the data do not determine.

    ``undetermined``: a change by 10 % moves the mean error by less than 0.02 %, or the constant sits on its bound.
    """

    constants: dict[str, float]
    error: float
    undetermined: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Descent:
    """How `gauss_newton` goes: an error below ``noise`` weighs no less, since times are not measured to better.

    ``step``: over which slopes are taken; it ends when a round gains less than ``tolerance`` of the error.
    """

    rounds: int
    noise: float
    step: float
    tolerance: float = 1e-4


_ROUGH = Descent(rounds=25, noise=0.05, step=0.02)


def relative(logarithm: Floats) -> Floats:
    """``|estimate / measured - 1|``, of which reports print the mean."""
    off: Floats = np.expm1(logarithm)
    return off


def logarithmic(logarithm: Floats) -> Floats:
    """``|ln(estimate / measured)|``: half as much weighs as much as twice."""
    return logarithm


def fitted(
    estimate: Callable[[dict[str, float]], Floats],
    measured: Floats,
    bounds: Mapping[str, Bounds],
    *,
    error_of: Callable[[Floats], Floats] = relative,
    evaluations: int = 300,
) -> Fit:
    """``bounds``: name -> (start, least, most), all above 0; ``error_of`` says what is minimized.

    Damped Gauss-Newton with weights 1/|error|, first on logs
    (which also see by how much an estimate is too small), a simplex search from there (ceilings make the error rough),
    Gauss-Newton again.
    """
    names = list(bounds)
    low, high = (np.log([bounds[name][side] for name in names]) for side in (1, 2))
    start = np.log([bounds[name][0] for name in names])
    target = np.log(measured)

    def constants(x: Floats) -> dict[str, float]:
        inside = zip(names, np.exp(x).tolist(), strict=True)
        return {name: min(max(value, bounds[name][1]), bounds[name][2]) for name, value in inside}

    def logarithm(x: Floats) -> Floats:
        return np.log(estimate(constants(x))) - target

    def residual(x: Floats) -> Floats:
        return error_of(logarithm(x))

    x, error = gauss_newton(logarithm, start, low, high, _ROUGH)
    x, error = _simplex(lambda z: float(np.abs(residual(np.clip(z, low, high))).mean()), x, evaluations)
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
    loss: Callable[[dict[str, float]], float], start: Mapping[str, float], steps: Mapping[str, float], rounds: int
) -> dict[str, float]:
    """One constant after the other, as long as a step makes the loss smaller; smaller steps in each round."""
    values, steps = dict(start), dict(steps)
    best = loss(values)
    for _ in range(rounds):
        for name in values:
            for step in (steps[name], -steps[name]):
                while (worth := loss(tried := values | {name: values[name] + step})) < best:
                    values, best = tried, worth
        steps = {name: step / _SHRINK for name, step in steps.items()}
    return values


def _shifted(x: Floats, i: int, by: float) -> Floats:
    moved = x.copy()
    moved[i] += by
    return moved


def gauss_newton(
    residual: Callable[[Floats], Floats],
    x: Floats,
    low: Floats,
    high: Floats,
    descent: Descent,
    slopes: Callable[[Floats, Floats], Floats] | None = None,
) -> tuple[Floats, float]:
    """The ``x`` between ``low`` and ``high`` with the least mean ``|residual(x)|`` near the given one, and that mean.

    Damped, with weights 1/|residual|. ``slopes``: a column per element of ``x``, of ``x`` and its residual; by
    differences where absent.
    """

    def differences(x: Floats, r: Floats) -> Floats:
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


def _simplex(cost: Callable[[Floats], float], start: Floats, evaluations: int) -> tuple[Floats, float]:
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
