"""The sheet ``cpu_ops_summary``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.report.columns import CPU_BY_NAME, Analyzed, sheet

if TYPE_CHECKING:
    import pandas as pd


@sheet("cpu_ops_summary", columns=CPU_BY_NAME, order=80)
def cpu_ops_summary(result: Analyzed) -> pd.DataFrame | None:
    """CPU ops by name, by their own time on the host."""
    return result.frames.get("cpu_ops_summary")
