"""The analyzed window as parts, each with the time that is its own: device events, then idle time; together all of it.

What runs beside something else brings nothing by becoming shorter, so every moment of the window belongs to one part.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.analysis.attribution.device_time import Timeline
from tracelens.analysis.idle.idle_time import IdleParts
from tracelens.analysis.intervals import covered_ns
from tracelens.lazy.records import dataclass

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowTime:
    """``own_ns`` of every part: of the ``events`` device events in their order, then of the parts of ``idle``.

    ``own_from``: of each event, where its own time begins.
    """

    events: int
    idle: IdleParts
    own_ns: Ints
    own_from: Ints

    @classmethod
    def of(cls, activity: DeviceActivity, timeline: Timeline, idle: IdleParts) -> WindowTime:
        """``idle`` holds all time in which no event ran."""
        own_from, own = own_time(activity, timeline.window)
        own_ns = np.concatenate((own, idle.end - idle.start))
        return cls(events=len(activity), idle=idle, own_ns=own_ns, own_from=own_from)


def own_time(activity: DeviceActivity, window: tuple[int, int]) -> tuple[Ints, Ints]:
    """(from when, how long in ns) each event is what keeps the device busy in the window; together its busy time.

    Computation comes before communication, that before copies, as in the timeline; of one class what began first.
    """
    start, end = np.clip(activity.start, *window), np.clip(activity.end, *window)
    copies = activity.memcpy & ~activity.communication
    before, own, own_from = np.zeros(len(start), bool), np.zeros(len(start), np.int64), start.copy()
    for mine in (~activity.communication & ~copies, activity.communication, copies):
        at = np.flatnonzero(mine)
        first, last = _after_earlier(start[at], end[at])
        own[at], own_from[at] = last - first, first
        if len(at) and before.any():
            own[at] -= covered_ns(start[before], end[before], first, last)
        before |= mine
    return own_from, own


def _after_earlier(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """(start, end) of what each interval adds to those that began before it; start = end where it adds nothing."""
    order = np.lexsort((-end, start))
    first = start.copy()
    first[order[1:]] = np.maximum(start[order[1:]], np.maximum.accumulate(end[order])[:-1])
    return first, np.maximum(end, first)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostLead:
    """How far the host was ahead of the device: a kernel cannot start before its launch, however soon the one before
    it is done. ``lead_ns`` is that of each event in ``order`` of their starts; between events of two segments
    (numbered by ``segment``) the host waited for the device, and what was gained by then stays gained.
    """

    order: Ints
    lead_ns: Ints
    segment: Ints

    @classmethod
    def of(cls, start: Ints, launched: Ints, events: Ints, waited_until: Ints) -> HostLead:
        """Of the events at these positions: ``start`` of their own time, ``launched``: when the host called for them;
        ``waited_until``: ends of the host's waits for the device.
        """
        order = events[np.argsort(start[events], kind="stable")]
        done = launched[order]
        segment = np.searchsorted(np.sort(waited_until), np.maximum.accumulate(done), side="right")
        return cls(order=order, lead_ns=np.maximum(start[order] - done, 0), segment=segment)

    def realized_ns(self, gain_ns: Floats) -> float:
        """What all ``gain_ns`` (by event) bring together if the host launches no sooner than it did.

        What is gained so far is at most the lead of the next event; what is beyond it is lost.
        """
        gain = gain_ns[self.order]
        if not gain.any():
            return 0.0
        begins = np.concatenate(([True], np.diff(self.segment) != 0))
        first = np.flatnonzero(begins)
        last = np.append(first[1:], len(gain)) - 1
        total = np.cumsum(gain)
        total -= (total[first] - gain[first])[np.cumsum(begins) - 1]
        left = np.append(self.lead_ns[1:], 0) - total
        left[last] = 0.0
        return float((total[last] + np.minimum(np.minimum.reduceat(left, first), 0.0)).sum())
