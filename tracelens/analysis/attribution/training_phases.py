"""The forward pass in its first run and in the runs that activation checkpointing repeats during the backward pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.analysis.attribution.host_paths import Bools, Scopes
from tracelens.analysis.intervals import Ints, union_by_group
from tracelens.lazy.patterns import lazy_pattern
from tracelens.lazy.records import dataclass
from tracelens.trace.links import ENGINE_PREFIX
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
_RECOMPUTE_FRAME = lazy_pattern(r"torch/utils/checkpoint\.py\(\d+\): recompute_fn$")
_CHECKPOINT_BACKWARD = "CheckpointFunctionBackward"
_OPTIMIZER_STEP = lazy_pattern(r"^Optimizer\.step#")

# "aten::native_layer_norm_backward", "AddmmBackward0", "## backward ##", "_flash_attn_bwd"; not "forward_backward".
_BACKWARD = lazy_pattern(r"backward|bwd", re.IGNORECASE)
_FORWARD = lazy_pattern(r"forward|fwd", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Phases:
    """``phase`` of each device event, an index into ``PHASES``: every event is in exactly one."""

    phase: npt.NDArray[np.int8]

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
            calls = np.unique(at << 32 | activity.op[here]) >> 32
            columns[f"{key}_calls"] = np.bincount(calls, minlength=len(repeated)).tolist()
            columns[f"{key}_us"] = (total / NS_PER_US).tolist()
        frame = pd.DataFrame(columns)
        return frame.sort_values(["recompute_us", "name"], ascending=[False, True], ignore_index=True)


def phases(table: TraceTable, tree: OpTree, activity: DeviceActivity) -> Phases:
    """The phase of each device event, by where it was launched.

    The innermost decides of: what autograd's engine runs (``backward``), and what repeats a forward there
    (``recompute``): frames of ``recompute_fn``, ``CheckpointFunctionBackward``, and ops in the engine that have a
    Sequence number of their own, which only ops with gradients get, if the same op with the same arguments also ran
    outside of the engine (a backward of a backward does not repeat ops). A schedule may run a backward by hand inside
    of a forward op: what an op or a range is called says so, not a Python frame, so that phases are the same with and
    without stacks.
    """
    order = tree.order
    name, kind = table.name[order], table.kind[order]

    def named(fits: Callable[[str], object]) -> Bools:
        return np.array([bool(fits(text)) for text in table.names] or [False], bool)[name]

    is_op = kind == Kind.CPU_OP
    engine = is_op & named(lambda text: text.startswith(ENGINE_PREFIX))
    repeats = (kind == Kind.PYTHON_FUNCTION) & named(_RECOMPUTE_FRAME.search)
    repeats |= is_op & named(lambda text: text == _CHECKPOINT_BACKWARD)
    repeats |= _repeated_forwards(table, tree, engine)
    launch = tree.launch[activity.rows]
    by_hand = (is_op | (kind == Kind.USER_ANNOTATION)) & named(_says_backward)
    deciders = Scopes(tree, engine | repeats | by_hand)
    decider = deciders.around(launch)
    is_repeat = np.append(repeats[tree.position[deciders.rows]], False)
    steps = Scopes(tree, (kind == Kind.USER_ANNOTATION) & named(_OPTIMIZER_STEP.search))
    phase = np.select(
        [launch < 0, is_repeat[decider], decider >= 0, steps.around(launch) >= 0],
        [PHASES.index(p) for p in (UNLINKED, RECOMPUTE, BACKWARD, OPTIMIZER)],
        PHASES.index(FORWARD),
    )
    return Phases(phase=phase.astype(np.int8))


def _says_backward(name: str) -> bool:
    return _BACKWARD.search(name) is not None and _FORWARD.search(name) is None


def _repeated_forwards(table: TraceTable, tree: OpTree, engine: Bools) -> Bools:
    result = np.zeros(len(engine), bool)
    scopes = Scopes(tree, engine)
    order = tree.order
    numbered = np.flatnonzero((table.sequence_number[order] >= 0) & ~engine & (tree.forward[order] < 0))
    above = scopes.around(order[numbered])
    numbered, above = numbered[above >= 0], above[above >= 0]
    rows = order[numbered]
    own = table.sequence_number[rows] != table.sequence_number[scopes.rows[above]]
    numbered, rows = numbered[own], rows[own]
    if len(rows):
        ops = np.flatnonzero((table.kind == Kind.CPU_OP) & np.isin(table.name, np.unique(table.name[rows])))
        outside = ops[scopes.around(ops) < 0]
        result[numbered[np.isin(_calls(table, rows), _calls(table, outside))]] = True
    return result


def _calls(table: TraceTable, rows: Ints) -> Ints:
    """One number per distinct (name, arguments)."""
    return table.name[rows].astype(np.int64) << 32 | (table.signature[rows].astype(np.int64) + 1)
