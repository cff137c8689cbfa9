"""What communication hides behind, what the slowest rank of a step costs, and how long pipeline stages stand still."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from tracelens.analysis.ranks.matching import JobCalls
from tracelens.analysis.ranks.rank_summary import RankSummary
from tracelens.analysis.ranks.waits import Instances, matched_rows, waiting_ns
from tracelens.units import NS_PER_US


def overlap_frame(calls: JobCalls, ranks: Mapping[int, RankSummary]) -> pd.DataFrame:
    """Communication by group and collective over all ranks: exposed, and beside which computation the rest ran.

    Durations are summed over calls, so calls that ran side by side count twice. Categories of computation that ran side
    by side each count, so their shares may exceed the hidden one.
    """
    totals: dict[tuple[str, str], dict[str, float]] = {}
    beside: dict[tuple[str, str], dict[str, float]] = {}
    label = _labels(calls)
    offset = 0
    for position, rank in enumerate(calls.ranks):
        summary = ranks[rank]
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
                "exposed_us": row["exposed"] / NS_PER_US,
                "exposed_percent": 100 * row["exposed"] / row["duration"] if row["duration"] else 0.0,
                "hidden_us": (row["duration"] - row["exposed"]) / NS_PER_US,
                "hidden_by": ", ".join(f"{name} {100 * ns / row['duration']:.1f} %" for name, ns in hiding[:5]) or None,
            }
        )
    frame = pd.DataFrame(records)
    if frame.empty:
        return frame
    by = ["exposed_us", "group_name", "collective"]
    return frame.sort_values(by, ascending=[False, True, True], kind="stable").reset_index(drop=True)


def step_frame(calls: JobCalls, found: Instances, ranks: Mapping[int, RankSummary]) -> pd.DataFrame:
    """One row per step that all ranks recorded: who waited least for the others, and what that costs.

    ``cost_us``: the mean waiting of the other ranks less the slowest rank's own: what the step would gain, at most, if
    that rank were as fast as the mean of the others.
    """
    rows = matched_rows(calls)
    rows = rows[calls.step[rows] >= 0]
    numbers = [set(summary.step_number[summary.step_number >= 0].tolist()) for summary in ranks.values()]
    common = sorted(set.intersection(*numbers)) if numbers else []
    if len(calls.ranks) < 2 or not common or not len(rows):
        return pd.DataFrame()
    waited = waiting_ns(calls, found)
    records = []
    for number in common:
        mine = rows[calls.step[rows] == number]
        wait = np.bincount(calls.rank[mine], weights=waited[mine], minlength=len(calls.ranks)) / NS_PER_US
        slowest = int(wait.argmin())
        others = np.delete(wait, slowest)
        lengths = [float((s.step_end - s.step_start)[s.step_number == number][0]) / NS_PER_US for s in ranks.values()]
        records.append(
            {
                "step": number,
                "step_us": float(np.median(lengths)),
                "step_us_min": min(lengths),
                "step_us_max": max(lengths),
                "slowest_rank": calls.ranks[slowest],
                "slowest_wait_us": float(wait[slowest]),
                "others_wait_us": float(others.mean()),
                "cost_us": float(others.mean() - wait[slowest]),
            }
        )
    return pd.DataFrame(records)


def bubble_frame(calls: JobCalls, ranks: Mapping[int, RankSummary]) -> pd.DataFrame:
    """One row per rank that sends or receives: the mean over its steps (or its whole window) of what it did.

    A bubble is the time in which the rank neither computed nor communicated for another reason than its pipeline:
    exposed sends and receives, and idle time, whatever that was spent waiting for. ``pipeline`` numbers sets of ranks
    joined by sends and receives, ``stage`` the ranks in it, in their order.
    """
    pairs = [c.ranks for c in calls.channels if c.is_point_to_point]
    records = []
    for number, members in enumerate(_joined(pairs)):
        for stage, rank in enumerate(sorted(members)):
            summary = ranks.get(rank)
            if summary is None or not len(summary.step_number):
                continue
            length = summary.step_end - summary.step_start
            idle = length - summary.step_compute - summary.step_comm - summary.step_p2p - summary.step_copies
            bubble = idle + summary.step_p2p
            records.append(
                {
                    "pipeline": number,
                    "stage": stage,
                    "rank": rank,
                    "operation_count": len(length),
                    "step_us": float(length.mean()) / NS_PER_US,
                    "compute_us": float(summary.step_compute.mean()) / NS_PER_US,
                    "p2p_exposed_us": float(summary.step_p2p.mean()) / NS_PER_US,
                    "other_exposed_us": float((summary.step_comm + summary.step_copies).mean()) / NS_PER_US,
                    "idle_us": float(idle.mean()) / NS_PER_US,
                    "bubble_us": float(bubble.mean()) / NS_PER_US,
                    "bubble_percent": 100 * float(bubble.sum()) / max(float(length.sum()), 1.0),
                }
            )
    return pd.DataFrame(records)


def _joined(pairs: list[tuple[int, ...]]) -> list[set[int]]:
    sets: list[set[int]] = []
    for pair in pairs:
        touching = [known for known in sets if not known.isdisjoint(pair)]
        sets = [known for known in sets if known.isdisjoint(pair)]
        sets.append(set(pair).union(*touching))
    return sorted(sets, key=min)


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
