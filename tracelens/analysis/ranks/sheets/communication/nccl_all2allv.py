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
    number("rank_gb_s_max", "Largest input over duration of a rank.", unit=shared.GB_S),
    number("rank_gb_s_min", "Smallest input over duration of a rank.", unit=shared.GB_S),
    shared.IMBALANCE, shared.LAST,
)  # fmt: skip


@sheet(TITLE, columns=COLUMNS, order=640, json=None)
def frame(job: JobContext) -> pd.DataFrame:
    """One row per matched all-to-all."""
    calls, found = job.calls, job.found
    words = np.array([m.word in ALL_TO_ALL for m in calls.messages] or [False], bool)
    rows = matched_rows(calls)
    rows = rows[words[calls.message[rows]]]
    if not len(rows):
        return pd.DataFrame()
    records = []
    order = rows[np.argsort(calls.instance[rows], kind="stable")]
    for part in np.split(order, np.flatnonzero(np.diff(calls.instance[order])) + 1):
        i = int(calls.instance[part[0]])
        message = calls.messages[int(calls.message[part[0]])]
        sent = [calls.messages[code].in_bytes for code in calls.message[part].tolist()]
        took_us = ((calls.end - calls.start)[part] / NS_PER_US).tolist()
        wall = (found.latest_end[i] - found.earliest_start[i]) / NS_PER_US
        records.append(
            {
                "collective_id": i,
                "group_name": calls.channels[int(calls.channel_of[i])].label,
                "group_size": message.size,
                "collective": message.name,
                "dtype": message.dtype,
                "ranks_present": len(part),
                "wall_us": wall,
                "comm_latency_us": found.shortest[i] / NS_PER_US,
                "start_skew_us": (found.latest_start[i] - found.earliest_start[i]) / NS_PER_US,
                **_volumes(sent, took_us, wall),
                "last_rank": calls.ranks[int(found.last[i])],
            }
        )
    return pd.DataFrame(records)


def _volumes(sent: list[float | None], took_us: list[float], wall_us: float) -> dict[str, float | None]:
    """What all ranks together sent, how fast and how evenly; None where the bytes of a rank were not recorded."""
    known = [nbytes for nbytes in sent if nbytes is not None]
    if len(known) < len(sent):
        return dict.fromkeys(("total_sent_mb", "throughput_gb_s", "rank_gb_s_max", "rank_gb_s_min", "size_imbalance"))
    per_us = [nbytes / us for nbytes, us in zip(known, took_us, strict=True) if us > 0]
    total = sum(known)
    return {
        "total_sent_mb": total / BYTES_PER_MB,
        "throughput_gb_s": total / wall_us / GB_PER_S_IN_BYTES_PER_US if wall_us > 0 else None,
        "rank_gb_s_max": max(per_us) / GB_PER_S_IN_BYTES_PER_US if per_us else None,
        "rank_gb_s_min": min(per_us) / GB_PER_S_IN_BYTES_PER_US if per_us else None,
        "size_imbalance": max(known) / (total / len(known)) if total else None,
    }
