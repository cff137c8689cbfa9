"""Why the time of a row changed: other calls, work or kernels, parts that repeat more often, another clock; and the
rows of a comparison as sentences: those of one category that changed for one cause are one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import filterfalse, takewhile
from math import gcd, log
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

import numpy as np

from tracelens.analysis.attribution.host_time import SYNCHRONIZATION
from tracelens.analysis.ranks.rank_summary import ranks_text
from tracelens.comparison.compared import (
    ADDED,
    AT_ONCE,
    CALLS,
    CLOCK,
    COMPILED,
    ELSEWHERE,
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
    EnergyCompared,
    KernelShare,
    RankChange,
    RowSide,
)
from tracelens.comparison.late_ranks import RankTimes, with_latecomers, with_ranks_apart
from tracelens.comparison.measured_rows import HostChange, Intervals
from tracelens.comparison.places import QUANTIZED, SAME, SAME_PLACE, SAME_WORK
from tracelens.comparison.sides import (
    ATTENTION,
    COMMUNICATION,
    COPY,
    PRODUCT,
    STREAMING,
    Side,
    different,
    family,
    role,
    row_role,
)
from tracelens.files.safe_text import clipped
from tracelens.types.records import Record
from tracelens.types.units import count_text, shown_change, signed_ms, slower_text

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
    by_calls_ms = (b.calls - a.calls) * (a.ms / a.calls + b.ms / b.calls) / 2
    # The number of calls explains more of a change than what one of them takes
    if differs(a.calls, b.calls) and abs(row.change_ms - by_calls_ms) <= abs(by_calls_ms):
        return CALLS
    if a.dtypes != b.dtypes and a.dtypes and b.dtypes:
        return TYPE
    has_other_flops = bool(a.flops and b.flops and differs(a.flops / a.calls, b.flops / b.calls))
    if has_other_flops or (a.shapes != b.shapes and row.match not in (SAME, SAME_WORK)):
        return WORK
    if other_kernels(a, b) is not None:
        return KERNEL
    if not row.change_ms and a.kernel_ms == b.kernel_ms:
        return UNCHANGED
    return OVERLAP if abs(row.change_ms) > 2 * abs(b.kernel_ms - a.kernel_ms) else SPEED


def differs(one: float, other: float) -> bool:
    """Whether two counts or amounts are not the same."""
    return abs(one - other) > _DIFFERS * max(abs(one), abs(other))


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


#: How kernels' names spell types, the longest first, and what they are recorded as.
_SPELLED = {
    "c10::BFloat16": "BFloat16", "__nv_bfloat16": "BFloat16", "hip_bfloat16": "BFloat16", "bfloat16": "BFloat16",
    "bf16": "BFloat16", "c10::Half": "Half", "__half": "Half", "half": "Half", "fp16": "Half", "f16": "Half",
    "float": "float", "fp32": "float", "f32": "float", "double": "double", "fp64": "double", "f64": "double",
}  # fmt: skip
_SPELLS = re.compile("|".join(sorted(_SPELLED, key=len, reverse=True)))


#: What a kernel under a neighbour of its op looks like.
_OF_OPS = (FUSED, SPLIT, REPLACED, REMOVED, ADDED, CALLS, KERNEL)


def with_elsewhere(rows: Sequence[ComparedRow]) -> list[ComparedRow]:
    """Marks the rows that differ in their ops though both sides run each of their kernels equally often."""
    counts = [defaultdict[str, float](float), defaultdict[str, float](float)]
    for row in rows:
        for side, count in zip((row.a, row.b), counts, strict=True):
            for kernel in side.kernels if side else ():
                count[_unnumbered(kernel.name)] += kernel.count
    return [
        replace(row, cause=ELSEWHERE)
        if row.cause in _OF_OPS
        and (names := {_unnumbered(kernel.name) for side in (row.a, row.b) if side for kernel in side.kernels})
        and not any(differs(counts[0][name], counts[1][name]) for name in names)
        else row
        for row in rows
    ]


def _types_of_kernels(row: ComparedRow) -> tuple[str, str] | None:
    """The type in A and in B by the names of the kernels that one side alone has; None where more than that differs."""
    if row.a is None or row.b is None:
        return None
    gone, new = ([one.name for one in _of_one_alone(side, other)] for side, other in ((row.a, row.b), (row.b, row.a)))
    if not gone or not new:
        return None
    bare = [re.sub(r"\W|_", "", _SPELLS.sub("", name)) for name in (gone[0], new[0])]
    kinds = [{_SPELLED[word] for word in _SPELLS.findall(name)} for name in (gone[0], new[0])]
    before, after = kinds[0] - kinds[1], kinds[1] - kinds[0]
    if bare[0] != bare[1] or not (before or after):
        return None
    return ", ".join(sorted(before)), ", ".join(sorted(after))


#: What became of calls that a compiled region took in.
_TAKEN_IN = (FUSED, SPLIT, REPLACED, ADDED, REMOVED, KERNEL, WORK)


def _taken_in(rows: Sequence[ComparedRow], compiled: Sequence[tuple[int, int]], which: int) -> list[int]:
    """The rows that side ``which`` alone runs in a compiled region, and what it took in: what only streams memory and
    is gone there, or runs less often. ``compiled``: there and on the other side, see ``explained``.
    """
    own, rest = [], []
    for at, (row, (here, there)) in enumerate(zip(rows, compiled, strict=True)):
        if here and not there and row.cause in _TAKEN_IN and not (row.is_idle or row_role(row) in _OF_LINKS):
            own.append(at)
        elif not here and not there and _is_taken(row, which):
            rest.append(at)
    is_region = max((compiled[at][0] for at in own), default=0) > 1 or len(own) >= _LEAST_REPEATED_ROWS
    return [*own, *rest] if is_region and _is_in_another_way([rows[at] for at in own], bool(rest)) else []


def _is_in_another_way(rows: Sequence[ComparedRow], has_rest: bool) -> bool:
    """Whether these are not another program's calls, which one side alone has, nor the same with other kernels."""
    is_both = has_rest or any(row.a and row.b for row in rows)
    return is_both and any(row.cause not in (KERNEL, WORK) for row in rows)


def _is_taken(row: ComparedRow, which: int) -> bool:
    """Whether it streams memory and is gone, or runs less often, on the side that is compiled."""
    if row.cause not in (REMOVED, ADDED, CALLS) or row_role(row) != STREAMING:
        return False
    calls = [side.calls if side else 0.0 for side in (row.a, row.b)]
    return calls[which] < calls[1 - which]


def _compiled_text(group: RowGroup) -> str:
    """``in a compiled region in B: 455 calls of aten::add, ... became 106 of triton_poi_fused: ...``."""
    a, b = (sum(side.calls for side in sides) for sides in (group.a, group.b))
    kernels = [sum(kernel.count for side in sides for kernel in side.kernels) for sides in (group.a, group.b)]
    where = "in a compiled region in B" if kernels[1] <= kernels[0] else "no longer in a compiled region in B"
    became = f"{calls_text(a)} of {group.ops(group.a)} became {count_text(b)} of {group.ops(group.b)}"
    return f"{where}: {became}: {group.by_category()}"


#: Rows of one ratio that are told as one part, at least.
_LEAST_REPEATED_ROWS = 3


def with_repeats(rows: Sequence[ComparedRow]) -> list[ComparedRow]:
    """Marks rows whose calls changed by one ratio, and others of that direction: a part that repeats more or less."""
    of_ratio: dict[Fraction, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        if row.cause == CALLS and (ratio := ratio_of(row)) is not None:
            of_ratio[ratio].append(number)
    several = {ratio > 1 for ratio, numbers in of_ratio.items() if len(numbers) >= _LEAST_REPEATED_ROWS}
    found = list(rows)
    for ratio, numbers in of_ratio.items():
        for number in numbers if (ratio > 1) in several else ():
            found[number] = replace(rows[number], cause=REPEATS)
    return found


def ratio_of(row: ComparedRow) -> Fraction | None:
    """Calls of B over those of A; None where either is no whole number."""
    if row.a is None or row.b is None or not row.a.calls.is_integer() or not row.b.calls.is_integer():
        return None
    return Fraction(int(row.b.calls), int(row.a.calls))


def times(rows: Sequence[ComparedRow]) -> tuple[int, int] | None:
    """How often A and B run the part, as far as the calls of its ops say; None where they do not agree."""
    if len({ratio_of(row) for row in rows}) > 1:
        return None
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
#: A GPU's lowest clock under load is about two thirds of its highest.
_MOST_OF_CLOCK = 0.5
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
    everything = _agrees(list(filterfalse(is_compute_bound, scaled)), clock)
    candidates, cause = (scaled, EVERYTHING) if everything else (bound, CLOCK)
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
    if not slower > 0 or not most > 0:
        return slower == most
    # The same of A to B as of B to A
    return abs(log(slower / most)) <= _APART + _APART_SHARE * abs(log(most))


def _clock(rows: Sequence[ComparedRow]) -> float | None:
    """The clock of B over that of A; None where the rows do not agree on one, or it did not change."""
    if len(rows) < _LEAST_ROWS_OF_CLOCK:
        return None
    of_row = np.array([_slower(row) for row in rows])
    order = np.argsort(of_row)
    weight = np.cumsum(np.array([row.a.kernel_ms if row.a else 0.0 for row in rows])[order])
    slower = float(of_row[order][np.searchsorted(weight, weight[-1] / 2)])
    if not _LEAST_CHANGE <= abs(slower - 1) <= _MOST_OF_CLOCK or not _agrees(rows, 1 / slower):
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
    def per_call(self) -> tuple[float, float]:
        """Kernel ms of one call, of A and of B."""
        a, b = (ms / (sum(side.calls for side in sides) or 1.0)
                for ms, sides in zip(self.kernel_ms, (self.a, self.b), strict=True))  # fmt: skip
        return a, b

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
    CLOCK: "compute-bound ops", COMPILED: "ops", ELSEWHERE: "ops", EVERYTHING: "all computation", REPEATS: "ops",
    SOME_RANKS: "ranks", TYPE: "ops", WORK: "ops",
}  # fmt: skip
#: Change of the mean from which it is said that the median changed less, or that a collective may have waited.
_TOLD_APART = 0.05
#: Relative change up to which a median is as before.
_AS_BEFORE = 0.01
#: What is other whether or not its time is.
FACTS = (COMPILED, FUSED, SPLIT, REPLACED, TYPE, WORK, KERNEL, REMOVED, ADDED, QUANTIZATION)
#: Share of what some ranks changed from which a part of it is named.
_LEAST_PART = 0.01
#: How far (as a share) the change of one kernel may lie from that of all to be what changed.
_OF_ONE_KERNEL = 0.1


def _types_of_row(row: ComparedRow) -> tuple[str, str]:
    """What its types became, those that both have left out; empty where a side has none of its own."""
    if row.a is None or row.b is None:
        return "", ""
    if row.a.dtypes == row.b.dtypes:
        return _types_of_kernels(row) or ("", "")
    kinds = [
        {kind for text in side.dtypes for kind in text.strip("(),").replace("'", "").split(", ")}
        for side in (row.a, row.b)
    ]
    before, after = (
        ", ".join(sorted(kind.removeprefix("c10::") for kind in one - other if kind))
        for one, other in (kinds, kinds[::-1])
    )
    return before, after


def _type_text(group: RowGroup) -> str:
    most = max(group.rows, key=lambda row: (all(_types_of_row(row)), abs(row.change_ms)))
    return _other(f"type ({' -> '.join(kind or 'none' for kind in _types_of_row(most))})", group)


def _other(what: str, group: RowGroup) -> str:
    said = f"different {what} on {group.calls} of {group.ops(group.b)}"
    return f"{said}: {group.by_category()}" if group.is_of_several_categories() else said


def _kernels(group: RowGroup) -> str:
    number, on = _kernels_a_call(group), f"on {group.calls} of {group.ops(group.b)}"
    if number is not None:
        became = f"{number[0]} kernel{'s' if number[0] > 1 else ''} became {number[1]}"
        return f"{became} ({_which_kernels(group)}) {on}"
    before, after = other_kernels(group.a[0], group.b[0]) or ("", "")
    if before and after:
        return f"different kernel ({before} -> {after}) {on}"
    return f"new kernel ({after}) {on}" if after else f"kernel gone ({before}) {on}"


def _elsewhere(group: RowGroup) -> str:
    return f"same kernels, launched too near the ends of ops to say by which: {group.ops((*group.a, *group.b))}"


def _which_kernels(group: RowGroup) -> str:
    """``layer_norm_kernel -> mean_kernel, scale_kernel``: those that one side alone has."""
    changes, sides = _kernel_changes(group.rows), []
    for at in (0, 1):
        alone = [(-own[at], name) for name, own in changes.items() if own[2 + at] and not own[3 - at]]
        in_order = sorted(alone, key=itemgetter(0))
        sides.append(named_and_more(list(dict.fromkeys(family(name) for _, name in in_order))))
    if all(sides):
        return " -> ".join(sides)
    return f"{sides[1]} is new" if sides[1] else f"{sides[0]} is gone" if sides[0] else "of the same names"


def _kernels_a_call(group: RowGroup) -> tuple[int, int] | None:
    """How many kernels one call launches in A and in B; None where they are as many, or calls differ in that."""
    found = []
    for sides in (group.a, group.b):
        each = {sum(kernel.count for kernel in side.kernels) / side.calls for side in sides}
        whole = {round(number) for number in each}
        if len(whole) != 1 or any(abs(number - round(number)) > _DIFFERS for number in each) or whole == {0}:
            return None
        found.append(whole.pop())
    return (found[0], found[1]) if found[0] != found[1] else None


def _kernel_key(row: ComparedRow) -> Hashable:
    """Calls of one op of which each launches as many kernels more are one sentence; else by the kernels."""
    number = _kernels_a_call(RowGroup((row,)))
    return (row.a and row.a.ops, number) if number else row.a and row.b and other_kernels(row.a, row.b)


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
    said = ", kernels of the same name" if _is_another_magnitude(group.rows[0]) else ", same kernels"
    known = said if all(side.kernels for side in (*group.a, *group.b)) else ""
    before, after = group.per_call
    kernel, slower = _slower_kernel(group)
    is_unclear = is_sent(group.rows[0]) and not group.ranks and abs(after - before) >= _TOLD_APART * before
    less = " less" if after < before else ""
    unclear = f", or waiting{less} for another rank (compare folders of all ranks to find out)" if is_unclear else ""
    ops = group.ops(group.b)
    named = f" ({kernel[0]})" if kernel and kernel[0] not in ops else ""
    return f"{slower}{unclear}{known}, {group.calls} of {ops}{named}"


def _slower_kernel(group: RowGroup) -> tuple[tuple[str, tuple[float, float]] | None, str]:
    """The kernel that is all of the change where it changed as its ops did; by how much it, or else they, changed."""
    before, after = group.per_call
    kernel = _kernel_that_changed(group)
    slower = slower_text(before, after) if kernel is None else slower_text(*kernel[1])
    slower += _unlike_median(group, after / before) if before else ""
    if kernel is None or not before or not kernel[1][0] or _near(kernel[1][1] / kernel[1][0], after / before):
        return kernel, slower
    return None, f"{kernel[0]} {slower} ({slower_text(before, after)} with the other kernels of the op)"


def _kernel_that_changed(group: RowGroup) -> tuple[str, tuple[float, float]] | None:
    """(name, ms of one in A and in B) of the kernel that is nearly all of the change; None where there is none."""
    changes = _kernel_changes(group.rows)
    whole = sum(b - a for a, b, *_ in changes.values())
    name = max(changes, key=lambda name: (abs(changes[name][1] - changes[name][0]), name), default="")
    if not whole or is_sent(group.rows[0]):
        return None
    a, b, number, others = changes[name]
    if not number or not others or not a or abs((b - a) / whole - 1) > _OF_ONE_KERNEL:
        return None
    return family(name), (a / number, b / others)


def _unlike_median(group: RowGroup, slower: float) -> str:
    """`` in the mean, the median kernel 0.3 % slower``: where some calls alone changed."""
    both = [_medians(row) for row in group.rows]
    us = [[sum(count * median[side] for count, *median in of_row) for side in (0, 1)] for of_row in both]
    medians = [after / before for before, after in us if before]
    is_known = abs(slower - 1) >= _TOLD_APART and len(medians) == len(group.rows)
    if not is_known or any(abs(ratio - 1) > abs(slower - 1) / 2 for ratio in medians):
        return ""
    typical = sum(medians) / len(medians)
    changed = "as before" if abs(typical - 1) < _AS_BEFORE else slower_text(1.0, typical)
    return f" in the mean, the median kernel {changed}"


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
    often = times(group.rows)
    said = _calls(group) if often is None else f"{often[0]} -> {often[1]} times"
    return f"{said}: {group.by_category()}"


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
    rest, others = len(group.ranks) - len(alone), "the others are as before"
    if any(map(is_sent, group.rows)):
        who = "the other rank waits" if rest == 1 else f"the other {rest} wait"
        others = f"{who} {'less ' if after < before else ''}for {'it' if len(alone) == 1 else 'them'}"
    return f"{slower_text(before, after)}, {of} ({named_and_more(named)}); {others}"


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
    return bool(row.b and row.b.kernel_ms) and not 0.5 < _slower(row) < 2


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
    ELSEWHERE: _Says(lambda row: None, _elsewhere),
    CALLS: _Says(_own_ops, _calls),
    # A part has calls that other parts have, too, in other numbers
    REPEATS: _Says(lambda row: bool(row.a and row.b and row.b.calls > row.a.calls), _repeats),
    TYPE: _Says(_types_of_row, _type_text),
    WORK: _Says(lambda row: _times_the_flops(row) or _own_ops(row), _work),
    KERNEL: _Says(_kernel_key, _kernels),
    COMPILED: _Says(lambda row: None, _compiled_text),
    CLOCK: _Says(lambda row: None, _clock_text),
    EVERYTHING: _Says(lambda row: None, _everything),
    SPEED: _Says(lambda row: (row.change_ms > 0, _is_another_magnitude(row)), _speed, by_change=True),
    LATE: _Says(lambda row: None, lambda group: group.rows[0].why),
    SOME_RANKS: _Says(lambda row: None, _some_ranks),
    OVERLAP: _Says(lambda row: row.change_ms > 0, _overlap, by_change=True),
    UNCHANGED: _Says(lambda row: None, lambda group: ""),
}


#: Causes of which the same work takes another time.
_OF_WORK = (SPEED, CLOCK, EVERYTHING, KERNEL, TYPE, WORK, REPLACED)
#: Causes that are of another program: of their size the spread of the steps says little, if it is this share at least.
_OF_PROGRAMS, _LEAST_OF_PROGRAM = (COMPILED, KERNEL, TYPE), 0.05
#: Share of the largest group of a category and direction up to which another is told with it.
_LEAST_OF_LEAD = 0.1
#: Share of a change of idle time that calls of the host must last to be what it is.
_LEAST_OF_IDLE = 0.8
#: Rows from which they say something together.
_SEVERAL = 2
#: Said of a change that may be chance.
_WITHIN = ", within the noise"
#: Of one step on either side, what does not exceed what is typical of such.
_UNTOLD = "differs by {}; measured once on each side, so chance cannot be told"
#: What a step is made of beside computation, by role or category.
_PARTS = {COMMUNICATION: "exposed communication", COPY: "copies", AT_ONCE: "overlap", IDLE: "idle"}


def explained(
    rows: Iterable[ComparedRow],
    sides: Sequence[Side],
    times: Sequence[RankTimes | None],
    ranks: Sequence[RankChange],
    compiled: Sequence[tuple[int, int]] = (),
) -> list[ComparedRow]:
    """Rows with their causes. ``times``, ``ranks``: by side and rank. ``compiled``: of each row, in A and in B: 2 in a
    region, 1 by kernels that Inductor wrote, which say so where they are several, 0 neither.
    """
    one, other = sides
    same_device = one.first.device_label == other.first.device_label
    found = [replace(row, cause=cause_of(row)) for row in rows]
    if any(recorded.is_skewed for side in sides for recorded in side.recordings):
        found = with_elsewhere(found)
    # Marks the rows of which the kernels' names differ in their types alone: of lists no types are recorded.
    found = [
        replace(row, cause=TYPE) if row.cause == KERNEL and _types_of_kernels(row) is not None else row for row in found
    ]
    compiled = compiled or [(0, 0)] * len(found)
    taken = {at for which in (0, 1) for at in _taken_in(found, [(of[which], of[1 - which]) for of in compiled], which)}
    found = with_repeats([replace(row, cause=COMPILED) if at in taken else row for at, row in enumerate(found)])
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
    rows: Sequence[ComparedRow], intervals: Intervals, ranks: Sequence[RankChange] = (), host: Sequence[HostChange] = ()
) -> tuple[Change, ...]:
    """The largest first; together they are the change of the step.

    Of what may be chance, other ops and kernels are told after that, as no chance explains them; the rest is the last.
    So that two recordings of the same thing are not said to differ, no rows are put together by how their times
    changed unless each of them is told from chance, and the intervals of all sentences hold together. ``host``: what
    the host did otherwise, which idle time may be.
    """
    groups, explains = _groups_of(rows, intervals, host)
    found: list[Change] = []
    facts: list[Change] = []
    chance: list[Change] = []
    is_known = intervals.noise.is_known
    for group in groups:
        rows_of = RowGroup(tuple(rows[at] for at in group), ranks)
        told = explains if explains and explains[0] == group else None
        if told:
            made, is_fact = _of_host(rows_of, told), True
        else:
            made = _change(rows_of, group, _bounds(rows_of, group, intervals, len(groups)))
            made, is_fact = _as_fact(rows_of, made, is_known=is_known)
        (found if not made.is_noise else facts if is_fact else chance).append(made)
    parts, chance = _parts_beyond_chance(rows, chance, intervals)
    found += parts
    found.sort(key=lambda change: (-abs(change.change_ms), change.text))
    facts.sort(key=lambda change: (-sum(side.kernel_ms for side in _sides(rows, change)), change.text))
    rest = [_noise(rows, chance, [] if is_known or explains else host, is_known=is_known)] if chance else []
    return tuple(
        change if is_known else replace(change, low_ms=None, high_ms=None) for change in (*found, *facts, *rest)
    )


def _as_fact(group: RowGroup, change: Change, *, is_known: bool) -> tuple[Change, bool]:
    """A change of these rows, and whether it is a fact; without bounds where it is told as one whatever they are.

    That calls became others in every step is no matter of which steps were recorded. How many calls of which shapes a
    step has may be; which types they have is not. Of one step on either side (``is_known`` is False) the number of
    calls is as well what differs.
    """
    calls = [sum((side.calls for side in sides), 0.0) for sides in (group.a, group.b)]
    facts = FACTS if is_known else (*FACTS, CALLS, REPEATS)
    is_fact = change.cause in facts and (not is_known or all(map(float.is_integer, calls)))
    is_fact = is_fact or (change.cause in (COMPILED, TYPE) and min(calls) >= 1)
    is_large = change.cause in _OF_PROGRAMS and abs(change.change_ms) >= _LEAST_OF_PROGRAM * group.kernel_ms[0]
    if change.is_noise and is_fact and (is_large or not is_known):
        return replace(change, text=change.text.replace(_WITHIN, ""), low_ms=None, high_ms=None), True
    return change, is_fact


def _bounds(group: RowGroup, at: list[int], intervals: Intervals, tests: int) -> tuple[float, float] | None:
    """Of the change of a group: of its part of the step, else of how long its kernels take for the same work."""
    both = any(row.a and row.b for row in group.rows)
    # What one side alone has is no matter of how many sentences there are
    found = intervals.of_sum(at, tests if both else 1)
    cause = group.rows[0].cause
    if found is None or not both or not _is_chance(found):
        return found
    if cause == SOME_RANKS:
        return _bounds_of_ranks(group) or found
    if cause == OVERLAP and is_sent(group.rows[0]):
        if intervals.hides_otherwise(at):
            return None
        return intervals.of_overlap(at, group.change_ms, 2 * tests) or found
    return (intervals.of_speed(at, group.change_ms, 2 * tests) if cause in _OF_WORK else None) or found


def _bounds_of_ranks(group: RowGroup) -> tuple[float, float] | None:
    """As what these ranks take for themselves, which is told from chance; None where that is not known."""
    alone = [rank for rank in group.ranks if rank.is_alone]
    own_ms = sum(rank.change_ms for rank in alone)
    low, high = (sum(bound for rank in alone if (bound := each(rank)) is not None)
                 for each in (attrgetter("low_ms"), attrgetter("high_ms")))  # fmt: skip
    scale = group.change_ms / own_ms if own_ms else 0.0
    return (low * scale, high * scale) if scale > 0 and not _is_chance((low, high)) else None


def _groups_of(
    rows: Sequence[ComparedRow], intervals: Intervals, host: Sequence[HostChange]
) -> tuple[list[list[int]], _HostCause | None]:
    """The rows of each sentence, and which idle time is that of what the host did otherwise."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    explains, leads = _host_cause(rows, host), _leads(rows)
    for at, row in enumerate(rows):
        category, says = ALIKE.get(row.cause, row.category), SAYS[row.cause]
        if explains and at in explains[0]:
            groups[IDLE].append(at)
        elif row.cause == SPEED and not is_sent(row):
            kernel = _moved_kernel(row)
            groups["" if kernel else category, SPEED, kernel, _is_another_magnitude(row)].append(at)
        else:
            key = None if says.by_change else says.key(row)
            groups[category, row.cause, leads.get((row.cause, key), key)].append(at)
    by_change = [key for key, group in groups.items() if SAYS[rows[group[0]].cause].by_change]
    found = [group for key, group in groups.items() if key not in set(by_change)]
    return [*found, *_by_change(rows, [groups[key] for key in by_change], intervals, len(groups))], explains


def _leads(rows: Sequence[ComparedRow]) -> dict[Hashable, Hashable]:
    """(cause, key) -> the key of the larger change that it is a part of.

    Of types, where one of the two is the same or not known. Of shapes, where it is not known how many times the FLOPs
    they have.
    """
    found: dict[Hashable, Hashable] = {}
    for cause in (TYPE, WORK):
        sizes: dict[Any, float] = defaultdict(float)
        for row in rows:
            if row.cause == cause and not is_sent(row):
                sizes[SAYS[cause].key(row)] += row.change_ms
        whole = [key for key in sizes if (all(key) if cause == TYPE else isinstance(key, str))]
        if not whole:
            continue
        lead = max(whole, key=lambda key: (abs(sizes[key]), key))
        for key in sizes:
            if cause == TYPE:
                is_part = all(not one or one == other for one, other in zip(key, lead, strict=True))
            else:
                is_part = not isinstance(key, str) and sizes[key] * sizes[lead] >= 0
            found |= {(cause, key): lead} if is_part else {}
    return found


def _by_change(
    rows: Sequence[ComparedRow], groups: Sequence[list[int]], intervals: Intervals, tests: int
) -> list[list[int]]:
    """Groups beyond chance, merged where alike; then rows beyond chance by category and direction; then the rest."""
    each = intervals.of_each(max(1, sum(map(len, groups))))
    single = set(range(len(rows))) if each is None else {at for at, own in enumerate(each) if not _is_chance(own)}
    told: dict[Hashable, list[list[int]]] = defaultdict(list)
    alone: dict[Hashable, list[int]] = defaultdict(list)
    rest: dict[Hashable, list[int]] = defaultdict(list)
    for group in groups:
        first, made = rows[group[0]], RowGroup(tuple(rows[at] for at in group))
        key = "" if made.is_of_several_categories() else first.category, SAYS[first.cause].key(first)
        is_told = not _is_chance(_bounds(made, group, intervals, tests))
        if is_told and _is_of_all_rows(made, [rows[at] for at in group if at in single]):
            told[key, made.change_ms > 0].append(group)
            continue
        for at in group:
            own = rows[at].category, SAYS[first.cause].key(rows[at])
            (alone[own] if at in single else rest[rows[at].category, first.cause]).append(at)
    return [*(merged for those in told.values() for merged in _alike(rows, those)), *alone.values(), *rest.values()]


def _is_chance(bounds: tuple[float, float] | None) -> bool:
    return bounds is not None and bounds[0] <= 0 <= bounds[1]


def _is_of_all_rows(group: RowGroup, single: Sequence[ComparedRow]) -> bool:
    """Whether rows that are told from chance by themselves changed as all together; else it is some calls alone."""
    before, after = group.per_call
    apart = [row for row in single if before and not _near(_slower(row), after / before)]
    return not apart or len(apart) == len(group.rows)


def _alike(rows: Sequence[ComparedRow], groups: list[list[int]]) -> list[list[int]]:
    """Groups of which the same factor changed, or so little that they are told with the largest."""

    def size(group: list[int]) -> float:
        return abs(sum(rows[at].change_ms for at in group))

    def slower(group: list[int]) -> float:
        a, b = RowGroup(tuple(rows[at] for at in group)).per_call
        return b / a if a else 1.0

    found: list[tuple[float, float, list[int]]] = []
    for group in sorted(groups, key=lambda group: (-size(group), group)):
        ratio, own = slower(group), size(group)
        for lead, whole, merged in found:
            if _near(ratio, lead) or own < _LEAST_OF_LEAD * whole:
                merged += group
                break
        else:
            found.append((ratio, own, list(group)))
    return [sorted(merged) for *_, merged in found]


def _moved_kernel(row: ComparedRow) -> str:
    """The kernel of both sides that changed most, the way that the row did; empty where none did."""
    sign = 1 if row.change_ms > 0 else -1
    moved = _kernel_changes((row,))
    name = max(moved, key=lambda name: (sign * (moved[name][1] - moved[name][0]), name), default="")
    return name if name and sign * (moved[name][1] - moved[name][0]) > 0 else ""


def _kernel_changes(rows: Sequence[ComparedRow]) -> dict[str, list[float]]:
    """Kernel -> [ms in A, ms in B, number in A, number in B]."""
    found: dict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
    for row in rows:
        for at, side in enumerate((row.a, row.b)):
            for kernel in side.kernels if side else ():
                own = found[_unnumbered(kernel.name)]
                own[at] += kernel.ms
                own[2 + at] += kernel.count
    return found


#: (idle rows, the cause, the calls that are it)
_HostCause: TypeAlias = "tuple[list[int], str, list[HostChange]]"


def _host_cause(rows: Sequence[ComparedRow], host: Sequence[HostChange]) -> _HostCause | None:
    """What the host did otherwise where that lasted at least about as long as the idle time that is more, or less.

    Two signs: calls that are new, gone, or changed more than by chance, and the time that devices ran nothing. What
    follows from calls of one cause may be idle of another: what was queued behind them started later.
    """
    idle = [at for at, row in enumerate(rows) if row.is_idle]
    is_more = sum(rows[at].change_ms for at in idle) > 0
    idle = [at for at in idle if (rows[at].change_ms > 0) == is_more]
    change_ms = sum(rows[at].change_ms for at in idle)
    by_cause: dict[str, list[HostChange]] = defaultdict(list)
    for each in host:
        if each.change_ms * change_ms > 0:
            by_cause[each.cause].append(each)
    size_ms = {cause: abs(sum(each.change_ms for each in calls)) for cause, calls in by_cause.items()}
    enough = [cause for cause, ms in size_ms.items() if ms >= _LEAST_OF_IDLE * abs(change_ms)]
    if not enough:
        return None
    # A wait for the device lasts as long as what it waits for: any other cause is told before it
    cause = min(enough, key=lambda cause: (cause == SYNCHRONIZATION, -size_ms[cause]))
    return idle, cause, sorted(by_cause[cause], key=lambda each: -abs(each.change_ms))


def _of_host(group: RowGroup, explains: _HostCause) -> Change:
    """``idle +5.0 ms: blocking copy or synchronization: cudaDeviceSynchronize is new, 1 call a step, 5.0 ms``."""
    at, cause, calls = explains
    said = named_and_more([_host_text(each) for each in calls])
    return Change(
        text=f"idle {signed_ms(group.change_ms)}: {cause}: {said}",
        change_ms=group.change_ms,
        cause=WAITING,
        category=IDLE,
        rows=tuple(at),
    )


def _host_text(call: HostChange) -> str:
    (before, after), (a, b) = call.calls, call.ms
    name = clipped(call.name, _WIDEST_OP)
    if not before or not after:
        return f"{name} is {'new' if after else 'gone'}, {calls_text(after or before)} a step, {signed_ms(b or a)[1:]}"
    if differs(before, after):
        return f"{count_text(before)} -> {calls_text(after)} of {name} a step, {a:,.3g} -> {b:,.3g} ms"
    return f"{calls_text(after)} of {name} a step, {a:,.3g} -> {b:,.3g} ms"


def _parts_beyond_chance(
    rows: Sequence[ComparedRow], chance: list[Change], intervals: Intervals
) -> tuple[list[Change], list[Change]]:
    """Parts of a step that are beyond chance only as a whole, and the sentences on all other parts."""
    parts: dict[str, list[Change]] = defaultdict(list)
    for change in chance:
        first = rows[change.rows[0]]
        parts[_PARTS.get(first.category) or _PARTS.get(row_role(first), "computation")].append(change)
    found, left = [], []
    for part, own in parts.items():
        at = sorted(number for change in own for number in change.rows)
        group = RowGroup(tuple(rows[number] for number in at))
        bounds = intervals.of_sum(at, len(parts))
        if part == "computation" and _is_chance(bounds):
            bounds = intervals.of_speed(at, group.change_ms, 2 * len(parts)) or bounds
        if len(at) < _SEVERAL or bounds is None or _is_chance(bounds):
            left += own
            continue
        most = max(own, key=lambda change: abs(change.change_ms))
        whole = f"{part} {signed_ms(group.change_ms)}, beyond chance as a whole only"
        text = f"{whole}: of {len(at)} rows the largest is {most.text.replace(_WITHIN, '')}"
        cause, first = rows[most.rows[0]].cause, rows[most.rows[0]]
        if part == "computation" and _is_alike(group):
            cause, text = EVERYTHING, f"{ALIKE[EVERYTHING]} {signed_ms(group.change_ms)}: {_everything(group)}"
        found.append(
            Change(text=text, change_ms=group.change_ms, cause=cause, category=first.category, rows=tuple(at),
                   low_ms=bounds[0], high_ms=bounds[1])
        )  # fmt: skip
    return found, left


def _is_alike(group: RowGroup) -> bool:
    """Whether nearly all time of these rows changed by about the same factor, which a clock may have."""
    before, after = group.per_call
    share = after / before - 1 if before else 0.0
    if not _LEAST_CHANGE <= abs(share) <= _MOST_OF_CLOCK or any(row.cause != SPEED for row in group.rows):
        return False
    near = sum(
        side.kernel_ms for row in group.rows if (side := row.a) and abs(_slower(row) - 1 - share) <= abs(share) / 2
    )
    return near >= _LEAST_AGREEING * group.kernel_ms[0]


def _sides(rows: Sequence[ComparedRow], change: Change) -> list[RowSide]:
    return [side for at in change.rows for side in (rows[at].a, rows[at].b) if side]


def _noise(
    rows: Sequence[ComparedRow], chance: Sequence[Change], host: Sequence[HostChange], *, is_known: bool
) -> Change:
    """``host``: calls that one side alone has, whatever they cost."""
    at = tuple(sorted(number for change in chance for number in change.rows))
    change_ms = sum(rows[number].change_ms for number in at)
    largest = sorted(chance, key=lambda change: -abs(change.change_ms))
    named = [change.text.replace(_WITHIN, "") for change in largest[: 1 if is_known else _MOST_NAMED]]
    count = "1 row" if len(at) == 1 else f"{len(at)} rows"
    said = f"within the noise {signed_ms(change_ms)}" if is_known else _UNTOLD.format(signed_ms(change_ms))
    text = f"{said}: {count}, the largest {'are' if len(named) > 1 else 'is'} {'; '.join(named)}"
    if host:
        most_first = sorted(host, key=lambda call: (-abs(call.change_ms), call.name))
        text += f"; {named_and_more([_host_text(call) for call in most_first])}"
    return Change(text=text, change_ms=change_ms, cause=NOISE, category="", rows=at)


def _change(group: RowGroup, at: Sequence[int], bounds: tuple[float, float] | None) -> Change:
    first, change_ms = group.rows[0], group.change_ms
    low, high = bounds or (None, None)
    chance = _WITHIN if _is_chance(bounds) else ""
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
    if is_sent(row):
        return "exposed communication"
    return "ops" if group.is_of_several_categories() else row.category


def change_title(found: Comparison) -> str:
    """``step 4.007 -> 4.426 ms: +0.419 ms (+10.5 %)``."""
    what = "step" if found.a.has_steps and found.b.has_steps else "window"
    share = f" ({shown_change(found.change_ms / found.a.step_ms)})" if found.a.step_ms else ""
    change = f"{round(found.change_ms, 6) + 0.0:+,.3f} ms"
    return f"{what} {found.a.step_ms:,.3f} -> {found.b.step_ms:,.3f} ms: {change}{share}"


def energy_text(energy: EnergyCompared) -> str:
    """``energy 27.6 -> 25.1 J (modelled): -2.5 J (-9.1 %), 316 -> 300 W``, as the step and its mean."""
    share = f" ({shown_change(energy.change_j / energy.a_j)})" if energy.a_j else ""
    joules = f"energy {energy.a_j:,.3g} -> {energy.b_j:,.3g} J ({energy.kind}): {energy.change_j:+,.3g} J{share}"
    if energy.low_j is not None and energy.high_j is not None and energy.low_j <= 0 <= energy.high_j:
        joules += ", which may be chance"
    idle = ""
    if energy.a_idle_j is not None and energy.b_idle_j is not None:
        idle = f"; waiting {energy.a_idle_j:,.3g} -> {energy.b_idle_j:,.3g} J"
    return f"{joules}, {energy.a_w:,.3g} -> {energy.b_w:,.3g} W{idle}"


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
