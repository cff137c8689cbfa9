"""Every matched all-to-all: wall time, throughput of all ranks together, imbalance of what they send."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracelens.analysis.ranks.messages import ALL_TO_ALL
from tracelens.analysis.ranks.sheets import rank_columns as shared
from tracelens.analysis.ranks.sheets.job_context import JobContext
from tracelens.analysis.ranks.waits import matched_rows
from tracelens.schema import column_set, number, sheet
from tracelens.units import BYTES_PER_MB, GB_PER_S_IN_BYTES_PER_US, NS_PER_US

TITLE = "nccl_all2allv"
COLUMNS = column_set(
    shared.ID, shared.GROUP, shared.SIZE, shared.COLLECTIVE, shared.DTYPE, shared.PRESENT, shared.TOTAL, shared.WALL,
    shared.LATENCY, shared.SKEW, shared.THROUGHPUT,
    number("rank_gb_s_max", "max rank throughput (GB/s)", "Largest input over duration of a rank.", unit=shared.GB_S),
    number("rank_gb_s_min", "min rank throughput (GB/s)", "Smallest input over duration of a rank.", unit=shared.GB_S),
    shared.IMBALANCE, shared.LAST,
)  # fmt: skip


@sheet(TITLE, columns=COLUMNS, order=640, json=None)
def frame(job: JobContext) -> pd.DataFrame:
    """One row per matched all-to-all."""
    calls, found = job.calls, job.found
    words = np.array([m.word in ALL_TO_ALL for m in calls.messages] or [False], bool)
    rows = matched_rows(calls)
    rows = rows[words[calls.message[rows]]]
    records = []
    order = rows[np.argsort(calls.instance[rows], kind="stable")]
    for part in np.split(order, np.flatnonzero(np.diff(calls.instance[order])) + 1) if len(order) else ():
        i = int(calls.instance[part[0]])
        message = calls.messages[int(calls.message[part[0]])]
        sent = [calls.messages[code].in_bytes for code in calls.message[part].tolist()]
        known = [nbytes for nbytes in sent if nbytes is not None]
        whole = len(known) == len(sent)
        wall = (found.latest_end[i] - found.earliest_start[i]) / NS_PER_US
        per_us = [n / d for n, d in zip(known, (calls.end - calls.start)[part] / NS_PER_US, strict=False) if d > 0]
        mean = sum(known) / len(known) if known else 0.0
        records.append(
            {
                "collective_id": i,
                "group_name": calls.channels[int(calls.channel_of[i])].label,
                "group_size": message.size,
                "collective": message.name,
                "dtype": message.dtype,
                "ranks_present": len(part),
                "total_mb": sum(known) / BYTES_PER_MB if whole else None,
                "wall_us": wall,
                "latency_us": found.shortest[i] / NS_PER_US,
                "start_skew_us": (found.latest_start[i] - found.earliest_start[i]) / NS_PER_US,
                "throughput_gb_s": sum(known) / wall / GB_PER_S_IN_BYTES_PER_US if whole and wall > 0 else None,
                "rank_gb_s_max": max(per_us) / GB_PER_S_IN_BYTES_PER_US if whole and per_us else None,
                "rank_gb_s_min": min(per_us) / GB_PER_S_IN_BYTES_PER_US if whole and per_us else None,
                "size_imbalance": max(known) / mean if whole and mean else None,
                "last_rank": calls.ranks[int(found.last[i])],
            }
        )
    return pd.DataFrame(records)
