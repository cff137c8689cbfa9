"""Bytes from each rank to each other in all-to-alls."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracelens.analysis.ranks.messages import ALL_TO_ALL
from tracelens.analysis.ranks.sheets.job_context import JobContext
from tracelens.schema import column_set, count, identifier, mb, sheet
from tracelens.units import BYTES_PER_MB

COLUMNS = column_set(
    identifier("src_rank", "Global rank that sends."),
    identifier("dst_rank", "Global rank that receives; a rank's share for itself is left out."),
    mb("sent_mb_sum", "Wire: by recorded split sizes; evenly split where an all-to-all has none."),
    mb("sent_mb_mean", "Wire: mean over the calls."),
    count("operation_count", "All-to-alls."),
)


@sheet("nccl_all2allv_heatmap", columns=COLUMNS, order=630)
def frame(job: JobContext) -> pd.DataFrame:
    """Bytes from each rank to each other in all-to-alls.

    By recorded split sizes; even where none were given. A rank's share for itself is left out: it does not travel.
    """
    calls = job.calls
    sent: dict[tuple[int, int], list[float]] = {}
    counts = np.zeros((len(calls.ranks), len(calls.messages)), np.int64)
    np.add.at(counts, (calls.rank, calls.message), 1)
    for position, code in np.argwhere(counts > 0).tolist():
        message = calls.messages[code]
        if message.word not in ALL_TO_ALL or not message.ranks or message.in_bytes is None or not message.elements_in:
            continue
        splits = (1,) * len(message.ranks) if message.in_split == () else message.in_split
        if splits is None or len(splits) != len(message.ranks) or not sum(splits):
            continue
        source = calls.ranks[position]
        for target, split in zip(message.ranks, splits, strict=True):
            if target != source:
                entry = sent.setdefault((source, target), [0.0, 0.0])
                entry[0] += counts[position, code] * message.in_bytes * split / sum(splits)
                entry[1] += counts[position, code]
    return pd.DataFrame(
        [
            {
                "src_rank": a, "dst_rank": b, "sent_mb_sum": total / BYTES_PER_MB,
                "sent_mb_mean": total / count / BYTES_PER_MB, "operation_count": int(count),
            }
            for (a, b), (total, count) in sorted(sent.items())
        ]
    )  # fmt: skip
