"""The sheet ``steps``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.report.columns import STEPS, Analyzed, sheet

if TYPE_CHECKING:
    import pandas as pd


@sheet("steps", columns=STEPS, order=58)
def steps(result: Analyzed) -> pd.DataFrame | None:
    """The steps of the trace."""
    return result.frames.get("steps")
