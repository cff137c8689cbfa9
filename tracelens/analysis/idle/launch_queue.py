"""When each device event was put in the queue of its stream, and what its stream was told to wait for before."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import Bools, DeviceActivity, streams_of
from tracelens.analysis.attribution.host_calls import HostCalls, named
from tracelens.analysis.grouping import Codes, distinct_rows, numbered
from tracelens.analysis.intervals import Ints
from tracelens.lazy.patterns import lazy_pattern
from tracelens.lazy.records import dataclass
from tracelens.trace.columns import narrowed
from tracelens.trace.table import Kind, RowColumn, TraceTable
from tracelens.trace.tree import OpTree

#: Of an event whose launch is not known, and not bounded either.
NEVER = np.iinfo(np.int64).max

_WAITS_FOR_EVENT = lazy_pattern(r"^(?:cuda|hip|cu)StreamWaitEvent")
# A word of memory that another device or rank writes: symmetric memory, signals between ranks.
_WAITS_FOR_VALUE = lazy_pattern(r"^(?:cuda|hip|cu)Stream(?:WaitValue|BatchMemOp)")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Queue:
    """Columns over all device ``events`` of a file, times in ns.

    ``lane``: which of the file's streams each ran on. ``launch``: row of the launch, -1 where it is not known.
    ``called``: start of the launch call; a stream runs its events in order, so one without a recorded launch had been
    launched by the time at which any later one of its stream was: just before that call; ``NEVER`` where nothing says
    when. ``launched``: when the launch was done: the end of the call, at the latest the start of the first event of
    that launch, and this start of a call that waits for the copy that it launches. ``after_event``, ``after_value``: no
    launch of the thread lies between a call that let a stream wait (for an event, for a value in memory) and this
    launch.
    """

    events: DeviceActivity
    lane: Codes
    launch: RowColumn
    called: Ints
    launched: Ints
    after_event: Bools
    after_value: Bools

    def places(self, part: DeviceActivity) -> Codes:
        """Where these of the ``events`` stand among them."""
        if len(part) == len(self.events):
            return np.arange(len(part), dtype=np.int32)
        return np.searchsorted(self.events.rows, part.rows).astype(np.int32)


def queue(table: TraceTable, tree: OpTree, host: HostCalls, events: DeviceActivity) -> Queue:
    """``events`` must be all device events of the file: what runs later bounds what has no launch."""
    launch = tree.launch[events.rows]
    linked = launch >= 0
    calls = (table.kind == Kind.RUNTIME) | (table.kind == Kind.DRIVER)
    after_event = _directly_after(table, launch, named(table, _WAITS_FOR_EVENT, calls))
    after_value = _directly_after(table, launch, named(table, _WAITS_FOR_VALUE, calls))
    called, done = np.full(len(launch), NEVER), np.full(len(launch), NEVER)
    called[linked] = table.start_ns[launch[linked]]
    is_call = np.zeros(len(launch), np.bool_)
    is_call[linked] = np.isin(table.kind[launch[linked]], (Kind.RUNTIME, Kind.DRIVER))
    returns = is_call.copy()
    returns[is_call] = ~host.blocking[launch[is_call]]
    done[returns] = table.ends_ns(launch[returns])
    # Of a launch that is known only as its op, the op's start is all that is known
    early = linked & (~is_call | (~returns & (after_event | after_value)))
    done[early] = called[early]
    first = np.where(linked, _first_starts(launch, events.start), events.start)
    lane = narrowed(streams_of(table, events)[1])
    called = np.where(linked, called, _latest_call(lane, events.start, called))
    return Queue(
        events=events,
        lane=lane,
        launch=launch,
        called=called,
        launched=np.minimum(np.where(linked, done, called), first),
        after_event=after_event,
        after_value=after_value,
    )


def _latest_call(lane: Codes, start: Ints, called: Ints) -> Ints:
    """Just before the earliest call that launched any later event of the stream; ``NEVER`` where none is known."""
    order = np.lexsort((start, lane))[::-1]
    bound = called[order]
    for part in np.split(np.arange(len(order)), np.flatnonzero(np.diff(lane[order])) + 1):
        bound[part] = np.minimum.accumulate(bound[part])
    result = np.empty(len(order), np.int64)
    result[order] = bound - (bound != NEVER)
    return result


def _first_starts(launch: RowColumn, start: Ints) -> Ints:
    """When the first device event of each one's launch started."""
    number = numbered(launch)
    first = np.full(int(number.max(initial=-1)) + 1, NEVER)
    np.minimum.at(first, number, start)
    return first[number]


def _directly_after(table: TraceTable, launch: RowColumn, wanted: npt.NDArray[np.bool_]) -> Bools:
    """Which launches have one of the ``wanted`` calls of their thread before them and no other launch between."""
    found = np.zeros(len(launch), np.bool_)
    calls = np.flatnonzero(wanted)
    if not len(calls):
        return found
    launches = distinct_rows(launch[launch >= 0], len(table))
    for lane in np.unique(table.lane[calls]).tolist():
        waits = np.sort(table.start_ns[calls[table.lane[calls] == lane]])
        own = launches[table.lane[launches] == lane]
        own = own[np.argsort(table.start_ns[own], kind="stable")]
        time = table.start_ns[own]
        before = np.concatenate(([np.iinfo(np.int64).min], time[:-1]))
        follows = np.searchsorted(waits, time) > np.searchsorted(waits, before[: len(time)])
        found |= np.isin(launch, own[follows])
    return found
