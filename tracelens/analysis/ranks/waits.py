"""Waiting and transfer of every matched call, bandwidths, verdicts, and who keeps the others waiting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracelens.analysis.intervals import Ints
from tracelens.analysis.ranks.clocks import Clocks
from tracelens.analysis.ranks.matching import JobCalls
from tracelens.analysis.ranks.rank_files import ranks_text
from tracelens.analysis.ranks.rank_summary import ALL_TO_ALL, Message
from tracelens.perf_models.communication.collective import bus_factor
from tracelens.units import BYTES_PER_MB, GB_PER_S_IN_BYTES_PER_US, NS_PER_US

#: Shares of waiting in a collective's time below and above which one word says it all.
_MOSTLY_TRANSFER, _MOSTLY_WAITING = 0.3, 0.7
TRANSFER, SKEW, MIXED, INCONCLUSIVE = "transfer-dominated", "arrival-skew-dominated", "mixed", "inconclusive"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Instances:
    """Columns over the matched collectives, in ns: of the calls that were found, ``present`` of them.

    ``latest_start`` ends the waiting. ``shortest``: the least duration over ranks, which is that of the rank that did
    not wait; it needs no clock. ``last`` and ``first``: positions of the ranks that arrived so, ``second_start``: when
    the last but one did. ``example``: a row of the calls, of the lowest rank.
    """

    earliest_start: Ints
    second_start: Ints
    latest_start: Ints
    earliest_end: Ints
    latest_end: Ints
    shortest: Ints
    present: Ints
    first: Ints
    last: Ints
    example: Ints

    def __len__(self) -> int:
        return len(self.present)


def matched_rows(calls: JobCalls) -> Ints:
    """Rows of calls with a counterpart on another rank."""
    placed = np.flatnonzero(calls.instance >= 0)
    present = np.bincount(calls.instance[placed], minlength=calls.instances)
    return placed[present[calls.instance[placed]] > 1]


def instances(calls: JobCalls) -> Instances:
    """Every instance; those of one call are there too (``present`` 1)."""
    rows = np.flatnonzero(calls.instance >= 0)
    order = rows[np.lexsort((calls.rank[rows], calls.start[rows], calls.instance[rows]))]
    at = np.searchsorted(calls.instance[order], np.arange(calls.instances))
    present = np.bincount(calls.instance[order], minlength=calls.instances)
    last = at + present - 1
    n = calls.instances
    earliest_end = np.full(n, np.iinfo(np.int64).max)
    latest_end = np.full(n, np.iinfo(np.int64).min)
    shortest = np.full(n, np.iinfo(np.int64).max)
    example = np.full(n, np.iinfo(np.int64).max)
    of = calls.instance[order]
    np.minimum.at(earliest_end, of, calls.end[order])
    np.maximum.at(latest_end, of, calls.end[order])
    np.minimum.at(shortest, of, (calls.end - calls.start)[order])
    np.minimum.at(example, of, order)
    return Instances(
        earliest_start=calls.start[order[at]],
        second_start=calls.start[order[np.maximum(last - 1, at)]],
        latest_start=calls.start[order[last]],
        earliest_end=earliest_end,
        latest_end=latest_end,
        shortest=shortest,
        present=present,
        first=calls.rank[order[at]],
        last=calls.rank[order[last]],
        example=example,
    )


def waiting_ns(calls: JobCalls, found: Instances) -> Ints:
    """How long each call waited for the last rank to start; at most its duration, 0 without a counterpart."""
    latest = found.latest_start[np.maximum(calls.instance, 0)] if len(found) else calls.start
    waited = np.clip(latest - calls.start, 0, calls.end - calls.start)
    result: Ints = np.where(calls.instance >= 0, waited, 0)
    return result


def full_bytes(messages: list[Message], word: str) -> float | None:
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


def instance_frame(calls: JobCalls, found: Instances) -> pd.DataFrame:
    """One row per matched collective: sizes, latency, skew, bandwidth. EP kernels have tables of their own."""
    rows = np.flatnonzero(calls.instance >= 0)
    by_instance = rows[np.argsort(calls.instance[rows], kind="stable")]
    at = np.searchsorted(calls.instance[by_instance], np.arange(calls.instances + 1))
    waited = waiting_ns(calls, found)
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
            full = full_bytes([calls.messages[code] for code in codes], message.word)
            known[codes] = (full, bus_factor(message.word, size))
        full, factor = known[codes]
        shortest_us = found.shortest[i] / NS_PER_US
        algo = full / shortest_us / GB_PER_S_IN_BYTES_PER_US if full is not None and shortest_us > 0 else None
        if not channel.has_group and not channel.is_point_to_point and message.size is None:
            algo = None
        records.append(
            {
                "collective_id": i,
                "group_name": channel.label,
                "group_size": size,
                "collective": "send/recv" if channel.is_point_to_point else message.name,
                "dtype": message.dtype,
                "step": int(calls.step[found.example[i]]),
                "full_mb": None if full is None else full / BYTES_PER_MB,
                "ranks_present": int(found.present[i]),
                "latency_us": shortest_us,
                "wait_us_mean": wait_sum[i] / found.present[i] / NS_PER_US,
                "start_skew_us": (found.latest_start[i] - found.earliest_start[i]) / NS_PER_US,
                "end_skew_us": (found.latest_end[i] - found.earliest_end[i]) / NS_PER_US,
                "algo_gb_s": algo,
                "bus_gb_s": None if algo is None or factor is None else algo * factor,
                "last_rank": calls.ranks[int(found.last[i])],
                "first_rank": calls.ranks[int(found.first[i])],
            }
        )
    frame = pd.DataFrame(records)
    if not frame.empty:
        frame["step"] = frame["step"].astype(object).where(frame["step"] >= 0, None)
    return frame


def verdict(wait: float, transfer: float, skew_us: float, residual_us: float | None) -> str:
    """What a collective's time is made of; inconclusive when clocks are less certain than the skew is large."""
    if residual_us is None or (residual_us > 0 and residual_us >= skew_us):
        return INCONCLUSIVE
    share = wait / (wait + transfer) if wait + transfer > 0 else 0.0
    return TRANSFER if share < _MOSTLY_TRANSFER else SKEW if share > _MOSTLY_WAITING else MIXED


def summary_frame(frame: pd.DataFrame, clocks: Clocks) -> pd.DataFrame:
    """Matched collectives by group, collective, type and size; ``verdict`` in one of four words."""
    if frame.empty:
        return frame
    keys = ["group_name", "group_size", "collective", "dtype", "full_mb"]
    rows = []
    for key, part in frame.groupby(keys, dropna=False, sort=False):
        row: dict[str, object] = dict(zip(keys, key if isinstance(key, tuple) else (key,), strict=True))
        for column in ("latency_us", "algo_gb_s", "bus_gb_s", "start_skew_us", "wait_us_mean"):
            values = part[column].astype(float)
            for name in ("mean", "median", "min", "max"):
                row[f"{column}_{name}"] = getattr(values, name)()
        wait, transfer = float(part["wait_us_mean"].sum()), float(part["latency_us"].sum())
        row["waiting_share"] = 100 * wait / (wait + transfer) if wait + transfer > 0 else 0.0
        row["waiting_us_sum"] = wait
        row["verdict"] = verdict(wait, transfer, float(part["start_skew_us"].median()), clocks.residual_us)
        row["operation_count"] = len(part)
        rows.append(row)
    result = pd.DataFrame(rows)
    text = result[["group_name", "collective", "dtype"]].astype(str)
    order = result.assign(_g=text["group_name"], _c=text["collective"], _d=text["dtype"]).sort_values(
        ["waiting_us_sum", "_g", "_c", "_d"], ascending=[False, True, True, True], kind="stable"
    )
    return result.loc[order.index].reset_index(drop=True)


def call_frame(calls: JobCalls, found: Instances) -> pd.DataFrame:
    """One row per communication call of a rank, matched or not; EP kernels included."""
    n = len(calls.start)
    waited = waiting_ns(calls, found)
    first = int(calls.start.min()) if n else 0
    matched = np.zeros(n, bool)
    matched[matched_rows(calls)] = True
    messages = _Messages(calls)
    labels = np.array([channel.label for channel in calls.channels] or [""], object)
    exchange = messages.column("is_exchange").astype(bool) & (calls.instance >= 0)
    group = messages.column("group")
    group[exchange] = labels[calls.channel_of[calls.instance[exchange]]]
    return pd.DataFrame(
        {
            "rank": np.array(calls.ranks, np.int64)[calls.rank] if n else np.zeros(0, np.int64),
            "collective_id": _known(calls.instance),
            "group_name": group,
            **{key: messages.column(key) for key in ("name", "size", "dtype", "elements_in", "elements_out")},
            "in_split": [None if s is None else str(list(s)) for s in messages.column("in_split")],
            "out_split": [None if s is None else str(list(s)) for s in messages.column("out_split")],
            "stream": messages.column("stream"),
            "step": _known(calls.step),
            "start_us": (calls.start - first) / NS_PER_US,
            "duration_us": (calls.end - calls.start) / NS_PER_US,
            "wait_us": np.where(matched, waited / NS_PER_US, np.nan),
            "transfer_us": np.where(matched, (calls.end - calls.start - waited) / NS_PER_US, np.nan),
            "exposed_us": calls.exposed / NS_PER_US,
            "in_mb": [None if b is None else b / BYTES_PER_MB for b in messages.column("in_bytes")],
            "out_mb": [None if b is None else b / BYTES_PER_MB for b in messages.column("out_bytes")],
        }
    ).rename(
        columns={
            "name": "collective", "size": "group_size", "elements_in": "in_nelems",
            "elements_out": "out_nelems",
        }
    )  # fmt: skip


def _known(numbers: Ints) -> npt.NDArray[np.object_]:
    """Numbers with None for those below 0."""
    result = numbers.astype(object)
    result[numbers < 0] = None
    return result


class _Messages:
    """Fields of the messages behind calls, looked up once per distinct message."""

    def __init__(self, calls: JobCalls) -> None:
        self._calls = calls

    def column(self, key: str) -> npt.NDArray[np.object_]:
        values = np.empty(len(self._calls.messages), object)
        values[:] = [getattr(message, key) for message in self._calls.messages]
        return values[self._calls.message]


def long_summary(long: pd.DataFrame) -> pd.DataFrame:
    """Calls by what was called, over all ranks: durations, waiting included."""
    keys = ["collective", "group_name", "group_size", "dtype", "in_nelems", "out_nelems"]
    if long.empty:
        return pd.DataFrame()
    plain = long.assign(**{key: long[key].astype(object).where(long[key].notna(), None) for key in keys})
    grouped = plain.groupby(keys, dropna=False, sort=False)
    result = grouped["duration_us"].agg(["sum", "mean", "median", "std", "min", "max"])
    result.columns = [f"duration_us_{name}" for name in result.columns]
    result["wait_us_sum"] = grouped["wait_us"].sum()
    result["in_mb"] = grouped["in_mb"].first()
    result["operation_count"] = grouped.size()
    result = result.reset_index()
    order = result.assign(_n=result["collective"].astype(str), _g=result["group_name"].astype(str))
    order = order.sort_values(["duration_us_sum", "_n", "_g"], ascending=[False, True, True], kind="stable")
    return result.loc[order.index].reset_index(drop=True)


def straggler_frame(calls: JobCalls, found: Instances) -> pd.DataFrame:
    """Ranks by what their late arrivals cost the others, the costliest first.

    ``cost_us``: summed over the collectives in which the rank was last, how much later than the last but one it came,
    which is what would be saved if it alone were on time. ``caused_wait_us``: all waiting of others in them.
    """
    rows = matched_rows(calls)
    if not len(rows):
        return pd.DataFrame()
    n = len(calls.ranks)
    waited = waiting_ns(calls, found)
    rank = calls.rank[rows]
    complete = np.flatnonzero((found.present > 1) & (found.latest_start > found.earliest_start))
    last, first = found.last[complete], found.first[complete]
    waits_of_instance = np.bincount(calls.instance[rows], weights=waited[rows], minlength=calls.instances)
    count = np.bincount(rank, minlength=n)
    total_wait = np.bincount(rank, weights=waited[rows], minlength=n) / NS_PER_US
    cost = (found.latest_start - found.second_start)[complete]
    arrived_last = np.bincount(last, minlength=n)
    frame = pd.DataFrame(
        {
            "rank": calls.ranks,
            "cost_us": np.bincount(last, weights=cost, minlength=n) / NS_PER_US,
            "caused_wait_us": np.bincount(last, weights=waits_of_instance[complete], minlength=n) / NS_PER_US,
            "times_arrived_last": arrived_last,
            "times_arrived_first": np.bincount(first, minlength=n),
            "percent_arrived_last": 100 * arrived_last / np.maximum(count, 1),
            "total_wait_us": total_wait,
            "mean_wait_us": total_wait / np.maximum(count, 1),
            "num_collectives": count,
            "total_duration_us": np.bincount(rank, weights=(calls.end - calls.start)[rows], minlength=n) / NS_PER_US,
        }
    )
    frame = frame[frame["num_collectives"] > 0]
    order = ["cost_us", "caused_wait_us", "total_wait_us", "rank"]
    return frame.sort_values(order, ascending=[False, False, True, True], kind="stable").reset_index(drop=True)


def all_to_all_frame(calls: JobCalls, found: Instances) -> pd.DataFrame:
    """One row per matched all-to-all(v): wall time, throughput of all ranks together, imbalance of what they send."""
    words = np.array([m.word in ALL_TO_ALL for m in calls.messages] or [False], bool)
    rows = matched_rows(calls)
    rows = rows[words[calls.message[rows]]]
    records = []
    order = rows[np.argsort(calls.instance[rows], kind="stable")]
    for part in np.split(order, np.flatnonzero(np.diff(calls.instance[order])) + 1) if len(order) else ():
        i = int(calls.instance[part[0]])
        message = calls.messages[int(calls.message[part[0]])]
        sent = [calls.messages[code].in_bytes for code in calls.message[part].tolist()]
        known = [nbytes for nbytes in sent if nbytes is not None]
        whole = len(known) == len(sent)
        wall = (found.latest_end[i] - found.earliest_start[i]) / NS_PER_US
        per_us = [n / d for n, d in zip(known, (calls.end - calls.start)[part] / NS_PER_US, strict=False) if d > 0]
        mean = sum(known) / len(known) if known else 0.0
        records.append(
            {
                "collective_id": i,
                "group_name": calls.channels[int(calls.channel_of[i])].label,
                "group_size": message.size,
                "collective": message.name,
                "dtype": message.dtype,
                "ranks_present": len(part),
                "total_mb": sum(known) / BYTES_PER_MB if whole else None,
                "wall_us": wall,
                "latency_us": found.shortest[i] / NS_PER_US,
                "start_skew_us": (found.latest_start[i] - found.earliest_start[i]) / NS_PER_US,
                "throughput_gb_s": sum(known) / wall / GB_PER_S_IN_BYTES_PER_US if whole and wall > 0 else None,
                "rank_gb_s_max": max(per_us) / GB_PER_S_IN_BYTES_PER_US if whole and per_us else None,
                "rank_gb_s_min": min(per_us) / GB_PER_S_IN_BYTES_PER_US if whole and per_us else None,
                "size_imbalance": max(known) / mean if whole and mean else None,
                "last_rank": calls.ranks[int(found.last[i])],
            }
        )
    return pd.DataFrame(records)


def all_to_all_summary(frame: pd.DataFrame) -> pd.DataFrame:
    """All-to-alls by group and name."""
    if frame.empty:
        return frame
    keys = ["group_name", "group_size", "collective", "dtype"]
    numbers = ["total_mb", "wall_us", "throughput_gb_s", "size_imbalance", "start_skew_us"]
    grouped = frame.astype(dict.fromkeys(numbers, float)).groupby(keys, dropna=False, sort=True)
    result = grouped[numbers].mean()
    result.columns = [f"{name}_mean" for name in numbers]
    result["size_imbalance_max"] = grouped["size_imbalance"].max()
    result["operation_count"] = grouped.size()
    return result.reset_index()


def heat_map(calls: JobCalls) -> pd.DataFrame:
    """What each rank sent to each other in all-to-alls, by recorded split sizes; even where none were given.

    Ranks are global, a rank's share for itself is left out: it does not travel.
    """
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
                "src_rank": a, "dst_rank": b, "total_sent_mb": total / BYTES_PER_MB,
                "avg_sent_mb": total / count / BYTES_PER_MB, "count": int(count),
            }
            for (a, b), (total, count) in sorted(sent.items())
        ]
    )  # fmt: skip


def group_rows(calls: JobCalls) -> pd.DataFrame:
    """Which ranks each channel joins, and how much of it was matched."""
    present = np.bincount(calls.instance[calls.instance >= 0], minlength=calls.instances)
    records = []
    for number, channel in enumerate(calls.channels):
        mine = calls.channel_of == number
        records.append(
            {
                "group_name": channel.label,
                "group_ranks": ranks_text(channel.ranks) if channel.ranks else None,
                "group_size": channel.size,
                "matched": int((mine & (present > 1)).sum()),
                "unmatched": int((mine & (present == 1)).sum()),
            }
        )
    return (
        pd.DataFrame(records).sort_values(["group_name"], kind="stable").reset_index(drop=True)
        if records
        else pd.DataFrame()
    )
