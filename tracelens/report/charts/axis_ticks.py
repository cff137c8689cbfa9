"""Round figures along an axis."""

from __future__ import annotations

import math

#: Parts of an axis, at most, but for one that ends above its largest figure.
_MOST = 6
#: A logarithmic axis has at least as many ticks where finer ones give them.
_LEAST = 4
_FACTORS = ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0))


def round_ticks(top: float) -> list[float]:
    """From 0 to the first one at or above ``top``, which is more than 0.

    >>> round_ticks(7.193)
    [0.0, 2.0, 4.0, 6.0, 8.0]
    """
    least = top / _MOST
    unit = 10.0 ** math.floor(math.log10(least))
    step = next(factor * unit for factor in (1, 2, 5, 10) if least <= factor * unit * (1 + 1e-9))
    return [float(f"{i * step:.9g}") for i in range(math.ceil(top / step - 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, or of finer steps where those are few; the bounds where none lies between them.

    >>> log_ticks(14, 70)
    [15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0]
    """
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for factors in _FACTORS:
        every = [float(f"{factor * 10.0**decade:.9g}") for decade in decades for factor in factors]
        ticks = [tick for tick in every if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
        if len(ticks) >= _LEAST:
            break
    return ticks or [low, high]
