"""Device events of one stream that run at the same time: what a stream's order rules out, and clocks record anyway."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracelens.analysis.attribution.activity import DeviceActivity, Ints
from tracelens.lazy.records import dataclass
from tracelens.trace.table import TraceTable


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOverlaps:
    """Events that end after the next of their stream began and before it ended. ``time_ns``: by how much in all.

    ``events`` are their positions, ``ends`` where the next one began; ``clipped``: whether they are made to end there.
    An event that lies in another as a whole is no overlap of this kind: it is concurrent on purpose, and stays.
    """

    events: Ints
    ends: Ints
    time_ns: int
    clipped: bool

    @property
    def count(self) -> int:
        return len(self.events)


def stream_overlaps(table: TraceTable, activity: DeviceActivity, *, clip: bool) -> StreamOverlaps:
    """The overlaps of all streams. Events without a recorded stream are left out."""
    lane = table.lane[activity.rows]
    order = np.lexsort((activity.end, activity.start, activity.stream, lane))
    order = order[activity.stream[order] >= 0]
    one, following = order[:-1], order[1:]
    same = (lane[one] == lane[following]) & (activity.stream[one] == activity.stream[following])
    partial = same & (activity.end[one] > activity.start[following]) & (activity.end[one] < activity.end[following])
    # Two that begin together have no order: cutting the first would leave nothing of it.
    partial &= activity.start[one] < activity.start[following]
    early, cut = one[partial], activity.start[following[partial]]
    return StreamOverlaps(events=early, ends=cut, time_ns=int((activity.end[early] - cut).sum()), clipped=clip)


def with_clipped(activity: DeviceActivity, overlaps: StreamOverlaps) -> DeviceActivity:
    """The activity with each overlapping event ended where the next of its stream begins, if that was asked for."""
    if not overlaps.clipped:
        return activity
    end = activity.end.copy()
    end[overlaps.events] = overlaps.ends
    return replace(activity, end=end)
