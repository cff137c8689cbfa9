"""The analyzed window as parts, each with the time that is its own: device events, then idle time; together all of it.

What runs beside something else brings nothing by becoming shorter, so every moment of the window belongs to one part.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.analysis.idle.idle_time import IdleParts
from tracelens.analysis.intervals import Spans
from tracelens.lazy.records import dataclass
from tracelens.trace.columns import Column

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Narrow: TypeAlias = Column[np.int64]
#: Of each device event: from when the time is its own, how long from there to where that ends, how much in between is
#: its own, in ns; 0 where none is.
OwnTime: TypeAlias = tuple[Ints, Narrow, Narrow]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowTime:
    """``own_ns`` of every part: of the ``events`` device events in their order, then of the parts of ``idle``.

    ``own_from``, ``own_span_ns``: of each event, where its own time begins, and how long it is to where that ends.
    """

    events: int
    idle: IdleParts
    own_ns: Narrow
    own_from: Ints
    own_span_ns: Narrow

    @classmethod
    def of(cls, own: OwnTime, idle: IdleParts) -> WindowTime:
        """``idle`` holds all time in which no event ran."""
        own_from, own_span_ns, own_ns = own
        own_ns = Column(np.concatenate((own_ns[:], idle.end - idle.start)), np.int64)
        return cls(events=len(own_from), idle=idle, own_ns=own_ns, own_from=own_from, own_span_ns=own_span_ns)


def own_time(activity: DeviceActivity, window: tuple[int, int]) -> OwnTime:
    """When each event is what keeps the device busy in the window; together its busy time.

    Computation comes before communication, that before copies, as in the timeline; of one class what began first.
    """
    start, end = np.clip(activity.start, *window), np.clip(activity.end, *window)
    copies = activity.memcpy & ~activity.communication
    own_from, span, own = np.empty_like(start), np.empty_like(start), np.empty_like(start)
    taken = start[:0], end[:0]
    for mine in (~activity.communication & ~copies, activity.communication, copies):
        at = np.flatnonzero(mine).astype(np.int32)
        at = at[np.lexsort((-end[at], start[at]))]
        first, last = start[at], end[at]
        # What each adds to those that began before it: nothing where first is last
        first[1:] = np.maximum(first[1:], np.maximum.accumulate(last)[:-1])
        last = np.maximum(last, first)
        own_from[at], until, own[at] = _left_free(taken, first, last)
        span[at] = until - own_from[at]
        taken = np.concatenate((taken[0], first)), np.concatenate((taken[1], last))
    return own_from, Column(span, np.int64), Column(own, np.int64)


def _left_free(taken: Spans, first: Ints, last: Ints) -> tuple[Ints, Ints, Ints]:
    """Of each span what others leave free of it: from when, until when, how long; until = from where nothing."""
    opens, closes = _union(taken)
    if not len(opens):
        return first, last, last - first
    before = np.concatenate(([0], np.cumsum(closes - opens)))
    at_first, at_last = np.searchsorted(opens, first, side="right"), np.searchsorted(opens, last)
    under, over = (closes[np.maximum(at - 1, 0)] - time for at, time in ((at_first, first), (at_last, last)))
    under = np.where(at_first > 0, np.maximum(under, 0), 0)
    covered = before[at_last] - before[at_first] + under - np.where(at_last > 0, np.maximum(over, 0), 0)
    own = last - first - covered
    until = np.where((at_last > 0) & (over >= 0), opens[np.maximum(at_last - 1, 0)], last)
    return np.where(own > 0, first + under, first), np.where(own > 0, until, first), own


def _union(spans: Spans) -> Spans:
    """The union of spans, in order, with time between them."""
    order = np.argsort(spans[0], kind="stable")
    opens, closes = spans[0][order], np.maximum.accumulate(spans[1][order])
    opens[1:] = np.maximum(opens[1:], closes[:-1])
    some = closes > opens
    opens, closes = opens[some], closes[some]
    apart = np.ones(len(opens) + 1, bool)
    apart[1:-1] = opens[1:] > closes[:-1]
    return opens[apart[:-1]], closes[apart[1:]]
