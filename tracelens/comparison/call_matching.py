"""Which calls of one side are which of the other: by what they are, then by where they stand."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tracelens.analysis.intervals import Ints
from tracelens.comparison.kernel_names import family
from tracelens.comparison.sequences import common
from tracelens.comparison.sides import Call, Side

#: How the calls of a row were found to be the same, the surest first.
SAME, SAME_WORK, SAME_OP, SAME_PLACE = "same call", "same work", "same op", "same place"
#: Of a row that one side alone has.
ONLY_A, ONLY_B = "only in A", "only in B"

PRODUCT, ATTENTION, COMMUNICATION, COPY, STREAMING = "product", "attention", "communication", "copy", "streaming"
_ROLES = (
    (PRODUCT, ("GEMM", "GroupedGEMM", "CONV", "RNN", "MoE_fused", "MoE_unfused")),
    (ATTENTION, ("SDPA", "InferenceAttention", "SSM")),
    (COMMUNICATION, ("collectives", "EP_Communication", "CustomCollective", "record_param_comms", "MoE_comm")),
    (COPY, ("copy", "memcpy")),
)


def role(category: str) -> str:
    """What kind of work a category is: every call that only streams memory is of one kind."""
    return next((name for name, prefixes in _ROLES if category.startswith(prefixes)), STREAMING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Calls of A (indices) that became those of B; one of the two may be empty."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    how: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Numbered:
    """The distinct ``calls`` of all recordings of a side; ``call_of``: per recording, of its units."""

    side: Side
    calls: tuple[Call, ...]
    call_of: tuple[Ints, ...]

    @classmethod
    def of(cls, side: Side) -> Numbered:
        number: dict[Call, int] = {}
        found = []
        for one in side.recordings:
            codes = np.array([number.setdefault(call, len(number)) for call in one.calls] or [0], np.int64)
            found.append(codes[one.call])
        return cls(side=side, calls=tuple(number), call_of=tuple(found))

    @property
    def sequence(self) -> Ints:
        """The device work of the typical step of the first recording."""
        busy = np.array([not call.is_idle for call in self.calls] or [False], bool)
        units = self.call_of[0]
        found: Ints = units[(self.side.first.step == self.side.first.typical) & busy[units]]
        return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Matching:
    """``rows``, and of each recording the row of each of its units, ``a`` and ``b``."""

    rows: tuple[Row, ...]
    a: tuple[Ints, ...]
    b: tuple[Ints, ...]


def match(one: Numbered, other: Numbered) -> Matching:
    """Rows for all units of both sides.

    Calls are first told to be the same by what they are (``_identities``). Then the typical steps are laid beside each
    other: what is left between calls that both have is paired by name, by category and by role, and what then stands in
    the same place became one another. The two sides may change places: nothing depends on which is called A.
    """
    if _order(one) > _order(other):
        found = match(other, one)
        mirrored = (Row(a=row.b, b=row.a, how=_MIRRORED.get(row.how, row.how)) for row in found.rows)
        return Matching(rows=tuple(mirrored), a=found.b, b=found.a)
    token_a, token_b, how = _tokens(one.calls, other.calls)
    pairs = _Places(one, other, token_a, token_b).blocks()
    rows = _Rows(how, token_a, token_b)
    typical_a, typical_b = rows.of_blocks(pairs, one.sequence, other.sequence)
    a = [_spread(one, number, typical_a, rows.default(0)) for number in range(len(one.call_of))]
    b = [_spread(other, number, typical_b, rows.default(1)) for number in range(len(other.call_of))]
    return Matching(rows=tuple(rows.rows), a=tuple(a), b=tuple(b))


def _order(side: Numbered) -> tuple[int, list[str]]:
    """Of two sides that differ, the same one always comes first."""
    return len(side.sequence), [repr(side.calls[call]) for call in side.sequence.tolist()]


_MIRRORED = {ONLY_A: ONLY_B, ONLY_B: ONLY_A}
Identity = Callable[[Call], Hashable]


def _identities(both_have_modules: bool) -> Iterable[tuple[str, Identity]]:
    """What makes calls the same, the surest first; None where a call has no such identity."""
    if both_have_modules:
        yield SAME, lambda c: (c.module, c.name, c.kernel, c.shapes, c.dtypes, c.category)
    yield SAME, lambda c: (c.name, c.kernel, c.shapes, c.dtypes, c.category)
    yield SAME_WORK, lambda c: (c.name, c.work) if c.work else None
    yield SAME_WORK, lambda c: c.work if c.work and role(c.category) != STREAMING else None
    yield SAME_OP, lambda c: (c.name, c.shapes, c.category) if not c.kernel and c.shapes else None
    yield SAME_OP, lambda c: (c.kernel, c.category) if c.kernel else None
    yield SAME_OP, lambda c: (family(c.kernel), c.category) if c.kernel else None


def _tokens(one: Sequence[Call], other: Sequence[Call]) -> tuple[Ints, Ints, list[str]]:
    """A number per call, the same for those that are the same on both sides, -1 for the rest; and how it was found."""
    tokens = np.full(len(one), -1, np.int64), np.full(len(other), -1, np.int64)
    how: list[str] = []
    have_modules = all(any(call.module for call in calls) for calls in (one, other))
    for name, identity in _identities(have_modules):
        places: tuple[dict[Hashable, list[int]], ...] = (defaultdict(list), defaultdict(list))
        for found, calls, token in zip(places, (one, other), tokens, strict=True):
            for number in np.flatnonzero(token < 0).tolist():
                if (key := identity(calls[number])) is not None:
                    found[key].append(number)
        for key in places[0].keys() & places[1].keys():
            for found, token in zip(places, tokens, strict=True):
                token[found[key]] = len(how)
            how.append(name)
    return *tokens, how


@dataclass(frozen=True, slots=True)
class _Block:
    """Positions in the typical steps that became one another."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    how: str


class _Places:
    """The typical steps laid beside each other."""

    def __init__(self, one: Numbered, other: Numbered, token_a: Ints, token_b: Ints) -> None:
        self._calls = one.calls, other.calls
        self._sequence = one.sequence, other.sequence
        self._token = token_a, token_b

    def blocks(self) -> list[_Block]:
        """What became what; every position of either sequence is in exactly one."""
        left = tuple(np.arange(len(s)) for s in self._sequence)
        strong = [token[sequence] for token, sequence in zip(self._token, self._sequence, strict=True)]
        found = [_Block((i,), (j,), SAME) for i, j in self._pairs(strong, *left)]
        gaps = self._gaps(found, *left)
        moved = self._moved(gaps, strong)
        found += moved
        gone = {i for block in moved for i in block.a}, {j for block in moved for j in block.b}
        for a, b in gaps:
            left_a, left_b = [i for i in a if i not in gone[0]], [j for j in b if j not in gone[1]]
            found += self._within(left_a, left_b)
        return found

    def _pairs(self, tokens: Sequence[Ints], a: Ints, b: Ints) -> list[tuple[int, int]]:
        """Of the positions ``a`` and ``b`` those of equal tokens, in order; -1 equals nothing."""
        a, b = a[tokens[0][a] >= 0], b[tokens[1][b] >= 0]
        return [(int(a[i]), int(b[j])) for i, j in common(tokens[0][a], tokens[1][b])]

    @staticmethod
    def _gaps(found: Sequence[_Block], a: Ints, b: Ints) -> list[tuple[list[int], list[int]]]:
        """What is left of the positions between the pairs found, one entry for each place where anything is."""
        pairs = sorted((block.a[0], block.b[0]) for block in found)
        gaps = []
        low_a = low_b = 0
        place_a = {p: n for n, p in enumerate(a.tolist())}
        place_b = {p: n for n, p in enumerate(b.tolist())}
        for i, j in [*((place_a[i], place_b[j]) for i, j in pairs), (len(a), len(b))]:
            if i > low_a or j > low_b:
                gaps.append((a[low_a:i].tolist(), b[low_b:j].tolist()))
            low_a, low_b = i + 1, j + 1
        return gaps

    @staticmethod
    def _moved(gaps: Sequence[tuple[list[int], list[int]]], tokens: Sequence[Ints]) -> list[_Block]:
        """The same calls in another order."""
        waiting: dict[int, list[int]] = defaultdict(list)
        for _, part in gaps:
            for j in part:
                if tokens[1][j] >= 0:
                    waiting[int(tokens[1][j])].append(j)
        here = [(i, waiting.get(int(tokens[0][i]))) for part, _ in gaps for i in part]
        return [_Block((i,), (others.pop(0),), SAME) for i, others in here if others]

    def _within(self, a: list[int], b: list[int]) -> list[_Block]:
        """A gap in which both sides have something: pairs by ever weaker likeness, then what stands between them."""
        levels: tuple[tuple[str, Identity], ...] = (
            (SAME_OP, lambda c: (c.name if not c.kernel else family(c.kernel), c.category)),
            (SAME_PLACE, lambda c: c.category if role(c.category) != STREAMING else None),
            (SAME_PLACE, lambda c: role(c.category) if role(c.category) != STREAMING else None),
        )
        return self._refined(np.array(a), np.array(b), levels)

    def _refined(self, a: Ints, b: Ints, levels: Sequence[tuple[str, Identity]]) -> list[_Block]:
        if not len(a) or not len(b):
            return self._alone(a.tolist(), b.tolist())
        if not levels:
            return self._residue(a.tolist(), b.tolist())
        (how, identity), *weaker = levels
        codes: dict[Hashable, int] = {}
        tokens = []
        for positions, side in ((a, 0), (b, 1)):
            keys = [identity(self._calls[side][c]) for c in self._sequence[side][positions].tolist()]
            tokens.append(np.array([-1 if k is None else codes.setdefault(k, len(codes)) for k in keys], np.int64))
        inside = np.arange(len(a)), np.arange(len(b))
        pairs = [_Block((i,), (j,), how) for i, j in self._pairs(tokens, *inside)]
        found = [_Block((int(a[p.a[0]]),), (int(b[p.b[0]]),), how) for p in pairs]
        for left_a, left_b in self._gaps(pairs, *inside):
            found += self._refined(a[left_a], b[left_b], weaker)
        return found

    def _residue(self, a: list[int], b: list[int]) -> list[_Block]:
        if len(a) == len(b):
            return [_Block((i,), (j,), SAME_PLACE) for i, j in zip(a, b, strict=True)]
        return [_Block(tuple(a), tuple(b), SAME_PLACE)]

    @staticmethod
    def _alone(a: Sequence[int], b: Sequence[int]) -> list[_Block]:
        return [_Block((i,), (), ONLY_A) for i in a] + [_Block((), (j,), ONLY_B) for j in b]


class _Rows:
    """Rows as they are asked for."""

    def __init__(self, how: Sequence[str], token_a: Ints, token_b: Ints) -> None:
        self.rows: list[Row] = []
        self._of: dict[Hashable, int] = {}
        self._token, self._how = (token_a, token_b), how
        calls: tuple[dict[int, list[int]], ...] = (defaultdict(list), defaultdict(list))
        for side, tokens in enumerate(self._token):
            for call, token in enumerate(tokens.tolist()):
                calls[side][token].append(call)
        self._calls: Sequence[dict[int, list[int]]] = calls
        self._found: tuple[dict[int, Counter[int]], ...] = (defaultdict(Counter), defaultdict(Counter))

    def _number(self, key: Hashable, row: Row) -> int:
        if key not in self._of:
            self._of[key] = len(self.rows)
            self.rows.append(row)
        return self._of[key]

    def of_call(self, side: int, call: int) -> int:
        """The row of a call that is the same on both sides, or on one alone."""
        token = int(self._token[side][call])
        if token >= 0:
            return self._number(token, Row(
                a=tuple(self._calls[0][token]), b=tuple(self._calls[1][token]), how=self._how[token],
            ))  # fmt: skip
        alone = Row(a=() if side else (call,), b=(call,) if side else (), how=ONLY_B if side else ONLY_A)
        return self._number((side, call), alone)

    def of_blocks(self, blocks: Iterable[_Block], one: Ints, other: Ints) -> tuple[Ints, Ints]:
        """The row of each position of both typical steps."""
        result = np.full(len(one), -1, np.int64), np.full(len(other), -1, np.int64)
        for block in blocks:
            calls = tuple(
                tuple(dict.fromkeys(sequence[list(part)].tolist()))
                for sequence, part in ((one, block.a), (other, block.b))
            )
            if not block.a or not block.b or block.how == SAME:
                for side, part in enumerate((block.a, block.b)):
                    for position in part:
                        result[side][position] = self.of_call(side, int((one, other)[side][position]))
            else:
                number = self._number((block.how, calls), Row(a=calls[0], b=calls[1], how=block.how))
                result[0][list(block.a)] = number
                result[1][list(block.b)] = number
        for side, (rows, sequence) in enumerate(zip(result, (one, other), strict=True)):
            for row, call in zip(rows.tolist(), sequence.tolist(), strict=True):
                self._found[side][call][row] += 1
        return result

    def default(self, side: int) -> Callable[[int], int]:
        """The row of a call that the typical step does not have, or not as often."""

        def row(call: int) -> int:
            found = self._found[side].get(call)
            return found.most_common(1)[0][0] if found else self.of_call(side, call)

        return row


def _spread(side: Numbered, number: int, typical: Ints, default: Callable[[int], int]) -> Ints:
    """The row of each unit of a recording: that of the same call, as often called in the typical step."""
    one, call, sequence = side.side.recordings[number], side.call_of[number], side.sequence
    order = np.argsort(sequence, kind="stable")
    count = np.bincount(sequence, minlength=len(side.calls))
    offset = np.cumsum(count) - count
    rows = np.append(typical[order], -1)
    place = np.lexsort((np.arange(len(call)), call, one.step))
    fresh = np.flatnonzero(np.concatenate(([True], (np.diff(call[place]) != 0) | (np.diff(one.step[place]) != 0))))
    nth = np.empty(len(call), np.int64)
    nth[place] = np.arange(len(call)) - np.repeat(fresh, np.diff(np.append(fresh, len(call)))) if len(call) else 0
    known = nth < count[call]
    result = np.where(known, rows[np.where(known, offset[call] + nth, -1)], -1)
    missing = np.flatnonzero(result < 0)
    of_call = {c: default(c) for c in np.unique(call[missing]).tolist()}
    result[missing] = [of_call[c] for c in call[missing].tolist()]
    return result
