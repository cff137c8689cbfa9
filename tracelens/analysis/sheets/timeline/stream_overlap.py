"""How long every two streams were busy at the same time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.attribution.activity import DeviceActivity, streams_of
from tracelens.analysis.intervals import Covered
from tracelens.schema import column_set, identifier, percent, sheet, us
from tracelens.trace.table import TraceTable
from tracelens.units import NS_PER_US

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import SheetContext

#: Streams that are compared with each other: the busiest. Pairs grow with the square.
MAX_STREAMS = 32


COLUMNS = column_set(
    identifier("device_a", "Device of the first stream; -1 where not recorded."),
    identifier("stream_a", "The first stream."),
    identifier("device_b", "Device of the second stream; -1 where not recorded."),
    identifier("stream_b", "The second stream."),
    us("busy_a_us", "Union of the device events of stream A."),
    us("busy_b_us", "Union of the device events of stream B."),
    us("both_us", "Time in which both streams were busy."),
    percent("percent_of_a", "Both busy, as a share of busy A."),
    percent("percent_of_b", "Both busy, as a share of busy B."),
)


@sheet("stream_overlap", columns=COLUMNS, order=64, json=90)
def frame(context: SheetContext) -> pd.DataFrame | None:
    """Time in which two streams were busy at once, for every pair of streams."""
    return stream_overlap(context.recorded.table, context.activity)


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
        for b in kept[position + 1 :]:
            few, many = sorted((a, b), key=lambda stream: len(covered.spans(stream)[0]))
            start, end = covered.spans(few)
            rows.append((a, b, int(covered.within(np.full(len(start), many), start, end).sum())))
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
