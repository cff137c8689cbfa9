"""Figures of the values of each group, without a frame: of small tables pandas takes longer to begin than to count."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from tracelens.analysis.grouping import Codes, order_by

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Values of a group from which they are sorted alone; those of smaller groups are sorted together.
_MANY = 100


class ByGroup:
    """Which group each value is of, as ``numbered`` gives it, put together once for figures of several columns."""

    def __init__(self, group: Codes) -> None:
        self.group = group
        self.size: Ints = np.bincount(group)
        self.order = order_by(group)
        self.start: Ints = np.cumsum(self.size) - self.size

    def medians(self, values: Floats) -> Floats:
        """The median of each group's values; NaN where it has none."""
        placed, large = values[self.order], self.size >= _MANY
        for start, size in zip(self.start[large].tolist(), self.size[large].tolist(), strict=True):
            placed[start : start + size].sort()
        small = np.repeat(~large, self.size)
        group = np.repeat(np.flatnonzero(~large), self.size[~large])
        by_value = np.argsort(placed[small])
        placed[small] = placed[small][by_value[order_by(group[by_value])]]
        # NaN is sorted behind all numbers
        known = self.size - np.bincount(self.group[np.isnan(values)], minlength=len(large))
        some = known > 0
        found = np.full(len(known), np.nan)
        low, high = (self.start[some] + (known[some] - less) // 2 for less in (1, 0))
        found[some] = (placed[low] + placed[high]) / 2
        return found


class Spread:
    """How the values of each group are spread; NaN where a group has none (``sum``: 0; ``std``: of fewer than two)."""

    def __init__(self, values: Floats, by_group: ByGroup) -> None:
        """NaN counts nowhere."""
        self._values, self._by_group = values, by_group
        known = ~np.isnan(values)
        self._known = slice(None) if known.all() else known
        group = by_group.group[self._known]
        groups = len(by_group.size)
        self.count: Ints = np.bincount(group, minlength=groups)
        self.sum: Floats = np.bincount(group, values[self._known], minlength=groups).astype(np.float64)
        placed = values[by_group.order]
        self.min, self.max = (
            extreme.reduceat(placed, by_group.start) if groups else np.empty(0) for extreme in (np.fmin, np.fmax)
        )
        mean = np.divide(self.sum, self.count, out=np.full(groups, np.nan), where=self.count > 0)
        # Not beyond the extremes, which a rounded sum over many equal values would be
        self.mean: Floats = np.clip(mean, self.min, self.max)

    @cached_property
    def std(self) -> Floats:
        """With n - 1."""
        values, group, groups = self._values[self._known], self._by_group.group[self._known], len(self.count)
        squares = np.bincount(group, (values - self.mean[group]) ** 2, minlength=groups)
        variance = np.divide(squares, self.count - 1, out=np.full(groups, np.nan), where=self.count > 1)
        std: Floats = np.sqrt(variance)
        return std

    @cached_property
    def median(self) -> Floats:
        """The middle one of the values, or the mean of the middle two."""
        return self._by_group.medians(self._values)
