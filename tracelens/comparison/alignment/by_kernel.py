"""Ops taken apart into their kernels, where the other side has the same kernels without ops: replayed by a graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracelens.analysis.grouping import first_of_each, numbered
from tracelens.analysis.intervals import Ints
from tracelens.comparison.sides import Call, Rates, Recorded, Side

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
    rates = tuple(Rates() if several[number] else one.rates[number] for number, _ in pairs)
    piece, part_ns = _shared_out(one, size, first, kernel_ns)
    return replace(
        one,
        calls=calls,
        rates=_of_equal_work(calls, rates),
        call=call.astype(np.int64),
        step=one.step[owner],
        kernel_ns=kernel_ns,
        repeats=one.repeats[owner],
        piece_unit=first[one.piece_unit[piece]] + _nth(piece),
        piece_step=one.piece_step[piece],
        piece_ns=part_ns,
        event_unit=unit_of_event,
    )


def _of_equal_work(calls: tuple[Call, ...], rates: tuple[Rates, ...]) -> tuple[Rates, ...]:
    """Nothing of calls that only their shapes told apart: what is known of one is not so of all."""
    flops: dict[Call, set[float]] = {}
    for call, known in zip(calls, rates, strict=True):
        flops.setdefault(call, set()).add(known.flops)
    return tuple(Rates() if len(flops[call]) > 1 else known for call, known in zip(calls, rates, strict=True))


def _of_kernel(one: Recorded, number: int, kernel: int) -> Call:
    call = one.calls[number]
    if kernel < 0 or call.kernel:
        return call
    return Call(name=call.name, category=call.category, kernel=one.kernel_names[kernel], module=call.module)


def _shared_out(one: Recorded, size: Ints, first: Ints, kernel_ns: Ints) -> tuple[Ints, Ints]:
    """(which piece, ns) of the pieces of units, shared out among their kernels by what these take."""
    piece = np.repeat(np.arange(len(one.piece_ns)), size[one.piece_unit])
    before = np.concatenate(([0], np.cumsum(kernel_ns)))
    begin, nth = first[one.piece_unit[piece]], _nth(piece)
    end = begin + size[one.piece_unit[piece]]
    whole = np.maximum(before[end] - before[begin], 1)
    until = [(before[begin + nth + more] - before[begin]) / whole for more in (0, 1)]
    until[1][begin + nth + 1 == end] = 1.0
    low, high = (np.rint(one.piece_ns[piece] * share).astype(np.int64) for share in until)
    return piece, high - low


def _nth(group: Ints) -> Ints:
    """The place of each within its group, of groups that lie together."""
    if not len(group):
        return group
    begins = np.concatenate(([True], group[1:] != group[:-1]))
    starts = np.flatnonzero(begins)
    found: Ints = np.arange(len(group)) - starts[np.cumsum(begins) - 1]
    return found
