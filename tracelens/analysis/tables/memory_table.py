"""``memory``: what the allocators held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.analysis.sheets.program import memory_timeline
from tracelens.schema import table

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.analyze import Analysis


@table("memory", columns=memory_timeline.COLUMNS)
def memory(analysis: Analysis) -> pd.DataFrame | None:
    """A row per moment, at most 1000 per device: allocated and reserved memory (recorded with profile_memory=True)."""
    trace = analysis.trace
    return memory_timeline.memory_timeline(trace.table, trace.tree)
