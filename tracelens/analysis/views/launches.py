"""What launching costs: host time per launch, from launch to start, how full the queue was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.analysis.activity import DeviceActivity, Ints, streams_of
from tracelens.trace.table import Kind, TraceTable
from tracelens.trace.tree import OpTree
from tracelens.units import NS_PER_US

if TYPE_CHECKING:
    import pandas as pd


def launch_overhead(table: TraceTable, tree: OpTree, activity: DeviceActivity) -> pd.DataFrame | None:
    """One row per runtime or driver call that launches device work, and one for all; None without such calls.

    Queue depth: device events of the same stream that had been launched and were not finished when the call began. At
    depth 0 the stream was waiting for this launch: the call is *launch-bound*, and the time from the call's start to
    the start of its first device event is the launch latency. Events that the recording knows no launch of count in no
    queue.
    """
    import pandas as pd

    launch = tree.launch[activity.rows].astype(np.int64)
    is_call = np.isin(table.kind[np.maximum(launch, 0)], (Kind.RUNTIME, Kind.DRIVER)) & (launch >= 0)
    if not is_call.any():
        return None
    launch, start, end = launch[is_call], activity.start[is_call], activity.end[is_call]
    lane = streams_of(table, activity)[1][is_call]
    # One entry per call: its first device event; a graph launch has many
    order = np.lexsort((activity.rows[is_call], start, launch))
    first = order[np.concatenate(([True], np.diff(launch[order]) != 0))]
    kernels = np.diff(np.append(np.flatnonzero(np.concatenate(([True], np.diff(launch[order]) != 0))), len(order)))
    called = table.start_ns[launch[first]]
    depth = np.zeros(len(first), np.int64)
    for one in np.unique(lane[first]).tolist():
        at, events = np.flatnonzero(lane[first] == one), np.flatnonzero(lane == one)
        launched = np.searchsorted(np.sort(table.start_ns[launch[events]]), called[at])
        depth[at] = np.maximum(launched - np.searchsorted(np.sort(end[events]), called[at], side="right"), 0)
    host = table.duration_ns[launch[first]]
    latency = np.maximum(start[first] - called, 0)
    name = table.name[launch[first]]
    rows = [
        _row(table.names[code], kernels[at], host[at], depth[at], latency[at])
        for code in np.unique(name).tolist()
        for at in [name == code]
    ]
    rows.sort(key=lambda row: (-row["host_us_sum"], row["launch_call"]))
    return pd.DataFrame([*rows, _row("all", kernels, host, depth, latency)] if len(rows) > 1 else rows)


def _row(name: str, kernels: Ints, host_ns: Ints, depth: Ints, latency_ns: Ints) -> dict[str, Any]:
    bound = depth == 0
    latency = latency_ns[bound] if bound.any() else np.array([np.nan])
    return {
        "launch_call": name,
        "launches": len(depth),
        "kernels": int(kernels.sum()),
        "host_us_sum": int(host_ns.sum()) / NS_PER_US,
        "host_us_mean": float(host_ns.mean()) / NS_PER_US,
        "host_us_median": float(np.median(host_ns)) / NS_PER_US,
        "host_us_max": int(host_ns.max()) / NS_PER_US,
        "latency_us_median": float(np.median(latency)) / NS_PER_US,
        "latency_us_mean": float(latency.mean()) / NS_PER_US,
        "latency_us_max": float(latency.max()) / NS_PER_US,
        "depth_mean": float(depth.mean()),
        "depth_max": int(depth.max()),
        "percent_launch_bound": 100 * float(bound.mean()),
    }
