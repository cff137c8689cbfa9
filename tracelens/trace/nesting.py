"""Which interval lies in which: callers, subtrees and depth of the host events, without a loop over events."""

from __future__ import annotations

from ctypes import c_int64, c_void_p
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens.lazy.compiled import address, library
from tracelens.lazy.records import dataclass

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: Positions in preorder; depths.
Places: TypeAlias = npt.NDArray[np.int32]
#: Of each interval: its parent, the end of its subtree, its depth, whether it overlaps, and what it outlived.
_Forest: TypeAlias = tuple[Places, Places, Places, Bools, Ints]
_SOURCE, _LAYOUT = Path(__file__).with_name("nest.c"), 2

_NONE = np.iinfo(np.int64).min
_ALL = np.iinfo(np.int64).max
#: Rounds of pointer jumping before the plain loop takes over. Real traces need 3 to 76, about as many as they are deep.
_MAX_ROUNDS = 256
# As many at a time: a round in one go would hold five more arrays of all events.
_BLOCK = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Nesting:
    """The forest of n intervals, by position in preorder (``order[position]`` is the interval's index).

    ``parent``: position of the innermost interval that contains this one, -1 for a root. ``last``: end of the subtree,
    exclusive. ``overlaps``: this one outlives its caller: one that started after its parent did is still open when it
    starts, and ends before it does. ``outlived``: where that is so, the end of the last of those, in ns; else 0.
    """

    order: Ints
    parent: Places
    last: Places
    depth: Places
    overlaps: Bools
    outlived: Ints


def nest(lane: npt.NDArray[np.int32], start: Ints, duration: Ints, rank: npt.NDArray[np.uint8]) -> Nesting:
    """Nests the intervals of each lane; times in whole ns, below 2^62.

    The parent is the innermost earlier interval of the lane that ends no sooner; an interval that outlives its caller
    goes to the innermost one that does contain it. Intervals are half-open: one of zero length at the end of another
    lies outside it, and inside one that starts there. Of intervals with the same span the lower ``rank`` is outside,
    then the one with the lower index.
    """
    # In place and let go of early: the sort is where loading a trace needs most memory.
    closing = start + duration
    closing *= -2
    closing -= duration == 0
    del duration
    order = np.lexsort((start, lane))
    start, lane = start[order], lane[order]
    first_of_lane = np.ones(len(order), np.bool_)
    first_of_lane[1:] = lane[1:] != lane[:-1]
    # Files are nearly in order of these two, and few events share both
    same = (start[1:] == start[:-1]) & ~first_of_lane[1:]
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    at = order[tied]
    order[tied] = at[np.lexsort((rank[at], closing[at], start[tied], lane[tied]))]
    key = -closing[order]
    del rank, lane, closing
    parent, last, depth, overlaps, outlived = _compiled(key, start, first_of_lane) or _plain(key, start, first_of_lane)
    return Nesting(order=order, parent=parent, last=last, depth=depth, overlaps=overlaps, outlived=outlived)


def _compiled(key: Ints, start: Ints, first_of_lane: Bools) -> _Forest | None:
    """None where ``nest.c`` was not compiled, or is not wanted."""
    found = library(_SOURCE, _LAYOUT)
    if found is None:
        return None
    n = len(key)
    parent, last, depth = (np.empty(n, np.int32) for _ in range(3))
    overlaps, outlived = np.zeros(n, np.bool_), np.zeros(n, np.int64)
    arrays = (key, start, first_of_lane, parent, last, depth, overlaps, outlived)
    found.tracelens_nest(c_int64(n), *(c_void_p(address(array)) for array in arrays))
    return parent, last, depth, overlaps, outlived


def _plain(key: Ints, start: Ints, first_of_lane: Bools) -> _Forest:
    parent, passed = _nearest_before(key, first_of_lane)
    last = _last_below(parent) + 1
    # Ancestors are what began before and has not ended: i earlier ones, less those whose subtree ends at or before i
    n = len(key)
    depth = np.arange(n) - np.cumsum(np.bincount(last, minlength=n + 1))[:n]
    overlaps = (passed != _NONE) & ((passed >> 1) > start)
    return (
        *(column.astype(np.int32) for column in (parent, last, depth)),
        overlaps,
        np.where(overlaps, passed >> 1, 0),
    )


def _nearest_before(key: Ints, first_of_lane: Bools) -> tuple[Ints, Ints]:
    """(nearest earlier j of the lane with ``key[j] >= key[i]`` or -1, largest key between the two) for each i.

    Pointer jumping: everything between i and its candidate c is below key[i], and everything between c and c's own
    candidate is below key[c]; so when key[c] is below key[i] as well, i may take over c's candidate, final or not.
    """
    n = len(key)
    # Place n, which index -1 reaches too, is the candidate of last resort: larger than any key
    key = np.append(key, _ALL)
    candidate = np.arange(-1, n)
    candidate[:n][first_of_lane] = n
    candidate[n] = n
    passed = np.full(n, _NONE)
    active = np.flatnonzero(key[candidate[:n]] < key[:n])
    for _ in range(_MAX_ROUNDS):
        if not len(active):
            break
        still = []
        for block in np.split(active, range(_BLOCK, len(active), _BLOCK)):
            skipped = candidate[block]
            passed[block] = np.maximum(passed[block], key[skipped])
            skipped = candidate[skipped]
            candidate[block] = skipped
            still.append(block[key[skipped] < key[block]])
        active = np.concatenate(still)
    if len(active):
        _finish(active, key, candidate, passed)
    candidate = candidate[:n]
    return np.where(candidate == n, -1, candidate), passed


def _last_below(parent: Ints) -> Ints:
    """The last node of each subtree, in preorder: the last child's last child and so on, doubling the step."""
    below = np.arange(len(parent))
    children = np.flatnonzero(parent >= 0)
    np.maximum.at(below, parent[children], children)
    active = np.flatnonzero(below[below] != below)
    while len(active):
        below[active] = below[below[active]]
        active = active[below[below[active]] != below[active]]
    return below


def _finish(active: Ints, key: Ints, candidate: Ints, passed: Ints) -> None:
    """The same search one by one, in order: each interval is passed over once, so it is linear however deep it is."""
    keys, found = key.tolist(), candidate.tolist()
    for i, largest in zip(active.tolist(), passed[active].tolist(), strict=True):
        j = found[i]
        while keys[j] < keys[i]:
            largest = max(largest, keys[j])
            j = found[j]
        found[i] = j
        candidate[i] = j
        passed[i] = largest


def innermost(last: Places) -> Places:
    """For each of some nodes in preorder the innermost other one round it, by where their subtrees end; -1 without."""
    first, key = np.zeros(len(last), np.bool_), last.astype(np.int64)
    first[:1] = True
    return (_compiled(key, key, first) or _plain(key, key, first))[0]


def nearest(above: Places, wanted: Bools) -> Places:
    """For each node the nearest strict ancestor that is ``wanted``, -1 without one.

    ``above`` holds the parents, each of which comes before its children.
    """
    compiled, n = library(_SOURCE, _LAYOUT), len(above)
    if compiled is not None:
        found = np.empty(n, np.int32)
        compiled.tracelens_nearest(c_int64(n), *(c_void_p(address(array)) for array in (above, wanted, found)))
        return found
    found = np.append(above, np.int32(-1))
    found[found < 0] = n
    stop = np.append(wanted, True)
    active = np.flatnonzero(~stop[found])
    while len(active):
        still = []
        for block in np.split(active, range(_BLOCK, len(active), _BLOCK)):
            found[block] = found[found[block]]
            still.append(block[~stop[found[block]]])
        active = np.concatenate(still)
    found = found[:n]
    found[found == n] = -1
    return found
