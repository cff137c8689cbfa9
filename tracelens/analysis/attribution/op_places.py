"""Where in the program the ops of a table stand: their pass, their nn.Module, their Python frames."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.analysis.attribution.host_paths import Bools, frame_text, module_class
from tracelens.analysis.attribution.host_scopes import PHASES, Phases
from tracelens.analysis.grouping import distinct_rows
from tracelens.analysis.intervals import Ints
from tracelens.trace.table import Kind
from tracelens.trace.tree import MODULE_PREFIX, OpTree

if TYPE_CHECKING:
    import pandas as pd

#: Frames that are shown of one op's stack, the innermost first.
MAX_FRAMES = 12


def all_in(phase: str, phases: Phases, tree: OpTree, activity: DeviceActivity) -> Bools:
    """Which rows of the trace are ops whose device work was all launched in that phase."""
    inside = phases.phase == PHASES.index(phase)
    return _launched(tree, activity, inside) & ~_launched(tree, activity, ~inside)


def _launched(tree: OpTree, activity: DeviceActivity, events: Bools) -> Bools:
    """The ops at or above the launches of these events."""
    found = np.zeros(len(tree.table), bool)
    ops = activity.op[events]
    while len(ops := ops[ops >= 0]):
        ops = distinct_rows(ops[~found[ops]], len(found))
        found[ops] = True
        ops = tree.op_parent[ops]
    return found


def with_places(frame: pd.DataFrame, tree: OpTree, phases: Phases, repeated: Bools) -> pd.DataFrame:
    """``frame`` with ``is_recompute``, and ``parent_module`` and ``call_stack`` of each row's example, where recorded.

    ``repeated``: which rows of the trace are ops that only a recomputation launched.
    """
    rows = frame["example_row"].to_numpy(np.int64)
    if phases.has_recompute:
        frame = frame.assign(is_recompute=repeated[rows])
    if not tree.table.has_stacks:
        return frame
    modules, stacks = _around(tree, rows)
    alone = np.array([not modules[i] or not stacks[i] for i in range(len(rows))], bool)
    forward = np.array([tree.forward_of(row) for row in rows[alone].tolist()], np.int64)
    # A backward op runs on a thread without frames: it has those of its forward
    for i, *others in zip(np.flatnonzero(alone).tolist(), *_around(tree, forward), strict=True):
        modules[i], stacks[i] = modules[i] or others[0], stacks[i] or others[1]
    return frame.assign(
        parent_module=np.array(["/".join(reversed(texts)) or None for texts in modules], object),
        call_stack=np.array([" <- ".join(texts) or None for texts in stacks], object),
    )


def places_around(tree: OpTree, row: int) -> tuple[str | None, str | None]:
    """(``parent_module``, ``call_stack``) of an op, or of its forward op where it has neither."""
    if not tree.table.has_stacks:
        return None, None
    modules, stack = _around_one(tree, row)
    if not modules or not stack:
        others = _around_one(tree, int(tree.forward_of(row)))
        modules, stack = modules or others[0], stack or others[1]
    return "/".join(reversed(modules)) or None, " <- ".join(stack) or None


def _around_one(tree: OpTree, row: int) -> tuple[list[str], list[str]]:
    """As ``_around`` of a single row, for which arrays are slow."""
    table, modules, stack = tree.table, list[str](), list[str]()
    while row >= 0:
        if table.kind[row] == Kind.PYTHON_FUNCTION:
            name = table.name_of(row)
            if name.startswith(MODULE_PREFIX):
                modules.append(module_class(name))
            elif len(stack) < MAX_FRAMES:
                stack.append(frame_text(name))
        row = int(tree.parent[row] if tree.position[row] >= 0 else tree.launch[row])
    return modules, stack


def _around(tree: OpTree, rows: Ints) -> tuple[list[list[str]], list[list[str]]]:
    """The classes of the nn.Modules and the nearest Python frames around each row, the innermost first.

    All rows go up one caller at a time. None for row -1.
    """
    table = tree.table
    module_texts, frame_texts = cache(module_class), cache(frame_text)
    modules: list[list[str]] = [[] for _ in range(len(rows))]
    stacks: list[list[str]] = [[] for _ in range(len(rows))]
    row = np.where(tree.position[rows] >= 0, rows, tree.launch[rows])
    row[rows < 0] = -1
    index, row = np.flatnonzero(row >= 0), row[row >= 0]
    while len(index):
        in_python = np.flatnonzero(table.kind[row] == Kind.PYTHON_FUNCTION)
        for i, code in zip(index[in_python].tolist(), table.name[row[in_python]].tolist(), strict=True):
            name = table.names[code]
            if name.startswith(MODULE_PREFIX):
                modules[i].append(module_texts(name))
            elif len(stacks[i]) < MAX_FRAMES:
                stacks[i].append(frame_texts(name))
        row = tree.parent[row]
        index, row = index[row >= 0], row[row >= 0]
    return modules, stacks
