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

    launch = tree.launch[activity.rows]
    events = np.flatnonzero((launch >= 0) & table.is_of((Kind.RUNTIME, Kind.DRIVER))[launch]).astype(np.int32)
    if not len(events):
        return None
    # One entry per call: its first device event; a graph launch has many
    events = events[np.lexsort((activity.start[events], launch[events]))]
    opens = np.flatnonzero(np.concatenate(([True], np.diff(launch[events]) != 0)))
    first, kernels = events[opens], np.diff(np.append(opens, len(events)))
    del opens
    called = table.start_ns[launch[first]]
    depth = np.zeros(len(first), np.int64)
    lane = streams_of(table, activity)[1]
    for one in np.unique(lane[first]).tolist():
        at, of_stream = np.flatnonzero(lane[first] == one), events[lane[events] == one]
        launched = np.searchsorted(np.sort(table.start_ns[launch[of_stream]]), called[at])
        ended = np.searchsorted(np.sort(activity.end[of_stream]), called[at], side="right")
        depth[at] = np.maximum(launched - ended, 0)
    host = table.duration_ns[launch[first]]
    latency = np.maximum(activity.start[first] - called, 0)
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
