"""Device time by category, op, kernel and line of Python: what the page opens level by level."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.analyze import Analysis
from tracelens.analysis.attribution.activity import Labels
from tracelens.analysis.grouping import Codes, first_of_each, numbered
from tracelens.analysis.intervals import Ints
from tracelens.lazy.records import dataclass

#: Distinct combinations that are kept, those with most time.
MAX_LEAVES = 4000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drilldown:
    """One row per distinct (category, op, kernel, line), the longest first.

    ``category`` and ``kernel``: texts by code; ``row``: of ``unified_perf_summary``, -1 for none; ``line``: None
    without recorded frames. ``time_ns``: summed durations of the ``count`` device events; ``left_out_ns``: of smaller
    leaves.
    """

    category: Labels
    row: Ints
    kernel: Codes
    line: Labels | None
    time_ns: Ints
    count: Ints
    left_out_ns: int


def drilldown(analysis: Analysis, lines: Labels | None, *, max_leaves: int = MAX_LEAVES) -> Drilldown | None:
    """The device events of the window; None without any. ``lines``: the line of each."""
    activity, category = analysis.activity, analysis.event_category
    if not len(activity):
        return None
    row = np.full(len(activity), -1, np.int32) if analysis.row_of_event is None else analysis.row_of_event
    line = np.zeros(len(activity), np.int32) if lines is None else lines.code
    leaf = numbered(category.code, row, activity.name, line)
    first = first_of_each(leaf)
    time = np.zeros(len(first), np.int64)
    np.add.at(time, leaf, activity.duration)
    kept = np.lexsort((np.arange(len(first)), -time))[:max_leaves]
    example = first[kept]
    return Drilldown(
        category=category[example],
        row=row[example].astype(np.int64),
        kernel=activity.name[example],
        line=None if lines is None else lines[example],
        time_ns=time[kept],
        count=np.bincount(leaf, minlength=len(first))[kept].astype(np.int64),
        left_out_ns=int(time.sum() - time[kept].sum()),
    )
