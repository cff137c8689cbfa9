"""Category and perf model of every op that launched device work, from its own record and neighboring calls."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.analysis.grouping import Codes, first_of_each, numbered
from tracelens.analysis.intervals import Bools, Ints
from tracelens.analysis.loaded_trace import Trace
from tracelens.analysis.reading.added_ops import forward_rows
from tracelens.analysis.reading.catalog import PRODUCTS, Catalog, Reading
from tracelens.analysis.reading.engine_steps import inference_sums, layer_windows
from tracelens.perf_models.collective import GROUP_SIZES, CustomCollective
from tracelens.perf_models.inference_attention import SUMS, AttentionSums
from tracelens.perf_models.kernels import ComputeType, is_open, precisions
from tracelens.perf_models.surroundings import CALLER, FOLLOWER, GRADIENT, GRID, KERNEL, LAUNCH, Launch
from tracelens.trace.links import ENGINE_PREFIX
from tracelens.trace.narrow_columns import Column, narrowed
from tracelens.trace.table import Kind, RowColumn, TraceTable
from tracelens.trace.tree import OpTree, nearest
from tracelens.types.dtypes import DType
from tracelens.types.records import Record
from tracelens.types.signature import OpSignature

if TYPE_CHECKING:
    from tracelens.predict.workload import ModelConfig


#: Op row -> the attributes that its signature is read with.
Surroundings: TypeAlias = Mapping[int, tuple[tuple[str, Any], ...]]
#: Launches that are read from the file again for the sake of their grid.
MOST_LAUNCHES = 100
# Between an op and the one that takes its result there are a few on scalars, such as the count of batches seen.
_NEAR = 6


def surroundings(
    trace: Trace, catalog: Catalog, activity: DeviceActivity, silent: RowColumn, forward: RowColumn
) -> Surroundings:
    """What bindings of ``silent`` ops ask for and the trace holds, by row; ``forward``: of backward rows."""
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

    gradients, alone = _gradients(trace, forward, asking(GRADIENT)), asking(FOLLOWER)
    answers: dict[str, Mapping[int, Any]] = {
        LAUNCH: _launches(table, activity, asking(KERNEL), asking(GRID)),
        GRADIENT: gradients,
        CALLER: _callers(trace, asking(CALLER)),
        FOLLOWER: _followers(trace, alone[[row not in gradients for row in alone.tolist()]]),
    }
    known = {row: tuple((what, of[row]) for what, of in answers.items() if row in of) for row in rows.tolist()}
    return {row: found for row, found in known.items() if found}


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


class OpReadings:
    """The reading of every (name, signature) that launched device work, one catalog look-up per distinct pair.

    Ops whose binding reads its inference step (``traced_as(per_step=True)``) are told apart by step as well.
    """

    def __init__(
        self,
        table: TraceTable,
        catalog: Catalog,
        rows: RowColumn,
        forward: Mapping[int, int] | None = None,
        around: Surroundings | None = None,
    ) -> None:
        """``forward``: rows costed as the backward of another row; ``around``: rows read with their surroundings."""
        code, step, sums = _distinct(table, catalog, rows, forward or {}, around or {})
        first = first_of_each(code)
        self.rows = rows
        self.code = narrowed(code)
        self.example = rows[first]
        groups = tuple((group.name, len(group.ranks)) for group in table.process_groups() if group.ranks)
        collectives = ((GROUP_SIZES, groups),) if groups else ()

        def read(row: int, step: int) -> Reading:
            signature = _signature(table, row, around)
            if step >= 0:
                signature = replace(signature, attributes=(*signature.attributes, (SUMS, sums[step])))
            if collectives and catalog.category_of(signature.name) == CustomCollective.category:
                signature = replace(signature, attributes=(*signature.attributes, *collectives))
            ahead = (forward or {}).get(row, -1)
            inherited = catalog.read_backward(signature, _signature(table, ahead, around)) if ahead >= 0 else None
            return inherited or catalog.read(signature)

        self.readings = [read(row, s) for row, s in zip(self.example.tolist(), step[first].tolist(), strict=True)]
        self._rows_in_all = len(table)
        self._describe()

    def _describe(self) -> None:
        """Columns over the readings, and the reading of each row."""
        of_row: Codes = np.full(self._rows_in_all + 1, -1, np.int32)  # a last entry for row -1
        of_row[self.rows] = self.code
        self._of_row = Column(of_row, np.int32)
        self._note_models()
        # A last entry of each for code -1
        self.of_rest = np.array([*(r.of_rest for r in self.readings), False], bool)
        self.leaf_only = np.array([*(r.leaf_only for r in self.readings), False], bool)
        categories = [*(r.category for r in self.readings), None]
        self.known = np.array([category is not None for category in categories], bool)
        self.communicates = np.array([*(r.communicates for r in self.readings), False], bool)
        self.is_product = np.array([category in PRODUCTS for category in categories], bool)

    def compute_in(self, kind: Codes, precisions: Sequence[ComputeType]) -> None:
        """Tells apart readings by what their kernels compute in: ``kind`` of each row in ``precisions``, or -1."""
        before, code = self.code, numbered(self.code, kind)
        first = first_of_each(code)
        self.readings = [
            self.readings[b] if k < 0 else replace(self.readings[b], computed_in=precisions[k])
            for b, k in zip(before[first].tolist(), kind[first].tolist(), strict=True)
        ]
        self.code, self.example = narrowed(code), self.rows[first]
        self._describe()

    def _note_models(self) -> None:
        models = [r.model for r in self.readings]
        self.modelled = np.array([*(m is not None for m in models), False], bool)  # a last entry for code -1
        self.with_bytes = np.array([m is not None and m.hbm_bytes() is not None for m in models], bool)
        self.with_work = np.array([r.has_work for r in self.readings], bool)

    def with_readings(self, others: Mapping[int, Reading]) -> OpReadings:
        """The same with the readings of some codes replaced."""
        made = copy.copy(self)
        made.readings = [others.get(code, reading) for code, reading in enumerate(self.readings)]
        made._note_models()
        return made

    def code_of(self, rows: npt.NDArray[np.integer]) -> Codes:
        """Reading code of each row; -1 for a row that launched nothing."""
        return self._of_row[rows]


def _distinct(
    table: TraceTable, catalog: Catalog, rows: RowColumn, forward: Mapping[int, int], around: Surroundings
) -> tuple[Codes, Ints, list[AttentionSums]]:
    """(number per row that tells calls read apart from each other, its inference step or -1, sums of the steps)."""
    code = numbered(table.name[rows], table.signature[rows])
    step, sums = inference_sums(table, catalog, rows)
    if sums:
        per_step = np.zeros(len(table.names), bool)
        codes = np.unique(table.name[rows])
        per_step[codes] = [catalog.is_per_step(table.names[code]) for code in codes.tolist()]
        step[~per_step[table.name[rows]]] = -1
        code = numbered(code, step)
    if around:
        code = numbered(code, _codes_of(around, rows))
    if forward:
        ahead = np.array([forward.get(row, -1) for row in rows.tolist()], np.int64)
        code = numbered(
            code,
            *(np.where(ahead >= 0, column[ahead], -2) for column in (table.name, table.signature)),
            _codes_of(around, ahead),
        )
    return code, step, sums


class Callers(Record, frozen=True, kw_only=True, eq=False):
    """The ops at or above the launches of device events, each once, callers first: what lies below one is a slice.

    ``rows``: of the table; ``parent``: place of the op above, -1 without; ``last``: where the ops below end, exclusive.
    ``events``: the linked ones, as ``DeviceActivity.of_ops``; ``op``: place of the op that launched each.
    """

    rows: RowColumn
    parent: RowColumn
    last: Ints
    events: RowColumn
    op: RowColumn

    @classmethod
    def of(cls, tree: OpTree, activity: DeviceActivity) -> Callers:
        """Of all linked events of the activity."""
        events = activity.of_ops()
        ops = activity.op[events]
        # Behind the ops of the host those that only the device recorded
        of_host = tree.at_or_above(ops)
        rows = np.concatenate((of_host, np.unique(ops[tree.position[ops] < 0])))
        place = np.full(len(tree.table) + 1, -1, np.int32)  # a last entry for row -1
        place[rows] = np.arange(len(rows))
        # Nothing lies below what is no op
        last = np.arange(1, len(rows) + 1)
        calling = np.flatnonzero(tree.table.kind[rows] == Kind.CPU_OP)
        last[calling] = np.searchsorted(tree.position[of_host], tree.last[rows[calling]])
        parent = place[tree.op_parent[rows]]
        return cls(rows=rows, parent=parent, last=last, events=events, op=place[activity.op[events]])

    def sums(self, values: Ints) -> Ints:
        """Of each op the sum of ``values`` (one per event) over the events at or below it."""
        own = np.zeros(len(self.rows) + 1, np.int64)
        np.add.at(own, self.op + 1, values)
        running = np.cumsum(own)
        return running[self.last] - running[:-1]

    def depth(self, wanted: Bools) -> Ints:
        """How many ``wanted`` ops are at or above each op."""
        at = np.flatnonzero(wanted)
        change = np.zeros(len(self.rows) + 1, np.int64)
        change[at] = 1
        np.subtract.at(change, self.last[at], 1)
        return np.cumsum(change)[:-1]

    def outermost(self, wanted: Bools) -> Codes:
        """The place of the outermost ``wanted`` op at or above each op, -1 without one."""
        depth = self.depth(wanted)
        found = np.maximum.accumulate(np.where(wanted & (depth == 1), np.arange(len(depth)), -1))
        return np.where(depth > 0, found, -1).astype(np.int32)

    def innermost(self, wanted: Bools) -> Codes:
        """The place of the innermost ``wanted`` op at or above each op, -1 without one."""
        return np.where(wanted, np.arange(len(wanted), dtype=np.int32), nearest(self.parent, wanted))


def read_ops(
    trace: Trace, catalog: Catalog, activity: DeviceActivity, model: ModelConfig | None = None
) -> tuple[Callers, OpReadings]:
    """The ops at or above launches, and their readings.

    Ops that do not say how much they move are read with what stands round them, backward ops by their forward, and
    attention of a serving engine by the layers of ``model``.
    """
    table = trace.table
    callers = Callers.of(trace.tree, activity)
    rows = np.sort(callers.rows)
    forward = forward_rows(trace, catalog)
    given = catalog.arguments_by_hooks
    readings = OpReadings(table, catalog, rows, around=given)
    silent = rows[~readings.with_bytes[readings.code]] if len(rows) else rows
    around = {**surroundings(trace, catalog, activity, silent, forward), **layer_windows(table, catalog, rows, model)}
    around |= {row: (*around.get(row, ()), *arguments) for row, arguments in given.items()}
    if around:
        readings = OpReadings(table, catalog, rows, around=around)
    inherited = _inherited_backward(trace, catalog, readings, forward, around)
    if inherited:
        readings = OpReadings(table, catalog, rows, inherited, around)
    _read_precisions(table, activity, readings, callers)
    return callers, readings


def _read_precisions(table: TraceTable, activity: DeviceActivity, readings: OpReadings, callers: Callers) -> None:
    """Sets what matrix products compute in where their type leaves it open: what the kernels of most time are named."""
    models = [reading.model for reading in readings.readings]
    matrix = [m.compute_dtype if m is not None and m.engine == "matrix" else DType.BOOL for m in models]
    code, events = readings.code_of(callers.rows), callers.events
    found: dict[ComputeType, int] = {}
    times: dict[int, Ints] = {}
    for recorded in dict.fromkeys(dtype for dtype in matrix if is_open(dtype)):
        products = np.array([dtype is recorded for dtype in matrix], bool)[code]
        below = np.flatnonzero((callers.depth(products) > 0)[callers.op])
        names, which = np.unique(activity.name[events[below]], return_inverse=True)
        said = precisions([table.names[name] for name in names.tolist()], recorded)
        kinds = np.array([-1 if said_of is None else found.setdefault(said_of, len(found)) for said_of in said], int)
        kind = np.full(len(events), -1)
        kind[below] = kinds[which]
        for one in np.unique(kinds[kinds >= 0]).tolist():
            time_ns = callers.sums(np.where(kind == one, activity.duration[events], 0))
            times[one] = times.get(one, 0) + np.where(products, time_ns, 0)
    if not found:
        return
    of_kind = np.stack([times[one] for one in range(len(found))], axis=1)[np.argsort(callers.rows)]
    known = of_kind.any(axis=1)
    readings.compute_in(np.where(known, of_kind.argmax(axis=1), -1).astype(np.int32), tuple(found))


def _inherited_backward(
    trace: Trace, catalog: Catalog, readings: OpReadings, forward: RowColumn, around: Surroundings
) -> dict[int, int]:
    """Backward row -> forward row, where the forward's model stands in for a binding that the backward op lacks.

    Where an extension says that the op is the forward's backward. Elsewhere only where nothing at or below the op has a
    model, and where the forward has no other such op.
    """
    table, tree = trace.table, trace.tree
    rows = readings.rows
    unknown = ~readings.modelled[readings.code] if len(rows) else np.zeros(0, bool)
    candidates = rows[unknown & (forward[rows] >= 0)]
    if not len(candidates):
        return {}
    has_model = np.zeros(len(table), bool)
    has_model[tree.at_or_above(rows[~unknown])] = True
    ahead = forward[candidates]
    codes = (table.name[candidates], table.signature[candidates], table.name[ahead], table.signature[ahead])
    kind = numbered(*codes, has_model[candidates].astype(np.int32), _codes_of(around, ahead))
    readable = []
    for row, forward_row in zip(candidates[first := first_of_each(kind)].tolist(), ahead[first].tolist(), strict=True):
        name = table.name_of(row)
        speaks = not name.startswith(ENGINE_PREFIX) and (not has_model[row] or catalog.is_backward(name))
        signatures = table.signature_of(row), _signature(table, forward_row, around)
        readable.append(speaks and catalog.read_backward(*signatures) is not None)
    found = np.zeros(len(table), bool)
    found[candidates[np.array(readable, bool)[kind]]] = True
    parent = tree.op_parent[candidates]
    topmost = found[candidates] & ~(found[parent] & (parent >= 0))
    backwards = np.bincount(ahead[topmost], minlength=len(table))
    only = topmost & (backwards[ahead] == 1)
    return dict(zip(candidates[only].tolist(), ahead[only].tolist(), strict=True))


def _signature(table: TraceTable, row: int, around: Surroundings | None) -> OpSignature:
    """What was recorded of an op and of what stands round it."""
    signature = table.signature_of(row)
    known = (around or {}).get(row, ())
    return replace(signature, attributes=(*signature.attributes, *known)) if known else signature


def _codes_of(around: Surroundings, rows: npt.NDArray[np.integer]) -> Codes:
    """A number per row that tells different surroundings apart; -1 without any, and for row -1."""
    code_of = {found: code for code, found in enumerate(dict.fromkeys(around.values()))}
    known = np.array(sorted(around), np.int64)
    codes = np.array([code_of[around[row]] for row in known.tolist()] + [-1], np.int32)
    at = np.searchsorted(known, rows)
    at[np.append(known, -1)[at] != rows] = len(known)
    return codes[at]
