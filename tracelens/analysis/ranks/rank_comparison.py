"""A job of many ranks compared: the sheets of its ranks (time, stragglers, cost by step, pipeline bubbles, clocks,
token exchanges, collectives and what hides them), what they are made from (``JobContext``), and every frame together.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd

from tracelens.analysis.intervals import Ints, union_by_group
from tracelens.analysis.ranks import matching
from tracelens.analysis.ranks.matching import Clocks, JobCalls, align_clocks, match_calls, matched_rows
from tracelens.analysis.ranks.rank_files import RankOptions, RankProgress, ReadRanks, read_ranks
from tracelens.analysis.ranks.rank_summary import (
    ALL_TO_ALL,
    NOTIFY,
    CommunicationCall,
    ExchangeOp,
    RankSummary,
    ranks_text,
)
from tracelens.analysis.reading.process_groups import bus_gb_s
from tracelens.analysis.sheets import built_in, collect_sheets, columns_of, sheet_rows
from tracelens.analysis.sheets.context import Frames
from tracelens.analysis.verdict.summary import Notice
from tracelens.errors import InputError, NothingToAnalyzeError
from tracelens.files.executors import PROCESSES, open_executor
from tracelens.perf_models.collective import bus_factor
from tracelens.registry import Registry
from tracelens.trace.reading.read import PowerLog, read_device_logs
from tracelens.types.records import Record
from tracelens.types.units import BYTES_PER_MB, GB_PER_S_IN_BYTES_PER_US, NS_PER_US, TERA_PER_S_IN_PER_US

UNENDED_TITLE = "unended"
RANK_TIMES_TITLE = "straggler_summary"
STEP_COST_TITLE = "step_cost"
PIPELINE_BUBBLES_TITLE = "pipeline_bubbles"
RANK_EXCHANGES_TITLE = "ep_long"
NCCL_LONG_TITLE = "nccl_long"
NCCL_SUMMARY_LONG_TITLE = "nccl_summary_long"
RANK_COLLECTIVES_TITLE = "nccl_implicit_sync"
NCCL_SUMMARY_IMPLICIT_SYNC_TITLE = "nccl_summary_implicit_sync"
NCCL_ALL2ALLV_TITLE = "nccl_all2allv"


@cache
def rank_sheets() -> Registry:
    """Title -> sheet function of the multi-rank report."""
    return collect_sheets([sys.modules[__name__]])


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
    parts = ("total", "computation", "exposed_comm", "total_comm", "idle")
    return pd.DataFrame(
        {
            "rank": rank,
            "file": summary.source,
            "host": job.clocks.of_rank(rank).host,
            "events": summary.events,
            "communication_calls": len(summary.start),
            **{f"{part}_us": getattr(summary.timeline, f"{part}_ns") / NS_PER_US for part in parts},
            "note": "; ".join(summary.notes) or None,
        }
        for rank, summary in sorted(job.ranks.items())
    )


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
    return pd.DataFrame([_record(job, *call) for call in _exchange_calls(job)])


def _exchange_calls(job: JobContext) -> Iterator[tuple[Ints, int, float, float, float | None]]:
    """(kernels, the first of them that moves tokens, busy us, us waited, us of transfer) of each exchange by start. Of
    the kernels that move tokens; None unless all of them met all their ranks' counterparts.
    """
    calls, found = job.calls, job.found
    is_exchange = np.array([m.is_exchange for m in calls.messages] or [False], bool)
    rows = np.flatnonzero((calls.op >= 0) | is_exchange[calls.message]) if len(calls.start) else np.zeros(0, np.int64)
    if not len(rows):
        return
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
    is_met, at = (moved > 0) & (met == moved), np.append(np.flatnonzero(fresh), len(rows))
    busy_us = union_by_group(group, start, end, n) / NS_PER_US
    waited_us = np.bincount(group, weights=job.waited[rows], minlength=n) / NS_PER_US
    transfer_us = union_by_group(group[use], after[use], end[use], n) / NS_PER_US
    for i in np.argsort(calls.start[rows[at[:-1]]], kind="stable").tolist():
        own = rows[at[i] : at[i + 1]]
        lead = int(own[moves[at[i] : at[i + 1]].argmax()])
        yield own, lead, busy_us[i], waited_us[i], transfer_us[i] if is_met[i] else None


def _record(
    job: JobContext, kernels: Ints, lead: int, busy_us: float, waited_us: float, transfer_us: float | None
) -> dict[str, Any]:
    calls, row = job.calls, int(kernels[0])
    rank = calls.ranks[int(calls.rank[row])]
    message, at = calls.messages[int(calls.message[lead])], int(calls.instance[lead])
    channel = calls.channels[int(calls.channel_of[at])] if at >= 0 else None
    members = channel.ranks if channel is not None else ()
    summary, code = job.ranks[rank], int(calls.op[row])
    op = summary.ops[int(summary.op_kind[code])] if code >= 0 else None
    sent, remote = _sent(op, rank, members)
    return {
        "name": op.name if op is not None else f"{message.word} kernel without an op",
        "group_name": channel.label if channel is not None else message.group,
        "group_size": len(members) or None,
        "rank": rank,
        "step": int(calls.step[row]),
        **sent,
        "kernels": len(kernels),
        "kernel_us": busy_us,
        "wait_us": waited_us,
        "transfer_us": transfer_us,
        "effective_interconnect_tb_s": rate_tb_s(remote, busy_us),
        "true_interconnect_tb_s": None if transfer_us is None else rate_tb_s(remote, transfer_us),
        "last_rank": calls.ranks[int(job.found.last[at])] if at >= 0 and transfer_us is not None else None,
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
        "wire_mb": None if exchanged is None else exchanged / BYTES_PER_MB,
        "expected_remote_mb": None if remote is None else remote / BYTES_PER_MB,
        "remote_from": share.source if share is not None else "",
    }, remote


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


@built_in("groups")
def groups_frame(job: JobContext) -> pd.DataFrame:
    """Process groups (or pairs of ranks, or streams): matched and unmatched calls."""
    calls = job.calls
    present = np.bincount(calls.instance[calls.instance >= 0], minlength=calls.instances)
    channels = sorted(enumerate(calls.channels), key=lambda numbered: numbered[1].label)
    records = [
        {
            "group_name": channel.label,
            "group_ranks": ranks_text(channel.ranks) if channel.ranks else None,
            "group_size": channel.size,
            "matched": int((mine & (present > 1)).sum()),
            "unmatched": int((mine & (present == 1)).sum()),
        }
        for channel, mine in ((channel, calls.channel_of == at) for at, channel in channels)
    ]
    return pd.DataFrame(records)


@built_in(NCCL_LONG_TITLE)
def nccl_long_frame(job: JobContext) -> pd.DataFrame:
    """Communication calls by rank."""
    calls, waited = job.calls, job.waited
    n = len(calls.start)
    first = int(calls.start.min()) if n else 0
    matched = np.zeros(n, bool)
    matched[matched_rows(calls)] = True

    def column(key: str) -> npt.NDArray[np.object_]:
        """A field of the message behind each call."""
        values = np.empty(len(calls.messages), object)
        values[:] = [getattr(message, key) for message in calls.messages]
        return values[calls.message]

    labels = np.array([channel.label for channel in calls.channels] or [""], object)
    exchange = column("is_exchange").astype(bool) & (calls.instance >= 0)
    group = column("group")
    group[exchange] = labels[calls.channel_of[calls.instance[exchange]]]
    fields = {"collective": "name", "group_size": "size", "dtype": "dtype"}
    fields |= {"in_nelems": "elements_in", "out_nelems": "elements_out"}
    return pd.DataFrame(
        {
            "rank": np.array(calls.ranks, np.int64)[calls.rank] if n else np.zeros(0, np.int64),
            "collective_id": _known(calls.instance),
            "group_name": group,
            **{key: column(field) for key, field in fields.items()},
            "in_split": [None if s is None else str(list(s)) for s in column("in_split")],
            "out_split": [None if s is None else str(list(s)) for s in column("out_split")],
            "stream": column("stream"),
            "step": _known(calls.step),
            "start_us": (calls.start - first) / NS_PER_US,
            "duration_us": (calls.end - calls.start) / NS_PER_US,
            "wait_us": np.where(matched, waited / NS_PER_US, np.nan),
            "transfer_us": np.where(matched, (calls.end - calls.start - waited) / NS_PER_US, np.nan),
            "exposed_us": calls.exposed / NS_PER_US,
            "in_mb": [None if b is None else b / BYTES_PER_MB for b in column("in_bytes")],
            "out_mb": [None if b is None else b / BYTES_PER_MB for b in column("out_bytes")],
        }
    )


def _known(numbers: Ints) -> npt.NDArray[np.object_]:
    """Numbers with None for those below 0."""
    result = numbers.astype(object)
    result[numbers < 0] = None
    return result


@built_in(NCCL_SUMMARY_LONG_TITLE)
def nccl_summary_long_frame(job: JobContext) -> pd.DataFrame:
    """Communication calls of all ranks by distinct call."""
    long = job.frames[NCCL_LONG_TITLE]
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
    return _by_time(result.drop(columns="out_mb"), "duration_us_sum", "collective", "group_name")


def _by_time(rows: pd.DataFrame, time: str, *texts: str) -> pd.DataFrame:
    """Rows by ``time``, the longest first, then by ``texts``."""
    return rows.sort_values(
        [time, *texts],
        ascending=[False, *[True] * len(texts)],
        kind="stable",
        ignore_index=True,
        key=lambda column: column if column.name == time else column.astype(str),
    )


@built_in(RANK_COLLECTIVES_TITLE)
def rank_collectives_frame(job: JobContext) -> pd.DataFrame:
    """Matched collectives.

    Sizes, latency, skew, bandwidth. EP kernels have sheets of their own.
    """
    calls, found, waited = job.calls, job.found, job.waited
    rows = np.flatnonzero(calls.instance >= 0)
    by_instance = rows[np.argsort(calls.instance[rows], kind="stable")]
    at = np.searchsorted(calls.instance[by_instance], np.arange(calls.instances + 1))
    wait_sum = np.bincount(calls.instance[rows], weights=waited[rows], minlength=calls.instances)
    known: dict[tuple[int, ...], tuple[float | None, float | None]] = {}
    records = []
    for i in range(calls.instances):
        channel = calls.channels[int(calls.channel_of[i])]
        if channel.is_exchange or found.present[i] < 2:
            continue
        codes = tuple(sorted(set(calls.message[by_instance[at[i] : at[i + 1]]].tolist())))
        message = calls.messages[int(calls.message[found.example[i]])]
        size = channel.size or message.size
        if codes not in known:
            full = _full_bytes([calls.messages[code] for code in codes], message.word)
            known[codes] = (full, bus_factor(message.word, size))
        full, factor = known[codes]
        shortest_us = found.shortest[i] / NS_PER_US
        is_sized = channel.has_group or channel.is_point_to_point or message.size is not None
        algo = _rate_gb_s(full, shortest_us) if is_sized else None
        records.append(
            {
                "collective_id": i,
                "group_name": channel.label,
                "group_size": size,
                "collective": SEND_RECV if channel.is_point_to_point else message.name,
                "dtype": message.dtype,
                "step": int(calls.step[found.example[i]]),
                "full_mb": None if full is None else full / BYTES_PER_MB,
                "ranks_present": int(found.present[i]),
                "comm_latency_us": shortest_us,
                "wait_per_rank_us": wait_sum[i] / found.present[i] / NS_PER_US,
                "start_skew_us": (found.latest_start[i] - found.earliest_start[i]) / NS_PER_US,
                "end_skew_us": (found.latest_end[i] - found.earliest_end[i]) / NS_PER_US,
                "algo_gb_s": algo,
                "bus_gb_s": None if algo is None or factor is None else algo * factor,
                "last_rank": calls.ranks[int(found.last[i])],
                "first_rank": calls.ranks[int(found.first[i])],
            }
        )
    result = pd.DataFrame(records)
    if not result.empty:
        result["step"] = result["step"].astype(object).where(result["step"] >= 0, None)
    return result


def _rate_gb_s(nbytes: float | None, time_us: float) -> float | None:
    return None if nbytes is None or time_us <= 0 else nbytes / time_us / GB_PER_S_IN_BYTES_PER_US


def _full_bytes(messages: list[CommunicationCall], word: str) -> float | None:
    """Bytes of the whole message, as bandwidths are counted: what nccl-tests calls the size.

    The output of an all-gather and a gather's at its root, the input of what is scattered, the mean input of an
    all-to-all-v's ranks, else the input. None where a size or an element type was not recorded.
    """
    sizes_in = [m.in_bytes for m in messages if m.in_bytes is not None]
    sizes_out = [m.out_bytes for m in messages if m.out_bytes is not None]
    if word == "all_to_allv":
        return sum(sizes_in) / len(sizes_in) if len(sizes_in) == len(messages) else None
    if word in ("all_gather", "gather"):
        return max(sizes_out, default=None)
    if word == "recv":
        return max(sizes_out or sizes_in, default=None)
    return max(sizes_in, default=None)


_SPREAD = ("comm_latency_us", "algo_gb_s", "bus_gb_s", "start_skew_us", "wait_per_rank_us")
#: Shares of waiting in a collective's time below and above which one word says it all.
_MOSTLY_TRANSFER, _MOSTLY_WAITING = 0.3, 0.7
TRANSFER, SKEWED, MIXED, INCONCLUSIVE = "transfer-dominated", "arrival-skew-dominated", "mixed", "inconclusive"
SEND_RECV = "send/recv"


@built_in(NCCL_SUMMARY_IMPLICIT_SYNC_TITLE)
def nccl_summary_implicit_sync_frame(job: JobContext) -> pd.DataFrame:
    """Matched collectives by collective, group, type and size."""
    collectives = job.frames[RANK_COLLECTIVES_TITLE]
    if collectives.empty:
        return collectives
    keys = ["group_name", "group_size", "collective", "dtype", "full_mb"]
    rows = []
    for key, part in collectives.groupby(keys, dropna=False, sort=False):
        row: dict[str, object] = dict(zip(keys, key if isinstance(key, tuple) else (key,), strict=True))
        for figure in _SPREAD:
            values = part[figure].astype(float)
            row |= {f"{figure}_{name}": getattr(values, name)() for name in ("mean", "median", "min", "max")}
        wait, transfer = float(part["wait_per_rank_us"].sum()), float(part["comm_latency_us"].sum())
        row["waiting_percent"] = 100 * wait / (wait + transfer) if wait + transfer > 0 else 0.0
        row["wait_per_rank_us_sum"] = wait
        row["verdict"] = wait_verdict(wait, transfer, float(part["start_skew_us"].median()), job.clocks.residual_us)
        # The last rank may be one that was not recorded: then what seems to be transfer is waiting for it
        size = part["group_size"].astype(float)
        lacks_ranks = row["collective"] != SEND_RECV and bool((part["ranks_present"] < size).any())
        if lacks_ranks and row["verdict"] != SKEWED:
            row["verdict"] = INCONCLUSIVE
        row["operation_count"] = len(part)
        rows.append(row)
    return _by_time(pd.DataFrame(rows), "wait_per_rank_us_sum", "group_name", "collective", "dtype")


def wait_verdict(wait: float, transfer: float, skew_us: float, residual_us: float | None) -> str:
    """What a collective's time is made of; inconclusive when clocks are less certain than the skew is large."""
    if residual_us is None or (residual_us > 0 and residual_us >= skew_us):
        return INCONCLUSIVE
    share = wait / (wait + transfer) if wait + transfer > 0 else 0.0
    return TRANSFER if share < _MOSTLY_TRANSFER else SKEWED if share > _MOSTLY_WAITING else MIXED


@built_in(NCCL_ALL2ALLV_TITLE)
def nccl_all2allv_frame(job: JobContext) -> pd.DataFrame:
    """Matched all-to-alls."""
    calls, found = job.calls, job.found
    words = np.array([m.word in ALL_TO_ALL for m in calls.messages] or [False], bool)
    rows = matched_rows(calls)
    rows = rows[words[calls.message[rows]]]
    if not len(rows):
        return pd.DataFrame()
    records = []
    order = rows[np.argsort(calls.instance[rows], kind="stable")]
    for part in np.split(order, np.flatnonzero(np.diff(calls.instance[order])) + 1):
        i = int(calls.instance[part[0]])
        message = calls.messages[int(calls.message[part[0]])]
        sent = [calls.messages[code].in_bytes for code in calls.message[part].tolist()]
        took_us = ((calls.end - calls.start)[part] / NS_PER_US).tolist()
        wall = (found.latest_end[i] - found.earliest_start[i]) / NS_PER_US
        records.append(
            {
                "collective_id": i,
                "group_name": calls.channels[int(calls.channel_of[i])].label,
                "group_size": message.size,
                "collective": message.name,
                "dtype": message.dtype,
                "ranks_present": len(part),
                "wall_us": wall,
                "comm_latency_us": found.shortest[i] / NS_PER_US,
                "start_skew_us": (found.latest_start[i] - found.earliest_start[i]) / NS_PER_US,
                **_volumes(sent, took_us, wall),
                "last_rank": calls.ranks[int(found.last[i])],
            }
        )
    return pd.DataFrame(records)


def _volumes(sent: list[float | None], took_us: list[float], wall_us: float) -> dict[str, float | None]:
    """What all ranks together sent, how fast and how evenly; None where the bytes of a rank were not recorded."""
    known = [nbytes for nbytes in sent if nbytes is not None]
    if len(known) < len(sent):
        return dict.fromkeys(("total_sent_mb", "throughput_gb_s", "rank_gb_s_max", "rank_gb_s_min", "size_imbalance"))
    per_us = [nbytes / us for nbytes, us in zip(known, took_us, strict=True) if us > 0]
    total = sum(known)
    return {
        "total_sent_mb": total / BYTES_PER_MB,
        "throughput_gb_s": total / wall_us / GB_PER_S_IN_BYTES_PER_US if wall_us > 0 else None,
        "rank_gb_s_max": max(per_us) / GB_PER_S_IN_BYTES_PER_US if per_us else None,
        "rank_gb_s_min": min(per_us) / GB_PER_S_IN_BYTES_PER_US if per_us else None,
        "size_imbalance": max(known) / (total / len(known)) if total else None,
    }


@built_in("nccl_summary_all2allv")
def nccl_summary_all2allv_frame(job: JobContext) -> pd.DataFrame:
    """All-to-alls by group."""
    all_to_alls = job.frames[NCCL_ALL2ALLV_TITLE]
    if all_to_alls.empty:
        return all_to_alls
    keys = ["group_name", "group_size", "collective", "dtype"]
    numbers = ["total_sent_mb", "wall_us", "throughput_gb_s", "size_imbalance", "start_skew_us"]
    grouped = all_to_alls.astype(dict.fromkeys(numbers, float)).groupby(keys, dropna=False, sort=True)
    result = grouped[numbers].mean()
    result.columns = [f"{name}_mean" for name in numbers]
    result["size_imbalance_max"] = grouped["size_imbalance"].max()
    result["operation_count"] = grouped.size()
    return result.reset_index()


@built_in("nccl_all2allv_heatmap")
def nccl_all2allv_heatmap_frame(job: JobContext) -> pd.DataFrame:
    """Bytes between pairs of ranks in all-to-alls.

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


@built_in("overlap")
def overlap_frame(job: JobContext) -> pd.DataFrame:
    """Communication by collective and group: exposed time, and the computation that hides the rest.

    Durations are summed over calls, so calls that ran side by side count twice. Categories of computation that ran side
    by side each count, so their shares may exceed the hidden one.
    """
    calls = job.calls
    totals: dict[tuple[str, str], dict[str, float]] = {}
    beside: dict[tuple[str, str], dict[str, float]] = {}
    label = _labels(calls)
    offset = 0
    for position, rank in enumerate(calls.ranks):
        summary = job.ranks[rank]
        mine = slice(*np.searchsorted(calls.rank, (position, position + 1)).tolist())
        local = calls.message[mine] - offset
        n = len(summary.messages)
        duration = np.bincount(local, weights=(calls.end - calls.start)[mine], minlength=n)
        exposed = np.bincount(local, weights=calls.exposed[mine], minlength=n)
        count = np.bincount(local, minlength=n)
        for code, message in enumerate(summary.messages):
            key = (label[offset + code], message.word if message.is_exchange else message.name)
            row = totals.setdefault(key, {"duration": 0.0, "exposed": 0.0, "count": 0.0})
            row["duration"] += duration[code]
            row["exposed"] += exposed[code]
            row["count"] += count[code]
            for category, hidden in zip(summary.categories, summary.hidden[code].tolist(), strict=True):
                if hidden:
                    parts = beside.setdefault(key, {})
                    parts[category] = parts.get(category, 0.0) + hidden
        offset += n
    records = []
    for key, row in totals.items():
        hiding = sorted(beside.get(key, {}).items(), key=lambda part: (-part[1], part[0]))
        records.append(
            {
                "group_name": key[0],
                "collective": key[1],
                "operation_count": int(row["count"]),
                "duration_us_sum": row["duration"] / NS_PER_US,
                "exposed_us_sum": row["exposed"] / NS_PER_US,
                "exposed_percent": 100 * row["exposed"] / row["duration"] if row["duration"] else 0.0,
                "hidden_us_sum": (row["duration"] - row["exposed"]) / NS_PER_US,
                "hidden_by": ", ".join(f"{name} {100 * ns / row['duration']:.1f} %" for name, ns in hiding[:5]) or None,
            }
        )
    rows = pd.DataFrame(records)
    if rows.empty:
        return rows
    return _by_time(rows, "exposed_us_sum", "group_name", "collective")


def _labels(calls: JobCalls) -> list[str]:
    """The channel of each message, as tables name it; the recorded group where nothing of it was matched."""
    label = [m.group or "no group recorded" for m in calls.messages]
    rows = np.flatnonzero(calls.instance >= 0)
    codes, first = np.unique(calls.message[rows], return_index=True)
    for code, row in zip(codes.tolist(), rows[first].tolist(), strict=True):
        channel = calls.channels[int(calls.channel_of[calls.instance[row]])]
        if not channel.is_point_to_point:
            label[code] = channel.label
    return label


SHEETS = sheet_rows(
    {
        EP_SUMMARY_TITLE: lambda job: exchange_summary(job.frames[RANK_EXCHANGES_TITLE], by_rank=False),
        "ep_by_rank": lambda job: exchange_summary(job.frames[RANK_EXCHANGES_TITLE], by_rank=True),
    }
)


class RanksAnalysis(Record, frozen=True, kw_only=True, eq=False):
    """Frames by title and their sources; ``calls`` on the first host's clock, ``devices`` as a log says by rank."""

    name: str
    ranks: Mapping[int, RankSummary]
    world_size: int | None
    calls: JobCalls
    clocks: Clocks
    frames: dict[str, pd.DataFrame]
    notices: tuple[Notice, ...]
    devices: Mapping[int, DeviceUse]

    @property
    def typical_skew_us(self) -> float:
        """Median over the matched calls of latest less earliest start: the effect that clocks must be better than."""
        found = matching.instances(self.calls)
        skew = (found.latest_start - found.earliest_start)[found.present > 1]
        return float(np.median(skew)) / NS_PER_US if len(skew) else 0.0


def compare_ranks(
    paths: Sequence[Path],
    options: RankOptions | None = None,
    *,
    executor: Executor | None = None,
    progress: RankProgress | None = None,
    name: str = "",
) -> RanksAnalysis:
    """The comparison of the traces at ``paths``, one per rank, each read by a worker of ``executor``.

    None: processes, one per core. A file that cannot be read, or whose worker dies, costs that rank and is named in
    ``notices``. InputError when none can be read; NothingToAnalyzeError when no trace holds communication.
    """
    options = options or RankOptions()
    if executor is None:
        with open_executor(PROCESSES) as own:
            return compare_ranks(paths, options, executor=own, progress=progress, name=name)
    return analyze_ranks(read_ranks(paths, options, executor=executor, progress=progress), options, name=name)


def analyze_ranks(read: ReadRanks, options: RankOptions, *, name: str = "") -> RanksAnalysis:
    """The comparison of summaries. NothingToAnalyzeError when none of them holds communication."""
    ranks = read.numbered.ranks
    are_logs = any(summary.log is not None for summary in ranks.values())
    if not are_logs and not any(len(summary.start) for summary in ranks.values()):
        raise NothingToAnalyzeError(
            f"no NCCL, RCCL, gloo, DeepEP or custom collective in {len(ranks)} "
            f"{'trace' if len(ranks) == 1 else 'traces'}: for a program without communication use 'tracelens report'"
        )
    calls = match_calls(ranks, ep_size=options.ep_size)
    if are_logs:
        from tracelens.analysis.ranks.job_logs import ended_together

        calls, clocks = ended_together(calls, ranks)
    else:
        calls, clocks = align_clocks(calls, ranks, options.ranks_per_node)
    devices, said = _used_devices(ranks, options.device_logs)
    job = JobContext(ranks=ranks, calls=calls, clocks=clocks, devices=devices)
    return RanksAnalysis(
        name=name,
        ranks=ranks,
        world_size=read.numbered.world_size,
        calls=calls,
        clocks=clocks,
        devices=devices,
        frames=_of_logs(job.frames) if are_logs else dict(job.frames),
        notices=(*_notices(read, calls, clocks, job.found), *said),
    )


def _used_devices(ranks: Mapping[int, RankSummary], paths: Sequence[Path]) -> tuple[dict[int, DeviceUse], list[Notice]]:
    """By rank what logs say of its device, and why not: with several hosts a log's file name must hold the host's."""
    logs: dict[Path, dict[int, PowerLog]] = {}
    wrong: dict[str, list[int]] = {}
    for path in paths:
        try:
            logs[path] = read_device_logs(path)
        except InputError as error:
            wrong[str(error)] = []
    own: dict[tuple[Path, int], list[int]] = {}
    for rank, summary in ranks.items():
        if (key := _device_of(summary, logs)) is not None:
            own.setdefault(key, []).append(rank)
        elif logs:
            wrong.setdefault("the logs of devices do not say which device is that of", []).append(rank)
    found = {}
    for (path, device), those in own.items():
        if len(those) > 1:
            wrong.setdefault(f"device {device} of {path.name} would be that of several:", []).extend(those)
            continue
        start, end = int(ranks[those[0]].start.min()), int(ranks[those[0]].end.max())
        try:
            found[those[0]] = _use_of(logs[path][device].during(start, end), start, end)
        except InputError as error:
            wrong.setdefault(str(error), [])
    texts = [f"{text} rank{'s' * (len(those) > 1)} {ranks_text(those)}" if those else text
             for text, those in wrong.items()]  # fmt: skip
    return found, [Notice(id="device_log", count=max(len(those), 1), text=text)
                   for text, those in zip(texts, wrong.values(), strict=True)]  # fmt: skip


def _device_of(summary: RankSummary, logs: Mapping[Path, Mapping[int, PowerLog]]) -> tuple[Path, int] | None:
    named = [path for path in logs if summary.host and summary.host in path.name] or list(logs)
    if len(named) == 1 and len(summary.start) and summary.device is not None and summary.device in logs[named[0]]:
        return named[0], summary.device
    return None


def _use_of(log: PowerLog, start: int, end: int) -> DeviceUse:
    within = (log.time_ns >= start) & (log.time_ns <= end)
    watts, clocks = log.power_w[within], log.clocks(start, end)
    watts = watts[~np.isnan(watts)]
    return DeviceUse(power_w=float(watts.mean()) if len(watts) else None,
                     clock_mhz=float(clocks.mean()) if len(clocks) else None)  # fmt: skip


#: Sheets that logs of collectives alone answer, and their columns that they do not.
_OF_CALLS: Mapping[str, tuple[str, ...]] = {
    "ranks": ("host", "total_us", "computation_us", "exposed_comm_us", "total_comm_us", "idle_us"),
    "unended": (), "straggler_summary": (), "groups": (), "nccl_summary_implicit_sync": (), "nccl_summary_long": (),
    "nccl_implicit_sync": ("end_skew_us",), "nccl_long": ("start_us", "exposed_us"), "nccl_all2allv": (),
    "nccl_summary_all2allv": (), "nccl_all2allv_heatmap": (),
}  # fmt: skip


def _of_logs(frames: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Of logs of collectives alone: nothing of computation, steps and idle time, nor when a call began."""
    found = {title: frame if title in _OF_CALLS else frame.iloc[:0] for title, frame in frames.items()}
    for title, unknown in _OF_CALLS.items():
        if not found[title].empty:
            found[title] = found[title].assign(**dict.fromkeys(unknown))
    return found


def _notices(read: ReadRanks, calls: JobCalls, clocks: Clocks, found: matching.Instances) -> Iterator[Notice]:
    numbered = read.numbered
    for identifier, files in (("rank_lost", read.failed), ("duplicate_rank", numbered.left_out)):
        if files:
            text = "; ".join(f"{file}: {why}" for file, why in files[:5])
            more = f" and {len(files) - 5} more" if len(files) > 5 else ""
            yield Notice(id=identifier, count=len(files), text=f"left out: {text}{more}")
    if numbered.missing:
        text = f"ranks without a trace: {ranks_text(numbered.missing)} of {numbered.world_size}"
        yield Notice(id="missing_rank", count=len(numbered.missing), text=text)
    if numbered.how.startswith("parallel"):
        yield Notice(id="rank_numbering", count=len(numbered.ranks), text=f"ranks come from {numbered.how}")
    unplaced = [clock for clock in clocks.hosts[1:] if not clock.via]
    if unplaced:
        text = (
            f"no shared collective aligns the clock of {', '.join(c.host for c in unplaced[:5])}; times are as recorded"
        )
        yield Notice(id="clock_unplaced", count=len(unplaced), text=text)
    yield from _other_steps(numbered.ranks)
    if len(calls.ranks) > 1:
        yield from _unmatched(calls, found)
    yield from _ungrouped(calls)
    if any(summary.log is not None for summary in numbered.ranks.values()):
        from tracelens.analysis.ranks.job_logs import said_of_logs

        yield from (Notice(id="job_log", count=1, text=text) for text in said_of_logs(numbered.ranks))


def _other_steps(ranks: Mapping[int, RankSummary]) -> Iterator[Notice]:
    """Ranks that recorded none of the steps that most of them did."""
    steps = {rank: frozenset(summary.step_number[summary.step_number >= 0].tolist()) for rank, summary in ranks.items()}
    usual = Counter(own for own in steps.values() if own).most_common(1)
    other = [rank for rank, own in steps.items() if own and own.isdisjoint(usual[0][0])] if usual else []
    if other:
        own = ranks_text(sorted(frozenset().union(*(steps[rank] for rank in other))))
        text = (
            f"rank{'s' if len(other) > 1 else ''} {ranks_text(other)} recorded steps {own}, the others "
            f"{ranks_text(sorted(usual[0][0]))}: who waits for whom is known only in shared steps"
        )
        yield Notice(id="other_steps", count=len(other), text=text)


def _unmatched(calls: JobCalls, found: matching.Instances) -> Iterator[Notice]:
    """Calls whose counterparts on other ranks, some or all, are not in the traces."""
    without = (calls.instance < 0) | (found.present[calls.instance] == 1 if len(found.present) else False)
    alone = int(without.sum())
    if alone:
        by_rank = np.bincount(calls.rank[without], minlength=len(calls.ranks))
        most = int(by_rank.argmax())
        count = "all" if by_rank[most] == alone else f"{by_rank[most]:,}"
        of_one = f", {count} of rank {calls.ranks[most]}" if 2 * by_rank[most] > alone else ""
        text = f"{alone:,} of {len(calls.start):,} communication calls have no counterpart on another rank{of_one}"
        yield Notice(id="unmatched_calls", count=alone, text=text)
    sizes = [calls.channels[channel].size or 0 for channel in calls.channel_of.tolist()]
    partial = int(((found.present > 1) & (found.present < sizes)).sum()) if sizes else 0
    if partial:
        text = (
            f"{partial:,} collectives lack ranks of their group, so waits and bandwidths cover only the recorded ranks"
        )
        yield Notice(id="partial_collective", count=partial, text=text)


def _ungrouped(calls: JobCalls) -> Iterator[Notice]:
    """Calls without a process group, those that borrow one, and those of them that show no bandwidth."""
    of_stream, blank = _counted(calls, lambda message: message.is_group_of_stream)
    if of_stream:
        text = f"{_of(of_stream, calls, 'lack their process group')}: that of the other calls of their stream is used"
        text += f"; {_without_bandwidth(blank, of_stream, calls)}" if blank else ""
        yield Notice(id="group_of_stream", count=of_stream, text=text)
    ungrouped, unsized = _counted(calls, lambda message: message.group is None and not message.is_exchange)
    if ungrouped:
        is_every = all(message.group is None and not message.is_exchange for message in calls.messages)
        which = "no process groups were recorded" if is_every else _of(ungrouped, calls, "have no process group")
        said = [_without_bandwidth(unsized, ungrouped, calls)] if unsized else []
        if unsized < ungrouped:
            said.append("bandwidth assumes that the group is the whole job")
        if len(calls.ranks) > 1:
            said.insert(0, "calls that end together are paired")
        text = f"{which}: {'; '.join(said)}"
        yield Notice(id="group_unknown", count=ungrouped, text=text)


def _counted(calls: JobCalls, are: Callable[[CommunicationCall], bool]) -> tuple[int, int]:
    """(calls that are such, those of them whose group's size or bytes are not known)."""
    such = np.array([are(m) for m in calls.messages] or [False], bool)
    blank = np.array([m.size is None or m.in_bytes is None for m in calls.messages] or [False], bool)
    return int(such[calls.message].sum()), int((such & blank)[calls.message].sum())


def _without_bandwidth(unsized: int, ungrouped: int, calls: JobCalls) -> str:
    if unsized < ungrouped:
        return _of(unsized, calls, "have no bandwidth")
    rest = len(calls.start) - ungrouped
    return f"bandwidths cover only the other {rest:,}" if rest else "bandwidth is unknown"


def _of(count: int, calls: JobCalls, what: str) -> str:
    return f"{count:,} of {len(calls.start):,} communication calls {what}"
