"""Figures of the values of each group, without a frame: of small tables pandas takes longer to begin than to count."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracelens.analysis.factorize import Codes
from tracelens.lazy.records import dataclass

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Values that are sorted faster than pandas is asked for their medians.
_FEW = 20_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spread:
    """How the values of each group are spread; NaN where a group has none (``sum``: 0; ``std``: of fewer than two)."""

    count: Ints
    sum: Floats
    mean: Floats
    median: Floats
    std: Floats
    min: Floats
    max: Floats

    @classmethod
    def of(cls, values: Floats, group: Codes) -> Spread:
        """``group`` as ``numbered`` gives it."""
        known = ~np.isnan(values)
        groups = int(group.max(initial=-1)) + 1
        if not known.all():
            values, group = values[known], group[known]
        count = np.bincount(group, minlength=groups)
        total = np.bincount(group, values, minlength=groups).astype(np.float64)
        least, most = np.full(groups, np.inf), np.full(groups, -np.inf)
        np.minimum.at(least, group, values)
        np.maximum.at(most, group, values)
        some = count > 0
        mean = np.full(groups, np.nan)
        # Not beyond the extremes, which a rounded sum over many equal values would be
        mean[some] = np.clip(total[some] / count[some], least[some], most[some])
        squares = np.bincount(group, (values - mean[group]) ** 2, minlength=groups)
        std = np.full(groups, np.nan)
        std[count > 1] = np.sqrt(squares[count > 1] / (count[count > 1] - 1))
        return cls(
            count=count,
            sum=total,
            mean=mean,
            median=_medians(values, group, count),
            std=std,
            min=np.where(some, least, np.nan),
            max=np.where(some, most, np.nan),
        )


def _medians(values: Floats, group: Codes, count: Ints) -> Floats:
    found = np.full(len(count), np.nan)
    some = np.flatnonzero(count)
    if len(values) > _FEW:
        found[some] = pd.Series(values).groupby(group).median().to_numpy()
        return found
    ordered = values[np.lexsort((values, group))]
    start = (np.cumsum(count) - count)[some]
    found[some] = (ordered[start + (count[some] - 1) // 2] + ordered[start + count[some] // 2]) / 2
    return found
