"""``ops``: distinct op calls beside their estimates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.analysis.sheets.ops import unified_perf_summary
from tracelens.schema import table

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.analyze import Analysis


@table("ops", columns=unified_perf_summary.COLUMNS)
def ops(analysis: Analysis) -> pd.DataFrame | None:
    """A row per distinct op call: times, FLOPs, bytes, rates and the roofline, as sheet unified_perf_summary."""
    return analysis.frames.get(unified_perf_summary.TITLE)
