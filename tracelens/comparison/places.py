"""Two sequences of calls aligned: what they have in common in order, and what in the same place became one another."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from tracelens.analysis.intervals import Ints
from tracelens.comparison.sides import STREAMING, Call, Floats, family, roles_of

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
    # The longest part of ``pairs``, whose first members rise, in which the second ones rise too.
    pairs = _occurrences(one, other)
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


#: How the calls of a row were found to be the same, the surest first.
SAME, SAME_WORK, SAME_OP, SAME_PLACE = "same call", "same work", "same op", "same place"
#: Of a row that one side alone has.
ONLY_A, ONLY_B = "only in A", "only in B"
#: Of an exchange that one side quantizes, and of what does that there.
QUANTIZED = QUANTIZED_A, QUANTIZED_B = "quantized in A", "quantized in B"

#: What a pair of calls is worth: the same on both sides and as often; the same by its arguments, but more often on one;
#: of one name, of one category, of one role. Calls that only stream memory are worth little: anything fuses with them.
_EQUAL, _SURE, _SAME_NAME, _SAME_CATEGORY, _SAME_ROLE, _SAME_STREAM = 3.0, 2.9, 2.05, 2.02, 2.0, 0.2
#: What is taken off for standing elsewhere, as a share of the gap: names repeat in every layer, places do not.
_ELSEWHERE = 1.0
#: Cells of the table that is filled for a gap; longer gaps are first cut at calls that both have.
_MOST_CELLS = 4_000_000


class AlignedBlock(NamedTuple):
    """Positions in the typical steps that became one another."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    how: str


Gap = tuple[list[int], list[int]]


class Places:
    """``calls``: of each side; ``sequence``: indices of them in order; ``token``: equal where calls are the same.

    ``sure``: whether the arguments say so, by token; ``loose``: tokens of what may be named alike by chance.
    """

    def __init__(
        self,
        calls: Sequence[Sequence[Call]],
        sequence: Sequence[Ints],
        token: Sequence[Ints],
        sure: Sequence[bool],
        loose: Collection[int],
    ) -> None:
        self._sequence, self._sure = sequence, np.array([*sure, False], bool)
        self._tokens = [numbers[order] for numbers, order in zip(token, sequence, strict=True)]
        self._listed = [tokens.tolist() for tokens in self._tokens]
        most = max((int(tokens.max(initial=-1)) for tokens in self._tokens), default=-1) + 1
        counts = [np.bincount(tokens[tokens >= 0], minlength=most) for tokens in self._tokens]
        equal = np.append(counts[0] == counts[1], False)
        equal[[number for number in loose if number < most]] = False
        self._loose = loose
        self._equal = [np.where(equal[tokens], tokens, -1) for tokens in self._tokens]
        codes: dict[object, int] = {STREAMING: 0}
        self._kinds = [_kinds(own, order, codes) for own, order in zip(calls, sequence, strict=True)]
        self._named = [kinds[0].tolist() for kinds in self._kinds]
        self._heavy = [kinds[-1] != codes[STREAMING] for kinds in self._kinds]
        self._known: dict[tuple[bytes, bytes], list[tuple[int, int]]] = {}

    def blocks(self) -> list[AlignedBlock]:
        """What became what; every position of either sequence is in exactly one."""
        left, elsewhere = self._comparable()
        found = self._anchors(self._equal, *left)
        gaps = _gaps(found, *left)
        pairs = [self._aligned(*gap) for gap in gaps]
        parts = [_gaps(own, *_positions(gap)) for own, gap in zip(pairs, gaps, strict=True)]
        moved = self._moved([part for own in parts for part in own])
        gone = {i for i, _ in moved}, {j for _, j in moved}
        blocks = elsewhere + [AlignedBlock((i,), (j,), SAME) for i, j in (*found, *moved)]
        for own, part in zip(pairs, parts, strict=True):
            rest = [([i for i in a if i not in gone[0]], [j for j in b if j not in gone[1]]) for a, b in part]
            blocks += self._blocks_of_gap(own, rest)
        return blocks

    def _comparable(self) -> tuple[tuple[Ints, Ints], list[AlignedBlock]]:
        """The positions to compare; a call that the other side has in other steps than this became nothing else."""
        here = [(own < 0) | np.isin(own, other) for own, other in zip(self._tokens, self._tokens[::-1], strict=True)]
        blocks = [AlignedBlock((i,), (), SAME) for i in np.flatnonzero(~here[0]).tolist()]
        blocks += [AlignedBlock((), (j,), SAME) for j in np.flatnonzero(~here[1]).tolist()]
        return (np.flatnonzero(here[0]), np.flatnonzero(here[1])), blocks

    def _anchors(self, tokens: Sequence[Ints], a: Ints, b: Ints) -> list[tuple[int, int]]:
        """Of the positions ``a`` and ``b`` those of equal tokens, in order; -1 equals nothing."""
        a, b = a[tokens[0][a] >= 0], b[tokens[1][b] >= 0]
        return [(int(a[i]), int(b[j])) for i, j in common(tokens[0][a], tokens[1][b])]

    def _aligned(self, a: list[int], b: list[int]) -> list[tuple[int, int]]:
        """The pairs of a gap that are worth most together, in order."""
        if not a or not b:
            return []
        at = _positions((a, b))
        if len(a) * len(b) > _MOST_CELLS:
            anchors = self._anchors(self._tokens, *at)
            inner = [gap for gap in _gaps(anchors, *at) if len(gap[0]) * len(gap[1]) <= _MOST_CELLS]
            return sorted([*anchors, *(pair for gap in inner for pair in self._aligned(*gap))])
        key = self._sequence[0][at[0]].tobytes(), self._sequence[1][at[1]].tobytes()
        if key not in self._known:
            self._known[key] = _best(self._worth(*at))
        return [(a[i], b[j]) for i, j in self._known[key]]

    def _worth(self, a: Ints, b: Ints) -> Floats:
        worth = np.zeros((len(a), len(b)))
        heavy = self._heavy[0][a][:, None] & self._heavy[1][b]
        op, category, role = (one[a][:, None] == other[b] for one, other in zip(*self._kinds, strict=True))
        worth[op] = _SAME_STREAM
        for same, value in ((role, _SAME_ROLE), (category, _SAME_CATEGORY), (op, _SAME_NAME)):
            worth[same & heavy] = value
        place = np.linspace(0, _ELSEWHERE, len(a))[:, None], np.linspace(0, _ELSEWHERE, len(b))
        worth = np.where(worth > 0, np.maximum(worth - np.abs(place[0] - place[1]), worth / 10), 0.0)
        token = self._tokens[0][a][:, None], self._tokens[1][b]
        worth[(token[0] == token[1]) & self._sure[token[1]]] = _SURE
        equal = self._equal[0][a][:, None], self._equal[1][b]
        worth[(equal[0] == equal[1]) & (equal[1] >= 0)] = _EQUAL
        return worth

    def _moved(self, gaps: Sequence[Gap]) -> list[tuple[int, int]]:
        """The same calls in another order."""
        own, others = self._listed
        unmoved = {-1, *self._loose}
        waiting: dict[int, list[int]] = defaultdict(list)
        for j in (j for _, part in gaps for j in part if others[j] not in unmoved):
            waiting[others[j]].append(j)
        here = [(i, waiting.get(own[i])) for part, _ in gaps for i in part]
        return [(i, places.pop(0)) for i, places in here if places]

    def _blocks_of_gap(self, pairs: Sequence[tuple[int, int]], rest: Sequence[Gap]) -> list[AlignedBlock]:
        """The pairs of a gap and what stands between them.

        What one side alone has there stands between the same calls as its neighbors: it is part of what became of the
        pair before it, else after it, that was found by its place alone.
        """
        found: list[AlignedBlock] = []
        placed = _Placed()
        for i, j in pairs:
            how = SAME_OP if self._named[0][i] == self._named[1][j] else SAME_PLACE
            how = SAME if self._listed[0][i] == self._listed[1][j] >= 0 else how
            block = AlignedBlock((i,), (j,), how)
            if block.how == SAME_PLACE:
                placed.add(block)
            else:
                found.append(block)
        for a, b in rest:
            # One by one where they do the same kind of work
            if len(a) == len(b) and (len(a) == 1 or (self._kinds[0][2][a] == self._kinds[1][2][b]).all()):
                for i, j in zip(a, b, strict=True):
                    placed.add(AlignedBlock((i,), (j,), SAME_PLACE))
            elif a and b:
                placed.add(AlignedBlock(tuple(a), tuple(b), SAME_PLACE))
            elif not placed.joined(a, b):
                found += [AlignedBlock((i,), (), ONLY_A) for i in a] + [AlignedBlock((), (j,), ONLY_B) for j in b]
        return found + placed.blocks


class _Placed:
    """The blocks of a gap that were found by their place alone: in order, on both sides."""

    def __init__(self) -> None:
        self.blocks: list[AlignedBlock] = []
        self._starts: tuple[list[int], list[int]] = ([], [])

    def add(self, block: AlignedBlock) -> None:
        at = bisect_left(self._starts[0], block.a[0])
        self.blocks.insert(at, block)
        for starts, part in zip(self._starts, block[:2], strict=True):
            starts.insert(at, part[0])

    def joined(self, a: list[int], b: list[int]) -> bool:
        """Whether there was a block that ends before these positions of one side, else begins after them, to join."""
        if not self.blocks:
            return False
        at = max((bisect_left(self._starts[0], a[0]) if a else bisect_left(self._starts[1], b[0])) - 1, 0)
        host = self.blocks[at]
        self.blocks[at] = AlignedBlock(tuple(sorted((*host.a, *a))), tuple(sorted((*host.b, *b))), SAME_PLACE)
        for starts, part in zip(self._starts, self.blocks[at][:2], strict=True):
            starts[at] = part[0]
        return True


def _kinds(calls: Sequence[Call], order: Ints, codes: dict[object, int]) -> list[Ints]:
    """Numbers of what the calls in this order are named, of their category, and of their role."""
    keys = (lambda c: (family(c.kernel) if c.kernel else c.name, c.category), lambda c: c.category)
    found = [np.array([codes.setdefault(key(c), len(codes)) for c in calls] or [0], np.int64)[order] for key in keys]
    roles = [codes.setdefault(role, len(codes)) for role in roles_of(calls, order)]
    return [*found, np.array(roles, np.int64)]


def _gaps(pairs: Sequence[tuple[int, int]], a: Ints, b: Ints) -> list[Gap]:
    """What is left of the positions between the pairs, an entry for each place where anything is."""
    gaps = []
    low_a = low_b = 0
    at_a = [*np.searchsorted(a, [i for i, _ in pairs]).tolist(), len(a)]
    at_b = [*np.searchsorted(b, [j for _, j in pairs]).tolist(), len(b)]
    for i, j in zip(at_a, at_b, strict=True):
        if i > low_a or j > low_b:
            gaps.append((a[low_a:i].tolist(), b[low_b:j].tolist()))
        low_a, low_b = i + 1, j + 1
    return gaps


def _positions(gap: Gap) -> tuple[Ints, Ints]:
    return np.array(gap[0], np.int64), np.array(gap[1], np.int64)


def _best(worth: Floats) -> list[tuple[int, int]]:
    """The pairs, rising in both, worth most together (Needleman and Wunsch, 1970); leaving out costs nothing."""
    rows, columns = worth.shape
    best = np.zeros((rows + 1, columns + 1))
    for i in range(rows):
        np.maximum.accumulate(np.maximum(best[i, 1:], best[i, :-1] + worth[i]), out=best[i + 1, 1:])
    found, i, j = [], rows, columns
    while i and j:
        if best[i, j] == best[i - 1, j]:
            i -= 1
        elif best[i, j] == best[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            found.append((i, j))
    return found[::-1]
