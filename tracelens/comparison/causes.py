"""Why the time of a row changed: other calls, work or kernels, parts that repeat more often, another clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import takewhile
from math import gcd

import numpy as np

from tracelens.comparison.compared import UNCHANGED, ComparedRow, KernelShare, RowSide
from tracelens.comparison.places import QUANTIZED, SAME, SAME_PLACE, SAME_WORK
from tracelens.comparison.sides import ATTENTION, COMMUNICATION, COPY, PRODUCT, different, family, role, row_role

#: All compute-bound calls of the same kernels changed alike.
CLOCK = "clock"
#: So did all others.
EVERYTHING = "everything"
#: One side quantizes what a collective exchanges.
QUANTIZATION = "quantization"
#: The ranks wait for one of them.
LATE = "late"
#: It is so on some ranks alone, or the others wait for these.
SOME_RANKS = "some ranks"
#: A part of the model runs more or less often.
REPEATS = "repeats"
REMOVED, ADDED, FUSED, SPLIT, REPLACED = "removed", "added", "fused", "split", "replaced"
CALLS, WORK, TYPE, KERNEL, SPEED, OVERLAP, WAITING = "calls", "work", "type", "kernel", "speed", "overlap", "waiting"
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
    """The rows; those of which B has as many times the calls of A as several others have with that cause."""
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
