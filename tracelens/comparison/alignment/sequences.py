"""What two sequences have in common, in order: exact where they differ little, in bounded time everywhere."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from tracelens.analysis.intervals import Ints

Pairs = list[tuple[int, int]]
#: Insertions and removals up to which the longest common subsequence is found exactly.
MOST_EDITS = 600


def common(one: Ints, other: Ints, most_edits: int = MOST_EDITS) -> Pairs:
    """Positions (in ``one``, in ``other``) of equal elements, rising in both: the longest such list where at most
    ``most_edits`` elements are left over.

    Beyond that the parts between elements that occur once on both sides, then the n-th occurrences of each element, are
    paired: in time proportional to the length, but for sorting.
    """
    head = _equal(one, other)
    tail = _equal(one[head:][::-1], other[head:][::-1])
    inner_one, inner_other = one[head : len(one) - tail], other[head : len(other) - tail]
    pairs = [(i, i) for i in range(head)]
    pairs += [(i + head, j + head) for i, j in _between(inner_one.tolist(), inner_other.tolist(), most_edits)]
    pairs += [(len(one) - tail + i, len(other) - tail + i) for i in range(tail)]
    return pairs


def _equal(one: Ints, other: Ints) -> int:
    """How many elements both begin with."""
    least = min(len(one), len(other))
    differs = np.flatnonzero(one[:least] != other[:least])
    return int(differs[0]) if len(differs) else least


def _between(one: list[int], other: list[int], most_edits: int) -> Pairs:
    if not one or not other:
        return []
    if abs(len(one) - len(other)) <= most_edits and (found := _shortest_edit(one, other, most_edits)) is not None:
        return found
    return _rising(_occurrences(one, other))


def _shortest_edit(one: list[int], other: list[int], most: int) -> Pairs | None:
    """E. W. Myers, An O(ND) difference algorithm (1986); None where more than ``most`` edits are needed."""
    n, m = len(one), len(other)
    reach, trail = {1: 0}, []
    for edits in range(min(most, n + m) + 1):
        trail.append(dict(reach) if edits == 0 else {k: reach[k] for k in range(-edits - 1, edits + 2) if k in reach})
        for k in range(-edits, edits + 1, 2):
            down = k == -edits or (k != edits and reach[k - 1] < reach[k + 1])
            x = reach[k + 1] if down else reach[k - 1] + 1
            y = x - k
            while x < n and y < m and one[x] == other[y]:
                x, y = x + 1, y + 1
            reach[k] = x
            if x >= n and y >= m:
                return _walked_back(trail, n, m)
    return None


def _walked_back(trail: Sequence[dict[int, int]], x: int, y: int) -> Pairs:
    pairs: Pairs = []
    for edits in range(len(trail) - 1, -1, -1):
        reach, k = trail[edits], x - y
        down = k == -edits or (k != edits and reach[k - 1] < reach[k + 1])
        before = k + 1 if down else k - 1
        start = reach[before]
        stop = start if down else start + 1
        while x > max(stop, 0) and y > 0 and x - 1 >= stop:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        if edits == 0:
            break
        x, y = start, start - before
    return pairs[::-1]


def _occurrences(one: list[int], other: list[int]) -> Pairs:
    """The n-th occurrence of each element in ``one`` beside the n-th in ``other``."""
    places: dict[int, list[int]] = {}
    for j, element in enumerate(other):
        places.setdefault(element, []).append(j)
    seen: dict[int, int] = {}
    pairs = []
    for i, element in enumerate(one):
        number = seen.get(element, 0)
        seen[element] = number + 1
        if number < len(places.get(element, ())):
            pairs.append((i, places[element][number]))
    return pairs


def _rising(pairs: Pairs) -> Pairs:
    """The longest part of ``pairs``, whose first members rise, in which the second ones rise too."""
    ends: list[int] = []
    last: list[int] = []
    before = [-1] * len(pairs)
    for number, (_, j) in enumerate(pairs):
        at = bisect_left(ends, j)
        if at == len(ends):
            ends.append(j)
            last.append(number)
        else:
            ends[at], last[at] = j, number
        before[number] = last[at - 1] if at else -1
    found, number = [], last[-1] if last else -1
    while number >= 0:
        found.append(pairs[number])
        number = before[number]
    return found[::-1]
