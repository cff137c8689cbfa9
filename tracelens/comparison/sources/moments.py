"""Every moment of a window belongs to one device event, or to none: to the nanosecond, so that parts add up."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.analysis.intervals import Ints, Spans, idle_within, intersections
from tracelens.lazy.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Moments:
    """``ns`` of window ``window`` belong to the device event ``event``; no time is in two of them."""

    event: Ints
    window: Ints
    ns: Ints


def exclusive(activity: DeviceActivity, windows: Spans) -> Moments:
    """Which event each moment of ``windows`` belongs to; these are in order and apart.

    Of events at the same time it is computation before communication before copies, as on the timeline, and the one
    that began first.
    """
    copies = activity.memcpy & ~activity.communication
    free, found = windows, []
    for mask in (~(activity.communication | copies), activity.communication, copies):
        events = np.flatnonzero(mask)
        order = events[np.lexsort((events, activity.start[events]))]
        start, end = activity.start[order], np.maximum.accumulate(activity.end[order])
        own = np.maximum(start, np.concatenate((start[:1], end[:-1])))
        kept = end > own
        at, begins, ends = intersections((own[kept], end[kept]), free)
        window = np.searchsorted(windows[0], begins, side="right") - 1
        found.append((order[kept][at], window, ends - begins))
        if len(events):
            free = idle_within(activity.start[events], activity.end[events], free)
        if not len(free[0]):
            break
    event, window, ns = (np.concatenate(column) for column in zip(*found, strict=True))
    return Moments(event=event, window=window, ns=ns)
