"""Every rank of the job: its trace and where its device's time went."""

from __future__ import annotations

import pandas as pd

from tracelens.analysis.ranks.sheets.job_context import JobContext
from tracelens.analysis.ranks.sheets.rank_columns import HOST, RANK
from tracelens.schema import column_set, count, sheet, text, us
from tracelens.units import NS_PER_US

COLUMNS = column_set(
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


@sheet("ranks", columns=COLUMNS, order=510)
def frame(job: JobContext) -> pd.DataFrame:
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
