"""Which calls of one side are which of the other: by what they are, then by their order, or kernel by kernel; which
pairs are plausible, and which kernels are part of a quantized exchange.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from operator import attrgetter

import numpy as np

from tracelens.analysis.grouping import first_of_each, numbered
from tracelens.analysis.intervals import Bools, Ints
from tracelens.comparison.places import (
    ONLY_A,
    ONLY_B,
    QUANTIZED_A,
    QUANTIZED_B,
    SAME,
    SAME_OP,
    SAME_PLACE,
    SAME_WORK,
    AlignedBlock,
    Places,
)
from tracelens.comparison.sides import (
    COMMUNICATION,
    STREAMING,
    Call,
    CallWork,
    Floats,
    Recorded,
    Side,
    call_role,
    family,
)
from tracelens.types.records import Record


class Row(Record, frozen=True, kw_only=True):
    """Calls of A (indices) that became those of B; one of the two may be empty."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    how: str


class Numbered(Record, frozen=True, kw_only=True, eq=False, dict=True):
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

    @cached_property
    def steps(self) -> list[Ints]:
        """The device work of each step, the typical one first; empty if the source has no launch order."""
        if not self.side.first.is_ordered:
            return [np.zeros(0, np.int64)]
        busy = np.array([not call.is_idle for call in self.calls] or [False], bool)
        return [
            own[(one.step == step) & busy[own]]
            for one, own in zip(self.side.recordings, self.call_of, strict=True)
            for step in (one.typical, *np.delete(np.arange(len(one.durations_ns)), one.typical))
        ]

    @cached_property
    def sequence(self) -> Ints:
        """The step nearest to the median count of each call; of several the typical one of the first recording."""
        counts = np.stack([np.bincount(step, minlength=len(self.calls)) for step in self.steps])
        return self.steps[int(np.abs(counts - np.median(counts, axis=0)).sum(axis=1).argmin())]


#: How many times as long several calls may take as what they split into or fused into: a chain of ten elementwise ops
#: moves some twenty times the bytes of one kernel for all, and attention from parts gains less by fusing.
MOST_TIMES = 20.0
#: Below this a kernel's time says nothing.
_LEAST_NS = 1000.0
#: Different programs: at most this share of either side's kernel time is in the same calls or in the same work, less
#: than this share in ops of one name, and the known FLOPs of matrix work differ by more than this.
_LEAST_SAME, _LEAST_NAMED_ALIKE, _SAME_FLOPS = 0.05, 0.5, 0.001


class Difference(Record, frozen=True, kw_only=True):
    """Two programs: the shares of A's and of B's kernel time in the same calls, and of both in ops of one name."""

    same: tuple[float, float]
    named_alike: float


def difference(rows: Sequence[Row], sides: Sequence[Numbered], units: Sequence[Sequence[Ints]]) -> Difference | None:
    """None where the sides look like one program, or where too little of their work is known to say so.

    Other shapes leave the ops, other implementations the work, so that two signs are asked for: hardly any call has the
    same arguments or the same work, and other ops take most of the time. Where the matrix FLOPs are as many on both
    sides, the same is done in another way.
    """
    flops = [_flops(side) for side in sides]
    if not all(flops) or abs(flops[0] - flops[1]) <= _SAME_FLOPS * max(flops):
        return None
    sure = np.array([row.how in (SAME, SAME_WORK) for row in rows], bool)
    times = [_row_ns(side, own, len(rows)) for side, own in zip(sides, units, strict=True)]
    same = [float(own[sure].sum() / max(own.sum(), 1.0)) for own in times]
    names = [_share_of_names(side) for side in sides]
    alike = sum(min(share, names[1][name]) for name, share in names[0].items())
    if max(same) > _LEAST_SAME or alike >= _LEAST_NAMED_ALIKE:
        return None
    return Difference(same=(same[0], same[1]), named_alike=alike)


def implausible(rows: Sequence[Row], sides: Sequence[Numbered], units: Sequence[Sequence[Ints]]) -> list[int]:
    """Rows matched by place alone that took ``MOST_TIMES`` as long on one side, except single calls of one role."""
    a, b = (_row_ns(side, own, len(rows)) for side, own in zip(sides, units, strict=True))
    far = np.maximum(a, b) > MOST_TIMES * np.maximum(np.minimum(a, b), _LEAST_NS)
    found = []
    for number in np.flatnonzero(far).tolist():
        row = rows[number]
        if row.how == SAME_PLACE and row.a and row.b:
            a_role, b_role = (call_role(side.calls[own[0]]) for side, own in zip(sides, (row.a, row.b), strict=True))
            if a_role != b_role or not len(row.a) == len(row.b) == 1:
                found.append(number)
    return found


def taken_apart(
    rows: Sequence[Row], sides: Sequence[Numbered], units: Sequence[Sequence[Ints]], numbers: Collection[int]
) -> tuple[list[Row], list[list[Ints]]]:
    """The rows, and those of all units, with every call of the rows of these numbers in a row of its own side."""
    found, placed = list(rows), [list(own) for own in units]
    for which, (side, own) in enumerate(zip(sides, placed, strict=True)):
        alone = {
            (row.b if which else row.a)[0]: number
            for number, row in enumerate(rows)
            if row.how == (ONLY_B if which else ONLY_A)
        }
        for at, (call, row_of) in enumerate(zip(side.call_of, own, strict=True)):
            moved = np.isin(row_of, list(numbers))
            for each in np.unique(call[moved]).tolist():
                if each not in alone:
                    alone[each] = len(found)
                    found.append(Row(a=(), b=(each,), how=ONLY_B) if which else Row(a=(each,), b=(), how=ONLY_A))
            own[at] = np.where(moved, [alone.get(each, -1) for each in call.tolist()], row_of)
    return found, placed


def _row_ns(side: Numbered, rows: Sequence[Ints], count: int) -> Floats:
    """Kernel time of each row, of all steps together over their number."""
    total, steps = np.zeros(count), 0
    for one, own in zip(side.side.recordings, rows, strict=True):
        total += np.bincount(own, one.kernel_ns, minlength=count)
        steps += len(one.durations_ns)
    return total / max(steps, 1)


def _share_of_names(side: Numbered) -> Counter[str]:
    """Name of an op, or kernel that stands for itself -> its share of the kernel time."""
    total: Counter[str] = Counter()
    for one, calls in zip(side.side.recordings, side.call_of, strict=True):
        times = np.bincount(calls, one.kernel_ns, minlength=len(side.calls))
        for number in np.flatnonzero(times).tolist():
            total[side.calls[number].label] += times[number]
    whole = sum(total.values()) or 1.0
    return Counter({name: time / whole for name, time in total.items()})


def _flops(side: Numbered) -> float:
    """Known FLOPs of a step's matrix work; 0 where none are known."""
    done, steps = 0.0, 0
    for one in side.side.recordings:
        is_matrix = [(rates.engine or "").startswith("matrix") for rates in one.rates]
        each = np.where(is_matrix or [False], [rates.flops for rates in one.rates] or [np.nan], np.nan)
        done += float(np.nansum(each[one.call] * one.repeats))
        steps += len(one.durations_ns)
    return done / max(steps, 1)


#: An op, a kernel or the range around it that says so: ``dequantize``, ``encoder fp16``, ``cast_to_fp8``.
_QUANTIZES = re.compile(
    r"(?i)quant(?!ile|ity|um)|(?:encod|decod|compress|cast)\w{0,8}?.?(?:(?:mx|nv|h|b)?fp|bfloat|float|u?int|e\dm)\d"
)


def with_quantized(rows: Sequence[Row], one: Numbered, other: Numbered) -> list[Row]:
    """The rows, exchanges of both sides that one of them quantizes marked as such with what does that.

    Only kernels that one side alone has, and that stand right before or after a collective that the other side has too:
    the same exchange, done in another way.
    """
    marked: dict[int, str] = {}
    for side, which, how in ((one, attrgetter("a"), QUANTIZED_A), (other, attrgetter("b"), QUANTIZED_B)):
        beside = _beside(side, [(which(row), bool(row.a and row.b)) for row in rows])
        marked |= {number: how for number, row in enumerate(rows) if which(row) and beside[list(which(row))].all()}
    return [replace(row, how=marked[number]) if number in marked else row for number, row in enumerate(rows)]


def _beside(side: Numbered, rows: Iterable[tuple[tuple[int, ...], bool]]) -> Bools:
    """By call: whether it quantizes beside an exchange, or is that; ``rows``: calls, and whether both have them."""
    quantizes, exchanges, found = np.zeros((3, len(side.calls)), bool)
    for calls, both in rows:
        for call in calls:
            own = side.calls[call]
            exchanges[call] = both and call_role(own) == COMMUNICATION
            if not both and call_role(own) == STREAMING:
                around = (own.module or "").rpartition("/")[2]
                quantizes[call] = any(map(_QUANTIZES.search, (around, own.name, own.kernel)))
    for step in side.steps if quantizes.any() else ():
        sent = np.flatnonzero(exchanges[step])
        edges = np.diff(np.concatenate(([0], quantizes[step].view(np.int8), [0])))
        for begin, end in zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True):
            near = sent[(sent == begin - 1) | (sent == end)]
            if len(near):
                found[step[begin:end]] = True
                found[step[near]] = True
    return found


class Matching(Record, frozen=True, kw_only=True, eq=False):
    """``rows``, and of each recording the row of each of its units, ``a`` and ``b``.

    ``difference``: where the sides look like different programs; then no calls are paired by their place alone.
    """

    rows: tuple[Row, ...]
    a: tuple[Ints, ...]
    b: tuple[Ints, ...]
    difference: Difference | None = None


def match(one: Numbered, other: Numbered) -> Matching:
    """Rows for all units of both sides.

    Calls are first told to be the same by what they are (``_identities``). Then the typical steps are laid beside each
    other, and what stands in the same place became one another; then steps with calls that these do not have. Nothing
    depends on which side is called A. What can't be, by the times that it took, is taken apart again.
    """
    if _comes_after(one, other):
        found = match(other, one)
        mirrored = (Row(a=row.b, b=row.a, how=_MIRRORED.get(row.how, row.how)) for row in found.rows)
        apart = found.difference
        apart = apart and Difference(same=apart.same[::-1], named_alike=apart.named_alike)
        return Matching(rows=tuple(mirrored), a=found.b, b=found.a, difference=apart)
    token_a, token_b, how = _tokens(one.calls, other.calls)
    sure = _sure(how, one.calls, token_a)
    loose = _loose(one.calls, other.calls, token_a)
    rows = _Rows(how, token_a, token_b)

    def beside(a: Ints, b: Ints) -> tuple[Ints, Ints]:
        calls, tokens = (one.calls, other.calls), (token_a, token_b)
        return rows.of_blocks(Places(calls, (a, b), tokens, sure, loose).blocks(), a, b)

    typical_a, typical_b = beside(one.sequence, other.sequence)
    for further in _further_steps((one, other), (token_a, token_b)):
        beside(*further)
    a = [_spread(one, number, typical_a, rows.default(0)) for number in range(len(one.call_of))]
    b = [_spread(other, number, typical_b, rows.default(1)) for number in range(len(other.call_of))]
    apart = difference(rows.rows, (one, other), (a, b))
    guessed = (
        implausible(rows.rows, (one, other), (a, b))
        if apart is None
        else [number for number, row in enumerate(rows.rows) if row.how == SAME_PLACE]
    )
    separate, (a, b) = taken_apart(rows.rows, (one, other), (a, b), guessed)
    joined, target = _joined(separate, one.calls, other.calls)
    joined = with_quantized(joined, one, other)
    of_units = [tuple(target[own] for own in units) for units in (a, b)]
    return Matching(rows=tuple(joined), a=of_units[0], b=of_units[1], difference=apart)


def _further_steps(sides: Sequence[Numbered], tokens: Sequence[Ints]) -> Iterable[tuple[Ints, Ints]]:
    """What steps beside the typical ones have that these do not: of the step of each side with most such calls.

    Where what the other side has in no step is among them on both sides, and the steps have more in common than not:
    every fourth one runs the optimizer, say.
    """
    unseen = [np.ones(len(side.calls) + 1, bool) for side in sides]
    steps = [side.sequence for side in sides]
    for _ in range(_FURTHER_STEPS):
        for fresh, step in zip(unseen, steps, strict=True):
            fresh[step] = False
        new = [np.flatnonzero(fresh[:-1] & (token < 0)) for fresh, token in zip(unseen, tokens, strict=True)]
        counts = [[int(np.isin(step, own).sum()) for step in side.steps] for side, own in zip(sides, new, strict=True)]
        if not all(map(any, counts)):
            return
        steps = [side.steps[int(np.argmax(count))] for side, count in zip(sides, counts, strict=True)]
        a, b = (token[step] for token, step in zip(tokens, steps, strict=True))
        if 2 * np.isin(a, b[b >= 0]).sum() >= len(a) and 2 * np.isin(b, a[a >= 0]).sum() >= len(b):
            yield steps[0], steps[1]


def _joined(rows: Sequence[Row], one: Sequence[Call], other: Sequence[Call]) -> tuple[list[Row], Ints]:
    """The rows, and the new number of each: an op of a module that has other arguments on each side is one row."""
    alone: dict[str, dict[Hashable, list[int]]] = {ONLY_A: defaultdict(list), ONLY_B: defaultdict(list)}
    for number, row in enumerate(rows):
        if row.how in alone:
            call = one[row.a[0]] if row.a else other[row.b[0]]
            if not call.kernel:
                alone[row.how][call.name, call.category, call.module].append(number)
    found, target = list(rows), np.arange(len(rows))
    for key in alone[ONLY_A].keys() & alone[ONLY_B].keys():
        own = [rows[number].a[0] for number in alone[ONLY_A][key]]
        others = [rows[number].b[0] for number in alone[ONLY_B][key]]
        numbers = alone[ONLY_A][key] + alone[ONLY_B][key]
        found[numbers[0]] = Row(a=tuple(own), b=tuple(others), how=SAME_OP)
        target[numbers] = numbers[0]
    return found, target


def _comes_after(one: Numbered, other: Numbered) -> bool:
    """Of two sides that differ, the same one always comes first."""
    if len(one.sequence) != len(other.sequence):
        return len(one.sequence) > len(other.sequence)
    sequences = []
    for side in (one, other):
        texts = [repr(call) for call in side.calls]
        sequences.append([texts[call] for call in side.sequence.tolist()])
    return sequences[0] > sequences[1]


_MIRRORED = {ONLY_A: ONLY_B, ONLY_B: ONLY_A, QUANTIZED_A: QUANTIZED_B, QUANTIZED_B: QUANTIZED_A}
Identity = Callable[[Call], Hashable]


def _identities(one: Sequence[Call], other: Sequence[Call]) -> Iterable[tuple[str, Identity]]:
    """What makes calls the same, the surest first; None where a call has no such identity."""
    together = _compiled_together(one, other)

    def named(name: str) -> str:
        """A name that Inductor numbered in another compilation without its number."""
        return family(name) if not together and name.startswith("triton") else name

    if all(any(call.module for call in calls) for calls in (one, other)):
        # Where shapes do not say it, as of lists of tensors, the work tells calls apart
        yield SAME, lambda c: (c.module, named(c.name), named(c.kernel), c.shapes, c.dtypes, c.category, c.work)
        yield SAME, lambda c: (c.module, named(c.name), named(c.kernel), c.shapes, c.dtypes, c.category)
    yield SAME, lambda c: (named(c.name), named(c.kernel), c.shapes, c.dtypes, c.category, c.work)
    yield SAME, lambda c: (named(c.name), named(c.kernel), c.shapes, c.dtypes, c.category)
    yield SAME_WORK, lambda c: (c.name, c.work) if c.work else None
    yield SAME_WORK, lambda c: c.work if c.work and call_role(c) != STREAMING else None
    yield SAME_OP, lambda c: (c.name, c.shapes, c.category) if not c.kernel and c.shapes else None
    yield SAME_OP, lambda c: (c.kernel, c.category) if c.kernel else None
    yield SAME_OP, lambda c: c.kernel or None
    yield SAME_OP, lambda c: (family(c.kernel), c.category) if c.kernel else None


def _compiled_together(one: Sequence[Call], other: Sequence[Call]) -> bool:
    """Whether the numbers in the names of Triton kernels mean the same on both sides."""
    compiled = [
        {name for call in calls for name in (call.name, call.kernel) if name.startswith("triton")}
        for calls in (one, other)
    ]
    return len(compiled[0] & compiled[1]) >= _LEAST_SHARED * max(len(compiled[0]), len(compiled[1]))


#: How many pairs of steps are laid beside each other at most after the typical ones.
_FURTHER_STEPS = 3
#: Share of Triton kernels' names that both sides of one compilation have.
_LEAST_SHARED = 0.75


def _tokens(one: Sequence[Call], other: Sequence[Call]) -> tuple[Ints, Ints, list[str]]:
    """A number per call, the same for those that are the same on both sides, -1 for the rest; and how it was found."""
    tokens = np.full(len(one), -1, np.int64), np.full(len(other), -1, np.int64)
    how: list[str] = []
    for name, identity in _identities(one, other):
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


def _sure(how: Sequence[str], calls: Sequence[Call], tokens: Ints) -> list[bool]:
    """By token: whether the arguments say that its calls are the same, not their names alone."""
    found = [False] * len(how)
    for call, token in zip(calls, tokens.tolist(), strict=True):
        if token >= 0 and how[token] in (SAME, SAME_WORK):
            found[token] = not call.kernel and bool(call.shapes)
    return found


def _loose(one: Sequence[Call], other: Sequence[Call], tokens: Ints) -> set[int]:
    """Tokens of Triton kernels whose names may repeat in a layer: named by arguments, or streaming and recompiled."""
    together = _compiled_together(one, other)
    return {
        token
        for call, token in zip(one, tokens.tolist(), strict=True)
        if token >= 0 and call.kernel.startswith("triton") and call_role(call) == STREAMING
        # Named by its arguments alone: triton__0d1d2de (PyTorch 2.0 to 2.2 by default)
        if not together or call.kernel.startswith("triton__")
    }


class _Rows:
    """Rows as they are asked for."""

    def __init__(self, how: Sequence[str], token_a: Ints, token_b: Ints) -> None:
        self.rows: list[Row] = []
        self._of: dict[Hashable, int] = {}
        self._token, self._how = (token_a.tolist(), token_b.tolist()), how
        calls: tuple[dict[int, list[int]], ...] = (defaultdict(list), defaultdict(list))
        for side, tokens in enumerate(self._token):
            for call, token in enumerate(tokens):
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
        token = self._token[side][call]
        key: Hashable = token if token >= 0 else (side, call)
        if (known := self._of.get(key)) is not None:
            return known
        row = Row(a=() if side else (call,), b=(call,) if side else (), how=ONLY_B if side else ONLY_A)
        if token >= 0:
            row = Row(a=tuple(self._calls[0][token]), b=tuple(self._calls[1][token]), how=self._how[token])
        return self._number(key, row)

    def of_blocks(self, blocks: Iterable[AlignedBlock], one: Ints, other: Ints) -> tuple[Ints, Ints]:
        """The row of each position of two steps; calls that have one already keep it."""
        sequences = one.tolist(), other.tolist()
        result = [-1] * len(one), [-1] * len(other)
        seen = set(self._found[0]), set(self._found[1])
        for block in blocks:
            number = None
            if not _stays_apart(block, sequences, seen):
                a, b = (tuple(dict.fromkeys(sequence[position] for position in part))
                        for part, sequence in zip(block[:2], sequences, strict=True))  # fmt: skip
                number = self._number((block.how, a, b), Row(a=a, b=b, how=block.how))
            for side, part in enumerate(block[:2]):
                found, sequence = result[side], sequences[side]
                for position in part:
                    found[position] = self.of_call(side, sequence[position]) if number is None else number
        for of_call, rows, sequence, known in zip(self._found, result, sequences, seen, strict=True):
            for (call, row), times in Counter(zip(sequence, rows, strict=True)).items():
                if call not in known:
                    of_call[call][row] += times
        return np.array(result[0], np.int64), np.array(result[1], np.int64)

    def default(self, side: int) -> Callable[[int], int]:
        """The row of a call that the typical step does not have, or not as often."""

        def row(call: int) -> int:
            found = self._found[side].get(call)
            return found.most_common(1)[0][0] if found else self.of_call(side, call)

        return row


def _stays_apart(block: AlignedBlock, sequences: Sequence[list[int]], seen: Sequence[set[int]]) -> bool:
    """Whether the calls of a block are in rows of their own: the same, alone, or known from another step."""
    if not block.a or not block.b or block.how == SAME:
        return True
    places = zip((block.a, block.b), sequences, seen, strict=True)
    return bool(seen[0]) and any(sequence[at] in known for part, sequence, known in places for at in part)


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


#: Share of a side's kernel time in kernels without ops, which the other side's ops launch, from which these are parted.
_LEAST_BARE = 0.1


def by_kernel(one: Side, other: Side) -> tuple[Side, Side]:
    """Both sides kernel by kernel where one of them has ops for what is but kernels on the other; else as they are."""
    recorded = one.first, other.first
    if not all(side.is_ordered for side in recorded):
        return one, other
    shares = [_without_op(side) for side in recorded]
    for side, own, others in zip(recorded, shares, shares[::-1], strict=True):
        bare = sum(ns * max(share - others[name][0], 0.0) for name, (share, ns) in own.items() if name in others)
        if bare >= _LEAST_BARE * max(side.event_ns.sum(), 1):
            note = f"{side.source} has no ops for kernels that ops launch on the other side: compared kernel by kernel"
            return replace(_apart(one), notes=(*one.notes, note)), _apart(other)
    return one, other


def _without_op(one: Recorded) -> dict[str, tuple[float, float]]:
    """By kernel name: the share of its time in calls that no op stands for, and its time in ns."""
    is_bare = np.array([bool(call.kernel) for call in one.calls] or [False], bool)[one.call][one.event_unit]
    ns, bare = (
        np.bincount(one.event_kernel, one.event_ns * own, minlength=len(one.kernel_names)) for own in (1, is_bare)
    )
    return {
        name: (part / whole, whole)
        for name, part, whole in zip(one.kernel_names, bare.tolist(), ns.tolist(), strict=True)
        if whole
    }


def _apart(side: Side) -> Side:
    return replace(side, parts=tuple(tuple(_a_unit_per_kernel(one) for one in run) for run in side.parts))


def _a_unit_per_kernel(one: Recorded) -> Recorded:
    """Units of one device event each, in the order of their ops; of a call's part of a step each has its kernel's."""
    size = np.maximum(np.bincount(one.event_unit, minlength=len(one.call)), 1)
    first = np.cumsum(size) - size
    order = np.argsort(one.event_unit, kind="stable")
    unit_of_event = np.empty(len(order), np.int64)
    unit_of_event[order] = first[one.event_unit[order]] + _nth(one.event_unit[order])
    owner = np.repeat(np.arange(len(one.call)), size)
    kernel, kernel_ns = np.full(len(owner), -1), one.kernel_ns[owner]
    kernel[unit_of_event], kernel_ns[unit_of_event] = one.event_kernel, one.event_ns
    call = numbered(one.call[owner], kernel)
    example = first_of_each(call)
    several = np.zeros(len(one.calls), bool)
    several[one.call[size > 1]] = True
    pairs = list(zip(one.call[owner[example]].tolist(), kernel[example].tolist(), strict=True))
    calls = tuple(_of_kernel(one, number, code) for number, code in pairs)
    rates = [CallWork() if several[number] else one.rates[number] for number, _ in pairs]
    # Nothing of calls that only their shapes told apart: what is known of one is not so of all
    flops: dict[Call, set[float]] = defaultdict(set)
    for of_kernel, known in zip(calls, rates, strict=True):
        flops[of_kernel].add(known.flops)
    # (which piece, ns) of the pieces of units, shared out among their kernels by what these take.
    piece = np.repeat(np.arange(len(one.piece_ns)), size[one.piece_unit])
    before = np.concatenate(([0], np.cumsum(kernel_ns)))
    begin, nth = first[one.piece_unit[piece]], _nth(piece)
    end = begin + size[one.piece_unit[piece]]
    whole = np.maximum(before[end] - before[begin], 1)
    until = [(before[begin + nth + more] - before[begin]) / whole for more in (0, 1)]
    until[1][begin + nth + 1 == end] = 1.0
    low, high = (np.rint(one.piece_ns[piece] * share).astype(np.int64) for share in until)
    part_ns = high - low
    return replace(
        one,
        calls=calls,
        rates=tuple(CallWork() if len(flops[own]) > 1 else known for own, known in zip(calls, rates, strict=True)),
        call=call.astype(np.int64),
        step=one.step[owner],
        kernel_ns=kernel_ns,
        repeats=one.repeats[owner],
        piece_unit=first[one.piece_unit[piece]] + _nth(piece),
        piece_step=one.piece_step[piece],
        piece_ns=part_ns,
        event_unit=unit_of_event,
    )


def _of_kernel(one: Recorded, number: int, kernel: int) -> Call:
    call = one.calls[number]
    if kernel < 0 or call.kernel:
        return call
    return Call(name=call.name, category=call.category, kernel=one.kernel_names[kernel], module=call.module)


def _nth(group: Ints) -> Ints:
    """The place of each within its group, of groups that lie together."""
    if not len(group):
        return group
    begins = np.concatenate(([True], group[1:] != group[:-1]))
    starts = np.flatnonzero(begins)
    return np.arange(len(group)) - starts[np.cumsum(begins) - 1]
