"""Fitting ``launch_us + (sum of (constant * cost) ** overlap) ** (1 / overlap)`` to measured times.

Damped Gauss-Newton on the logarithms of the constants with weights 1/|error|, which leads to the least mean of
|estimate / measured - 1|: first on logarithms of the times, which also see by how much an estimate is too small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tracelens.backends.base import Floats
from tracelens.backends.kernels.base import Costs, Rates, combined_us
from tracelens.calibration.fitting import Descent, gauss_newton

_DESCENT = Descent(rounds=40, noise=0.03, step=1e-3)
_LEAST = {"launch_us": 0.02, "overlap": 1.0, "hbm": 0.01, "cache": 0.3}
_MOST = {"launch_us": 5000.0, "overlap": 6.0, "hbm": 50.0, "cache": 1.5}
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
        costs = Costs({name: us[rows] for name, us in self.costs.us.items()}, streamed, held)
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
            costs=Costs(
                {name: np.concatenate([part.costs.us[name] for part in parts]) for name in names},
                np.concatenate(streamed) if streamed else None,
                np.concatenate(held) if held else None,
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
        found = {"launch_us": max(float(np.percentile(self.time_us, 2)) * 0.9, 0.05), "overlap": _STARTS[0]}
        for name, us in self.costs.us.items():
            if float(np.ptp(us)) > 0:
                found[name] = float(np.median(self.time_us / np.maximum(us, 1e-9))) / len(self.costs.us)
        return found if self.costs.streamed is None else {**found, "hbm": 1.2, "cache": 0.8}


def fitted_norm(calls: Calls, start: Mapping[str, float], inertia: float = 0.0) -> dict[str, float]:
    """The constants of ``start`` with the least mean error; ``inertia`` 1 holds them near it, see above."""
    names = list(start)
    low = np.log([_LEAST.get(name, _USUAL_LEAST) for name in names])
    high = np.log([_MOST.get(name, _USUAL_MOST) for name in names])
    origin = np.clip(np.log([start[name] for name in names]), low, high)
    target, count = np.log(calls.time_us), len(calls.time_us)
    held = np.array([_LAUNCH_INERTIA if name == "launch_us" else _INERTIA for name in names]) * inertia * count

    def logarithm(x: Floats) -> Floats:
        constants = dict(zip(names, np.exp(x).tolist(), strict=True))
        return np.log(combined_us(calls.costs, calls.rates, constants)) - target

    def with_inertia(off: Floats, x: Floats) -> Floats:
        return np.concatenate([off, held * (x - origin)]) if inertia else off

    x, _ = gauss_newton(lambda z: with_inertia(logarithm(z), z), origin, low, high, _DESCENT)
    x, _ = gauss_newton(lambda z: with_inertia(np.expm1(logarithm(z)), z), x, low, high, _DESCENT)
    return dict(zip(names, np.exp(x).tolist(), strict=True))


def fitted_fresh(calls: Calls, start: Mapping[str, float]) -> dict[str, float]:
    """The better of fits from ``start`` with much and with little overlap."""
    tried = [fitted_norm(calls, {**start, "overlap": overlap}) for overlap in _STARTS]
    return min(tried, key=lambda constants: calls.errors(constants).mean())
