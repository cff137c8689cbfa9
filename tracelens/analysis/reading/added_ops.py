"""Ops that hold several operations, taken apart as an extension says; and the forward op of every backward op."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tracelens.analysis.intervals import Ints
from tracelens.analysis.loaded_trace import Trace
from tracelens.analysis.reading.catalog import Catalog
from tracelens.perf_models.inner_ops import InnerOp, OpCall
from tracelens.signature import OpSignature
from tracelens.trace.extended import AddedRows, with_rows
from tracelens.trace.table import Kind, RowColumn, TraceTable
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
