"""Graph launches opened up: the kernels of a replay get the ops that the same graph had when it was captured.

A replay records one launch and its kernels, no ops; the trace of the capture records the ops.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from tracelens.analysis.loaded_trace import Trace
from tracelens.analysis.reading.captured_graphs import (
    CapturedGraphs,
    Requests,
    Template,
    annotated_steps,
    graph_launches,
    requests_at,
)
from tracelens.analysis.reading.catalog import Catalog
from tracelens.lazy.records import dataclass
from tracelens.trace.extended import AddedRows, with_rows
from tracelens.trace.table import Kind, RowColumn, TraceTable


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLinks:
    """What became of the kernels that graph launches replayed. Times in ns; ``reasons``: (why, kernels), most first."""

    capture: str
    launches: int
    linked_launches: int
    kernels: int
    linked_kernels: int
    kernel_ns: int
    linked_ns: int
    reasons: tuple[tuple[str, int], ...] = ()


def with_captured_ops(trace: Trace, capture: Trace, catalog: Catalog) -> tuple[Trace, GraphLinks]:
    """``trace`` with the ops of ``capture`` under its graph launches, and how many kernels they were found for.

    The ops are rows of a new table, in the time of the graph launch, which a nanosecond per kernel of it stands for:
    how long an op of a graph kept the host busy is not in either trace. A kernel without a captured op stays with the
    graph launch.
    """
    graphs = CapturedGraphs(capture, catalog)
    blocks: list[_Block] = []
    table, tree = trace.table, trace.tree
    reasons: Counter[str] = Counter()
    found: dict[tuple[tuple[str, ...], Requests], tuple[dict[int, int], str]] = {}
    launches = kernels = kernel_ns = 0
    steps = annotated_steps(table, catalog)
    for launch in graph_launches(table).tolist():
        rows = tree.launched_by(launch)
        if not len(rows):
            continue
        names = tuple(table.names[code] for code in table.name[rows].tolist())
        requests = requests_at(table, steps, launch)
        launches, kernels = launches + 1, kernels + len(rows)
        kernel_ns += int(table.duration_ns[rows].sum())
        if (names, requests) not in found:
            found[names, requests] = graphs.match(table, rows, names, requests)
        pairs, reason = found[names, requests]
        start, room = _free_span(trace, launch)
        if pairs and room <= len(pairs):
            pairs, reason = {}, "the launch is shorter than a nanosecond per kernel"
        if len(pairs) < len(rows):
            reasons[reason] += len(rows) - len(pairs)
        if pairs:
            block = graphs.block(frozenset(pairs.values()))
            order = {captured: k for k, captured in enumerate(block.launches)}
            at = sorted(pairs, key=lambda k: order[pairs[k]])
            blocks.append(_Block(template=block, start=start, lane=int(table.lane[launch]), kernels=rows[at]))
    links = GraphLinks(
        capture=capture.table.source,
        launches=launches,
        linked_launches=len(blocks),
        kernels=kernels,
        linked_kernels=sum(len(block.kernels) for block in blocks),
        kernel_ns=kernel_ns,
        linked_ns=sum(int(table.duration_ns[block.kernels].sum()) for block in blocks),
        reasons=tuple(reasons.most_common()),
    )
    return (_opened(trace, capture.table, blocks) if blocks else trace), links


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Block:
    template: Template
    start: int
    lane: int
    kernels: RowColumn


def _free_span(trace: Trace, launch: int) -> tuple[int, int]:
    """(start, length) of the longest time within a launch in which it made no other recorded call."""
    table = trace.table
    start, end = int(table.start_ns[launch]), int(table.start_ns[launch] + table.duration_ns[launch])
    best, free_from = (start, 0), start
    for child in trace.tree.children(launch).tolist():
        best = max(best, (free_from, int(table.start_ns[child]) - free_from), key=lambda span: span[1])
        free_from = int(table.start_ns[child] + table.duration_ns[child])
    return max(best, (free_from, end - free_from), key=lambda span: span[1])


def _opened(trace: Trace, capture: TraceTable, blocks: list[_Block]) -> Trace:
    table = trace.table
    correlation = table.correlation.copy()
    free = int(correlation.max(initial=0)) + 1
    parts: list[tuple[npt.NDArray[np.int64], ...]] = []
    for block in blocks:
        template, n = block.template, len(block.kernels)
        correlation[block.kernels] = np.arange(free, free + n)
        number = {row: k for k, row in enumerate(template.launches)}
        own = np.array([free + number[row] if row in number else -1 for row in template.rows.tolist()], np.int64)
        free += n
        lane = np.full(len(own), block.lane, np.int64)
        span = template.last - template.first + 1
        parts.append((template.rows, block.start + template.first, span, lane, own))
    rows, start, duration, lane, own = (np.concatenate(column) for column in zip(*parts, strict=True))
    codes, name = np.unique(capture.name[rows], return_inverse=True)
    calls = np.stack((capture.name[rows].astype(np.int64), capture.signature[rows].astype(np.int64)))
    distinct, signature = np.unique(calls, axis=1, return_inverse=True)
    added = AddedRows(
        kind=np.where(own >= 0, Kind.RUNTIME, capture.kind[rows]).astype(np.uint8),
        name=name.reshape(-1).astype(np.int64),
        lane=lane,
        start_ns=start,
        duration_ns=duration,
        correlation=own,
        signature=np.where(capture.signature[rows] >= 0, signature.reshape(-1), -1),
        names=[capture.names[code] for code in codes.tolist()],
        signatures=[capture.op_signature(n, s) for n, s in distinct.T.tolist()],
        timed=False,
    )
    return Trace.of(with_rows(table, added, correlation))
