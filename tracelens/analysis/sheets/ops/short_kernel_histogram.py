"""How many short kernels there are, by duration."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.analysis.grouping import Codes
from tracelens.analysis.sheets.context import SheetContext
from tracelens.schema import column_set, count, sheet, us
from tracelens.units import NS_PER_US

COLUMNS = column_set(
    us("bin_start_us", "Shortest duration."),
    us("bin_end_us", "Longest duration."),
    count("kernels", "Kernels of such a duration."),
)


@sheet("short_kernel_histogram", columns=COLUMNS, order=54, json=None)
def frame(context: SheetContext) -> pd.DataFrame:
    """How many short kernels there are, by duration."""
    return short_kernel_histogram(context.activity)


def short_kernels(activity: DeviceActivity, below_us: float) -> Codes:
    """Positions of the events shorter than ``below_us``, collectives left out."""
    return np.flatnonzero((activity.duration < below_us * NS_PER_US) & ~activity.collective).astype(np.int32)


def short_kernel_histogram(activity: DeviceActivity, below_us: float = 10.0, bins: int = 100) -> pd.DataFrame:
    """Kernels shorter than ``below_us`` in equal bins between the shortest and the longest of them."""
    us = activity.duration_us(short_kernels(activity, below_us))
    if not len(us):
        return pd.DataFrame({"bin_start_us": [], "bin_end_us": [], "kernels": []})
    count, edges = np.histogram(us, bins=bins)
    return pd.DataFrame({"bin_start_us": edges[:-1], "bin_end_us": edges[1:], "kernels": count})
