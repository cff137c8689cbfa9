"""The forward pass in its first run and in the runs that activation checkpointing repeats during the backward pass."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.activity import DeviceActivity
from tracelens.analysis.intervals import Ints, union_by_group
from tracelens.analysis.scopes import Bools, positions
from tracelens.trace.links import ENGINE_PREFIX
from tracelens.trace.nesting import nearest
from tracelens.trace.table import Kind, TraceTable
from tracelens.trace.tree import OpTree
from tracelens.units import NS_PER_US

if TYPE_CHECKING:
    import pandas as pd

FORWARD, RECOMPUTE, BACKWARD, OPTIMIZER, UNLINKED = (
    "forward",
    "recompute",
    "backward",
    "optimizer",
    "no recorded launch",
)
PHASES = (FORWARD, RECOMPUTE, BACKWARD, OPTIMIZER, UNLINKED)

# Checkpointing runs the forward again in recompute_fn of torch/utils/checkpoint.py; with use_reentrant in backward.
_RECOMPUTE_FRAME = re.compile(r"torch/utils/checkpoint\.py\(\d+\): recompute_fn$")
_CHECKPOINT_BACKWARD = "CheckpointFunctionBackward"
_OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Phases:
    """``phase`` of each device event, an index into ``PHASES``: every event is in exactly one."""

    phase: Ints

    @property
    def has_backward(self) -> bool:
        return bool((self.phase == PHASES.index(BACKWARD)).any())

    @property
    def has_recompute(self) -> bool:
        return bool((self.phase == PHASES.index(RECOMPUTE)).any())

    def frame(self, activity: DeviceActivity) -> pd.DataFrame:
        """One row per phase that occurs; ``kernel_us`` adds up to all device time, ``busy_us`` are unions."""
        import pandas as pd

        n = len(PHASES)
        total = np.zeros(n, np.int64)
        np.add.at(total, self.phase, activity.duration)
        busy = union_by_group(self.phase, activity.start, activity.end, n)
        kernels = np.bincount(self.phase, minlength=n)
        shown = [i for i in range(n) if kernels[i]]
        forward = int(total[PHASES.index(FORWARD)] + total[PHASES.index(RECOMPUTE)])
        of_forward = [
            100 * total[i] / forward if forward and PHASES[i] in (FORWARD, RECOMPUTE) else np.nan for i in shown
        ]
        return pd.DataFrame(
            {
                "phase": [PHASES[i] for i in shown],
                "kernels": kernels[shown],
                "kernel_us": total[shown] / NS_PER_US,
                "busy_us": busy[shown] / NS_PER_US,
                "percent": 100 * total[shown] / max(int(total.sum()), 1),
                "percent_of_forward": of_forward,
            }
        )

    def by_op(self, table: TraceTable, activity: DeviceActivity) -> pd.DataFrame:
        """One row per launching op that was recomputed: its first runs beside the repeated ones."""
        import pandas as pd

        linked = activity.op >= 0
        name = table.name[np.maximum(activity.op, 0)].astype(np.int64)
        repeated = np.unique(name[linked & (self.phase == PHASES.index(RECOMPUTE))])
        columns: dict[str, list[object]] = {"name": [table.names[code] for code in repeated.tolist()]}
        for phase, key in ((FORWARD, "first"), (RECOMPUTE, "recompute")):
            here = linked & (self.phase == PHASES.index(phase)) & np.isin(name, repeated)
            at = np.searchsorted(repeated, name[here])
            total = np.zeros(len(repeated), np.int64)
            np.add.at(total, at, activity.duration[here])
            calls = np.unique(np.stack((at, activity.op[here])), axis=1)[0]
            columns[f"{key}_calls"] = np.bincount(calls, minlength=len(repeated)).tolist()
            columns[f"{key}_us"] = (total / NS_PER_US).tolist()
        frame = pd.DataFrame(columns)
        return frame.sort_values(["recompute_us", "name"], ascending=[False, True], ignore_index=True)


def phases(table: TraceTable, tree: OpTree, activity: DeviceActivity) -> Phases:
    """The phase of each device event, by where it was launched.

    The innermost decides of: what autograd's engine runs (``backward``), and what repeats a forward there
    (``recompute``): frames of ``recompute_fn``, ``CheckpointFunctionBackward``, and ops in the engine that have a
    Sequence number of their own, which only ops with gradients get, if the same op with the same arguments also ran
    outside of the engine (a backward of a backward does not repeat ops).
    """
    order = tree.order
    name, kind = table.name[order], table.kind[order]
    parent = positions(tree, tree.parent[order])

    def named(pattern: re.Pattern[str]) -> Bools:
        return np.array([pattern.search(text) is not None for text in table.names] or [False], bool)[name]

    is_op = kind == Kind.CPU_OP
    engine = is_op & np.array([text.startswith(ENGINE_PREFIX) for text in table.names] or [False], bool)[name]
    repeats = (kind == Kind.PYTHON_FUNCTION) & named(_RECOMPUTE_FRAME)
    repeats |= is_op & np.array([text == _CHECKPOINT_BACKWARD for text in table.names] or [False], bool)[name]
    repeats |= _repeated_forwards(table, tree, engine, nearest(parent, engine))
    decides = engine | repeats
    at = positions(tree, tree.launch[activity.rows])
    if not len(order):
        return Phases(phase=np.full(len(activity), PHASES.index(UNLINKED)))
    decider = np.where(decides[at], at, nearest(parent, decides)[at])
    step = (kind == Kind.USER_ANNOTATION) & named(_OPTIMIZER_STEP)
    phase = np.select(
        [at < 0, (decider >= 0) & repeats[decider], decider >= 0, nearest(parent, step)[at] >= 0],
        [PHASES.index(p) for p in (UNLINKED, RECOMPUTE, BACKWARD, OPTIMIZER)],
        PHASES.index(FORWARD),
    )
    return Phases(phase=phase.astype(np.int64))


def _repeated_forwards(table: TraceTable, tree: OpTree, engine: Bools, above: Ints) -> Bools:
    """``above``: position of the nearest op of the engine."""
    order = tree.order
    number = table.sequence_number[order]
    outside = order[(above < 0) & ~engine & (table.kind[order] == Kind.CPU_OP)]
    candidates = np.flatnonzero((above >= 0) & (number >= 0) & ~engine & (tree.forward[order] < 0))
    candidates = candidates[number[candidates] != number[above[candidates]]]
    key = table.name.astype(np.int64) << 32 | (table.signature.astype(np.int64) + 1)
    result = np.zeros(len(order), bool)
    result[candidates[np.isin(key[order[candidates]], key[outside])]] = True
    return result
