"""Attribution: which op call every kernel belongs to, and how long each call kept the device busy.

Three views of the same kernels, all of them interval unions in whole ns:

* a *launcher*'s direct time: kernels it launched itself; its subtree time: kernels of all ops below it as well;
* a *unified* call: every kernel belongs to exactly one of them (``Owner`` below);
* a *modelled* call: any op with a perf model, also one inside another, for the per-family sheets.

NCCL and RCCL kernels stay out of all three: they have the collective sheets.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity, Labels
from tracelens.analysis.attribution.event_category import event_categories, speaks_of
from tracelens.analysis.factorize import Codes, distinct_rows
from tracelens.analysis.intervals import overlapping, union_by_group
from tracelens.analysis.reading.catalog import OTHER
from tracelens.analysis.reading.op_readings import OpReadings
from tracelens.lazy.records import dataclass
from tracelens.trace.table import Kind, RowColumn, TraceTable
from tracelens.trace.tree import OpTree

Ints = npt.NDArray[np.int64]


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
    subtree_ns: Ints


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
    """Subtree time of every launching op; ``events, ops`` from ``ops_above``."""
    linked = activity.of_ops()
    rows = distinct_rows(activity.op[linked], len(table))
    place: RowColumn = np.full(len(table), -1, np.int32)
    place[rows] = np.arange(len(rows))
    wanted = place[ops] >= 0
    subtree = busy_by_op(activity, events[wanted], place[ops[wanted]], len(rows))
    return Launchers(row=rows, subtree_ns=subtree)


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
