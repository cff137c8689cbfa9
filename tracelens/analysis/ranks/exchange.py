"""Token exchanges across ranks: what the links did once the last sender had arrived, beside the effective rate."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from tracelens.analysis.intervals import union_by_group
from tracelens.analysis.ranks.matching import JobCalls
from tracelens.analysis.ranks.summary import NOTIFY, ExchangeOp, RankSummary
from tracelens.analysis.ranks.waits import Instances, waiting_ns
from tracelens.analysis.remote_share import share_of_others
from tracelens.units import BYTES_PER_MB, NS_PER_US, TERA_PER_S_IN_PER_US

#: What ``local_from`` says where the tokens that stay on their rank were not recorded.
BOUNDED = "bounds"
_COMBINE, _DISPATCH = "combine", "dispatch"


def exchange_frame(calls: JobCalls, found: Instances, ranks: Mapping[int, RankSummary]) -> pd.DataFrame:
    """One row per token exchange of a rank: an op with its kernels, or a kernel without an op above it.

    ``busy_us``: all kernels of the op, waiting and agreeing on counts included; *effective* rates are over that.
    ``transfer_us``: the kernels that move tokens, each from the moment its last rank has started; *true* rates are over
    that, and None where the others' kernels were not found. Bytes that leave the rank lie between ``remote_low_mb`` and
    ``remote_high_mb``; the two are equal where ``local_from`` says that the tokens for the own rank were recorded.
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

    sent_tokens: dict[int, int] = {}
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
        low, high, local_from = _remote_bytes(op, rank, members, str(word[lead]), sent_tokens)
        busy_us, transfer_us = busy[number] / NS_PER_US, transfer[number] / NS_PER_US
        whole = moved[number] > 0 and met[number] == moved[number]
        wire = op.wire_bytes if op is not None else None
        records.append(
            {
                "name": op.name if op is not None else f"{word[lead]} kernel without an op",
                "group_name": channel.label if channel is not None else message.group,
                "group_size": len(members) or None,
                "rank": rank,
                "step": int(calls.step[rows[first]]),
                "tokens": op.tokens if op is not None else None,
                "hidden": op.hidden if op is not None else None,
                "wire_mb": _mb(wire),
                "remote_low_mb": _mb(low),
                "remote_high_mb": _mb(high),
                "local_from": local_from,
                "kernels": int(last_of[number]) - first,
                "busy_us": busy_us,
                "wait_us": waited[number] / NS_PER_US,
                "transfer_us": transfer_us if whole else None,
                "effective_tb_s": _rate(high, busy_us),
                "true_low_tb_s": _rate(low, transfer_us) if whole else None,
                "true_tb_s": _rate(high, transfer_us) if whole else None,
                "last_rank": calls.ranks[int(found.last[at])] if at >= 0 and whole else None,
            }
        )
    return pd.DataFrame(records)


def _remote_bytes(
    op: ExchangeOp | None, rank: int, members: tuple[int, ...], word: str, sent_tokens: dict[int, int]
) -> tuple[float | None, float | None, str]:
    """(least, most) bytes that leave the rank, and where the tokens that stay were read from.

    Recorded rows per rank, or per expert with the experts in order over the ranks, settle it. Else all rows travel at
    most; and of the rows that a combine returns, at most one per token that the rank dispatched before is its own.
    """
    if op is None or op.wire_bytes is None:
        return None, None, ""
    earlier = sent_tokens.get(rank)
    # By the kernel, not by the op's name: the backward of a combine is a dispatch
    if word == _DISPATCH:
        sent_tokens[rank] = op.tokens
    share = share_of_others(op.counts, rank, members)
    if share is not None:
        return op.wire_bytes * share, op.wire_bytes * share, op.counts_from
    low = 0.0
    if word == _COMBINE and earlier is not None and op.row_bytes is not None:
        low = max(0, op.tokens - earlier) * op.row_bytes
    return low, op.wire_bytes, BOUNDED


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
            "remote_low_mb": _total(part["remote_low_mb"]),
            "remote_high_mb": _total(part["remote_high_mb"]),
            "local_from": ", ".join(sorted({str(text) for text in part["local_from"] if text})) or None,
            "busy_us_mean": float(part["busy_us"].mean()),
            "wait_us_mean": float(part["wait_us"].mean()),
            "transfer_us_mean": float(timed["transfer_us"].astype(float).mean()) if len(timed) else None,
            "waiting_share": 100 * float(part["wait_us"].sum()) / max(float(part["busy_us"].sum()), 1e-9),
            "effective_tb_s": _rate_of_mb(_total(part["remote_high_mb"]), float(part["busy_us"].sum())),
            "true_low_tb_s": _rate_of_mb(_total(timed["remote_low_mb"]), float(timed["transfer_us"].sum())),
            "true_tb_s": _rate_of_mb(_total(timed["remote_high_mb"]), float(timed["transfer_us"].sum())),
        }
        rows.append(row)
    return pd.DataFrame(rows)


def _total(values: pd.Series) -> float | None:
    return None if values.isna().any() or not len(values) else float(values.astype(float).sum())


def _mb(nbytes: float | None) -> float | None:
    return None if nbytes is None else nbytes / BYTES_PER_MB


def _rate(nbytes: float | None, time_us: float) -> float | None:
    return None if nbytes is None or time_us <= 0 else nbytes / time_us / TERA_PER_S_IN_PER_US


def _rate_of_mb(megabytes: float | None, time_us: float) -> float | None:
    return None if megabytes is None else _rate(megabytes * BYTES_PER_MB, time_us)
