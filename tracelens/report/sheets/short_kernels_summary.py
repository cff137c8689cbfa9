"""The sheet ``short_kernels_summary``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.report.columns import SHORT_KERNELS, Analyzed, sheet

if TYPE_CHECKING:
    import pandas as pd


@sheet("short_kernels_summary", columns=SHORT_KERNELS, order=56)
def short_kernels_summary(result: Analyzed) -> pd.DataFrame | None:
    """Short kernels by launching op and kernel: where launches cost more than work."""
    return result.frames.get("short_kernels_summary")
