"""Attribution: which op call every kernel belongs to, and how long each call kept the device busy.

Three views of the same kernels, all of them interval unions in whole ns:

* a *launcher*'s direct time: kernels it launched itself; its subtree time: kernels of all ops below it as well;
* a *unified* call: every kernel belongs to exactly one of them (``Owner`` below);
* a *modelled* call: any op with a perf model, also one inside another, for the per-family sheets.

NCCL and RCCL kernels stay out of all three: they have the collective sheets.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity, Labels
from tracelens.analysis.attribution.event_category import PRODUCTS, communicates, event_categories, speaks_of
from tracelens.analysis.factorize import Codes, distinct_rows, first_of_each, numbered
from tracelens.analysis.intervals import overlapping, union_by_group
from tracelens.analysis.loaded_trace import Trace
from tracelens.analysis.reading.catalog import OTHER, Catalog, Reading
from tracelens.analysis.reading.composite_ops import forward_rows
from tracelens.analysis.reading.engine_steps import inference_sums
from tracelens.analysis.reading.evidence import Surroundings, surroundings
from tracelens.analysis.reading.layer_windows import layer_windows
from tracelens.dtypes import DType
from tracelens.perf_models.attention.inference_attention import SUMS, AttentionSums
from tracelens.perf_models.base import PerfModel
from tracelens.perf_models.communication.collective import GROUP_SIZES, CustomCollective
from tracelens.perf_models.compute_type import ComputeType, is_open, precisions
from tracelens.signature import OpSignature
from tracelens.trace.links import ENGINE_PREFIX
from tracelens.trace.table import Kind, RowColumn, TraceTable
from tracelens.trace.tree import OpTree
from tracelens.workload import ModelConfig

Ints = npt.NDArray[np.int64]


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
        """``forward``: rows that cost what the backward of another row's model says (``_inherited_backward``).

        ``around``: rows that are read with what stands round them.
        """
        code = numbered(table.name[rows], table.signature[rows])
        step, sums = inference_sums(table, catalog, rows)
        if sums:
            per_step = np.zeros(len(table.names), bool)
            codes = np.unique(table.name[rows])
            per_step[codes] = [catalog.is_per_step(table.names[code]) for code in codes.tolist()]
            step[~per_step[table.name[rows]]] = -1
            code = numbered(code, step)
        if around:
            code = numbered(code, _codes_of(around, rows.tolist()))
        if forward:
            ahead = np.array([forward.get(row, -1) for row in rows.tolist()], np.int64)
            code = numbered(
                code,
                *(np.where(ahead >= 0, column[ahead], -2) for column in (table.name, table.signature)),
                _codes_of(around or {}, ahead.tolist()),
            )
        first = first_of_each(code)
        self.rows = rows
        self.code = code
        self.example = rows[first]
        self.readings: list[Reading] = []
        groups = tuple((group.name, len(group.ranks)) for group in table.process_groups() if group.ranks)
        for row, s in zip(self.example.tolist(), step[first].tolist(), strict=True):
            signature = _in_step(_signature(table, row, around), sums[s] if s >= 0 else None)
            if groups and catalog.category_of(signature.name) == CustomCollective.category:
                signature = replace(signature, attributes=(*signature.attributes, (GROUP_SIZES, groups)))
            forward_row = (forward or {}).get(row, -1)
            inherited = (
                catalog.read_backward(signature, _signature(table, forward_row, around)) if forward_row >= 0 else None
            )
            self.readings.append(inherited or catalog.read(signature))
        self._position: RowColumn = np.full(len(table), -1, np.int32)
        self._position[rows] = np.arange(len(rows))
        self._describe()

    def _describe(self) -> None:
        """Columns over the readings."""
        self._note_models()
        self.leaf_only = np.array([r.leaf_only for r in self.readings], bool)
        # A last entry for code -1
        categories = [*(r.category for r in self.readings), None]
        self.known = np.array([category is not None for category in categories], bool)
        self.communicates = np.array([*(communicates(r) for r in self.readings), False], bool)
        self.is_product = np.array([category in PRODUCTS for category in categories], bool)

    def compute_in(self, kind: Codes, precisions: Sequence[ComputeType]) -> None:
        """Tells apart readings by what their kernels compute in: ``kind`` of each row in ``precisions``, or -1."""
        before, code = self.code, numbered(self.code, kind)
        first = first_of_each(code)
        self.readings = [
            self.readings[b] if k < 0 else replace(self.readings[b], computed_in=precisions[k])
            for b, k in zip(before[first].tolist(), kind[first].tolist(), strict=True)
        ]
        self.code, self.example = code, self.rows[first]
        self._describe()

    def _note_models(self) -> None:
        models = [r.model for r in self.readings]
        self.modelled = np.array([m is not None for m in models], bool)
        self.with_bytes = np.array([m is not None and m.hbm_bytes() is not None for m in models], bool)
        self.with_work = np.array([m is not None and _has_work(m) for m in models], bool)

    def with_readings(self, others: Mapping[int, Reading]) -> OpReadings:
        """The same with the readings of some codes replaced."""
        made = copy.copy(self)
        made.readings = [others.get(code, reading) for code, reading in enumerate(self.readings)]
        made._note_models()
        return made

    def replace(self, code: int, reading: Reading) -> None:
        """Another reading for ``code``, of the same op and category."""
        self.readings[code] = reading
        self.with_work[code] = reading.model is not None and _has_work(reading.model)
        self.with_bytes[code] = reading.model is not None and reading.model.hbm_bytes() is not None

    def code_of(self, rows: npt.NDArray[np.integer]) -> Codes:
        """Reading code of each row; -1 for a row that launched nothing."""
        position = np.where(rows >= 0, self._position[np.maximum(rows, 0)], np.int32(-1))
        return np.where(position >= 0, self.code[position], np.int32(-1)) if len(self.code) else position


def read_ops(
    trace: Trace, catalog: Catalog, activity: DeviceActivity, model: ModelConfig | None = None
) -> tuple[Codes, RowColumn, OpReadings]:
    """(event, op) pairs of ``ops_above``, and the readings of these ops.

    Ops that do not say how much they move are read with what stands round them, backward ops by their forward, and
    attention of a serving engine by the layers of ``model``.
    """
    table = trace.table
    events, ops = ops_above(trace.tree, activity)
    rows = distinct_rows(ops, len(table))
    forward = forward_rows(trace, catalog)
    readings = OpReadings(table, catalog, rows)
    silent = rows[~readings.with_bytes[readings.code]] if len(rows) else rows
    around = {
        **surroundings(trace, catalog, activity, silent, forward),
        **layer_windows(table, catalog, rows, model),
    }
    if around:
        readings = OpReadings(table, catalog, rows, around=around)
    inherited = _inherited_backward(trace, catalog, readings, forward, around)
    if inherited:
        readings = OpReadings(table, catalog, rows, inherited, around)
    _read_precisions(table, activity, readings, events, ops)
    return events, ops, readings


def _read_precisions(
    table: TraceTable, activity: DeviceActivity, readings: OpReadings, events: Codes, ops: RowColumn
) -> None:
    """Sets what matrix products compute in where their type leaves it open: what the kernels of most time are named."""
    models = [reading.model for reading in readings.readings]
    matrix = [m.compute_dtype if m is not None and m.engine == "matrix" else DType.BOOL for m in models]
    code = readings.code_of(ops)
    found: dict[ComputeType, int] = {}
    kind = np.full(len(events), -1, np.int32)
    for recorded in dict.fromkeys(dtype for dtype in matrix if is_open(dtype)):
        at = np.flatnonzero(np.array([dtype is recorded for dtype in matrix], bool)[code])
        names, which = np.unique(activity.name[events[at]], return_inverse=True)
        said = precisions([table.names[name] for name in names.tolist()], recorded)
        kinds = [-1 if precision is None else found.setdefault(precision, len(found)) for precision in said]
        kind[at] = np.array(kinds, np.int32)[which]
    if not found:
        return
    telling = np.flatnonzero(kind >= 0)
    rows = np.searchsorted(readings.rows, ops[telling])
    time_ns = np.zeros((len(readings.rows), len(found)), np.int64)
    np.add.at(time_ns, (rows, kind[telling]), activity.duration[events[telling]])
    known = time_ns.any(axis=1)
    readings.compute_in(np.where(known, time_ns.argmax(axis=1), -1).astype(np.int32), tuple(found))


def _signature(table: TraceTable, row: int, around: Surroundings | None) -> OpSignature:
    """What was recorded of an op and of what stands round it."""
    signature = table.signature_of(row)
    known = (around or {}).get(row, ())
    return replace(signature, attributes=(*signature.attributes, *known)) if known else signature


def _codes_of(around: Surroundings, rows: list[int]) -> Ints:
    """A number per row that tells different surroundings apart; -1 without any."""
    code_of = {found: code for code, found in enumerate(dict.fromkeys(around.values()))}
    return np.array([code_of[around[row]] if row in around else -1 for row in rows], np.int64)


def _has_work(model: PerfModel) -> bool:
    """Whether a model says anything: bytes, or FLOPs of which there are any."""
    return model.hbm_bytes() is not None or bool(model.flops()) or bool(model.wire_bytes())


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
    above = rows[~unknown]
    while len(above := above[above >= 0]):
        above = distinct_rows(above[~has_model[above]], len(table))
        has_model[above] = True
        above = tree.op_parent[above]
    ahead = forward[candidates]
    codes = (table.name[candidates], table.signature[candidates], table.name[ahead], table.signature[ahead])
    kind = numbered(*codes, has_model[candidates].astype(np.int32), _codes_of(around, ahead.tolist()))
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


def _in_step(signature: OpSignature, sums: AttentionSums | None) -> OpSignature:
    return signature if sums is None else replace(signature, attributes=(*signature.attributes, (SUMS, sums)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """One entry per op call and category of its kernels. ``row``: table row; ``kernel_ns``: busy union of its kernels.

    ``kernel_name`` is -1, or the name code that tells the synthetic calls of one parent apart;
    ``first_event`` indexes the activity: the earliest kernel of the call; ``events`` and
    ``call_of_event`` pair every kernel with its call.
    """

    row: RowColumn
    kernel_ns: Ints
    kernel_name: Codes
    first_event: Codes
    events: Codes
    call_of_event: Codes
    category: Labels


@dataclass(frozen=True, slots=True, kw_only=True)
class Launchers:
    """One entry per op that launched kernels itself."""

    row: RowColumn
    direct_ns: Ints
    subtree_ns: Ints


def ops_above(tree: OpTree, activity: DeviceActivity) -> tuple[Codes, RowColumn]:
    """(event index, op row) for every linked device event and every cpu_op at or above its launch."""
    index = activity.of_ops()
    op = activity.op[index]
    events, ops = [index], [op]
    while len(index):
        op = tree.op_parent[op]
        keep = op >= 0
        index, op = index[keep], op[keep]
        events.append(index)
        ops.append(op)
    return np.concatenate(events), np.concatenate(ops)


def busy_by_op(activity: DeviceActivity, events: Codes, op: Codes, ops: int) -> Ints:
    """Busy union (ns) of the events paired with each op 0..ops-1.

    Only events that overlap another in time need the union; the others are summed.
    """
    linked = activity.of_ops()
    shared = np.zeros(len(activity), bool)
    shared[linked] = overlapping(activity.start[linked], activity.end[linked])
    shared = shared[events]
    total = np.zeros(ops, np.int64)
    np.add.at(total, op[~shared], activity.duration[events[~shared]])
    e = events[shared]
    return total + union_by_group(op[shared], activity.start[e], activity.end[e], ops)


def launchers(table: TraceTable, activity: DeviceActivity, events: Codes, ops: RowColumn) -> Launchers:
    """Direct and subtree time of every launching op; ``events, ops`` from ``ops_above``."""
    linked = activity.of_ops()
    rows = distinct_rows(activity.op[linked], len(table))
    place: RowColumn = np.full(len(table), -1, np.int32)
    place[rows] = np.arange(len(rows))
    direct = busy_by_op(activity, linked, place[activity.op[linked]], len(rows))
    wanted = place[ops] >= 0
    subtree = busy_by_op(activity, events[wanted], place[ops[wanted]], len(rows))
    return Launchers(row=rows, direct_ns=direct, subtree_ns=subtree)


def direct_calls(activity: DeviceActivity, category: Labels) -> Calls:
    """Every launching op with the kernels that it launched itself, one call per category of these; sorted by row."""
    linked = activity.of_ops()
    return grouped_calls(activity, linked, activity.op[linked], np.full(len(linked), -1, np.int32), category[linked])


def unified_calls(
    table: TraceTable, tree: OpTree, activity: DeviceActivity, readings: OpReadings
) -> tuple[Calls, Labels]:
    """Every linked device event in exactly one call; and the category of every event, linked or not.

    Walking down from the root: the first op with a perf model owns everything below it that the model speaks of;
    without one, an op with no launching op below it owns its kernels; what remains under a passed parent, and what the
    model of its own op does not speak of, becomes one synthetic call per parent and kernel name.
    """
    linked = activity.of_ops()
    launcher = activity.op[linked]
    owner = _topmost_modelled(tree, readings, activity, linked)
    free = owner < 0
    has_launching_child = np.zeros(len(table), bool)
    above = tree.op_parent[launcher]
    while len(above := above[above >= 0]):
        above = above[~has_launching_child[above]]
        has_launching_child[above] = True
        above = tree.op_parent[distinct_rows(above, len(table))]
    passed = has_launching_child[launcher] | (table.kind[launcher] != Kind.CPU_OP)
    code = readings.code_of(launcher)
    foreign = activity.between_memories[linked] | (np.append(readings.modelled, False)[code])
    synthetic = free & (passed | foreign)
    row = np.where(free, launcher, owner)
    category = event_categories(activity, readings, linked, row, synthetic)
    kernel_name = np.where(synthetic, activity.name[linked], np.int32(-1))
    return grouped_calls(activity, linked, row, kernel_name, category[linked]), category


def modelled_calls(activity: DeviceActivity, readings: OpReadings, events: Codes, ops: RowColumn) -> Calls:
    """Every op call with a perf model that launched anything its model speaks of, nested ones included."""
    code = readings.code_of(ops)
    keep = code >= 0
    keep[keep] = readings.modelled[code[keep]] & speaks_of(readings, code[keep], activity, events[keep])
    direct = activity.op[events] == ops
    keep[keep] &= ~readings.leaf_only[code[keep]] | direct[keep]
    category = Labels.of(code[keep], [r.category or OTHER for r in readings.readings])
    return grouped_calls(activity, events[keep], ops[keep], np.full(int(keep.sum()), -1, np.int32), category)


def _topmost_modelled(tree: OpTree, readings: OpReadings, activity: DeviceActivity, linked: Codes) -> RowColumn:
    launcher = activity.op[linked]
    owner: RowColumn = np.full(len(launcher), -1, np.int32)
    active = np.flatnonzero(launcher >= 0)
    current = launcher[active]
    while len(active):
        code = readings.code_of(current)
        owns = code >= 0
        owns[owns] = readings.modelled[code[owns]] & speaks_of(readings, code[owns], activity, linked[active[owns]])
        owns[owns] = ~readings.leaf_only[code[owns]] | (current[owns] == launcher[active[owns]])
        owner[active[owns]] = current[owns]
        current = tree.op_parent[current]
        active, current = active[current >= 0], current[current >= 0]
    return owner


def grouped_calls(
    activity: DeviceActivity, events: Codes, row: RowColumn, kernel_name: Codes, category: Labels
) -> Calls:
    """Calls from (event, owning row, kernel name code or -1, category); sorted by row."""
    order = np.lexsort((activity.start[events], category.code, kernel_name, row))
    r, k, e, c = row[order], kernel_name[order], events[order], category.code[order]
    del order
    changes = (np.diff(r) != 0) | (np.diff(k) != 0) | (np.diff(c) != 0)
    fresh = np.concatenate(([True], changes)) if len(r) else np.zeros(0, bool)
    group = np.cumsum(fresh, dtype=np.int32) - np.int32(1)
    n = int(fresh.sum())
    return Calls(
        row=r[fresh],
        kernel_ns=union_by_group(group, activity.start[e], activity.end[e], n),
        kernel_name=k[fresh],
        first_event=e[fresh],
        events=e,
        call_of_event=group,
        category=Labels(c[fresh], category.texts),
    )
