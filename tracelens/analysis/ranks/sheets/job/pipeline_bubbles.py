"""Every rank of a pipeline: computation, sends and receives, bubbles."""

from __future__ import annotations

import pandas as pd

from tracelens.analysis.ranks.sheets.job_context import JobContext
from tracelens.analysis.ranks.sheets.rank_columns import RANK
from tracelens.schema import column_set, count, identifier, percent, sheet, us
from tracelens.units import NS_PER_US

TITLE = "pipeline_bubbles"
COLUMNS = column_set(
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


@sheet(TITLE, columns=COLUMNS, order=600)
def frame(job: JobContext) -> pd.DataFrame:
    """One row per rank of a pipeline: computation, sends and receives, bubbles.

    The mean over its steps (or its whole window). A bubble is the time in which the rank neither computed nor
    communicated for another reason than its pipeline: exposed sends and receives, and idle time, whatever that was
    spent waiting for. ``pipeline`` numbers sets of ranks joined by sends and receives, ``stage`` the ranks in it, in
    their order.
    """
    pairs = [c.ranks for c in job.calls.channels if c.is_point_to_point]
    records = []
    for number, members in enumerate(_joined(pairs)):
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
                    "pipeline": number,
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
