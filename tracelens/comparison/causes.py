"""Why the time of a row changed: other calls, other work, other kernels, or the same ones at another speed."""

from __future__ import annotations

from tracelens.comparison.alignment.kernel_names import different, family
from tracelens.comparison.compared import UNCHANGED, ComparedRow, KernelShare, RowSide
from tracelens.comparison.places import QUANTIZED, SAME, SAME_PLACE, SAME_WORK

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
