"""Host events that outlive their caller: which of them would hide a call from its op, and nesting without that.

A Python frame whose end was recorded late contains what its caller contains as well, and ends after it: taken as it
stands, all calls in it leave their op. In old files times are whole microseconds, each rounded by itself, so that a
launch may end a microsecond after its op.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracelens.trace.nesting import Ints, Nesting, nest
from tracelens.trace.table import Kind, RowColumn, TraceTable

#: How much (ns) later than its caller a call may end by rounding to microseconds.
ROUNDING_NS = 1000


def nest_host(table: TraceTable, host: RowColumn, rank: npt.NDArray[np.uint8]) -> Nesting:
    """Nests the host rows; ``overlaps`` are those that outlive their caller as recorded.

    A broken frame that hides a call begins, for this, where the last of the callers that it outlives ends; a call that
    outlives its caller by no more than rounding ends with it.
    """
    found = nest(table.lane[host], table.start_ns[host], table.duration_ns[host], rank)
    if not found.overlaps.any():
        return found
    frames, calls = _hiding_frames(table, host, found), _rounded_calls(table, host, found)
    mended = found
    while len(frames) or len(calls):
        mended = _nest_mended(table, host, rank, found, frames, calls)
        misplaced = _misplaced(table, host, mended, found.order[frames])
        if not len(misplaced):
            break
        frames, mended = frames[~np.isin(found.order[frames], misplaced)], found
    return replace(mended, overlaps=found.overlaps)


def _nest_mended(
    table: TraceTable, host: RowColumn, rank: npt.NDArray[np.uint8], found: Nesting, frames: Ints, calls: Ints
) -> Nesting:
    start, duration = table.start_ns[host], table.duration_ns[host]
    at, outlived = found.order[frames], found.outlived[frames]
    duration[at] -= outlived - start[at]
    start[at] = outlived
    at = found.order[calls]
    duration[at] = found.outlived[calls] - start[at]
    return nest(table.lane[host], start, duration, rank)


def _misplaced(table: TraceTable, host: RowColumn, mended: Nesting, moved: Ints) -> Ints:
    """Which of the ``moved`` host events lie in one that began after them: as long as that, they stay broken."""
    at = np.flatnonzero(np.isin(mended.order, moved))
    at = at[mended.parent[at] >= 0]
    start = table.start_ns[host]
    own, parent = mended.order[at], mended.order[mended.parent[at]]
    wrong: Ints = own[start[parent] > start[own]]
    return wrong


def _hiding_frames(table: TraceTable, host: RowColumn, found: Nesting) -> Ints:
    """Positions of the broken Python frames in which an op or a launch begins before the outlived callers end."""
    rows = host[found.order]
    is_call = np.isin(table.kind[rows], (Kind.CPU_OP, Kind.RUNTIME, Kind.DRIVER))
    calls_before = np.concatenate(([0], np.cumsum(is_call)))
    start = table.start_ns[rows]
    frames = np.flatnonzero(found.overlaps & (table.kind[rows] == Kind.PYTHON_FUNCTION))
    until = [
        first + int(np.searchsorted(start[first:last], end))
        for first, last, end in zip(frames + 1, found.last[frames], found.outlived[frames], strict=True)
    ]
    hiding: Ints = frames[calls_before[np.array(until, np.int64)] > calls_before[frames + 1]]
    return hiding


def _rounded_calls(table: TraceTable, host: RowColumn, found: Nesting) -> Ints:
    """Positions of the ops and launches that end later than their callers by no more than rounding."""
    at = np.flatnonzero(found.overlaps)
    rows = host[found.order[at]]
    is_call = np.isin(table.kind[rows], (Kind.CPU_OP, Kind.RUNTIME, Kind.DRIVER))
    rounded: Ints = at[is_call & (table.ends_ns(rows) - found.outlived[at] <= ROUNDING_NS)]
    return rounded
