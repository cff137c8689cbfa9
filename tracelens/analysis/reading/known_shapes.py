"""Ops and shapes of kernels whose recording has none, from another recording of the same program that has them."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt

from tracelens.analysis.intervals import Ints
from tracelens.analysis.loaded_trace import Trace
from tracelens.lazy.records import dataclass
from tracelens.trace.extended import AddedRows, with_rows
from tracelens.trace.table import Kind, TraceTable

_CPU_OP = np.uint8(Kind.CPU_OP)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownShapes:
    """``source``: the file with the shapes. ``joined``: for how many of ``kernels`` without shapes it has them."""

    source: str
    kernels: int
    joined: int
    kernel_ns: int
    joined_ns: int


def with_known_shapes(trace: Trace, known: Trace) -> tuple[Trace, KnownShapes]:
    """``trace`` with an op of ``known`` round the launch of each kernel that it is known for.

    Kernels are joined by name, in the order of their launches: the k-th of a name with the k-th of the sequence that
    repeats in ``known``, where the trace holds that sequence a whole number of times; else no kernel of the name is
    joined. Launches next to each other that one call made stay one call.
    """
    table, tree = trace.table, trace.tree
    kernels = _launched(trace)
    wanted = kernels[~_has_shapes(table, tree.op[kernels].astype(np.int64))]
    # A launch of several kernels (a graph) has a sequence of its own: --capture opens it
    alone = np.bincount(tree.launch[wanted], minlength=len(table))[tree.launch[wanted]] == 1
    sequences = _sequences(known)
    calls = np.full(len(wanted), -1, np.int64)
    turn = np.zeros(len(wanted), np.int64)
    names = table.name[wanted]
    for code in np.unique(names).tolist():
        found = sequences.get(table.names[code])
        here = np.flatnonzero((names == code) & alone)
        if found is not None and len(here) and len(here) % len(found) == 0:
            calls[here] = np.tile(found, len(here) // len(found))
            turn[here] = np.repeat(np.arange(len(here) // len(found)), len(found))
    joined = calls >= 0
    said = KnownShapes(
        source=known.table.source,
        kernels=len(wanted),
        joined=int(joined.sum()),
        kernel_ns=int(table.duration_ns[wanted].sum()),
        joined_ns=int(table.duration_ns[wanted[joined]].sum()),
    )
    if not joined.any():
        return trace, said
    return Trace.of(
        with_rows(
            table, _added(trace, known, tree.launch[wanted[joined]].astype(np.int64), calls[joined], turn[joined])
        )
    ), said


def _launched(trace: Trace) -> Ints:
    """Kernels with a launch, in the order of their launches."""
    table, tree = trace.table, trace.tree
    rows = np.flatnonzero((table.kind == Kind.KERNEL) & (tree.launch >= 0))
    return rows[np.lexsort((table.start_ns[rows], table.start_ns[tree.launch[rows]]))]


def _has_shapes(table: TraceTable, ops: Ints) -> npt.NDArray[np.bool_]:
    codes, place = np.unique(table.signature[ops], return_inverse=True)
    known = [table.signatures.signature("", code).shapes is not None for code in codes.tolist()]
    found: npt.NDArray[np.bool_] = (table.kind[ops] == Kind.CPU_OP) & np.array(known, np.bool_)[place]
    return found


def _sequences(known: Trace) -> dict[str, Ints]:
    """By name of a kernel: the ops that launched it, in order, the shortest sequence that repeats to all of them."""
    table, tree = known.table, known.tree
    kernels = _launched(known)
    kernels = kernels[_has_shapes(table, tree.op[kernels].astype(np.int64))]
    by_name: defaultdict[int, list[int]] = defaultdict(list)
    for name, op in zip(table.name[kernels].tolist(), tree.op[kernels].tolist(), strict=True):
        by_name[name].append(op)
    return {table.names[name]: _shortest(table, np.array(ops, np.int64)) for name, ops in by_name.items()}


def _shortest(table: TraceTable, ops: Ints) -> Ints:
    alike = np.stack((table.name[ops], table.signature[ops]), axis=1)
    for length in range(1, len(ops) // 2 + 1):
        if len(ops) % length == 0 and (alike[length:] == alike[:-length]).all():
            return ops[:length]
    return ops


def _added(trace: Trace, known: Trace, launches: Ints, calls: Ints, turn: Ints) -> AddedRows:
    table = trace.table
    order = np.lexsort((table.start_ns[launches], table.lane[launches]))
    launches, calls, turn = launches[order], calls[order], turn[order]
    lane = table.lane[launches].astype(np.int64)
    first = np.flatnonzero(
        np.diff(calls, prepend=-1).astype(bool)
        | np.diff(turn, prepend=-1).astype(bool)
        | np.diff(lane, prepend=-1).astype(bool)
    )
    last = np.append(first[1:], len(launches)) - 1
    start = table.start_ns[launches[first]]
    ops, place = np.unique(calls[first], return_inverse=True)
    signatures = [known.table.signature_of(row) for row in ops.tolist()]
    return AddedRows(
        kind=np.full(len(first), _CPU_OP),
        name=place.astype(np.int64),
        lane=lane[first],
        start_ns=start,
        duration_ns=table.ends_ns(launches[last]) - start,
        correlation=np.full(len(first), -1, np.int64),
        signature=place.astype(np.int64),
        names=[known.table.name_of(row) for row in ops.tolist()],
        signatures=signatures,
        timed=False,
    )
