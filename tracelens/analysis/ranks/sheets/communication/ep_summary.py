"""Token exchanges by op and group: effective rates beside true ones."""

from __future__ import annotations

import pandas as pd

from tracelens.analysis.ranks.sheets import rank_columns as shared
from tracelens.analysis.ranks.sheets import rank_exchanges
from tracelens.analysis.ranks.sheets.job_context import JobContext
from tracelens.analysis.sheets.shared_columns import CALLS, NAME
from tracelens.schema import column_set, sheet, us
from tracelens.units import BYTES_PER_MB

TITLE = "ep_summary"
COLUMNS = column_set(
    NAME, shared.GROUP, shared.SIZE, shared.RANK, CALLS, shared.EXCHANGE_RATES, shared.WAITING_SHARE,
    shared.EXCHANGE_BYTES,
    us("kernel_us_mean", "Busy time of one call's kernels, waiting included."),
    us("wait_us_mean", f"Over the call's kernels. {shared.WAITING}"),
    us("transfer_us_mean", "Token-moving kernels, from their last rank's start."),
)  # fmt: skip


@sheet(TITLE, columns=COLUMNS, order=540)
def frame(job: JobContext) -> pd.DataFrame:
    """Token exchanges by op and group: effective rates beside true ones."""
    return exchange_summary(job.frames[rank_exchanges.TITLE], by_rank=False)


def exchange_summary(frame: pd.DataFrame, *, by_rank: bool) -> pd.DataFrame:
    """Exchanges by op and group, and by rank too on request. Rates are summed bytes over summed time."""
    if frame.empty:
        return frame
    keys = ["name", "group_name", "group_size", *(["rank"] if by_rank else [])]
    rows = []
    for key, part in frame.groupby(keys, dropna=False, sort=True):
        timed = part[part["transfer_us"].notna()]
        row: dict[str, object] = dict(zip(keys, key if isinstance(key, tuple) else (key,), strict=True))
        row |= {
            "operation_count": len(part),
            "wire_mb": _total(part["wire_mb"]),
            "rows": _total(part["rows"]),
            "rows_from": _sources(part["rows_from"]),
            "expected_remote_mb": _total(part["expected_remote_mb"]),
            "remote_from": _sources(part["remote_from"]),
            "kernel_us_mean": float(part["kernel_us"].mean()),
            "wait_us_mean": float(part["wait_us"].mean()),
            "transfer_us_mean": float(timed["transfer_us"].astype(float).mean()) if len(timed) else None,
            "waiting_percent": 100 * float(part["wait_us"].sum()) / max(float(part["kernel_us"].sum()), 1e-9),
            "effective_interconnect_tb_s": _rate_of_mb(
                _total(part["expected_remote_mb"]), float(part["kernel_us"].sum())
            ),
            "true_interconnect_tb_s": _rate_of_mb(
                _total(timed["expected_remote_mb"]), float(timed["transfer_us"].sum())
            ),
        }
        rows.append(row)
    return pd.DataFrame(rows)


def _sources(texts: pd.Series) -> str | None:
    return ", ".join(sorted({str(text) for text in texts if text})) or None


def _total(values: pd.Series) -> float | None:
    return None if values.isna().any() or not len(values) else float(values.astype(float).sum())


def _rate_of_mb(megabytes: float | None, time_us: float) -> float | None:
    return None if megabytes is None else rank_exchanges.rate_tb_s(megabytes * BYTES_PER_MB, time_us)
