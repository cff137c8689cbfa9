"""Which op call every kernel belongs to: the category of each device event, by which all tables sum, and how long each
call kept the device busy.

An op's model speaks of the kernels below the op, save those that are clearly something else: what communicates belongs
to ops that communicate and to no other, copies from or to another memory belong to none, what rearranges operands
belongs to no matrix product, and a GEMM kernel not to a model of what is left of an op beside its GEMMs.

Three views of the same kernels, all of them interval unions in whole ns:

* a *launcher*'s direct time: kernels it launched itself; its subtree time: kernels of all ops below it as well;
* a *unified* call: every kernel belongs to exactly one of them (``Owner`` below);
* a *modelled* call: any op with a perf model, also one inside another, for the per-family sheets.

NCCL and RCCL kernels stay out of all three: they have the collective sheets.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity, Labels
from tracelens.analysis.grouping import Codes, distinct_rows
from tracelens.analysis.intervals import Bools, Ints, overlapping, union_by_group
from tracelens.analysis.reading.catalog import OTHER
from tracelens.analysis.reading.op_readings import OpReadings
from tracelens.lazy.records import dataclass
from tracelens.perf_models.gemm import GEMM
from tracelens.trace.narrow_columns import narrowed
from tracelens.trace.table import Kind, RowColumn, TraceTable
from tracelens.trace.tree import OpTree

#: The category of NCCL and RCCL kernels, which stand outside the op tables.
COLLECTIVES = "collectives"
#: The category of copies between a device and the host, or another device.
COPY = "copy"


def with_communicating_ops(activity: DeviceActivity, tree: OpTree, readings: OpReadings) -> DeviceActivity:
    """``activity``, where the kernels of ops that communicate do so too, whatever they are called.

    A kernel's op is the innermost one above it of known category; a copy to another device counts below any op that
    communicates. Copies from or to the host and matrix products stay what they are.
    """
    if not readings.communicates.any():
        return activity
    linked = activity.of_ops()
    linked = linked[~activity.host_copy[linked] & ~activity.category[linked].are(GEMM.category)]
    peer = activity.peer_copy[linked]
    code = _innermost(tree, readings, activity.op[linked], readings.known)
    code[peer] = _innermost(tree, readings, activity.op[linked[peer]], readings.communicates)
    found = readings.communicates[code]
    events, category = linked[found], [r.category or OTHER for r in readings.readings]
    communication, label = activity.communication.copy(), activity.category.code + np.int32(len(category))
    peer_copy, unnamed = activity.peer_copy.copy(), ~communication[events]
    communication[events], peer_copy[events] = True, False
    label[events[unnamed]] = code[found][unnamed]
    return replace(
        activity,
        communication=communication,
        peer_copy=peer_copy,
        category=Labels.of(label, (*category, *activity.category.texts)),
    )


def _innermost(tree: OpTree, readings: OpReadings, op: RowColumn, wanted: Bools) -> Codes:
    """The reading of the first ``wanted`` one at or above each op; -1 for none."""
    result: Codes = np.full(len(op), -1, np.int32)
    at = np.arange(len(op))
    while len(at):
        code = readings.code_of(op)
        found = wanted[code]
        result[at[found]] = code[found]
        op = np.where(found, np.int32(-1), tree.op_parent[op])
        at, op = at[op >= 0], op[op >= 0]
    return result


def speaks_of(
    readings: OpReadings, wanted: Bools, code: Codes, activity: DeviceActivity, events: npt.NDArray[np.integer]
) -> Bools:
    """Whether the reading of an op above an event is a ``wanted`` one, and about that event.

    ``code`` and ``events`` in pairs; ``wanted``: of each reading, and of code -1.
    """
    # Kinds of events: what each of the flags adds says which it has
    kind = activity.communication + np.uint8(2) * activity.between_memories + np.uint8(4) * activity.rearranges
    speaks = np.zeros((len(wanted), 8), bool)
    speaks[:, 0], speaks[:, 1] = ~readings.communicates, readings.communicates
    speaks[:, 4], speaks[:, 5] = speaks[:, 0] & ~readings.is_product, speaks[:, 1] & ~readings.is_product
    speaks[~wanted] = False
    found: Bools = speaks.ravel().take(code * np.int32(8) + kind[events])
    if readings.of_rest.any():
        found &= ~(readings.of_rest[code] & activity.category[events].are(GEMM.category))
    return found


def event_categories(
    activity: DeviceActivity, readings: OpReadings, events: Codes, op: RowColumn, is_synthetic: Bools
) -> Labels:
    """The category of every event; ``events`` are counted for ``op``, in pairs, the others for none.

    It is what the op's reading says, where it speaks of the event; else what the kernel's name says. Kernels left under
    a passed parent (``is_synthetic``) are first what their names say.
    """
    texts = (COLLECTIVES, COPY, *activity.category.texts, *(r.category or OTHER for r in readings.readings))
    label = activity.category.code + np.int32(2)
    label[activity.between_memories], label[activity.collective] = 1, 0
    code = readings.code_of(op)
    of_op = speaks_of(readings, readings.known, code, activity, events)
    of_op &= ~is_synthetic | activity.category[events].are(OTHER)
    label[events[of_op]] = code[of_op] + np.int32(2 + len(activity.category.texts))
    return Labels.of(label, texts)


#: What the name of a kernel that is an op of its own ends with, unless it is a copy.
SYNTHETIC = " (Synthetic Op)"


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

    def among(self, inside: Bools) -> Calls:
        """The same calls in the part of the activity that is ``inside``, as all their events are."""
        place = np.cumsum(inside, dtype=np.int32) - np.int32(1)
        return replace(self, first_event=place[self.first_event], events=place[self.events])


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
    table: TraceTable, activity: DeviceActivity, readings: OpReadings, events: Codes, ops: RowColumn
) -> tuple[Calls, Labels]:
    """Every linked device event in exactly one call; and the category of every event, linked or not.

    ``events, ops`` from ``ops_above``.

    Walking down from the root: the first op with a perf model owns everything below it that the model speaks of;
    without one, an op with no launching op below it owns its kernels; what remains under a passed parent, and what the
    model of its own op does not speak of, becomes one synthetic call per parent and kernel name.
    """
    linked = activity.of_ops()
    launcher = activity.op[linked]
    owner: RowColumn = np.full(len(activity), -1, np.int32)
    claimed = _claimed(activity, readings, events, ops)
    # Of several ops above an event the topmost comes last, and stays
    owner[events[claimed]] = ops[claimed]
    owner = owner[linked]
    free = owner < 0
    has_launching_child = np.zeros(len(table), bool)
    has_launching_child[ops[len(linked) :]] = True
    passed = has_launching_child[launcher] | (table.kind[launcher] != Kind.CPU_OP)
    foreign = activity.between_memories[linked] | readings.modelled[readings.code_of(launcher)]
    synthetic = free & (passed | foreign)
    row = np.where(free, launcher, owner)
    category = event_categories(activity, readings, linked, row, synthetic)
    kernel_name = np.where(synthetic, activity.name[linked], np.int32(-1))
    return grouped_calls(activity, linked, row, kernel_name, category[linked]), category


def modelled_calls(activity: DeviceActivity, readings: OpReadings, events: Codes, ops: RowColumn) -> Calls:
    """Every op call with a perf model that launched anything its model speaks of, nested ones included.

    ``events, ops`` from ``ops_above``.
    """
    claimed = _claimed(activity, readings, events, ops)
    events, ops = events[claimed], ops[claimed]
    category = Labels.of(readings.code_of(ops), [r.category or OTHER for r in readings.readings])
    return grouped_calls(activity, events, ops, np.full(len(ops), -1, np.int32), category)


def _claimed(activity: DeviceActivity, readings: OpReadings, events: Codes, ops: RowColumn) -> Bools:
    """Which pairs of an event and an op above it are of an op whose model speaks of the event."""
    code = readings.code_of(ops)
    claimed = speaks_of(readings, readings.modelled, code, activity, events)
    if readings.leaf_only.any():
        claimed &= ~readings.leaf_only[code] | (activity.op[events] == ops)
    return claimed


def grouped_calls(
    activity: DeviceActivity, events: Codes, row: RowColumn, kernel_name: Codes, category: Labels
) -> Calls:
    """Calls from (event, owning row, kernel name code or -1, category); sorted by row."""
    order = np.lexsort((activity.start[events], narrowed(category.code), narrowed(kernel_name), row))
    r, k, e, c = row[order], kernel_name[order], events[order], category.code[order]
    del order
    fresh = np.ones(len(r), bool)
    fresh[1:] = (r[1:] != r[:-1]) | (k[1:] != k[:-1]) | (c[1:] != c[:-1])
    group = np.cumsum(fresh, dtype=np.int32) - np.int32(1)
    n = int(fresh.sum())
    return Calls(
        row=r[fresh],
        kernel_ns=union_by_group(group, activity.start[e], activity.end[e], n),
        kernel_name=narrowed(k[fresh]),
        first_event=e[fresh],
        events=e,
        call_of_event=group,
        category=Labels(c[fresh], category.texts),
    )
