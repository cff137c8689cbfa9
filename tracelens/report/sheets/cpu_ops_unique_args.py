"""The sheet ``cpu_ops_unique_args``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.report.columns import CPU_UNIQUE_ARGUMENTS, Analyzed, sheet

if TYPE_CHECKING:
    import pandas as pd


@sheet("cpu_ops_unique_args", columns=CPU_UNIQUE_ARGUMENTS, order=82)
def cpu_ops_unique_args(result: Analyzed) -> pd.DataFrame | None:
    """CPU ops by distinct call, by their own time on the host."""
    return result.frames.get("cpu_ops_unique_args")
