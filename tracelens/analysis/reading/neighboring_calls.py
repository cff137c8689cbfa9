"""What stands round the ops whose own record does not say how much they move: kernel, launch, gradient and caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.analysis.loaded_trace import Trace
from tracelens.analysis.reading.catalog import Catalog
from tracelens.perf_models.surroundings import CALLER, FOLLOWER, GRADIENT, GRID, KERNEL, LAUNCH, Launch
from tracelens.signature import OpSignature
from tracelens.trace.links import ENGINE_PREFIX
from tracelens.trace.table import RowColumn, TraceTable

#: Op row -> the attributes that its signature is read with.
Surroundings: TypeAlias = Mapping[int, tuple[tuple[str, Any], ...]]
#: Launches that are read from the file again for the sake of their grid.
MOST_LAUNCHES = 100
# Between an op and the one that takes its result there are a few on scalars, such as the count of batches seen.
_NEAR = 6


def surroundings(
    trace: Trace, catalog: Catalog, activity: DeviceActivity, silent: RowColumn, forward: RowColumn
) -> Surroundings:
    """What the bindings of ``silent`` ops ask for (``traced_as(asks=...)``) and the trace holds, by row.

    ``forward``: forward op row per backward op row. Ops without an answer are left out.
    """
    table = trace.table
    # What stands round an op completes its shapes, and has none of its own where none were recorded
    silent = silent if table.has_shapes else silent[:0]
    codes = np.unique(table.name[silent])
    asked = {code: asks for code in codes.tolist() if (asks := catalog.asks(table.names[code]))}
    rows = silent[np.isin(table.name[silent], list(asked))] if asked else silent[:0]
    if not len(rows):
        return {}

    def asking(what: str) -> RowColumn:
        return rows[np.isin(table.name[rows], [code for code, asks in asked.items() if what in asks])]

    launches = _launches(table, activity, asking(KERNEL), asking(GRID))
    gradients = _gradients(trace, forward, asking(GRADIENT))
    callers = _callers(trace, asking(CALLER))
    alone = asking(FOLLOWER)
    followers = _followers(trace, alone[[row not in gradients for row in alone.tolist()]])
    found: dict[int, tuple[tuple[str, Any], ...]] = {}
    for row in rows.tolist():
        answers = (
            (LAUNCH, launches.get(row)),
            (GRADIENT, gradients.get(row)),
            (CALLER, callers.get(row)),
            (FOLLOWER, followers.get(row)),
        )
        if known := tuple(answer for answer in answers if answer[1] is not None):
            found[row] = known
    return found


def _launches(
    table: TraceTable, activity: DeviceActivity, for_kernel: RowColumn, for_grid: RowColumn
) -> dict[int, Launch]:
    """The first kernel of each op; its grid where asked for, while no more than ``MOST_LAUNCHES`` of these are read."""
    linked = activity.of_ops()
    events = linked[np.isin(activity.op[linked], np.concatenate((for_kernel, for_grid)))]
    ops, position, kernels = np.unique(activity.op[events], return_index=True, return_counts=True)
    with_grid = np.isin(ops, for_grid) & (kernels == 1)
    if int(with_grid.sum()) > MOST_LAUNCHES:
        with_grid[:] = False
    found = {}
    for op, event, grid_wanted in zip(ops.tolist(), events[position].tolist(), with_grid.tolist(), strict=True):
        kernel = int(activity.rows[event])
        grid = table.args(kernel).get("grid") if grid_wanted else None
        is_grid = isinstance(grid, list) and len(grid) == 3 and all(isinstance(n, int) for n in grid)
        found[op] = Launch(kernel=table.name_of(kernel), grid=tuple(grid) if is_grid else None)  # type: ignore[arg-type]
    return found


def _gradients(trace: Trace, forward: RowColumn, rows: RowColumn) -> dict[int, OpSignature]:
    """The record of each op's backward node, where it has shapes: the outermost of what shares its forward."""
    if not len(rows):
        return {}
    table, depth = trace.table, trace.tree.depth
    backward = np.flatnonzero((forward >= 0) & np.isin(forward, rows))
    backward = backward[np.argsort(depth[backward], kind="stable")]
    found: dict[int, OpSignature] = {}
    for row in backward.tolist():
        ahead = int(forward[row])
        if ahead not in found and not table.name_of(row).startswith(ENGINE_PREFIX):
            signature = table.signature_of(row)
            if signature.has(0):
                found[ahead] = signature
    return found


def _callers(trace: Trace, rows: RowColumn) -> dict[int, OpSignature]:
    """The nearest op above each whose inputs were recorded."""
    table, parent = trace.table, trace.tree.op_parent
    found: dict[int, OpSignature] = {}
    for row in rows.tolist():
        above = int(parent[row])
        while above >= 0:
            signature = table.signature_of(above)
            if any(signature.shapes or ()):
                found[row] = signature
                break
            above = int(parent[above])
    return found


def _followers(trace: Trace, rows: RowColumn) -> dict[int, OpSignature]:
    """The op of a tensor with dims that a thread called next, after each op and the callers that pass its inputs on."""
    table, tree = trace.table, trace.tree
    found: dict[int, OpSignature] = {}
    for row in rows.tolist():
        top, inputs = row, (table.signature_of(row).shapes or ())[:2]
        while (above := int(tree.op_parent[top])) >= 0 and (table.signature_of(above).shapes or ())[:2] == inputs:
            top = above
        place = int(tree.last[top])
        for _ in range(_NEAR):
            following = int(tree.order[place]) if place < len(tree.order) else -1
            if following < 0 or table.lane[following] != table.lane[row]:
                break
            signature = table.signature_of(following)
            if (signature.shapes or ((),))[0]:
                found[row] = signature
                break
            place = int(tree.last[following])
    return found
