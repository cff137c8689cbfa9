"""The analyzed window as parts, each with the time that is its own: device events, then idle time; together all of it.

What runs beside something else brings nothing by becoming shorter, so every moment of the window belongs to one part.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.analysis.attribution.device_time import Timeline
from tracelens.analysis.idle.idle_time import IdleParts
from tracelens.analysis.intervals import Spans, covered_ns, idle_spans
from tracelens.lazy.records import dataclass

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowTime:
    """``own_ns`` of every part: of the ``events`` device events in their order, then of the parts of ``idle``.

    ``own_from``, ``own_until``: of each event, where its own time begins and ends.
    """

    events: int
    idle: IdleParts
    own_ns: Ints
    own_from: Ints
    own_until: Ints

    @classmethod
    def of(cls, activity: DeviceActivity, timeline: Timeline, idle: IdleParts) -> WindowTime:
        """``idle`` holds all time in which no event ran."""
        own_from, own_until, own = own_time(activity, timeline.window)
        own_ns = np.concatenate((own, idle.end - idle.start))
        return cls(events=len(activity), idle=idle, own_ns=own_ns, own_from=own_from, own_until=own_until)


def own_time(activity: DeviceActivity, window: tuple[int, int]) -> tuple[Ints, Ints, Ints]:
    """(from when, until when, how long in ns) each event is what keeps the device busy in the window; together its busy
    time.

    Computation comes before communication, that before copies, as in the timeline; of one class what began first.
    """
    start, end = np.clip(activity.start, *window), np.clip(activity.end, *window)
    copies = activity.memcpy & ~activity.communication
    before, own = np.zeros(len(start), bool), np.zeros(len(start), np.int64)
    own_from, own_until = start.copy(), end.copy()
    for mine in (~activity.communication & ~copies, activity.communication, copies):
        at = np.flatnonzero(mine)
        first, last = _after_earlier(start[at], end[at])
        own[at], own_from[at], own_until[at] = last - first, first, last
        if len(at) and before.any():
            own[at] -= covered_ns(start[before], end[before], first, last)
            opens, closes = idle_spans(start[before], end[before], *window)
            begins, ends = np.searchsorted(closes, first, side="right"), np.searchsorted(opens, last) - 1
            some = own[at] > 0
            own_from[at] = np.where(some, np.maximum(first, np.append(opens, 0)[begins]), first)
            own_until[at] = np.where(some, np.minimum(last, np.append(closes, 0)[ends]), first)
        before |= mine
    return own_from, own_until, own


def _after_earlier(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """(start, end) of what each interval adds to those that began before it; start = end where it adds nothing."""
    order = np.lexsort((-end, start))
    first = start.copy()
    first[order[1:]] = np.maximum(start[order[1:]], np.maximum.accumulate(end[order])[:-1])
    return first, np.maximum(end, first)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostLead:
    """How far the host was ahead of the device: a kernel cannot start before its launch, however soon the one before
    it is done. ``lead_ns`` is that of each of the ``events``; what an event gains comes out at the end of its own time
    (``ends``). Waits of the host for the device part the window into segments: ``launched_in`` is the one in which an
    event was launched, ``ended_in`` that in which its own time ended; what was gained by a wait stays gained.
    """

    events: Ints
    starts: Ints
    ends: Ints
    lead_ns: Ints
    launched_in: Ints
    ended_in: Ints

    @classmethod
    def of(cls, own: Spans, launched: Ints, events: Ints, waited_until: Ints) -> HostLead:
        """Of the events at these positions: their ``own`` time (from, until), ``launched``: when the host called for
        them; ``waited_until``: ends of the host's waits for the device.
        """
        events = events[np.argsort(own[0][events], kind="stable")]
        starts, ends, done, waits = own[0][events], own[1][events], launched[events], np.sort(waited_until)
        return cls(
            events=events,
            starts=starts,
            ends=ends,
            lead_ns=np.maximum(starts - done, 0),
            launched_in=np.searchsorted(waits, np.maximum.accumulate(done), side="right"),
            ended_in=np.searchsorted(waits, ends),
        )

    def realized_ns(self, gain_ns: Floats) -> float:
        """What all ``gain_ns`` (by event) bring together if the host launches no sooner than it did.

        What is gained before an event starts is at most its lead; of each segment, what is beyond it is lost.
        """
        order = np.argsort(self.ends, kind="stable")
        total = np.concatenate(([0.0], np.cumsum(gain_ns[self.events][order])))
        if not total[-1]:
            return 0.0
        by_start = np.searchsorted(self.ends[order], self.starts, side="right")
        by_wait = np.searchsorted(self.ended_in[order], self.launched_in)
        beyond = total[np.maximum(by_start, by_wait)] - total[by_wait] - self.lead_ns
        lost = np.zeros(int(self.launched_in.max()) + 1)
        np.maximum.at(lost, self.launched_in, beyond)
        return float(total[-1] - lost.sum())
