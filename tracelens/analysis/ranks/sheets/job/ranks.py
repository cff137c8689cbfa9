"""Every rank of the job: its trace and where its device's time went."""

from __future__ import annotations

import pandas as pd

from tracelens.analysis.ranks.sheets.job_context import JobContext
from tracelens.analysis.ranks.sheets.rank_columns import HOST, RANK
from tracelens.schema import column_set, count, ms, sheet, text
from tracelens.units import NS_PER_MS

COLUMNS = column_set(
    RANK,
    text("file", "file", "Name of the trace.", 40),
    HOST,
    count("events", "events", "Events in the file."),
    count("communication_calls", "communication calls", "Communication kernels, or gloo's calls on the host."),
    ms("total_ms", "total ms", "From the first device event to the end of the last."),
    ms("computation_ms", "computation ms", "Time in which kernels computed."),
    ms("exposed_comm_ms", "exposed_comm ms", "Time in which communication ran and no computation did."),
    ms("total_comm_ms", "total_comm ms", "Time in which communication ran."),
    ms("idle_ms", "idle ms", "Time in which nothing ran."),
    text("note", "note", "Parts of the file that could not be used.", 44, optional=True),
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
                "total_ms": line.total_ns / NS_PER_MS,
                "computation_ms": line.computation_ns / NS_PER_MS,
                "exposed_comm_ms": line.exposed_comm_ns / NS_PER_MS,
                "total_comm_ms": line.total_comm_ns / NS_PER_MS,
                "idle_ms": line.idle_ns / NS_PER_MS,
                "note": "; ".join(summary.notes) or None,
            }
        )
    return pd.DataFrame(rows)
