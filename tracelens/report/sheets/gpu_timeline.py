"""The sheet ``gpu_timeline``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.report.columns import TIMELINE, Analyzed, sheet

if TYPE_CHECKING:
    import pandas as pd


@sheet("gpu_timeline", columns=TIMELINE, order=10)
def gpu_timeline(result: Analyzed) -> pd.DataFrame | None:
    """Where the device's time went in the window."""
    return result.frames.get("gpu_timeline")
