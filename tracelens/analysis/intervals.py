"""Unions of time intervals, in whole nanoseconds: exact, vectorised."""

from __future__ import annotations

import itertools
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens.analysis.grouping import by_number
from tracelens.trace.narrow_columns import narrowed

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
#: (starts, ends) on the trace's own clock, in ns.
Spans: TypeAlias = tuple[Ints, Ints]

# Offsets that keep groups apart must fit in int64 with room for one more interval.
_MAX_OFFSET = 1 << 61
# Entries that unions are made of at a time: what is made of them on the way stays small beside the arrays themselves.
_CHUNK = 100_000


def union_ns(start: Ints, end: Ints) -> int:
    """Length of the union of ``[start, end)``."""
    return int(union_by_group(np.zeros(len(start), np.int8), start, end, 1)[0])


def union_by_group(group: npt.NDArray[np.integer], start: Ints, end: Ints, groups: int) -> Ints:
    """Length of the union of the intervals of each group 0..groups-1, as an array of ``groups``."""
    result = np.zeros(groups, np.int64)
    if not len(start):
        return result
    in_order = (group[1:] > group[:-1]) | ((group[1:] == group[:-1]) & (start[1:] >= start[:-1]))
    if not in_order.all():
        order = np.lexsort((start, narrowed(group)))
        group, start, end = group[order], start[order], end[order]
    continues = group[1:] == group[:-1]
    length = end - start
    overlapping = np.zeros(groups, bool)
    overlapping[group[1:][continues & (start[1:] < end[:-1])]] = True
    if overlapping.any():
        # Sets ``length`` of the entries ``at`` to what of each lies beyond all earlier ones of its group.
        at = np.flatnonzero(overlapping[group])
        base = int(start.min())
        span = int(end.max()) - base + 1
        per_chunk = max(1, _MAX_OFFSET // span)
        cuts = _cuts(group[at], per_chunk)
        for part in np.split(at, cuts):
            number = group[part].astype(np.int64)
            number -= number[0] // per_chunk * per_chunk
            offset = number * span - base
            s, e = start[part] + offset, np.maximum.accumulate(end[part] + offset)
            length[part] = np.maximum(e - np.maximum(s, np.concatenate((s[:1], e[:-1]))), 0)
    firsts = np.flatnonzero(np.append(True, ~continues))
    result[group[firsts]] = np.add.reduceat(length, firsts)
    return result


def _cuts(group: npt.NDArray[np.integer], groups: int) -> Ints:
    """Where sorted groups are cut: after every ``groups`` of them, and after one that passes ``_CHUNK`` entries."""
    borders = np.flatnonzero(np.diff(group)) + 1
    at = np.searchsorted(borders, np.arange(_CHUNK, len(group), _CHUNK))
    chosen = [borders[at[at < len(borders)]]]
    if len(group) and group[-1] >= groups:
        number = group[borders] // groups
        chosen.append(borders[number != group[borders - 1] // groups])
    return np.unique(np.concatenate(chosen))


def overlapping(start: Ints, end: Ints) -> npt.NDArray[np.bool_]:
    """Which intervals share a cluster of touching-in-time intervals with another one (zero-length ones included)."""
    n = len(start)
    result = np.zeros(n, bool)
    if n < 2:
        return result
    order = np.lexsort((end, start))
    joins = start[order[1:]] < np.maximum.accumulate(end[order[:-1]])
    result[order[1:][joins]] = True
    result[order[:-1][joins]] = True
    return result


def idle_spans(start: Ints, end: Ints, first: int, last: int) -> tuple[Ints, Ints]:
    """(starts, ends) of what ``[start, end)`` leave free of ``[first, last)``, in order; none of them is empty."""
    order = np.argsort(start, kind="stable")
    opens = np.concatenate(([first], np.maximum.accumulate(np.maximum(end[order], first))))
    closes = np.minimum(np.concatenate((start[order], [last])), last)
    free = closes > opens
    return opens[free].astype(np.int64), closes[free].astype(np.int64)


def idle_within(start: Ints, end: Ints, spans: Spans) -> Spans:
    """What ``[start, end)`` leave free of ``spans``, which are in order and apart, none of them empty."""
    opens, closes = spans
    if not len(opens):
        return spans
    busy_from, busy_to = np.concatenate((start, closes[:-1])), np.concatenate((end, opens[1:]))
    return idle_spans(busy_from, busy_to, int(opens[0]), int(closes[-1]))


def intersections(one: Spans, other: Spans) -> tuple[Ints, Ints, Ints]:
    """(index into ``one``, start, end) of what each span of ``one`` shares with each of ``other``, in order.

    Spans of either are in order and apart; none of the parts is empty.
    """
    first = np.searchsorted(other[1], one[0], side="right")
    count = np.maximum(np.searchsorted(other[0], one[1], side="left") - first, 0)
    index = np.repeat(np.arange(len(count)), count)
    number = np.arange(len(index)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    start, end = np.maximum(one[0][index], other[0][number]), np.minimum(one[1][index], other[1][number])
    kept = end > start
    return index[kept], start[kept], end[kept]


class Covered:
    """The union of the intervals of each key (a thread, a stream): how much of any span of it they cover, exactly."""

    def __init__(self, key: npt.NDArray[np.integer], start: Ints, end: Ints) -> None:
        in_order = (key[1:] > key[:-1]) | ((key[1:] == key[:-1]) & (start[1:] >= start[:-1]))
        if not in_order.all():
            order = np.lexsort((start, key))
            key, start, end = key[order], start[order], end[order]
            del order
        #: By key: starts of the parts of its union, and how much of it lies before each part; last, all of it.
        self._unions: dict[int, tuple[Ints, Ints]] = {}
        borders = [0, *(np.flatnonzero(np.diff(key)) + 1).tolist(), len(key)]
        for low, high in itertools.pairwise(borders) if len(key) else ():
            e = np.maximum.accumulate(end[low:high])
            s = start[low:high].copy()
            np.maximum(s[1:], e[:-1], out=s[1:])
            kept = e > s
            if not kept.any():
                continue
            s, e = s[kept], e[kept]
            total = np.zeros(len(s) + 1, np.int64)
            np.cumsum(np.subtract(e, s, out=e), out=total[1:])
            self._unions[int(key[low])] = s, total

    def spans(self, key: int) -> tuple[Ints, Ints]:
        """(starts, ends) of the parts of a key's union, in order; parts may touch."""
        s, total = self._unions.get(key, (np.zeros(0, np.int64), np.zeros(1, np.int64)))
        return s, s + np.diff(total)

    def _covered_before(self, key: int, time: Ints) -> Ints:
        s, total = self._unions[key]
        begun = np.searchsorted(s, time, side="right")
        last = np.maximum(begun - 1, 0)
        # All before the last one that began, and of that one what has gone by
        gone = np.minimum(time - s[last], total[last + 1] - total[last])
        return total[last] + np.where(begun > 0, gone, 0)

    def within(self, key: npt.NDArray[np.integer], start: Ints, end: Ints) -> Ints:
        """How much (ns) of ``[start, end)`` each key's union covers."""
        result = np.zeros(len(start), np.int64)
        if len(key) and (key == key[0]).all():
            distinct: list[tuple[int, Ints | slice]] = [(int(key[0]), slice(None))]
        else:
            distinct = list(by_number(key))
        for one, at in ((one, at) for one, at in distinct if one in self._unions):
            result[at] = self._covered_before(one, end[at]) - self._covered_before(one, start[at])
        return result


def covered_ns(start: Ints, end: Ints, first: Ints, last: Ints) -> Ints:
    """How much (ns) of each ``[first, last)`` the intervals ``[start, end)`` cover."""
    union = Covered(np.zeros(len(start), np.int64), start, end)
    return union.within(np.zeros(len(first), np.int64), first, last)
