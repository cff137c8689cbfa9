"""The sheet ``short_kernel_histogram``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.report.columns import HISTOGRAM, Analyzed, sheet

if TYPE_CHECKING:
    import pandas as pd


@sheet("short_kernel_histogram", columns=HISTOGRAM, order=54)
def short_kernel_histogram(result: Analyzed) -> pd.DataFrame | None:
    """How many short kernels there are, by duration."""
    return result.frames.get("short_kernel_histogram")
