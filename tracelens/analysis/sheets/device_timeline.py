"""What launching costs: host time per launch, from launch to start, how full the queue was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.analysis.attribution.activity import DeviceActivity, Ints
from tracelens.analysis.grouping import Codes
from tracelens.analysis.idle.idle_time import NEVER, Queue
from tracelens.schema import column_set, count, number, percent, sheet, text, us
from tracelens.trace.table import Kind, TraceTable
from tracelens.units import NS_PER_US

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import SheetContext


TITLE = "launch_overhead"
_CALL = "From the start to the end of the call on the host."
_LATENCY = (
    "From the start of the call to the start of its first kernel, of calls whose stream had no work left and "
    "no wait just issued."
)
_DEPTH = (
    "Kernels of the same stream that were launched and not finished when the call began, including those "
    "queued before the recording."
)
COLUMNS = column_set(
    text("launch_call", "Runtime or driver call; all: every call that launched device work.", width=32),
    count("launches", "Number of calls that launched device work."),
    count("kernels", "Kernels, copies and memsets that they launched."),
    us("host_us_sum", _CALL),
    us("host_us_mean", _CALL),
    us("host_us_median", _CALL),
    us("host_us_max", _CALL),
    us("launch_latency_us_median", _LATENCY),
    us("launch_latency_us_mean", _LATENCY),
    us("launch_latency_us_max", _LATENCY),
    number("queue_depth_mean", _DEPTH, shape="#,##0.0"),
    count("queue_depth_max", _DEPTH),
    percent("queue_empty_percent", "Share of the calls at queue depth 0."),
)


@sheet(TITLE, columns=COLUMNS, order=62, json=80)
def frame(context: SheetContext) -> pd.DataFrame | None:
    """What launching cost the host, and how often the device had to wait for it, by runtime or driver call."""
    return launch_overhead(context.recorded.table, context.activity, context.queued)


def launch_overhead(table: TraceTable, activity: DeviceActivity, queued: Queue) -> pd.DataFrame | None:
    """One row per runtime or driver call that launches device work, and one for all; None without such calls.

    Queue depth: device events of the same stream that had been launched and were not finished when the call began. At
    depth 0 the queue was empty, and the time from the call's start to the start of its first device event is the
    launch latency, unless the stream had just been told to wait for something else. What was queued before the
    recording began counts; an event of which neither its own launch nor that of any later one of its stream was
    recorded counts in no queue.
    """
    import pandas as pd

    place = queued.places(activity)
    launch = queued.launch[place]
    kind = table.kind[launch]
    events = np.flatnonzero((launch >= 0) & ((kind == Kind.RUNTIME) | (kind == Kind.DRIVER))).astype(np.int32)
    del kind
    if not len(events):
        return None
    # One entry per call: its first device event; a graph launch has many
    events = events[np.lexsort((activity.start[events], launch[events]))]
    opens = np.flatnonzero(np.concatenate(([True], np.diff(launch[events]) != 0)))
    first, kernels = events[opens], np.diff(np.append(opens, len(events))).astype(np.int32)
    at, call = place[first], launch[first]
    del events, opens, place, launch
    called = table.start_ns[call]
    depth = _depth(queued, at, called)
    counts = (depth == 0) & ~queued.after_event[at] & ~queued.after_value[at]
    latency = np.where(counts, np.maximum(activity.start[first] - called, 0), -1)
    del at, first, called
    host, name = table.duration_ns[call], table.name[call]
    rows = [
        _row(table.names[code], kernels[at], host[at], depth[at], latency[at])
        for code in np.unique(name).tolist()
        for at in [name == code]
    ]
    rows.sort(key=lambda row: (-row["host_us_sum"], row["launch_call"]))
    return pd.DataFrame([*rows, _row("all", kernels, host, depth, latency)] if len(rows) > 1 else rows)


def _depth(queued: Queue, first: Codes, called: Ints) -> Codes:
    """Unfinished events of the stream of each of the ``queued`` events at ``first`` when it was ``called``."""
    known = queued.called != NEVER
    own = queued.lane[first]
    depth: Codes = np.zeros(len(first), np.int32)
    for one in np.unique(own).tolist():
        mine, of_stream = own == one, known & (queued.lane == one)
        depth[mine] = np.searchsorted(np.sort(queued.called[of_stream]), called[mine])
        depth[mine] -= np.searchsorted(np.sort(queued.events.end[of_stream]), called[mine], side="right")
    return np.maximum(depth, 0)


def _row(name: str, kernels: Codes, host_ns: Ints, depth: Codes, latency_ns: Ints) -> dict[str, Any]:
    latency = latency_ns[latency_ns >= 0] if (latency_ns >= 0).any() else np.array([np.nan])
    return {
        "launch_call": name,
        "launches": len(depth),
        "kernels": int(kernels.sum()),
        "host_us_sum": int(host_ns.sum()) / NS_PER_US,
        "host_us_mean": float(host_ns.mean()) / NS_PER_US,
        "host_us_median": float(np.median(host_ns)) / NS_PER_US,
        "host_us_max": int(host_ns.max()) / NS_PER_US,
        "launch_latency_us_median": float(np.median(latency)) / NS_PER_US,
        "launch_latency_us_mean": float(latency.mean()) / NS_PER_US,
        "launch_latency_us_max": float(latency.max()) / NS_PER_US,
        "queue_depth_mean": float(depth.mean()),
        "queue_depth_max": int(depth.max()),
        "queue_empty_percent": 100 * float((depth == 0).mean()),
    }
