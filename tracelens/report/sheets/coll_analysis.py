"""The sheet ``coll_analysis``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.report.columns import COLLECTIVES, Analyzed, sheet

if TYPE_CHECKING:
    import pandas as pd


@sheet("coll_analysis", columns=COLLECTIVES, order=60)
def coll_analysis(result: Analyzed) -> pd.DataFrame | None:
    """Collectives of this rank by distinct call."""
    return result.frames.get("coll_analysis")
