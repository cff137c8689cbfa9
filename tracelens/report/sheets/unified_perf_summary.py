"""The sheet ``unified_perf_summary``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.report.columns import UNIFIED, Analyzed, sheet

if TYPE_CHECKING:
    import pandas as pd


@sheet("unified_perf_summary", columns=UNIFIED, order=70)
def unified_perf_summary(result: Analyzed) -> pd.DataFrame | None:
    """Every distinct call beside its work and its estimate; each kernel is in exactly one row."""
    return result.frames.get("unified_perf_summary")
