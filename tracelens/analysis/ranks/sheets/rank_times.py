"""Ranks by what their late arrivals cost the others."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracelens.analysis.ranks.lateness import own_cost_ns
from tracelens.analysis.ranks.sheets.job_context import JobContext
from tracelens.analysis.ranks.sheets.rank_columns import RANK, WAITING
from tracelens.analysis.ranks.waits import collective_rows, is_between_two
from tracelens.schema import column_set, count, percent, sheet, us
from tracelens.units import NS_PER_US

TITLE = "straggler_summary"
COLUMNS = column_set(
    RANK,
    us(
        "cost_us",
        "How much sooner, at most, collectives would have begun if it alone had been on time; without what it had "
        "itself waited for other ranks before.",
    ),
    us("caused_wait_us", "Waiting of all other ranks in the collectives in which it was last."),
    count("times_arrived_last", "Collectives in which the rank started last."),
    count("times_arrived_first", "Collectives in which the rank started first."),
    percent("arrived_last_percent", "Share of its collectives in which the rank started last."),
    us("wait_us_sum", f"Sum over its collectives. {WAITING}"),
    us("wait_us_mean", f"Mean over its collectives. {WAITING}"),
    count("num_collectives", "Matched collectives of the rank, without sends and receives."),
    us("duration_us_sum", "Sum of their durations, waiting included."),
)


@sheet(TITLE, columns=COLUMNS, order=520)
def frame(job: JobContext) -> pd.DataFrame:
    """Ranks by what their late arrivals cost the others, the costliest first.

    ``cost_us``: what would be saved, at most, if it alone were on time; who comes late because it waited for another
    rank costs nothing. ``caused_wait_us``: all waiting of others in the collectives in which it was last. Sends and
    receives are left out: a stage of a pipeline waits in them for its turn.
    """
    calls, found, waited = job.calls, job.found, job.waited
    rows = collective_rows(calls)
    if not len(rows):
        return pd.DataFrame()
    n = len(calls.ranks)
    rank = calls.rank[rows]
    is_collective = ~is_between_two(calls)
    complete = np.flatnonzero((found.present > 1) & (found.latest_start > found.earliest_start) & is_collective)
    last, first = found.last[complete], found.first[complete]
    waits_of_instance = np.bincount(calls.instance[rows], weights=waited[rows], minlength=calls.instances)
    count = np.bincount(rank, minlength=n)
    total_wait = np.bincount(rank, weights=waited[rows], minlength=n) / NS_PER_US
    cost = np.bincount(last, weights=own_cost_ns(calls, found, waited)[complete], minlength=n)
    arrived_last = np.bincount(last, minlength=n)
    rows_of_ranks = pd.DataFrame(
        {
            "rank": calls.ranks,
            "cost_us": cost / NS_PER_US,
            "caused_wait_us": np.bincount(last, weights=waits_of_instance[complete], minlength=n) / NS_PER_US,
            "times_arrived_last": arrived_last,
            "times_arrived_first": np.bincount(first, minlength=n),
            "arrived_last_percent": 100 * arrived_last / np.maximum(count, 1),
            "wait_us_sum": total_wait,
            "wait_us_mean": total_wait / np.maximum(count, 1),
            "num_collectives": count,
            "duration_us_sum": np.bincount(rank, weights=(calls.end - calls.start)[rows], minlength=n) / NS_PER_US,
        }
    )
    shown = rows_of_ranks[rows_of_ranks["num_collectives"] > 0]
    order = ["cost_us", "caused_wait_us", "wait_us_sum", "rank"]
    return shown.sort_values(order, ascending=[False, False, True, True], kind="stable").reset_index(drop=True)
