"""The sheet ``ops_summary``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.report.columns import BY_NAME, Analyzed, sheet

if TYPE_CHECKING:
    import pandas as pd


@sheet("ops_summary", columns=BY_NAME, order=30)
def ops_summary(result: Analyzed) -> pd.DataFrame | None:
    """Kernel time by name of the launching op."""
    return result.frames.get("ops_summary")
