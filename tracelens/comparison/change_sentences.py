"""Why the time of a row changed: other calls, work or kernels, parts that repeat more often, another clock; and the
rows of a comparison as sentences: those of one category that changed for one cause are one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import takewhile
from math import gcd

import numpy as np

from tracelens.analysis.ranks.rank_files import ranks_text
from tracelens.comparison.compared import (
    ADDED,
    AT_ONCE,
    CALLS,
    CLOCK,
    EVERYTHING,
    FUSED,
    IDLE,
    KERNEL,
    LATE,
    NOISE,
    OVERLAP,
    QUANTIZATION,
    REMOVED,
    REPEATS,
    REPLACED,
    SOME_RANKS,
    SPEED,
    SPLIT,
    TYPE,
    UNCHANGED,
    WAITING,
    WORK,
    Change,
    ComparedRow,
    Comparison,
    KernelShare,
    RankChange,
    RowSide,
)
from tracelens.comparison.late_ranks import RankTimes, with_latecomers, with_ranks_apart
from tracelens.comparison.measured_rows import Intervals
from tracelens.comparison.places import QUANTIZED, SAME, SAME_PLACE, SAME_WORK
from tracelens.comparison.sides import ATTENTION, COMMUNICATION, COPY, PRODUCT, Side, different, family, role, row_role
from tracelens.files.safe_text import clipped
from tracelens.types.records import Record
from tracelens.types.units import count_text, signed_ms, slower_text

#: Relative difference from which two counts or amounts of work are not the same.
_DIFFERS = 0.005
#: Share of a row's kernel time in kernels of one side alone from which these are the cause.
_OTHER_KERNELS = 0.1


def cause_of(row: ComparedRow) -> str:
    """The cause of one row by itself: the first that holds."""
    a, b = row.a, row.b
    if row.is_idle:
        return WAITING if row.change_ms else UNCHANGED
    if row.match in QUANTIZED:
        return QUANTIZATION
    if a is None or b is None:
        return REMOVED if b is None else ADDED
    if row.match == SAME_PLACE and differs(a.calls, b.calls):
        return FUSED if b.calls < a.calls else SPLIT
    if a.ops != b.ops:
        return REPLACED
    return _of_same_op(row, a, b)


def _of_same_op(row: ComparedRow, a: RowSide, b: RowSide) -> str:
    if differs(a.calls, b.calls) and _mostly_calls(row.change_ms, a, b):
        return CALLS
    if a.dtypes != b.dtypes and a.dtypes and b.dtypes:
        return TYPE
    if _other_work(row.match, a, b):
        return WORK
    if other_kernels(a, b) is not None:
        return KERNEL
    if not row.change_ms and a.kernel_ms == b.kernel_ms:
        return UNCHANGED
    return OVERLAP if abs(row.change_ms) > 2 * abs(b.kernel_ms - a.kernel_ms) else SPEED


def differs(one: float, other: float) -> bool:
    """Whether two counts or amounts are not the same."""
    return abs(one - other) > _DIFFERS * max(abs(one), abs(other))


def _mostly_calls(change_ms: float, a: RowSide, b: RowSide) -> bool:
    """Whether the number of calls explains more of a change than what one of them takes."""
    by_calls = (b.calls - a.calls) * a.ms / a.calls
    return abs(change_ms - by_calls) <= abs(by_calls)


def _other_work(match: str, a: RowSide, b: RowSide) -> bool:
    if a.flops and b.flops and differs(a.flops / a.calls, b.flops / b.calls):
        return True
    return a.shapes != b.shapes and match not in (SAME, SAME_WORK)


def other_kernels(a: RowSide, b: RowSide) -> tuple[str, str] | None:
    """The kernels of most time that one side alone has, shortly, empty where it has none; None for a small part."""
    gone, new = _of_one_alone(a, b), _of_one_alone(b, a)
    least = _OTHER_KERNELS * a.kernel_ms, _OTHER_KERNELS * b.kernel_ms
    few = sum(k.ms for k in gone) <= least[0] and sum(k.ms for k in new) <= least[1]
    if few or not a.kernels or not b.kernels:
        return None
    if gone and new:
        return different(gone[0].name, new[0].name)
    return (family(gone[0].name) if gone else ""), (family(new[0].name) if new else "")


def _of_one_alone(side: RowSide, other: RowSide) -> list[KernelShare]:
    names = {_unnumbered(kernel.name) for kernel in other.kernels}
    return [kernel for kernel in side.kernels if _unnumbered(kernel.name) not in names]


def _unnumbered(kernel: str) -> str:
    """Inductor numbers the kernels of a compilation: that number is no change."""
    return family(kernel) if kernel.startswith("triton") else kernel


#: Rows of one ratio that are told as one part, at least.
_LEAST_REPEATED_ROWS = 3


def with_repeats(rows: Sequence[ComparedRow]) -> list[ComparedRow]:
    """Marks the rows whose call counts grew by one common factor."""
    of_ratio: dict[Fraction, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        if row.cause == CALLS and (ratio := ratio_of(row)) is not None:
            of_ratio[ratio].append(number)
    found = list(rows)
    for numbers in of_ratio.values():
        if len(numbers) >= _LEAST_REPEATED_ROWS:
            for number in numbers:
                found[number] = replace(rows[number], cause=REPEATS)
    return found


def ratio_of(row: ComparedRow) -> Fraction | None:
    """Calls of B over those of A; None where either is no whole number."""
    if row.a is None or row.b is None or not row.a.calls.is_integer() or not row.b.calls.is_integer():
        return None
    return Fraction(int(row.b.calls), int(row.a.calls))


def times(rows: Sequence[ComparedRow]) -> tuple[int, int]:
    """How often A and B run the part, as far as the calls of its ops say."""
    a, b = (
        gcd(*(int(side.calls) for side in sides if side)) for sides in zip(*((r.a, r.b) for r in rows), strict=True)
    )
    return a, b


def part(rows: Sequence[ComparedRow]) -> str | None:
    """The innermost module around all of them, outermost first; None where there is none."""
    paths = [(row.module or "").split("/") for row in rows]
    same = takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False))
    return "/".join(names[0] for names in same) or None


#: What links limit, whatever the device's clock.
_OF_LINKS = (COMMUNICATION, COPY)
#: Compute-bound rows that must agree, of how many kernels, and the share of their time that must.
_LEAST_ROWS_OF_CLOCK, _LEAST_KERNELS, _LEAST_AGREEING = 3, 2, 0.9
#: Share of the time of compute-bound rows from which one that does not agree says that it was not the clock.
_MOST_APART = 0.05
#: Share of that time from which products, or attention, must have changed like the rest.
_LEAST_OF_ROLE = 0.01
#: How far (us) the median of a kernel may lie beside a clock's whatever its share: times are recorded in steps.
_MEDIAN_APART_US = 1.0
#: A change of clock that is told, and how far a row may lie from it: absolutely, and as a share of the change.
_LEAST_CHANGE, _APART, _APART_SHARE = 0.01, 0.01, 0.15


def with_clock(rows: Sequence[ComparedRow], *, same_device: bool) -> list[ComparedRow]:
    """The rows, those that another clock explains with that cause."""
    scaled = [
        row for row in rows
        if row.cause in (SPEED, UNCHANGED) and row.a and row.b and not row.is_idle
        and row_role(row) not in _OF_LINKS
    ]  # fmt: skip
    bound = list(filter(is_compute_bound, scaled))
    clock = _clock(bound) if same_device else None
    if clock is None:
        return list(rows)
    everything = _agrees([row for row in scaled if not is_compute_bound(row)], clock)
    return _with_cause(rows, scaled if everything else bound, clock, EVERYTHING if everything else CLOCK)


def _with_cause(
    rows: Sequence[ComparedRow], candidates: Sequence[ComparedRow], clock: float, cause: str
) -> list[ComparedRow]:
    moved = {id(row) for row in candidates if _near(_slower(row), 1 / clock)}
    return [replace(row, cause=cause) if id(row) in moved else row for row in rows]


def is_compute_bound(row: ComparedRow) -> bool:
    """By its roofline; products and attention where that is not known."""
    if row.a is None or row.b is None:
        return False
    if row.a.bound is not None:
        return row.a.bound == "compute"
    return role(row.category) in (PRODUCT, ATTENTION)


def _slower(row: ComparedRow) -> float:
    a, b = row.a, row.b
    return b.kernel_ms / b.calls / (a.kernel_ms / a.calls) if a and b and a.kernel_ms else 1.0


def _near(slower: float, most: float) -> bool:
    return abs(slower / most - 1) <= _APART + _APART_SHARE * abs(most - 1)


def _clock(rows: Sequence[ComparedRow]) -> float | None:
    """The clock of B over that of A; None where the rows do not agree on one, or it did not change."""
    if len(rows) < _LEAST_ROWS_OF_CLOCK:
        return None
    slower = _median(rows)
    if abs(slower - 1) < _LEAST_CHANGE or not _agrees(rows, 1 / slower):
        return None
    return 1 / slower if _is_of_all(rows, slower) else None


def _is_of_all(rows: Sequence[ComparedRow], slower: float) -> bool:
    """Whether several kernels changed so, and no row of much time otherwise or in some of its calls alone."""
    total = sum(row.a.kernel_ms for row in rows if row.a)
    heavy = [row for row in rows if row.a and row.a.kernel_ms >= _MOST_APART * total]
    kernels = {kernel.name for row in rows if row.a and _near(_slower(row), slower) for kernel in row.a.kernels}
    alike = all(_near(_slower(row), slower) and _is_typical(row, slower) for row in heavy)
    return alike and len(kernels) >= _LEAST_KERNELS and _is_of_roles(rows, slower, total)


def _is_of_roles(rows: Sequence[ComparedRow], slower: float, total: float) -> bool:
    """Whether products changed so, and attention: one of them alone has another library, not another clock."""
    for wanted in (PRODUCT, ATTENTION):
        own = [(row, row.a.kernel_ms) for row in rows if row.a and row_role(row) == wanted]
        near = sum(ms for row, ms in own if _near(_slower(row), slower))
        of_role = sum(ms for _, ms in own)
        if of_role >= _LEAST_OF_ROLE * total and 2 * near < of_role:
            return False
    return True


def median_ratio(row: ComparedRow) -> float | None:
    """How many times as long the kernels of both sides take by their medians; None without any."""
    both = _medians(row)
    before = sum(count * a for count, a, _ in both)
    return sum(count * b for count, _, b in both) / before if before else None


def _medians(row: ComparedRow) -> list[tuple[float, float, float]]:
    """(how many, median us in A, in B) of the kernels that both sides have."""
    after = {kernel.name: kernel.median_us for kernel in row.b.kernels} if row.b else {}
    kernels = row.a.kernels if row.a else ()
    return [(kernel.count, kernel.median_us, after[kernel.name]) for kernel in kernels if kernel.name in after]


def _is_typical(row: ComparedRow, slower: float) -> bool:
    """Whether the median call changed so, not some of them by more."""
    both = _medians(row)
    apart = sum(count * abs(b - slower * a) for count, a, b in both)
    within = (_APART + _APART_SHARE * abs(slower - 1)) * slower * sum(count * a for count, a, _ in both)
    return apart <= max(within, _MEDIAN_APART_US * sum(count for count, *_ in both))


def _agrees(rows: Sequence[ComparedRow], ratio: float) -> bool:
    """Whether nearly all time of these rows changed as the clock says."""
    total = sum(row.a.kernel_ms for row in rows if row.a)
    near = sum(row.a.kernel_ms for row in rows if row.a and _near(_slower(row), 1 / ratio))
    return total > 0 and near >= _LEAST_AGREEING * total


def _median(rows: Sequence[ComparedRow]) -> float:
    """The median over the time of A."""
    slower = np.array([_slower(row) for row in rows])
    order = np.argsort(slower)
    weight = np.cumsum(np.array([row.a.kernel_ms if row.a else 0.0 for row in rows])[order])
    return float(slower[order][np.searchsorted(weight, weight[-1] / 2)])


#: What a sentence names of many.
_MOST_NAMED = 3


def named_and_more(texts: Sequence[str]) -> str:
    """``GEMM, elementwise, reduce and 2 more``."""
    more = f" and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    return ", ".join(texts[:_MOST_NAMED]) + more


def calls_text(count: float) -> str:
    """``24 calls``."""
    return f"{count_text(count)} {'call' if count_text(count) == '1' else 'calls'}"


#: Characters of an op that a sentence names.
_WIDEST_OP = 48


class RowGroup(Record, frozen=True):
    """Rows of one sentence, and how the ranks changed."""

    rows: tuple[ComparedRow, ...]
    ranks: Sequence[RankChange] = ()

    @property
    def a(self) -> tuple[RowSide, ...]:
        return tuple(row.a for row in self.rows if row.a)

    @property
    def b(self) -> tuple[RowSide, ...]:
        return tuple(row.b for row in self.rows if row.b)

    @property
    def change_ms(self) -> float:
        return sum(row.change_ms for row in self.rows)

    @property
    def kernel_ms(self) -> tuple[float, float]:
        """Of A and of B."""
        return sum(side.kernel_ms for side in self.a), sum(side.kernel_ms for side in self.b)

    @property
    def calls(self) -> str:
        """``24 calls`` of a step of B; of A where B has none."""
        return calls_text(sum(side.calls for side in self.b or self.a))

    def ops(self, sides: Sequence[RowSide]) -> str:
        """``aten::add, aten::mul``."""
        ops = dict.fromkeys(op for side in sides for op in side.ops)
        return named_and_more([clipped(op, _WIDEST_OP) for op in ops])

    def alone(self, sides: Sequence[RowSide], what: str) -> str:
        """``aten::add is new``."""
        several = len({op for side in sides for op in side.ops}) > 1
        return f"{self.ops(sides)} {'are' if several else 'is'} {what}, {self.calls}"

    def amount(self, sides: Sequence[RowSide]) -> str:
        """``2.2 ms of aten::add, aten::mul (48 calls)``."""
        ms, calls = sum(side.ms for side in sides), sum(side.calls for side in sides)
        return f"{signed_ms(ms)[1:]} of {self.ops(sides)} ({calls_text(calls)})"

    def is_of_several_categories(self) -> bool:
        return len({row.category for row in self.rows}) > 1

    def by_category(self) -> str:
        """``GEMM +0.6 ms, elementwise +0.09 ms``: the changes of most time."""
        by_category: dict[str, float] = defaultdict(float)
        for row in self.rows:
            by_category[row.category] += row.change_ms
        largest = sorted(by_category.items(), key=lambda each: -abs(each[1]))
        return named_and_more([f"{category} {signed_ms(ms)}" for category, ms in largest])


#: What a sentence speaks of where calls of all categories changed alike.
ALIKE = {
    CLOCK: "compute-bound ops", EVERYTHING: "all computation", REPEATS: "ops", SOME_RANKS: "ranks", TYPE: "ops",
    WORK: "ops",
}  # fmt: skip
#: Change of the mean from which it is said that the median changed less, or that a collective may have waited.
_TOLD_APART = 0.05
#: Relative change up to which a median is as before.
_AS_BEFORE = 0.01
#: What is other whether or not its time is.
FACTS = (FUSED, SPLIT, REPLACED, TYPE, WORK, KERNEL, REMOVED, ADDED, QUANTIZATION)
#: Share of what some ranks changed from which a part of it is named.
_LEAST_PART = 0.01


def _types(a: Sequence[RowSide], b: Sequence[RowSide]) -> str:
    """The recorded types, those that both have left out."""
    kinds = [
        {kind for side in sides for text in side.dtypes for kind in text.strip("(),").replace("'", "").split(", ")}
        for sides in (a, b)
    ]
    words = [", ".join(sorted(kind.removeprefix("c10::") for kind in one - other if kind)) or "none"
             for one, other in (kinds, kinds[::-1])]  # fmt: skip
    return " -> ".join(words)


def _other(what: str, group: RowGroup) -> str:
    said = f"different {what} on {group.calls} of {group.ops(group.b)}"
    return f"{said}: {group.by_category()}" if group.is_of_several_categories() else said


def _kernels(group: RowGroup) -> str:
    before, after = other_kernels(group.a[0], group.b[0]) or ("", "")
    if before and after:
        what = f"different kernel ({before} -> {after})"
    else:
        what = f"new kernel ({after})" if after else f"kernel gone ({before})"
    return f"{what} on {group.calls} of {group.ops(group.b)}"


def _work(group: RowGroup) -> str:
    times = _times_the_flops(group.rows[0])
    what = "messages or groups" if is_sent(group.rows[0]) else "shapes"
    return _other(what if times is None else f"{what} ({times} x the FLOPs)", group)


def _times_the_flops(row: ComparedRow) -> str | None:
    """``2`` where a call has twice the FLOPs; None where that is not known, or they are as before."""
    a, b = row.a, row.b
    if a is None or b is None or not a.flops or not b.flops or not differs(a.flops / a.calls, b.flops / b.calls):
        return None
    return f"{b.flops / b.calls / (a.flops / a.calls):.3g}"


def _speed(group: RowGroup) -> str:
    calls = [sum(side.calls for side in sides) for sides in (group.a, group.b)]
    said = ", kernels of the same name" if _is_another_magnitude(group.rows[0]) else ", same kernels"
    known = said if all(side.kernels for side in (*group.a, *group.b)) else ""
    before, after = (ms / count for ms, count in zip(group.kernel_ms, calls, strict=True))
    slower = slower_text(before, after) + (_unlike_median(group, after / before) if before else "")
    is_unclear = is_sent(group.rows[0]) and not group.ranks and abs(after - before) >= _TOLD_APART * before
    less = " less" if after < before else ""
    unclear = f", or waiting{less} for another rank (compare folders of all ranks to find out)" if is_unclear else ""
    return f"{slower}{unclear}{known}, {group.calls} of {group.ops(group.b)}"


def _unlike_median(group: RowGroup, slower: float) -> str:
    """`` in the mean, the median kernel 0.3 % slower``: where some calls alone changed."""
    medians = [ratio for row in group.rows if (ratio := median_ratio(row)) is not None]
    if abs(slower - 1) < _TOLD_APART or len(medians) < len(group.rows):
        return ""
    if any(abs(ratio - 1) > abs(slower - 1) / 2 for ratio in medians):
        return ""
    typical = sum(medians) / len(medians)
    return (
        f" in the mean, the median kernel {'as before' if abs(typical - 1) < _AS_BEFORE else slower_text(1.0, typical)}"
    )


def _clock_text(group: RowGroup) -> str:
    before, after = group.kernel_ms
    share = 100 * (1 - before / after) if after else 0.0
    lower = f"clock {abs(share):.2g} % {'lower' if share > 0 else 'higher'}"
    return f"{lower} on all compute-bound ops, same kernels, {group.calls} of {group.ops(group.b)}"


def _everything(group: RowGroup) -> str:
    before, after = group.kernel_ms
    return f"{slower_text(before, after)} alike (clock, power or a shared device), same kernels, {group.calls}"


def _overlap(group: RowGroup) -> str:
    less, calls = "less" if group.change_ms > 0 else "more", f"{group.calls} of {group.ops(group.b)}"
    if group.rows[0].category == AT_ONCE:
        return f"{less} runs at the same time"
    if is_sent(group.rows[0]):
        before, after = group.kernel_ms
        alike = "as long" if before == after else slower_text(before, after)
        return f"hidden {less} behind computation, same kernels ({alike}), {calls}"
    return f"{less} at the same time as others, same kernels, {calls}"


def _quantization(group: RowGroup) -> str:
    """Of the exchanges themselves, or of what quantizes for them on one side."""
    if group.a and group.b:
        before, after = group.kernel_ms
        return f"{group.rows[0].match}, {slower_text(before, after)}, {group.calls} of {group.ops(group.b)}"
    return f"quantizing what is exchanged, {group.alone(group.a or group.b, 'gone' if group.a else 'new')}"


def _calls(group: RowGroup) -> str:
    return f"{count_text(sum(side.calls for side in group.a))} -> {group.calls} of {group.ops(group.b)}"


def _repeats(group: RowGroup) -> str:
    if len(group.rows) == 1:
        return _calls(group)
    before, after = times(group.rows)
    return f"{before} -> {after} times: {group.by_category()}"


def is_sent(row: ComparedRow) -> bool:
    return row_role(row) == COMMUNICATION


def which_ranks(ranks: Sequence[RankChange]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {ranks_text(rank.rank for rank in ranks)}"


def _some_ranks(group: RowGroup) -> str:
    """What changed on them, the largest first, as the mean of them; and what that is to the others."""
    alone = [rank for rank in group.ranks if rank.is_alone]
    before, after = (sum(own) / len(alone) for own in zip(*((r.a_own_ms, r.b_own_ms) for r in alone), strict=True))
    parts: dict[str, float] = defaultdict(float)
    for row in group.rows:
        parts[part_of_ranks(row)] += 0.0 if is_sent(row) else row.of_ranks_ms or 0.0
    told = {what: ms for what, ms in parts.items() if abs(ms) >= _LEAST_PART * abs(after - before)}
    named = [f"{signed_ms(told[what])} {what}" for what in sorted(told, key=lambda what: -abs(told[what]))]
    of = f"{before:,.3g} -> {after:,.3g} ms outside of collectives"
    others = (
        _others(len(group.ranks) - len(alone), len(alone), less=after < before)
        if any(map(is_sent, group.rows))
        else "the others are as before"
    )
    return f"{slower_text(before, after)}, {of} ({named_and_more(named)}); {others}"


def _others(rest: int, alone: int, *, less: bool) -> str:
    """``the other 7 wait for it``."""
    who = "the other rank waits" if rest == 1 else f"the other {rest} wait"
    return f"{who} {'less ' if less else ''}for {'it' if alone == 1 else 'them'}"


def part_of_ranks(row: ComparedRow) -> str:
    """A row among others of the same ranks: what is other where that is a fact, else what it belongs to."""
    cause = cause_of(row)
    if cause in FACTS:
        return SAYS[cause].text(RowGroup((row,)))
    return f"idle: {row.name}" if row.is_idle else row.category


class _Says(Record, frozen=True):
    """What rows of a cause must share to be one sentence, and that sentence; whether by how their times changed."""

    key: Callable[[ComparedRow], Hashable]
    text: Callable[[RowGroup], str]
    by_change: bool = False


def _is_another_magnitude(row: ComparedRow) -> bool:
    """Whether a call takes twice or half as long: no sentence of it is one with those of a few percent."""
    if row.a is None or row.b is None or not row.a.kernel_ms or not row.b.kernel_ms:
        return False
    ratio = row.b.kernel_ms / row.b.calls / (row.a.kernel_ms / row.a.calls)
    return not 0.5 < ratio < 2


def _own_ops(row: ComparedRow) -> Hashable:
    return row.a.ops if row.a else None, row.b.ops if row.b else None


SAYS = {
    WAITING: _Says(lambda row: row.name, lambda group: group.rows[0].name),
    REMOVED: _Says(lambda row: row.module, lambda group: group.alone(group.a, "gone")),
    ADDED: _Says(lambda row: row.module, lambda group: group.alone(group.b, "new")),
    QUANTIZATION: _Says(lambda row: (row.match, row.a is None or row.b is None), _quantization),
    FUSED: _Says(
        lambda row: row.b and row.b.ops, lambda group: f"{group.amount(group.a)} fused into {group.amount(group.b)}"
    ),
    SPLIT: _Says(
        lambda row: row.a and row.a.ops, lambda group: f"{group.amount(group.a)} split into {group.amount(group.b)}"
    ),
    REPLACED: _Says(_own_ops, lambda group: f"{group.ops(group.a)} -> {group.ops(group.b)} on {group.calls}"),
    CALLS: _Says(_own_ops, _calls),
    REPEATS: _Says(ratio_of, _repeats),
    TYPE: _Says(
        lambda row: row.a and row.b and _types((row.a,), (row.b,)),
        lambda group: _other(f"type ({_types(group.a, group.b)})", group),
    ),
    WORK: _Says(lambda row: _times_the_flops(row) or _own_ops(row), _work),
    KERNEL: _Says(lambda row: row.a and row.b and other_kernels(row.a, row.b), _kernels),
    CLOCK: _Says(lambda row: None, _clock_text),
    EVERYTHING: _Says(lambda row: None, _everything),
    SPEED: _Says(lambda row: (row.change_ms > 0, _is_another_magnitude(row)), _speed, by_change=True),
    LATE: _Says(lambda row: None, lambda group: group.rows[0].why),
    SOME_RANKS: _Says(lambda row: None, _some_ranks),
    OVERLAP: _Says(lambda row: row.change_ms > 0, _overlap, by_change=True),
    UNCHANGED: _Says(lambda row: None, lambda group: ""),
}


#: Said of a change that may be chance.
_WITHIN = ", within the noise"
#: What a step is made of beside computation, by role or category.
_PARTS = {COMMUNICATION: "exposed communication", COPY: "copies", AT_ONCE: "overlap", IDLE: "idle"}


def explained(
    rows: Iterable[ComparedRow],
    sides: Sequence[Side],
    times: Sequence[RankTimes | None],
    ranks: Sequence[RankChange],
) -> list[ComparedRow]:
    """The rows with their causes. ``times``: of the ranks of each side; ``ranks``: how these changed."""
    one, other = sides
    same_device = one.first.device_label == other.first.device_label
    found = with_repeats([replace(row, cause=cause_of(row)) for row in rows])
    found = with_ranks_apart(found, times, ranks)
    found = with_clock(found, same_device=same_device)
    found = with_latecomers(found, times, ranks)
    return [replace(row, why=_why(row, ranks)) for row in found]


def _why(row: ComparedRow, ranks: Sequence[RankChange]) -> str:
    if row.cause != SOME_RANKS:
        return SAYS[row.cause].text(RowGroup((row,), ranks))
    which = which_ranks([rank for rank in ranks if rank.is_alone])
    if is_sent(row):
        return f"waiting for {which}"
    return f"{which} alone: {signed_ms(row.of_ranks_ms or 0.0)} {part_of_ranks(row)}"


def changes_of(
    rows: Sequence[ComparedRow], intervals: Intervals, ranks: Sequence[RankChange] = ()
) -> tuple[Change, ...]:
    """The largest first; together they are the change of the step.

    Of what may be chance, other ops and kernels are told after that, as no chance explains them; the rest is the last.
    So that two recordings of the same thing are not said to differ, no rows are put together by how their times
    changed unless each of them is told from chance, and the intervals of all sentences hold together.
    """
    each = intervals.of_each(max(1, sum(SAYS[row.cause].by_change for row in rows)))
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for at, row in enumerate(rows):
        category, says = ALIKE.get(row.cause, row.category), SAYS[row.cause]
        alone = each is None or not each[at][0] <= 0 <= each[at][1]
        groups[category, row.cause, says.key(row) if alone or not says.by_change else None].append(at)
    found: list[Change] = []
    facts: list[Change] = []
    chance: list[Change] = []
    for group in groups.values():
        both = any(rows[at].a and rows[at].b for at in group)
        # What one side alone has is no matter of how many sentences there are
        bounds = intervals.of_sum(group, len(groups) if both else 1)
        made = _change(RowGroup(tuple(rows[at] for at in group), ranks), group, bounds)
        (found if not made.is_noise else facts if _is_fact(rows, made) else chance).append(made)
    found.sort(key=lambda change: (-abs(change.change_ms), change.text))
    facts.sort(key=lambda change: (-sum(side.kernel_ms for side in _sides(rows, change)), change.text))
    return (*found, *facts, *([_noise(rows, chance)] if chance else []))


def _sides(rows: Sequence[ComparedRow], change: Change) -> list[RowSide]:
    return [side for at in change.rows for side in (rows[at].a, rows[at].b) if side]


def _is_fact(rows: Sequence[ComparedRow], change: Change) -> bool:
    """Whether calls became others in every step: that is no matter of which steps were recorded."""
    return change.cause in FACTS and all(side.calls.is_integer() for side in _sides(rows, change))


def _noise(rows: Sequence[ComparedRow], chance: Sequence[Change]) -> Change:
    at = tuple(sorted(number for change in chance for number in change.rows))
    change_ms = sum(rows[number].change_ms for number in at)
    most = max(chance, key=lambda change: abs(change.change_ms))
    count = "1 row" if len(at) == 1 else f"{len(at)} rows"
    text = f"within the noise {signed_ms(change_ms)}: {count}, the largest is {most.text.replace(_WITHIN, '')}"
    return Change(text=text, change_ms=change_ms, cause=NOISE, category="", rows=at)


def _change(group: RowGroup, at: Sequence[int], bounds: tuple[float, float] | None) -> Change:
    first, change_ms = group.rows[0], group.change_ms
    low, high = bounds or (None, None)
    chance = _WITHIN if low is not None and high is not None and low <= 0 <= high else ""
    return Change(
        text=f"{_subject(group)} {signed_ms(change_ms)}{chance}: {SAYS[first.cause].text(group)}{_stalls(group)}",
        change_ms=change_ms,
        cause=first.cause,
        category="" if group.is_of_several_categories() else first.category,
        rows=tuple(at),
        low_ms=low,
        high_ms=high,
    )


def _stalls(group: RowGroup) -> str:
    """``; in B 2 of 60 kernels took 5.02 ms, over 10 times their median``: where that is most of the change."""
    if row_role(group.rows[0]) in (COMMUNICATION, COPY):
        return ""
    for side, name, sign in ((group.b, "B", 1), (group.a, "A", -1)):
        shares = [kernel for one in side for kernel in one.kernels if kernel.stalls]
        count, ms = (sum(kernel.stalls[at] for kernel in shares if kernel.stalls) for at in (0, 1))
        if shares and 2 * ms > sign * group.change_ms > 0:
            all_of = sum(kernel.count for kernel in shares)
            took = f"{count_text(count)} of {count_text(all_of)} kernels took {signed_ms(ms)[1:]}"
            return f"; in {name} {took}, over 10 times their median"
    return ""


def _subject(group: RowGroup) -> str:
    """What a sentence speaks of: the category; time on links counts where nothing else hides it."""
    row = group.rows[0]
    if row.cause == REPEATS:
        return part(group.rows) or ALIKE[REPEATS]
    if row.cause == SOME_RANKS:
        return f"{which_ranks([rank for rank in group.ranks if rank.is_alone])} alone"
    if row.is_idle:
        return "idle"
    if row.category == AT_ONCE:
        return "overlap"
    if row.cause in ALIKE and (row.cause not in (TYPE, WORK) or group.is_of_several_categories()):
        return ALIKE[row.cause]
    return "exposed communication" if is_sent(row) else row.category


def change_title(found: Comparison) -> str:
    """``step 4.007 -> 4.426 ms: +0.419 ms (+10.5 %)``."""
    what = "step" if found.a.has_steps and found.b.has_steps else "window"
    share = f" ({100 * found.change_ms / found.a.step_ms:+.1f} %)" if found.a.step_ms else ""
    change = f"{round(found.change_ms, 6) + 0.0:+,.3f} ms"
    return f"{what} {found.a.step_ms:,.3f} -> {found.b.step_ms:,.3f} ms: {change}{share}"


def parts_text(found: Comparison) -> str:
    """``computation 2.58 -> 2.68 ms, exposed communication 0.309 -> 0.97 ms``: all parts add up to the step."""
    parts: dict[str, list[float]] = {name: [0.0, 0.0] for name in ("computation", *_PARTS.values())}
    for row in (*found.rows, *found.unchanged):
        part = _PARTS.get(row.category) or _PARTS.get(row_role(row), "computation")
        for at, side in enumerate((row.a, row.b)):
            parts[part][at] += side.ms if side else 0.0
    steps = found.a.step_ms, found.b.step_ms
    told = [(name, a, b) for name, (a, b) in parts.items()
            if any(abs(ms) >= _LEAST_PART * step for ms, step in zip((a, b), steps, strict=True))]  # fmt: skip
    return ", ".join(f"{name} {a:,.3g} -> {b:,.3g} ms" for name, a, b in told)
