"""The sheet ``kernel_summary``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.report.columns import KERNELS, Analyzed, sheet

if TYPE_CHECKING:
    import pandas as pd


@sheet("kernel_summary", columns=KERNELS, order=50)
def kernel_summary(result: Analyzed) -> pd.DataFrame | None:
    """Kernel time by launching op, kernel and stream; collectives and unlinked kernels included."""
    return result.frames.get("kernel_summary")
