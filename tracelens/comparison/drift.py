"""Another clock told apart from other code: all compute-bound calls scaled alike, with the same kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tracelens.comparison.alignment.work_roles import ATTENTION, COMMUNICATION, COPY, PRODUCT, role, row_role
from tracelens.comparison.causes import CLOCK, EVERYTHING, SPEED
from tracelens.comparison.compared import UNCHANGED, ComparedRow

#: What links limit, whatever the device's clock.
_OF_LINKS = (COMMUNICATION, COPY)
#: Compute-bound rows that must agree, of how many kernels, and the share of their time that must.
_LEAST_ROWS, _LEAST_KERNELS, _LEAST_AGREEING = 3, 2, 0.9
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
    if len(rows) < _LEAST_ROWS:
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
