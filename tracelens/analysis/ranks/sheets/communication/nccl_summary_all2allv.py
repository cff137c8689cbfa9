"""All-to-alls by group."""

from __future__ import annotations

import pandas as pd

from tracelens.analysis.ranks.sheets import rank_columns as shared
from tracelens.analysis.ranks.sheets.communication import nccl_all2allv
from tracelens.analysis.ranks.sheets.job_context import JobContext
from tracelens.analysis.sheets.shared_columns import CALLS
from tracelens.schema import column_set, sheet, statistics

_MEANS = (shared.TOTAL, shared.WALL, shared.THROUGHPUT, shared.IMBALANCE, shared.SKEW)
COLUMNS = column_set(
    shared.GROUP, shared.SIZE, shared.COLLECTIVE, shared.DTYPE,
    *(statistics(("mean",), column) for column in _MEANS),
    statistics(("max",), shared.IMBALANCE), CALLS,
)  # fmt: skip


@sheet("nccl_summary_all2allv", columns=COLUMNS, order=580)
def frame(job: JobContext) -> pd.DataFrame:
    """All-to-alls by group."""
    all_to_alls = job.frames[nccl_all2allv.TITLE]
    if all_to_alls.empty:
        return all_to_alls
    keys = ["group_name", "group_size", "collective", "dtype"]
    numbers = [column.key for column in _MEANS]
    grouped = all_to_alls.astype(dict.fromkeys(numbers, float)).groupby(keys, dropna=False, sort=True)
    result = grouped[numbers].mean()
    result.columns = [f"{name}_mean" for name in numbers]
    result["size_imbalance_max"] = grouped["size_imbalance"].max()
    result["operation_count"] = grouped.size()
    return result.reset_index()
