"""The one category of every device event, by which all tables sum, and which ops' models speak of which events.

An op's model speaks of the kernels below the op, save those that are clearly something else: what communicates belongs
to ops that communicate and to no other, copies from or to another memory belong to none, what rearranges operands
belongs to no matrix product, and a GEMM kernel not to a model of what is left of an op beside its GEMMs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import Bools, DeviceActivity, Labels
from tracelens.analysis.grouping import Codes
from tracelens.analysis.reading.catalog import OTHER
from tracelens.analysis.reading.op_readings import OpReadings
from tracelens.perf_models.matrix.gemm import GEMM
from tracelens.trace.table import RowColumn
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
