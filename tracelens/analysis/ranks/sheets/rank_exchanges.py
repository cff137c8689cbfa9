"""Every token exchange of a rank: what the links did once the last sender had arrived, beside the effective rate."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracelens.analysis.intervals import Ints, union_by_group
from tracelens.analysis.ranks.messages import NOTIFY, ExchangeOp
from tracelens.analysis.ranks.sheets import rank_columns as shared
from tracelens.analysis.ranks.sheets.job_context import JobContext
from tracelens.analysis.sheets.shared_columns import NAME
from tracelens.lazy.records import dataclass
from tracelens.schema import column_set, count, sheet, us
from tracelens.units import BYTES_PER_MB, NS_PER_US, TERA_PER_S_IN_PER_US

TITLE = "ep_long"
COLUMNS = column_set(
    NAME, shared.GROUP, shared.SIZE, shared.RANK, shared.STEP, shared.EXCHANGE_RATES, shared.EXCHANGE_BYTES,
    count("tokens", "Rows given to the op."),
    count("hidden", "Width of a row, in elements."),
    count("kernels", "Communication kernels of the call."),
    us("kernel_us", "Busy time of the call's kernels, waiting included."),
    us("wait_us", f"Over the call's kernels. {shared.WAITING}"),
    us("transfer_us", "Token-moving kernels, from their last rank's start."),
    shared.LAST,
)  # fmt: skip


@sheet(TITLE, columns=COLUMNS, order=660, json=None)
def frame(job: JobContext) -> pd.DataFrame:
    """One row per token exchange of a rank.

    An op with its kernels, or a kernel without an op above it. ``kernel_us``: all kernels of the op, waiting and
    agreeing on counts included; *effective* rates are over that. ``transfer_us``: the kernels that move tokens,
    each from the moment its last rank has started; *true* rates are over that, and None where the others' kernels were
    not found.
    ``wire_mb`` counts every copy of a token (``rows_from``); ``expected_remote_mb`` those that leave the rank, by
    recorded counts or by even routing (``remote_from``).
    """
    kernels = _exchange_kernels(job)
    if kernels is None:
        return pd.DataFrame()
    by_time = np.argsort(job.calls.start[kernels.rows[kernels.first[:-1]]], kind="stable")
    return pd.DataFrame([_record(job, kernels, number) for number in by_time.tolist()])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _ExchangeKernels:
    """Kernels of token exchanges, call by call: those of call ``i`` are ``rows[first[i]:first[i + 1]]``.

    ``moves``: which kernels move tokens. By call: ``transfer_ns`` is that of those which met all their ranks'
    counterparts, ``is_met`` says that all of them did.
    """

    rows: Ints
    first: Ints
    moves: npt.NDArray[np.bool_]
    busy_ns: Ints
    waited_ns: npt.NDArray[np.number]
    transfer_ns: Ints
    is_met: npt.NDArray[np.bool_]


def _exchange_kernels(job: JobContext) -> _ExchangeKernels | None:
    calls, found = job.calls, job.found
    is_exchange = np.array([m.is_exchange for m in calls.messages] or [False], bool)
    rows = np.flatnonzero((calls.op >= 0) | is_exchange[calls.message]) if len(calls.start) else np.zeros(0, np.int64)
    if not len(rows):
        return None
    call = np.where(calls.op[rows] < 0, -1 - np.arange(len(rows)), calls.op[rows])
    order = np.lexsort((calls.start[rows], call, calls.rank[rows]))
    rows, call = rows[order], call[order]
    fresh = np.concatenate(([True], (np.diff(call) != 0) | (np.diff(calls.rank[rows]) != 0)))
    group = np.cumsum(fresh) - 1
    n = int(fresh.sum())
    start, end = calls.start[rows], calls.end[rows]
    moves = np.array([m.word != NOTIFY for m in calls.messages])[calls.message[rows]]
    instance = np.maximum(calls.instance[rows], 0)
    arrived = (calls.instance[rows] >= 0) & (found.present[instance] > 1)
    after = np.minimum(np.maximum(start, found.latest_start[instance]), end)
    use = moves & arrived
    moved, met = np.bincount(group[moves], minlength=n), np.bincount(group[use], minlength=n)
    return _ExchangeKernels(
        rows=rows,
        first=np.append(np.flatnonzero(fresh), len(rows)),
        moves=moves,
        busy_ns=union_by_group(group, start, end, n),
        waited_ns=np.bincount(group, weights=job.waited[rows], minlength=n),
        transfer_ns=union_by_group(group[use], after[use], end[use], n),
        is_met=(moved > 0) & (met == moved),
    )


def _record(job: JobContext, kernels: _ExchangeKernels, number: int) -> dict[str, Any]:
    calls = job.calls
    first, last = kernels.first[number : number + 2].tolist()
    row, lead = kernels.rows[first], kernels.rows[first + int(kernels.moves[first:last].argmax())]
    rank = calls.ranks[int(calls.rank[row])]
    message, at = calls.messages[int(calls.message[lead])], int(calls.instance[lead])
    channel = calls.channels[int(calls.channel_of[at])] if at >= 0 else None
    members = channel.ranks if channel is not None else ()
    summary, code = job.ranks[rank], int(calls.op[row])
    op = summary.ops[int(summary.op_kind[code])] if code >= 0 else None
    sent, remote = _sent(op, rank, members)
    busy_us, transfer_us = kernels.busy_ns[number] / NS_PER_US, kernels.transfer_ns[number] / NS_PER_US
    is_met = bool(kernels.is_met[number])
    return {
        "name": op.name if op is not None else f"{message.word} kernel without an op",
        "group_name": channel.label if channel is not None else message.group,
        "group_size": len(members) or None,
        "rank": rank,
        "step": int(calls.step[row]),
        **sent,
        "kernels": last - first,
        "kernel_us": busy_us,
        "wait_us": kernels.waited_ns[number] / NS_PER_US,
        "transfer_us": transfer_us if is_met else None,
        "effective_interconnect_tb_s": rate_tb_s(remote, busy_us),
        "true_interconnect_tb_s": rate_tb_s(remote, transfer_us) if is_met else None,
        "last_rank": calls.ranks[int(job.found.last[at])] if at >= 0 and is_met else None,
    }


def _sent(op: ExchangeOp | None, rank: int, members: tuple[int, ...]) -> tuple[dict[str, Any], float | None]:
    """What an exchange sends, and the bytes of it that leave the rank."""
    if op is None:
        keys = ("tokens", "hidden", "rows", "rows_from", "wire_mb", "expected_remote_mb", "remote_from")
        return dict.fromkeys(keys) | {"rows_from": "", "remote_from": ""}, None
    exchanged, share = op.exchanged_bytes, op.remote_share(rank, members)
    remote = exchanged * share.share if exchanged is not None and share is not None else None
    return {
        "tokens": op.tokens,
        "hidden": op.hidden,
        "rows": op.rows,
        "rows_from": op.rows_from,
        "wire_mb": _mb(exchanged),
        "expected_remote_mb": _mb(remote),
        "remote_from": share.source if share is not None else "",
    }, remote


def _mb(nbytes: float | None) -> float | None:
    return None if nbytes is None else nbytes / BYTES_PER_MB


def rate_tb_s(nbytes: float | None, time_us: float) -> float | None:
    """TB/s; None where either is unknown."""
    return None if nbytes is None or time_us <= 0 else nbytes / time_us / TERA_PER_S_IN_PER_US
