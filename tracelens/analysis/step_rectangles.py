"""Rectangles to draw of one step: short neighbors drawn as one, idle time of the device, threads of the host."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.host_scopes import Scopes, depths
from tracelens.analysis.grouping import Codes
from tracelens.analysis.idle.idle_time import CAUSES, IdleParts
from tracelens.analysis.intervals import Ints
from tracelens.trace.table import Kind, RowColumn, TraceTable
from tracelens.trace.tree import MODULE_PREFIX, OpTree, nearest
from tracelens.types.records import Record


def rectangles(
    start: Ints, end: Ints, lane: npt.NDArray[np.integer], duration: int, max_rects: int
) -> tuple[Ints, int]:
    """The rectangle of each interval, from 0 without gaps, and the length below which intervals were merged.

    They stand lane by lane in order of start; ``start`` and ``end`` count from the beginning of ``duration``.
    """
    if len(start) <= max_rects:
        return np.arange(len(start)), 0
    length = end - start
    is_other_lane = np.r_[True, lane[1:] != lane[:-1]]

    def begins(bits: int) -> npt.NDArray[np.bool_]:
        """A long event ends the run of short ones before it; short ones share a rectangle within a time slot of a
        lane."""
        is_long, slot = length >= 1 << bits, start >> bits
        fresh: npt.NDArray[np.bool_] = is_long | is_other_lane
        fresh[1:] |= (slot[1:] != slot[:-1]) | is_long[:-1]
        return fresh

    least, most = 0, max(1, duration).bit_length()
    while least < most:
        middle = (least + most) // 2
        if np.count_nonzero(begins(middle)) <= max_rects:
            most = middle
        else:
            least = middle + 1
    return np.cumsum(begins(most)) - 1, 1 << most


MAX_RECTS = 20_000


class StepIdle(Record, frozen=True, kw_only=True, eq=False):
    """One rectangle per part of a gap, or per run of short ones of a cause (index into ``CAUSES``), cause by cause.

    ``start_ns`` and ``end_ns`` count from the start of ``window``. ``idle_ns``: the time in between in which the device
    was idle for this cause; all of it, unless several parts share the rectangle.
    """

    window: tuple[int, int]
    start_ns: Ints
    end_ns: Ints
    idle_ns: Ints
    cause: Ints

    @property
    def by_cause(self) -> dict[str, int]:
        """Idle ns of each cause that occurs."""
        return {CAUSES[code]: int(self.idle_ns[self.cause == code].sum()) for code in np.unique(self.cause).tolist()}


def step_idle(parts: IdleParts, window: tuple[int, int], *, max_rects: int = MAX_RECTS) -> StepIdle:
    """``parts`` are those of ``window``."""
    order = np.lexsort((parts.start, parts.cause))
    start, end, cause = (
        parts.start[order] - window[0],
        parts.end[order] - window[0],
        parts.cause[order].astype(np.int64),
    )
    group, _ = rectangles(start, end, cause, window[1] - window[0], max_rects)
    firsts = np.flatnonzero(np.diff(group, prepend=-1))
    return StepIdle(
        window=window,
        start_ns=start[firsts],
        end_ns=np.maximum.reduceat(end, firsts) if len(firsts) else end,
        idle_ns=np.add.reduceat(end - start, firsts) if len(firsts) else end,
        cause=cause[firsts],
    )


#: Threads that are drawn, those with most time first, and levels of each.
MAX_THREADS, MAX_LEVELS = 6, 14
_SHOWN = (Kind.CPU_OP, Kind.USER_ANNOTATION, Kind.RUNTIME, Kind.DRIVER)


class HostLanes(Record, frozen=True, kw_only=True, eq=False):
    """One rectangle per host event, or per run of short ones, thread by thread and level by level in order of start.

    ``threads`` are lanes of the table. Of each rectangle: ``thread`` (index into ``threads``), ``level`` (0 is the
    outermost), ``start_ns`` and ``end_ns`` within the window and from its start, ``count`` of events, and ``row`` of
    the table: the longest of them. ``left_out``: how many events of the window are deeper or on other threads.
    ``launched_in``: the rectangle in which each asked launch stands, -1 where none does.
    """

    threads: tuple[int, ...]
    levels: tuple[int, ...]
    thread: Codes
    level: Codes
    start_ns: Ints
    end_ns: Ints
    count: Ints
    row: RowColumn
    left_out: int
    launched_in: Ints


class ShownEvents(Record, frozen=True, kw_only=True, eq=False):
    """The ops, annotations, modules and calls of the runtime, for all steps that are drawn.

    Python frames are left out: there are very many, and what they launched names its line.
    """

    rows: RowColumn
    start_ns: Ints
    end_ns: Ints

    @classmethod
    def of(cls, table: TraceTable) -> ShownEvents:
        """Of all threads."""
        is_module = np.array([name.startswith(MODULE_PREFIX) for name in table.names] or [False], bool)
        shown = np.zeros(len(Kind), bool)
        shown[list(_SHOWN)] = True
        rows = np.flatnonzero(shown[table.kind[:]])
        if table.has_stacks:
            frames = np.flatnonzero(table.kind == Kind.PYTHON_FUNCTION)
            rows = np.concatenate((rows, frames[is_module[table.name[frames]]]))
        return cls(rows=rows.astype(np.int32), start_ns=table.start_ns[rows], end_ns=table.ends_ns(rows))


def host_lanes(
    shown: ShownEvents, tree: OpTree, window: tuple[int, int], launches: RowColumn, *, max_rects: int
) -> HostLanes | None:
    """What is shown between the ends of ``window``; None where there is nothing. ``launches``: host rows."""
    first, last = window
    inside = np.zeros(len(tree.order), np.bool_)
    inside[tree.position[shown.rows[(shown.start_ns < last) & (shown.end_ns > first)]]] = True
    table, scopes = tree.table, Scopes(tree, inside)
    if not len(scopes):
        return None
    level = depths(np.arange(len(scopes), dtype=np.int32), scopes.above)
    start = np.maximum(table.start_ns[scopes.rows], first) - first
    end = np.minimum(table.ends_ns(scopes.rows), last) - first
    lanes = table.lane[scopes.rows]
    time = np.bincount(lanes, np.where(level == 0, end - start, 0), minlength=len(table.lanes))
    threads = [lane for lane in np.lexsort((np.arange(len(time)), -time)).tolist() if time[lane]][:MAX_THREADS]
    thread_of = np.full(len(table.lanes), -1, np.int32)
    thread_of[threads] = np.arange(len(threads))
    thread = thread_of[lanes]
    kept = np.flatnonzero((thread >= 0) & (level < MAX_LEVELS))
    if not len(kept):
        return None
    kept = kept[np.lexsort((start[kept], level[kept], thread[kept]))]
    group, _ = rectangles(start[kept], end[kept], thread[kept] * MAX_LEVELS + level[kept], last - first, max_rects)
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    longest = kept[np.lexsort((start[kept] - end[kept], group))[starts]]
    of_scope = np.full(len(scopes) + 1, -1, np.int64)
    of_scope[kept] = group
    drawn = of_scope[:-1] >= 0
    innermost_drawn = np.append(np.where(drawn, np.arange(len(drawn)), nearest(scopes.above, drawn)), -1)
    return HostLanes(
        threads=tuple(threads),
        levels=tuple(int(level[kept][thread[kept] == i].max(initial=0)) + 1 for i in range(len(threads))),
        thread=thread[longest],
        level=level[longest],
        start_ns=start[kept][starts],
        end_ns=np.maximum.reduceat(end[kept], starts),
        count=np.bincount(group).astype(np.int64),
        row=scopes.rows[longest],
        left_out=len(scopes) - len(kept),
        launched_in=of_scope[innermost_drawn[scopes.around(launches)]],
    )
