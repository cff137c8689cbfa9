"""Fitting ``launch_us + (sum of (constant * cost) ** overlap) ** (1 / overlap)`` to measured times.

Damped Gauss-Newton on the logarithms of the constants with weights 1/|error|, which leads to the least mean of
|estimate / measured - 1|: first on logarithms of the times, which also see by how much an estimate is too small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from tracelens.backends.base import Floats
from tracelens.backends.kernels.kernel_costs import Costs, Rates, combined_us, missed_us
from tracelens.calibration.fitting import Descent, gauss_newton
from tracelens.lazy.records import dataclass

_DESCENT = Descent(rounds=40, noise=0.03, step=1e-3)
_LEAST = {"launch_us": 0.02, "overlap": 1.0, "hbm": 0.01, "cache": 0.3}
_MOST = {"launch_us": 5000.0, "host_us": 5000.0, "overlap": 6.0, "hbm": 50.0, "cache": 1.5}
_USUAL_LEAST, _USUAL_MOST = 1e-3, 1000.0
_STARTS = (1.2, 2.5)
# A constant that is a factor e away from that of all devices costs as much as so much mean error; launches are free to
# differ, since hosts do.
_INERTIA, _LAUNCH_INERTIA = 0.004, 0.0004


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calls:
    """Measured calls: their costs at the data sheet's rates, the least that they can take, and their times in us.

    ``rates`` may hold a value per call, where they are of several devices.
    """

    costs: Costs
    rates: Rates
    least_us: Floats
    time_us: Floats

    def take(self, rows: np.ndarray) -> Calls:
        """Some of the calls."""
        streamed, held = (None if each is None else each[rows] for each in (self.costs.streamed, self.costs.held))
        us = {name: us[rows] for name, us in self.costs.us.items()}
        costs = self.costs._replace(us=us, streamed=streamed, held=held)
        l2_bytes, hbm = (
            np.broadcast_to(each, len(self.time_us))[rows] for each in (self.rates.l2_bytes, self.rates.hbm)
        )
        rates = self.rates._replace(l2_bytes=l2_bytes, hbm=hbm)
        return Calls(costs=costs, rates=rates, least_us=self.least_us[rows], time_us=self.time_us[rows])

    @classmethod
    def joined(cls, parts: list[Calls]) -> Calls:
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


def slopes(calls: Calls, constants: Mapping[str, float], us: Floats) -> Floats:
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


def fitted_norm(calls: Calls, start: Mapping[str, float], inertia: float = 0.0) -> dict[str, float]:
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


def fitted_fresh(calls: Calls, start: Mapping[str, float]) -> dict[str, float]:
    """The better of fits from ``start`` with much and with little overlap."""
    tried = [fitted_norm(calls, {**start, "overlap": overlap}) for overlap in _STARTS]
    return min(tried, key=lambda constants: calls.errors(constants).mean())
