"""Where in the program the ops of a table stand: their pass, their nn.Module, their Python frames."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracelens.analysis.activity import DeviceActivity
from tracelens.analysis.scopes import Bools
from tracelens.analysis.views.call_stacks import frame_text
from tracelens.analysis.views.modules import module_class
from tracelens.analysis.views.recompute import PHASES, Phases
from tracelens.trace.table import Kind
from tracelens.trace.tree import MODULE_PREFIX, OpTree

if TYPE_CHECKING:
    import pandas as pd

#: Frames that are shown of one op's stack, the innermost first.
MAX_FRAMES = 12


def all_in(phase: str, phases: Phases, tree: OpTree, activity: DeviceActivity) -> Bools:
    """Of each row of the trace, whether it is an op of which all device work was launched in that phase."""
    inside = phases.phase == PHASES.index(phase)
    return _launched(tree, activity, inside) & ~_launched(tree, activity, ~inside)


def _launched(tree: OpTree, activity: DeviceActivity, events: Bools) -> Bools:
    """The ops at or above the launches of these events."""
    found = np.zeros(len(tree.table), bool)
    ops = activity.op[events]
    while len(ops := np.unique(ops[ops >= 0])):
        ops = ops[~found[ops]]
        found[ops] = True
        ops = tree.op_parent[ops]
    return found


def with_places(frame: pd.DataFrame, tree: OpTree, phases: Phases, repeated: npt.NDArray[np.integer]) -> pd.DataFrame:
    """``frame`` with ``is_recompute``, and ``parent_module`` and ``call_stack`` of each row's example, where recorded.

    ``repeated``: 1 for each row of the trace that is an op which only a recomputation launched.
    """
    rows = frame["example_row"].to_numpy(np.int64)
    if phases.has_recompute:
        frame = frame.assign(is_recompute=repeated[rows] > 0)
    if not tree.table.has_stacks:
        return frame
    modules = ["/".join(map(module_class, tree.module_of(row))) or None for row in rows.tolist()]
    stacks = [" <- ".join(_frames(tree, row)) or None for row in rows.tolist()]
    return frame.assign(parent_module=np.array(modules, object), call_stack=np.array(stacks, object))


def _frames(tree: OpTree, row: int) -> list[str]:
    """Python frames round a row, or round its forward op: a backward op runs on a thread without frames."""
    found = _frames_above(tree, row)
    if not found and (forward := tree.forward_of(row)) >= 0:
        found = _frames_above(tree, forward)
    return found


def _frames_above(tree: OpTree, row: int) -> list[str]:
    table, found = tree.table, []
    for above in tree.ancestors(row).tolist():
        if table.kind[above] == Kind.PYTHON_FUNCTION and not (name := table.name_of(above)).startswith(MODULE_PREFIX):
            found.append(frame_text(name))
            if len(found) == MAX_FRAMES:
                break
    return found
