"""Sheets of a job's ranks: time, stragglers, cost by step, pipeline bubbles, clocks, token exchanges; what all of
them are made from (``JobContext``), and their registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, cached_property
from importlib import import_module
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd

from tracelens.analysis.intervals import Ints, union_by_group
from tracelens.analysis.ranks import matching
from tracelens.analysis.ranks.rank_summary import NOTIFY, ExchangeOp, RankSummary, ranks_text
from tracelens.analysis.sheets import built_in, collect_sheets, columns_of, sheet_rows
from tracelens.analysis.sheets.context import Frames
from tracelens.registry import Registry
from tracelens.types.records import Record
from tracelens.types.units import BYTES_PER_MB, NS_PER_US, TERA_PER_S_IN_PER_US

UNENDED_TITLE = "unended"
RANK_TIMES_TITLE = "straggler_summary"
STEP_COST_TITLE = "step_cost"
PIPELINE_BUBBLES_TITLE = "pipeline_bubbles"
RANK_EXCHANGES_TITLE = "ep_long"


@cache
def rank_sheets() -> Registry:
    """Title -> sheet function of the multi-rank report."""
    modules = ("rank_collectives", "rank_times")
    return collect_sheets([import_module(f"{__package__}.{name}") for name in modules])


class DeviceUse(Record, frozen=True, kw_only=True):
    """Means of a log's samples of a rank's device, from its first to its last call; None where not sampled."""

    power_w: float | None
    clock_mhz: float | None


class JobContext(Record, frozen=True, kw_only=True, eq=False, dict=True):
    """The ranks of a job and their calls on the first host's clock. ``devices``: logged use of a rank's device."""

    ranks: Mapping[int, RankSummary]
    calls: matching.JobCalls
    clocks: matching.Clocks
    devices: Mapping[int, DeviceUse] = msgspec.field(default_factory=dict)

    @cached_property
    def found(self) -> matching.Instances:
        """The matched collectives."""
        return matching.instances(self.calls)

    @cached_property
    def waited(self) -> Ints:
        """How long (ns) each call waited for the last rank."""
        return matching.waiting_ns(self.calls, self.found)

    @cached_property
    def frames(self) -> Frames:
        """The frames of all sheets by title."""
        return Frames(rank_sheets(), self)


@built_in("ranks")
def ranks_frame(job: JobContext) -> pd.DataFrame:
    """Ranks: trace file, computation, communication, idle time."""
    rows, parts = [], ("total", "computation", "exposed_comm", "total_comm", "idle")
    for rank, summary in sorted(job.ranks.items()):
        rows.append(
            {
                "rank": rank,
                "file": summary.source,
                "host": job.clocks.of_rank(rank).host,
                "events": summary.events,
                "communication_calls": len(summary.start),
                **{f"{part}_us": getattr(summary.timeline, f"{part}_ns") / NS_PER_US for part in parts},
                "note": "; ".join(summary.notes) or None,
            }
        )
    return pd.DataFrame(rows)


@built_in(UNENDED_TITLE)
def unended_frame(job: JobContext) -> pd.DataFrame | None:
    """Calls that differ between ranks or have not ended, of logs without a profiler.

    By group the first of each kind: what comes after it follows from it.
    """
    if all(summary.log is None for summary in job.ranks.values()):
        return None
    from tracelens.analysis.ranks.job_logs import unended

    return pd.DataFrame(unended(job.ranks), columns=[*columns_of(UNENDED_TITLE)])


@built_in(RANK_TIMES_TITLE)
def rank_times_frame(job: JobContext) -> pd.DataFrame:
    """Ranks by the cost of their late arrivals, the costliest first.

    ``cost_us``: what would be saved, at most, if it alone were on time; who comes late because it waited for another
    rank costs nothing. ``caused_wait_us``: all waiting of others in the collectives in which it was last. Sends and
    receives are left out: a stage of a pipeline waits in them for its turn.
    """
    calls, found, waited = job.calls, job.found, job.waited
    rows = matching.collective_rows(calls)
    if not len(rows):
        return pd.DataFrame()
    n = len(calls.ranks)
    rank = calls.rank[rows]
    is_collective = ~matching.is_between_two(calls)
    complete = np.flatnonzero((found.present > 1) & (found.latest_start > found.earliest_start) & is_collective)
    last, first = found.last[complete], found.first[complete]
    start, until = calls.start[rows], calls.start[rows] + waited[rows]
    pairs, pair = np.unique(found.last[calls.instance[rows]] * n + rank, return_inverse=True)
    caused = np.bincount(pairs // n, weights=union_by_group(pair, start, until, len(pairs)), minlength=n)
    count = np.bincount(rank, minlength=n)
    summed_wait = np.bincount(rank, weights=waited[rows], minlength=n) / NS_PER_US
    cost = np.bincount(last, weights=matching.own_cost_ns(calls, found, waited)[complete], minlength=n)
    arrived_last = np.bincount(last, minlength=n)
    rows_of_ranks = pd.DataFrame(
        {
            "rank": calls.ranks,
            "cost_us": cost / NS_PER_US,
            "caused_wait_us": caused / NS_PER_US,
            "times_arrived_last": arrived_last,
            "times_arrived_first": np.bincount(first, minlength=n),
            "arrived_last_percent": 100 * arrived_last / np.maximum(count, 1),
            "wait_us_sum": union_by_group(rank, start, until, n) / NS_PER_US,
            "wait_us_mean": summed_wait / np.maximum(count, 1),
            "num_collectives": count,
            "duration_us_sum": np.bincount(rank, weights=(calls.end - calls.start)[rows], minlength=n) / NS_PER_US,
        }
    )
    if job.devices:
        used = [job.devices.get(each) for each in calls.ranks]
        rows_of_ranks["power_w"] = [None if each is None else each.power_w for each in used]
        rows_of_ranks["sm_clock_mhz"] = [None if each is None else each.clock_mhz for each in used]
    shown = rows_of_ranks[rows_of_ranks["num_collectives"] > 0]
    order = ["cost_us", "caused_wait_us", "wait_us_sum", "rank"]
    return shown.sort_values(order, ascending=[False, False, True, True], kind="stable").reset_index(drop=True)


@built_in(STEP_COST_TITLE)
def step_cost_frame(job: JobContext) -> pd.DataFrame:
    """Steps: the slowest rank and its cost.

    Of the steps that all ranks recorded. ``cost_us``: the mean waiting of the other ranks less the slowest rank's own:
    what the step would gain, at most, if that rank were as fast as the mean of the others.
    """
    calls, ranks, waited = job.calls, job.ranks, job.waited
    rows = matching.collective_rows(calls)
    rows = rows[calls.step[rows] >= 0]
    numbers = [set(summary.step_number[summary.step_number >= 0].tolist()) for summary in ranks.values()]
    common = sorted(set.intersection(*numbers)) if numbers else []
    if len(calls.ranks) < 2 or not common or not len(rows):
        return pd.DataFrame()
    records = []
    for step in common:
        mine = rows[calls.step[rows] == step]
        start = calls.start[mine]
        # Collectives of several streams wait at the same time
        wait = union_by_group(calls.rank[mine], start, start + waited[mine], len(calls.ranks)) / NS_PER_US
        slowest = int(wait.argmin())
        others = np.delete(wait, slowest)
        lengths = [float((s.step_end - s.step_start)[s.step_number == step][0]) / NS_PER_US for s in ranks.values()]
        records.append(
            {
                "step": step,
                "step_us_median": float(np.median(lengths)),
                "step_us_min": min(lengths),
                "step_us_max": max(lengths),
                "slowest_rank": calls.ranks[slowest],
                "slowest_wait_us": float(wait[slowest]),
                "others_wait_us": float(others.mean()),
                "cost_us": float(others.mean() - wait[slowest]),
            }
        )
    return pd.DataFrame(records)


@built_in(PIPELINE_BUBBLES_TITLE)
def pipeline_bubbles_frame(job: JobContext) -> pd.DataFrame:
    """Ranks of a pipeline: computation, sends and receives, bubbles.

    The mean over its steps (or its whole window). A bubble is the time in which the rank neither computed nor
    communicated for another reason than its pipeline: exposed sends and receives, and idle time, whatever that was
    spent waiting for. ``pipeline`` numbers sets of ranks joined by sends and receives, ``stage`` the ranks in it, in
    their order.
    """
    pairs = [c.ranks for c in job.calls.channels if c.is_point_to_point]
    records = []
    sets: list[set[int]] = []
    for pair in pairs:
        touching = [known for known in sets if not known.isdisjoint(pair)]
        sets = [known for known in sets if known.isdisjoint(pair)]
        sets.append(set(pair).union(*touching))
    for pipeline, members in enumerate(sorted(sets, key=min)):
        for stage, rank in enumerate(sorted(members)):
            summary = job.ranks.get(rank)
            # A host alone, as gloo's ranks are, leaves no device without work
            if summary is None or not len(summary.step_number) or not summary.step_compute.any():
                continue
            length = summary.step_end - summary.step_start
            idle = length - summary.step_compute - summary.step_comm - summary.step_p2p - summary.step_copies
            bubble = idle + summary.step_p2p
            records.append(
                {
                    "pipeline": pipeline,
                    "stage": stage,
                    "rank": rank,
                    "steps": len(length),
                    "step_us": float(length.mean()) / NS_PER_US,
                    "computation_us": float(summary.step_compute.mean()) / NS_PER_US,
                    "p2p_exposed_us": float(summary.step_p2p.mean()) / NS_PER_US,
                    "other_exposed_us": float((summary.step_comm + summary.step_copies).mean()) / NS_PER_US,
                    "idle_us": float(idle.mean()) / NS_PER_US,
                    "bubble_us": float(bubble.mean()) / NS_PER_US,
                    "bubble_percent": 100 * float(bubble.sum()) / max(float(length.sum()), 1.0),
                }
            )
    return pd.DataFrame(records)


@built_in("clocks")
def clocks_frame(job: JobContext) -> pd.DataFrame:
    """Hosts: offset and drift of the clock against the first host."""
    return pd.DataFrame(
        [
            {
                "host": clock.host,
                "ranks": ranks_text(clock.ranks),
                "offset_us": clock.offset_ns / NS_PER_US,
                "drift_ppm": clock.drift * 1e6,
                "residual_us": clock.residual_us,
                "points": clock.points,
                "fitted_to": clock.via or None,
            }
            for clock in job.clocks.hosts
        ]
    )


@built_in(RANK_EXCHANGES_TITLE)
def rank_exchanges_frame(job: JobContext) -> pd.DataFrame:
    """Token exchanges by rank.

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


class _ExchangeKernels(Record, frozen=True, kw_only=True, eq=False):
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


EP_SUMMARY_TITLE = "ep_summary"


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
            "effective_interconnect_tb_s": _rate(part, "kernel_us"),
            "true_interconnect_tb_s": _rate(timed, "transfer_us"),
        }
        rows.append(row)
    return pd.DataFrame(rows)


def _sources(texts: pd.Series) -> str | None:
    return ", ".join(sorted({str(text) for text in texts if text})) or None


def _total(values: pd.Series) -> float | None:
    return None if values.isna().any() or not len(values) else float(values.astype(float).sum())


def _rate(rows: pd.DataFrame, time: str) -> float | None:
    """TB/s of what leaves the ranks over the column ``time``, of all rows together."""
    megabytes = _total(rows["expected_remote_mb"])
    return None if megabytes is None else rate_tb_s(megabytes * BYTES_PER_MB, float(rows[time].sum()))


SHEETS = sheet_rows(
    {
        EP_SUMMARY_TITLE: lambda job: exchange_summary(job.frames[RANK_EXCHANGES_TITLE], by_rank=False),
        "ep_by_rank": lambda job: exchange_summary(job.frames[RANK_EXCHANGES_TITLE], by_rank=True),
    }
)
