"""Token exchanges across ranks: what the links did once the last sender had arrived, beside the effective rate."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from tracelens.analysis.intervals import union_by_group
from tracelens.analysis.ranks.matching import JobCalls
from tracelens.analysis.ranks.rank_summary import NOTIFY, RankSummary
from tracelens.analysis.ranks.waits import Instances, waiting_ns
from tracelens.units import BYTES_PER_MB, NS_PER_US, TERA_PER_S_IN_PER_US


def exchange_frame(calls: JobCalls, found: Instances, ranks: Mapping[int, RankSummary]) -> pd.DataFrame:
    """One row per token exchange of a rank: an op with its kernels, or a kernel without an op above it.

    ``busy_us``: all kernels of the op, waiting and agreeing on counts included; *effective* rates are over that.
    ``transfer_us``: the kernels that move tokens, each from the moment its last rank has started; *true* rates are over
    that, and None where the others' kernels were not found. ``wire_mb`` counts every copy of a token
    (``rows_from``); ``remote_mb`` those that leave the rank, by recorded counts or by even routing (``remote_from``).
    """
    is_exchange = np.array([m.is_exchange for m in calls.messages] or [False], bool)
    rows = np.flatnonzero((calls.op >= 0) | is_exchange[calls.message]) if len(calls.start) else np.zeros(0, np.int64)
    if not len(rows):
        return pd.DataFrame()
    alone = calls.op[rows] < 0
    call = np.where(alone, -1 - np.arange(len(rows)), calls.op[rows])
    order = np.lexsort((calls.start[rows], call, calls.rank[rows]))
    rows, call = rows[order], call[order]
    fresh = np.concatenate(([True], (np.diff(call) != 0) | (np.diff(calls.rank[rows]) != 0)))
    group = np.cumsum(fresh) - 1
    n = int(fresh.sum())
    start, end = calls.start[rows], calls.end[rows]
    busy = union_by_group(group, start, end, n)
    waited = np.bincount(group, weights=waiting_ns(calls, found)[rows], minlength=n)
    word = np.array([m.word for m in calls.messages], object)[calls.message[rows]]
    moves = word != NOTIFY
    instance = np.maximum(calls.instance[rows], 0)
    arrived = (calls.instance[rows] >= 0) & (found.present[instance] > 1)
    after = np.minimum(np.maximum(start, found.latest_start[instance]), end)
    use = moves & arrived
    transfer = union_by_group(group[use], after[use], end[use], n)
    moved, met = np.bincount(group[moves], minlength=n), np.bincount(group[use], minlength=n)

    records = []
    by_time = np.argsort(start[fresh], kind="stable")
    firsts = np.flatnonzero(fresh)
    last_of = np.concatenate((firsts[1:], [len(rows)]))
    for number in by_time.tolist():
        first = int(firsts[number])
        part = slice(first, int(last_of[number]))
        position = int(calls.rank[rows[first]])
        rank = calls.ranks[position]
        summary = ranks[rank]
        lead = first + int(moves[part].argmax())
        message = calls.messages[int(calls.message[rows[lead]])]
        at = int(calls.instance[rows[lead]])
        channel = calls.channels[int(calls.channel_of[at])] if at >= 0 else None
        members = channel.ranks if channel is not None else ()
        op = summary.ops[int(summary.op_kind[call[first]])] if call[first] >= 0 else None
        exchanged = op.exchanged_bytes if op is not None else None
        share = op.remote_share(rank, members) if op is not None else None
        remote = exchanged * share.share if exchanged is not None and share is not None else None
        busy_us, transfer_us = busy[number] / NS_PER_US, transfer[number] / NS_PER_US
        whole = moved[number] > 0 and met[number] == moved[number]
        records.append(
            {
                "name": op.name if op is not None else f"{word[lead]} kernel without an op",
                "group_name": channel.label if channel is not None else message.group,
                "group_size": len(members) or None,
                "rank": rank,
                "step": int(calls.step[rows[first]]),
                "tokens": op.tokens if op is not None else None,
                "hidden": op.hidden if op is not None else None,
                "rows": op.rows if op is not None else None,
                "rows_from": op.rows_from if op is not None else "",
                "wire_mb": _mb(exchanged),
                "remote_mb": _mb(remote),
                "remote_from": share.source if share is not None else "",
                "kernels": int(last_of[number]) - first,
                "busy_us": busy_us,
                "wait_us": waited[number] / NS_PER_US,
                "transfer_us": transfer_us if whole else None,
                "effective_tb_s": _rate(remote, busy_us),
                "true_tb_s": _rate(remote, transfer_us) if whole else None,
                "last_rank": calls.ranks[int(found.last[at])] if at >= 0 and whole else None,
            }
        )
    return pd.DataFrame(records)


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
            "remote_mb": _total(part["remote_mb"]),
            "remote_from": _sources(part["remote_from"]),
            "busy_us_mean": float(part["busy_us"].mean()),
            "wait_us_mean": float(part["wait_us"].mean()),
            "transfer_us_mean": float(timed["transfer_us"].astype(float).mean()) if len(timed) else None,
            "waiting_share": 100 * float(part["wait_us"].sum()) / max(float(part["busy_us"].sum()), 1e-9),
            "effective_tb_s": _rate_of_mb(_total(part["remote_mb"]), float(part["busy_us"].sum())),
            "true_tb_s": _rate_of_mb(_total(timed["remote_mb"]), float(timed["transfer_us"].sum())),
        }
        rows.append(row)
    return pd.DataFrame(rows)


def _sources(texts: pd.Series) -> str | None:
    return ", ".join(sorted({str(text) for text in texts if text})) or None


def _total(values: pd.Series) -> float | None:
    return None if values.isna().any() or not len(values) else float(values.astype(float).sum())


def _mb(nbytes: float | None) -> float | None:
    return None if nbytes is None else nbytes / BYTES_PER_MB


def _rate(nbytes: float | None, time_us: float) -> float | None:
    return None if nbytes is None or time_us <= 0 else nbytes / time_us / TERA_PER_S_IN_PER_US


def _rate_of_mb(megabytes: float | None, time_us: float) -> float | None:
    return None if megabytes is None else _rate(megabytes * BYTES_PER_MB, time_us)
