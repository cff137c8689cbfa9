"""How long every matched call waited for the last rank, and who that was."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens.analysis.intervals import Ints
from tracelens.analysis.ranks.matching import JobCalls
from tracelens.lazy.records import dataclass

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Instances:
    """Columns over the matched collectives, in ns: of the calls that were found, ``present`` of them.

    ``latest_start`` ends the waiting. ``shortest``: the least duration over ranks, which is that of the rank that did
    not wait; it needs no clock. ``last`` and ``first``: positions of the ranks that arrived so. ``example``: a row of
    the calls, of the lowest rank.
    """

    earliest_start: Ints
    latest_start: Ints
    earliest_end: Ints
    latest_end: Ints
    shortest: Ints
    present: Ints
    first: Ints
    last: Ints
    example: Ints

    def __len__(self) -> int:
        return len(self.present)


def matched_rows(calls: JobCalls) -> Ints:
    """Rows of calls with a counterpart on another rank."""
    placed = np.flatnonzero(calls.instance >= 0)
    present = np.bincount(calls.instance[placed], minlength=calls.instances)
    return placed[present[calls.instance[placed]] > 1]


def collective_rows(calls: JobCalls) -> Ints:
    """Rows of matched collectives. Not of sends and receives: in these a stage of a pipeline waits for its turn."""
    rows = matched_rows(calls)
    return rows[~is_between_two(calls)[calls.instance[rows]]]


def is_between_two(calls: JobCalls) -> Bools:
    """Which instances are a send and its receive."""
    point_to_point = np.array([channel.is_point_to_point for channel in calls.channels], np.bool_)
    found: Bools = point_to_point[calls.channel_of]
    return found


def instances(calls: JobCalls) -> Instances:
    """Every instance; those of one call are there too (``present`` 1)."""
    rows = np.flatnonzero(calls.instance >= 0)
    order = rows[np.lexsort((calls.rank[rows], calls.start[rows], calls.instance[rows]))]
    at = np.searchsorted(calls.instance[order], np.arange(calls.instances))
    present = np.bincount(calls.instance[order], minlength=calls.instances)
    last = at + present - 1
    n = calls.instances
    earliest_end = np.full(n, np.iinfo(np.int64).max)
    latest_end = np.full(n, np.iinfo(np.int64).min)
    shortest = np.full(n, np.iinfo(np.int64).max)
    example = np.full(n, np.iinfo(np.int64).max)
    of = calls.instance[order]
    np.minimum.at(earliest_end, of, calls.end[order])
    np.maximum.at(latest_end, of, calls.end[order])
    np.minimum.at(shortest, of, (calls.end - calls.start)[order])
    np.minimum.at(example, of, order)
    return Instances(
        earliest_start=calls.start[order[at]],
        latest_start=calls.start[order[last]],
        earliest_end=earliest_end,
        latest_end=latest_end,
        shortest=shortest,
        present=present,
        first=calls.rank[order[at]],
        last=calls.rank[order[last]],
        example=example,
    )


def waiting_ns(calls: JobCalls, found: Instances) -> Ints:
    """How long each call waited for the last rank to start; at most its duration, 0 without a counterpart."""
    latest = found.latest_start[np.maximum(calls.instance, 0)] if len(found) else calls.start
    waited = np.clip(latest - calls.start, 0, calls.end - calls.start)
    result: Ints = np.where(calls.instance >= 0, waited, 0)
    return result
