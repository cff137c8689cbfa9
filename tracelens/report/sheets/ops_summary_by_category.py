"""The sheet ``ops_summary_by_category``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.report.columns import BY_CATEGORY, Analyzed, sheet

if TYPE_CHECKING:
    import pandas as pd


@sheet("ops_summary_by_category", columns=BY_CATEGORY, order=20)
def ops_summary_by_category(result: Analyzed) -> pd.DataFrame | None:
    """Kernel time by category of the launching op."""
    return result.frames.get("ops_summary_by_category")
