"""How much of every process group, pair of ranks or stream was matched."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracelens.analysis.ranks.rank_files import ranks_text
from tracelens.analysis.ranks.sheets.job_context import JobContext
from tracelens.analysis.ranks.sheets.rank_columns import GROUP, GROUP_RANKS, SIZE
from tracelens.schema import column_set, count, sheet

COLUMNS = column_set(
    GROUP,
    GROUP_RANKS,
    SIZE,
    count("matched", "Collectives found on two ranks or more."),
    count("unmatched", "Calls whose counterpart is in no trace."),
)


@sheet("groups", columns=COLUMNS, order=620)
def frame(job: JobContext) -> pd.DataFrame:
    """One row per process group, pair of ranks, or stream: how much of it was matched."""
    calls = job.calls
    present = np.bincount(calls.instance[calls.instance >= 0], minlength=calls.instances)
    records = []
    for number, channel in enumerate(calls.channels):
        mine = calls.channel_of == number
        records.append(
            {
                "group_name": channel.label,
                "group_ranks": ranks_text(channel.ranks) if channel.ranks else None,
                "group_size": channel.size,
                "matched": int((mine & (present > 1)).sum()),
                "unmatched": int((mine & (present == 1)).sum()),
            }
        )
    return (
        pd.DataFrame(records).sort_values(["group_name"], kind="stable").reset_index(drop=True)
        if records
        else pd.DataFrame()
    )
