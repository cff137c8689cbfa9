"""Every step: the rank that kept the others waiting, and what that cost."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracelens.analysis.intervals import union_by_group
from tracelens.analysis.ranks.sheets.job_context import JobContext
from tracelens.analysis.ranks.sheets.rank_columns import STEP
from tracelens.analysis.ranks.waits import collective_rows
from tracelens.schema import column_set, identifier, sheet, us
from tracelens.units import NS_PER_US

TITLE = "step_cost"
COLUMNS = column_set(
    STEP,
    us("step_us_median", "Median over the ranks."),
    us("step_us_min", "Shortest over the ranks."),
    us("step_us_max", "Longest over the ranks."),
    identifier("slowest_rank", "Rank that waited least for the others."),
    us(
        "slowest_wait_us",
        "Time in which it waited in at least one collective (no send/recv).",
    ),
    us("others_wait_us", "Mean of the same over the other ranks."),
    us(
        "cost_us",
        "others' mean less its own: the most the step would gain if this rank were like the others.",
    ),
)


@sheet(TITLE, columns=COLUMNS, order=530)
def frame(job: JobContext) -> pd.DataFrame:
    """One row per step: the rank that kept the others waiting, and what that cost.

    Of the steps that all ranks recorded. ``cost_us``: the mean waiting of the other ranks less the slowest rank's own:
    what the step would gain, at most, if that rank were as fast as the mean of the others.
    """
    calls, ranks, waited = job.calls, job.ranks, job.waited
    rows = collective_rows(calls)
    rows = rows[calls.step[rows] >= 0]
    numbers = [set(summary.step_number[summary.step_number >= 0].tolist()) for summary in ranks.values()]
    common = sorted(set.intersection(*numbers)) if numbers else []
    if len(calls.ranks) < 2 or not common or not len(rows):
        return pd.DataFrame()
    records = []
    for number in common:
        mine = rows[calls.step[rows] == number]
        start = calls.start[mine]
        # Collectives of several streams wait at the same time
        wait = union_by_group(calls.rank[mine], start, start + waited[mine], len(calls.ranks)) / NS_PER_US
        slowest = int(wait.argmin())
        others = np.delete(wait, slowest)
        lengths = [float((s.step_end - s.step_start)[s.step_number == number][0]) / NS_PER_US for s in ranks.values()]
        records.append(
            {
                "step": number,
                "step_us_median": float(np.median(lengths)),
                "step_us_min": min(lengths),
                "step_us_max": max(lengths),
                "slowest_rank": calls.ranks[slowest],
                "slowest_wait_us": float(wait[slowest]),
                "others_wait_us": float(others.mean()),
                "cost_us": float(others.mean() - wait[slowest]),
            }
        )
    return pd.DataFrame(records)
