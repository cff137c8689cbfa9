"""``collectives``: the collectives of the rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.analysis.sheets import coll_analysis
from tracelens.schema import table

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.analyze import Analysis


@table("collectives", columns=coll_analysis.COLUMNS)
def collectives(analysis: Analysis) -> pd.DataFrame | None:
    """A row per distinct collective (group, kind, type and sizes, stream), as sheet coll_analysis."""
    return analysis.frames.get(coll_analysis.TITLE)
