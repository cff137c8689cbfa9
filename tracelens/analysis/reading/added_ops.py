"""Ops that a recording lacks: inner ops of composite ones, and ops and shapes from another recording of the same
program.
"""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import numpy.typing as npt

from tracelens.analysis.intervals import Ints
from tracelens.analysis.loaded_trace import Trace
from tracelens.analysis.reading.catalog import Catalog
from tracelens.lazy.records import dataclass
from tracelens.perf_models.surroundings import InnerOp, OpCall
from tracelens.signature import OpSignature
from tracelens.trace.table import AddedRows, Kind, RowColumn, TraceTable, with_rows
from tracelens.trace.tree import OpTree


def forward_rows(trace: Trace, catalog: Catalog) -> RowColumn:
    """Forward op row per backward op row, -1 elsewhere: the trace's own links, but for names marked ``BackwardOf``.

    For those the recorded link counts where it leads to a forward of the given name. Else calls pair up last in, first
    out, as autograd and the recomputation of a checkpoint run them.
    """
    table, tree = trace.table, trace.tree
    forward = tree.forward[:]
    for name, backwards in catalog.backward_partners().items():
        ops, closes = _rows_named(table, (name,)), _rows_named(table, backwards)
        if not len(closes):
            continue
        is_forward = np.zeros(len(table), bool)
        is_forward[ops] = True
        rows = np.concatenate((ops, closes))
        waiting: dict[object, list[int]] = {}
        for row in rows[np.lexsort((rows, table.start_ns[rows]))].tolist():
            calls = waiting.setdefault(table.pid_of(row), [])
            if is_forward[row]:
                calls.append(row)
                continue
            recorded = tree.forward_of(row)
            if recorded >= 0 and is_forward[recorded]:
                forward[row] = recorded
                if recorded in calls:
                    calls.remove(recorded)
            else:
                forward[row] = calls.pop() if calls else -1
    return forward


def with_inner_ops(trace: Trace, catalog: Catalog, made_from: int | None = None) -> tuple[Trace, Counter[str]]:
    """``trace`` with the inner ops of its calls as rows round their launches; reason -> calls that were left whole.

    ``made_from``: the first row that an extension made; what it put round a launch stays alone there.
    """
    table, tree = trace.table, trace.tree
    calls = _rows_named(table, tuple(catalog.inner_ops))
    left: Counter[str] = Counter()
    if not len(calls):
        return trace, left
    forward = forward_rows(trace, catalog)
    found: dict[OpCall, tuple[InnerOp, ...] | str] = {}
    launches: list[int] = []
    signatures: list[OpSignature] = []
    for row in calls.tolist():
        launched = _launches_below(trace, row)
        if not launched:
            continue
        below = tree.subtree(row)[1:]
        call = OpCall(
            signature=table.signature_of(row),
            kernels=tuple(kernel for _, kernel in launched),
            below=tuple(table.signature_of(op) for op in below[table.kind[below] == Kind.CPU_OP].tolist()),
            forward=table.signature_of(int(forward[row])) if forward[row] >= 0 else None,
        )
        if call not in found:
            found[call] = catalog.inner_ops_of(call)
        inner = found[call]
        if isinstance(inner, str):
            left[inner] += 1
            continue
        kept = _beside_made_ops(tree, launched, inner, made_from)
        launches += [launched[op.kernel][0] for op in kept]
        signatures += [op.signature for op in kept]
    if not launches:
        return trace, left
    at = np.array(launches, np.int64)
    codes = {signature: code for code, signature in enumerate(dict.fromkeys(signatures))}
    number = np.array([codes[signature] for signature in signatures], np.int64)
    added = AddedRows(
        kind=np.full(len(at), Kind.CPU_OP, np.uint8),
        name=number,
        lane=table.lane[at].astype(np.int64),
        start_ns=table.start_ns[at],
        duration_ns=table.duration_ns[at],
        correlation=np.full(len(at), -1, np.int64),
        signature=number,
        names=[signature.name for signature in codes],
        signatures=list(codes),
    )
    return Trace.of(with_rows(table, added)), left


def _beside_made_ops(
    tree: OpTree, launched: list[tuple[int, str]], inner: tuple[InnerOp, ...], made_from: int | None
) -> list[InnerOp]:
    """The inner ops whose kernel no op from row ``made_from`` on launched."""
    return [op for op in inner if made_from is None or tree.op_parent[launched[op.kernel][0]] < made_from]


def _rows_named(table: TraceTable, names: tuple[str, ...]) -> Ints:
    wanted = np.array([name in names for name in table.names], bool) if names else np.zeros(0, bool)
    if not wanted.any():
        return np.zeros(0, np.int64)
    rows: Ints = np.flatnonzero(wanted[table.name] & (table.kind == Kind.CPU_OP))
    return rows


def _launches_below(trace: Trace, row: int) -> list[tuple[int, str]]:
    """(launch row, kernel name) below an op, in order of launch; in a graph's capture what the launches say."""
    table, tree = trace.table, trace.tree
    kernels = tree.kernels_below(row).tolist()
    if kernels:
        return [(int(tree.launch[kernel]), table.name_of(kernel)) for kernel in kernels]
    below = tree.subtree(row)
    named = (
        (launch, table.args(launch).get("kernel"))
        for launch in below[table.kind[below] == Kind.RUNTIME].tolist()
        if "Launch" in table.name_of(launch)
    )
    return [(launch, kernel) for launch, kernel in named if isinstance(kernel, str)]


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
