"""Matched collectives by group, collective, type and size."""

from __future__ import annotations

import pandas as pd

from tracelens.analysis.ranks.sheets import rank_collectives
from tracelens.analysis.ranks.sheets import rank_columns as shared
from tracelens.analysis.ranks.sheets.job_context import JobContext
from tracelens.analysis.sheets.shared_columns import CALLS
from tracelens.schema import column_set, sheet, statistics, text, us

TITLE = "nccl_summary_implicit_sync"
_OVER = ("mean", "median", "min", "max")
_SPREAD = (shared.LATENCY, shared.ALGORITHM, shared.BUS, shared.SKEW, shared.WAIT_MEAN)
COLUMNS = column_set(
    shared.GROUP, shared.SIZE, shared.COLLECTIVE, shared.DTYPE, shared.FULL,
    us("wait_per_rank_us_sum", "Mean waiting of the ranks, summed over the collectives."),
    shared.WAITING_SHARE,
    text(
        "verdict",
        "transfer-dominated (waiting below 30 %), arrival-skew-dominated (above 70 %), mixed, or inconclusive: "
        "the skew is within the clocks' uncertainty.",
        width=26,
    ),
    *(statistics(_OVER, column) for column in _SPREAD),
    CALLS,
)  # fmt: skip
#: Shares of waiting in a collective's time below and above which one word says it all.
_MOSTLY_TRANSFER, _MOSTLY_WAITING = 0.3, 0.7
TRANSFER, SKEWED, MIXED, INCONCLUSIVE = "transfer-dominated", "arrival-skew-dominated", "mixed", "inconclusive"


@sheet(TITLE, columns=COLUMNS, order=560)
def frame(job: JobContext) -> pd.DataFrame:
    """Matched collectives by group, collective, type and size."""
    collectives = job.frames[rank_collectives.TITLE]
    if collectives.empty:
        return collectives
    keys = ["group_name", "group_size", "collective", "dtype", "full_mb"]
    rows = []
    for key, part in collectives.groupby(keys, dropna=False, sort=False):
        row: dict[str, object] = dict(zip(keys, key if isinstance(key, tuple) else (key,), strict=True))
        for column in _SPREAD:
            values = part[column.key].astype(float)
            for name in _OVER:
                row[f"{column.key}_{name}"] = getattr(values, name)()
        wait, transfer = float(part["wait_per_rank_us"].sum()), float(part["comm_latency_us"].sum())
        row["waiting_percent"] = 100 * wait / (wait + transfer) if wait + transfer > 0 else 0.0
        row["wait_per_rank_us_sum"] = wait
        row["verdict"] = verdict(wait, transfer, float(part["start_skew_us"].median()), job.clocks.residual_us)
        row["operation_count"] = len(part)
        rows.append(row)
    result = pd.DataFrame(rows)
    text = result[["group_name", "collective", "dtype"]].astype(str)
    order = result.assign(_g=text["group_name"], _c=text["collective"], _d=text["dtype"]).sort_values(
        ["wait_per_rank_us_sum", "_g", "_c", "_d"], ascending=[False, True, True, True], kind="stable"
    )
    return result.loc[order.index].reset_index(drop=True)


def verdict(wait: float, transfer: float, skew_us: float, residual_us: float | None) -> str:
    """What a collective's time is made of; inconclusive when clocks are less certain than the skew is large."""
    if residual_us is None or (residual_us > 0 and residual_us >= skew_us):
        return INCONCLUSIVE
    share = wait / (wait + transfer) if wait + transfer > 0 else 0.0
    return TRANSFER if share < _MOSTLY_TRANSFER else SKEWED if share > _MOSTLY_WAITING else MIXED
