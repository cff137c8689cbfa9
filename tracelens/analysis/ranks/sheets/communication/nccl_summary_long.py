"""Communication calls of all ranks by what was called."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tracelens.analysis.ranks.sheets import rank_columns as shared
from tracelens.analysis.ranks.sheets.communication import nccl_long
from tracelens.analysis.ranks.sheets.job_context import JobContext
from tracelens.analysis.sheets.coll_analysis import bus_gb_s
from tracelens.analysis.sheets.shared_columns import CALLS
from tracelens.schema import column_set, number, sheet, statistics, us

TITLE = "nccl_summary_long"

COLUMNS = column_set(
    shared.COLLECTIVE, shared.GROUP, shared.SIZE, shared.DTYPE, shared.IN_NELEMS, shared.OUT_NELEMS, shared.IN_MB,
    statistics(
        ("sum", "mean", "median", "std", "min", "max"),
        us("duration_us", "Duration of one rank's call, in which it also waits for the others."),
    ),
    us("wait_us_sum", f"Sum over the matched calls. {shared.WAITING}"), CALLS,
    number("effective_bus_gb_s", "Bus bandwidth as nccl-tests counts it, over the median duration, waiting included: "
           "at least what the links reached. Empty without a recorded group and size.", unit="GB/s", optional=True),
)  # fmt: skip


@sheet(TITLE, columns=COLUMNS, order=570)
def frame(job: JobContext) -> pd.DataFrame:
    """Communication calls of all ranks by what was called."""
    long = job.frames[nccl_long.TITLE]
    keys = ["collective", "group_name", "group_size", "dtype", "in_nelems", "out_nelems"]
    if long.empty:
        return pd.DataFrame()
    plain = long.assign(**{key: long[key].astype(object).where(long[key].notna(), None) for key in keys})
    grouped = plain.groupby(keys, dropna=False, sort=False)
    result = grouped["duration_us"].agg(["sum", "mean", "median", "std", "min", "max"])
    result.columns = [f"duration_us_{name}" for name in result.columns]
    result["wait_us_sum"] = grouped["wait_us"].sum()
    result["in_mb"], out_mb = grouped["in_mb"].first(), grouped["out_mb"].first()
    result["operation_count"] = grouped.size()
    result = result.assign(out_mb=out_mb).reset_index()
    sizes = result[["collective", "in_mb", "out_mb"]].astype(object)
    # Beside a missing one whole numbers became floats
    ranks = [None if np.isnan(size) else int(size) for size in result["group_size"].astype(float)]
    sizes = sizes.where(sizes.notna(), None).assign(group_size=pd.Series(ranks, dtype=object))
    result["effective_bus_gb_s"] = bus_gb_s(sizes, result["duration_us_median"])
    result = result.drop(columns="out_mb")
    order = result.assign(_n=result["collective"].astype(str), _g=result["group_name"].astype(str))
    order = order.sort_values(["duration_us_sum", "_n", "_g"], ascending=[False, True, True], kind="stable")
    return result.loc[order.index].reset_index(drop=True)
