"""Sheets of a job's ranks: where their time went, stragglers, cost by step, pipeline bubbles, clocks."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracelens.analysis.intervals import union_by_group
from tracelens.analysis.ranks.matching import collective_rows, is_between_two, own_cost_ns
from tracelens.analysis.ranks.rank_files import ranks_text
from tracelens.analysis.ranks.sheets.job_context import HOST, RANK, STEP, WAITING, JobContext
from tracelens.schema import column_set, count, identifier, number, percent, sheet, text, us
from tracelens.units import NS_PER_US

RANKS_COLUMNS = column_set(
    RANK,
    text("file", "Name of the trace.", width=40),
    HOST,
    count("events", "Events in the file."),
    count("communication_calls", "Communication kernels, or gloo's calls on the host."),
    us("total_us", "From the first device event to the end of the last."),
    us("computation_us", "Time in which kernels computed."),
    us("exposed_comm_us", "Time in which communication ran and no computation did."),
    us("total_comm_us", "Time in which communication ran."),
    us("idle_us", "Time in which nothing ran."),
    text("note", "Parts of the file that could not be used.", width=44, optional=True),
)


@sheet("ranks", columns=RANKS_COLUMNS, order=510)
def ranks_frame(job: JobContext) -> pd.DataFrame:
    """One row per rank: its trace and where its device's time went."""
    rows = []
    for rank, summary in sorted(job.ranks.items()):
        line = summary.timeline
        rows.append(
            {
                "rank": rank,
                "file": summary.source,
                "host": job.clocks.of_rank(rank).host,
                "events": summary.events,
                "communication_calls": len(summary.start),
                "total_us": line.total_ns / NS_PER_US,
                "computation_us": line.computation_ns / NS_PER_US,
                "exposed_comm_us": line.exposed_comm_ns / NS_PER_US,
                "total_comm_us": line.total_comm_ns / NS_PER_US,
                "idle_us": line.idle_ns / NS_PER_US,
                "note": "; ".join(summary.notes) or None,
            }
        )
    return pd.DataFrame(rows)


RANK_TIMES_TITLE = "straggler_summary"
RANK_TIMES_COLUMNS = column_set(
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


@sheet(RANK_TIMES_TITLE, columns=RANK_TIMES_COLUMNS, order=520)
def rank_times_frame(job: JobContext) -> pd.DataFrame:
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


STEP_COST_TITLE = "step_cost"
STEP_COST_COLUMNS = column_set(
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


@sheet(STEP_COST_TITLE, columns=STEP_COST_COLUMNS, order=530)
def step_cost_frame(job: JobContext) -> pd.DataFrame:
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
    for step in common:
        mine = rows[calls.step[rows] == step]
        start = calls.start[mine]
        # Collectives of several streams wait at the same time
        wait = union_by_group(calls.rank[mine], start, start + waited[mine], len(calls.ranks)) / NS_PER_US
        slowest = int(wait.argmin())
        others = np.delete(wait, slowest)
        lengths = [float((s.step_end - s.step_start)[s.step_number == step][0]) / NS_PER_US for s in ranks.values()]
        records.append(
            {
                "step": step,
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


PIPELINE_BUBBLES_TITLE = "pipeline_bubbles"
PIPELINE_BUBBLES_COLUMNS = column_set(
    identifier("pipeline", "Ranks joined by sends and receives."),
    identifier("stage", "Position among the pipeline's ranks."),
    RANK,
    count("steps", "Complete steps of the rank; without steps its window is one."),
    us("step_us", "Mean."),
    us("computation_us", "Mean per step."),
    us("p2p_exposed_us", "Sends and receives during which nothing computed."),
    us("other_exposed_us", "Other communication and copies during which nothing computed."),
    us("idle_us", "Nothing ran."),
    us("bubble_us", "Exposed sends and receives, and idle time. An upper bound: a host may be late too."),
    percent("bubble_percent", "Share of the steps."),
)


@sheet(PIPELINE_BUBBLES_TITLE, columns=PIPELINE_BUBBLES_COLUMNS, order=600)
def pipeline_bubbles_frame(job: JobContext) -> pd.DataFrame:
    """One row per rank of a pipeline: computation, sends and receives, bubbles.

    The mean over its steps (or its whole window). A bubble is the time in which the rank neither computed nor
    communicated for another reason than its pipeline: exposed sends and receives, and idle time, whatever that was
    spent waiting for. ``pipeline`` numbers sets of ranks joined by sends and receives, ``stage`` the ranks in it, in
    their order.
    """
    pairs = [c.ranks for c in job.calls.channels if c.is_point_to_point]
    records = []
    for pipeline, members in enumerate(_joined(pairs)):
        for stage, rank in enumerate(sorted(members)):
            summary = job.ranks.get(rank)
            # A host alone, as gloo's ranks are, leaves no device without work
            if summary is None or not len(summary.step_number) or not summary.step_compute.any():
                continue
            length = summary.step_end - summary.step_start
            idle = length - summary.step_compute - summary.step_comm - summary.step_p2p - summary.step_copies
            bubble = idle + summary.step_p2p
            records.append(
                {
                    "pipeline": pipeline,
                    "stage": stage,
                    "rank": rank,
                    "steps": len(length),
                    "step_us": float(length.mean()) / NS_PER_US,
                    "computation_us": float(summary.step_compute.mean()) / NS_PER_US,
                    "p2p_exposed_us": float(summary.step_p2p.mean()) / NS_PER_US,
                    "other_exposed_us": float((summary.step_comm + summary.step_copies).mean()) / NS_PER_US,
                    "idle_us": float(idle.mean()) / NS_PER_US,
                    "bubble_us": float(bubble.mean()) / NS_PER_US,
                    "bubble_percent": 100 * float(bubble.sum()) / max(float(length.sum()), 1.0),
                }
            )
    return pd.DataFrame(records)


def _joined(pairs: list[tuple[int, ...]]) -> list[set[int]]:
    sets: list[set[int]] = []
    for pair in pairs:
        touching = [known for known in sets if not known.isdisjoint(pair)]
        sets = [known for known in sets if known.isdisjoint(pair)]
        sets.append(set(pair).union(*touching))
    return sorted(sets, key=min)


CLOCKS_COLUMNS = column_set(
    HOST,
    text("ranks", "Ranks of the host.", width=30),
    us("offset_us", "Ahead of the first host's clock, in mid-trace; subtracted."),
    number("drift_ppm", "How much faster the clock runs; subtracted.", shape="0.000", unit="µs per second"),
    us(
        "residual_us",
        "Robust standard deviation (1.4826 MAD) of the end times' differences after the correction. Skew below "
        "it is not significant.",
    ),
    count("points", "Collectives shared with the host it was fitted to."),
    text("fitted_to", "Host whose clock it was compared with.", width=18),
)


@sheet("clocks", columns=CLOCKS_COLUMNS, order=610)
def clocks_frame(job: JobContext) -> pd.DataFrame:
    """One row per host: its clock against the first host's."""
    return pd.DataFrame(
        [
            {
                "host": clock.host,
                "ranks": ranks_text(clock.ranks),
                "offset_us": clock.offset_ns / NS_PER_US,
                "drift_ppm": clock.drift * 1e6,
                "residual_us": clock.residual_us,
                "points": clock.points,
                "fitted_to": clock.via or None,
            }
            for clock in job.clocks.hosts
        ]
    )
