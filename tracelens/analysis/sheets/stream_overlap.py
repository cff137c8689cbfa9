"""How long every two streams were busy at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.attribution.activity import DeviceActivity, streams_of
from tracelens.analysis.intervals import Covered
from tracelens.trace.table import TraceTable
from tracelens.units import NS_PER_US

if TYPE_CHECKING:
    import pandas as pd

#: Streams that are compared with each other: the busiest. Pairs grow with the square.
MAX_STREAMS = 32


def stream_overlap(table: TraceTable, activity: DeviceActivity) -> pd.DataFrame | None:
    """One row per pair of streams, those that share most time first; None where device work ran on a single stream.

    ``both_us`` is the time in which both were busy; ``percent_of_a`` and ``percent_of_b`` relate it to each one's own
    busy time.
    """
    import pandas as pd

    streams, lane = streams_of(table, activity)
    if len(streams) < 2:
        return None
    covered = Covered(lane, activity.start, activity.end)
    busy = np.array([int((e - s).sum()) for s, e in map(covered.spans, range(len(streams)))], np.int64)
    kept = np.sort(np.lexsort((np.arange(len(streams)), -busy))[:MAX_STREAMS]).tolist()
    rows = []
    for position, a in enumerate(kept):
        start, end = covered.spans(a)
        for b in kept[position + 1 :]:
            both = int(covered.within(np.full(len(start), b), start, end).sum())
            rows.append((a, b, both))
    rows.sort(key=lambda row: (-row[2], row[0], row[1]))
    first, second, shared = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return pd.DataFrame(
        {
            "device_a": streams[first, 0],
            "stream_a": streams[first, 1],
            "device_b": streams[second, 0],
            "stream_b": streams[second, 1],
            "busy_a_us": busy[first] / NS_PER_US,
            "busy_b_us": busy[second] / NS_PER_US,
            "both_us": shared / NS_PER_US,
            "percent_of_a": 100 * shared / np.maximum(busy[first], 1),
            "percent_of_b": 100 * shared / np.maximum(busy[second], 1),
        }
    )
