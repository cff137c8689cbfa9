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
#: The part of the backward phase that the sheet shows on its own where annotations tell it apart.
WEIGHTS = "backward: weights"

# Checkpointing runs the forward again in recompute_fn of torch/utils/checkpoint.py; with use_reentrant in backward.
_RECOMPUTE_FRAME = lazy_pattern(r"torch/utils/checkpoint\.py\(\d+\): recompute_fn$")
_CHECKPOINT_BACKWARD = "CheckpointFunctionBackward"
_OPTIMIZER = lazy_pattern(r"^Optimizer\.step#|^\W*optimizer\W*$", re.IGNORECASE)
# "attention (F)", "(B)mlp": pipeline schedules that split the backward into input (B) and weight (W) gradients.
_MARKED = lazy_pattern(r"\((?P<phase>[FBW])\)")
_WEIGHTS = lazy_pattern(r"w_?grad|weight[ _]?grad", re.IGNORECASE)

# "aten::native_layer_norm_backward", "AddmmBackward0", "## backward ##", "_flash_attn_bwd"; not "forward_backward".
_BACKWARD = lazy_pattern(r"backward|bwd", re.IGNORECASE)
_FORWARD = lazy_pattern(r"forward|fwd", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Phases:
    """``phase`` of each device event, an index into ``PHASES``: every event is in exactly one.

    ``weights``: which events of the backward pass an annotation says to be of gradients of weights.
    """

    phase: npt.NDArray[np.int8]
    weights: Bools

    @property
    def has_backward(self) -> bool:
        return bool((self.phase == PHASES.index(BACKWARD)).any())

    @property
    def has_recompute(self) -> bool:
        return bool((self.phase == PHASES.index(RECOMPUTE)).any())

    def frame(self, activity: DeviceActivity) -> pd.DataFrame:
        """One row per phase that occurs; ``kernel_us`` adds up to all device time, ``busy_us`` are unions."""
        import pandas as pd

        at = PHASES.index(BACKWARD) + 1
        names = (*PHASES[:at], WEIGHTS, *PHASES[at:])
        phase = np.where(self.weights, at, self.phase + (self.phase >= at))
        n = len(names)
        total = np.zeros(n, np.int64)
        np.add.at(total, phase, activity.duration)
        busy = union_by_group(phase, activity.start, activity.end, n)
        kernels = np.bincount(phase, minlength=n)
        shown = [i for i in range(n) if kernels[i]]
        forward = int(total[names.index(FORWARD)] + total[names.index(RECOMPUTE)])
        of_forward = [
            100 * total[i] / forward if forward and names[i] in (FORWARD, RECOMPUTE) else np.nan for i in shown
        ]
        return pd.DataFrame(
            {
                "phase": [names[i] for i in shown],
                "kernels": kernels[shown],
                "kernel_us": total[shown] / NS_PER_US,
                "busy_us": busy[shown] / NS_PER_US,
                "percent_of_kernels": 100 * total[shown] / max(int(total.sum()), 1),
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

    The recording's own annotations come first: where they are marked ``(F)``, ``(B)`` and ``(W)``, the innermost of
    them round the launch, else the one on the device's own track. Then the innermost decides of: what autograd's engine
    runs (``backward``), and what repeats a forward there (``recompute``): frames of ``recompute_fn``,
    ``CheckpointFunctionBackward``, and ops in the engine that have a Sequence number of their own, which only ops with
    gradients get, if the same op with the same arguments also ran outside of the engine (a backward of a backward does
    not repeat ops). A schedule may run a backward by hand inside of a forward op: what an op or a range is called says
    so, not a Python frame, so that phases are the same with and without stacks.
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
    by_hand |= (kind == Kind.USER_ANNOTATION) & named(_WEIGHTS.search)
    deciders = Scopes(tree, engine | repeats | by_hand)
    decider = deciders.around(launch)
    is_repeat = np.append(repeats[tree.position[deciders.rows]], False)
    steps = Scopes(tree, (kind == Kind.USER_ANNOTATION) & named(_OPTIMIZER.search))
    phase = np.select(
        [launch < 0, is_repeat[decider], decider >= 0, steps.around(launch) >= 0],
        [PHASES.index(p) for p in (UNLINKED, RECOMPUTE, BACKWARD, OPTIMIZER)],
        PHASES.index(FORWARD),
    )
    wgrad = Scopes(tree, (kind == Kind.USER_ANNOTATION) & named(_WEIGHTS.search)).around(launch) >= 0
    weights = wgrad & (phase == PHASES.index(BACKWARD))
    marks = _marks(table, tree, activity)
    if marks is not None:
        told = (marks >= 0) & ~is_repeat[decider]
        phase = np.select([told & (marks == 0), told], [PHASES.index(FORWARD), PHASES.index(BACKWARD)], phase)
        weights = np.where(told, marks == _MARKS.index("W"), weights)
    return Phases(phase=phase.astype(np.int8), weights=weights)


_MARKS = "FBW"


def _marks(table: TraceTable, tree: OpTree, activity: DeviceActivity) -> Ints | None:
    """Of each device event the mark of the annotation that it is in, as an index into ``_MARKS``, -1 without one.

    None where annotations are not marked both ``(F)`` and ``(B)``: one of them alone may stand for something else.
    """
    mark = np.full(len(table.names), -1, np.int64)
    annotations = table.is_of((Kind.USER_ANNOTATION, Kind.CPU_OP, Kind.GPU_USER_ANNOTATION))
    for code in np.unique(table.name[annotations]).tolist():
        if found := _MARKED.search(table.names[code]):
            mark[code] = _MARKS.index(found["phase"])
    if not {0, 1} <= set(mark.tolist()):
        return None
    is_marked = annotations & (mark[table.name[:]] >= 0)
    scopes = Scopes(tree, is_marked[tree.order])
    around = scopes.around(tree.launch[activity.rows])
    row = np.where(around >= 0, np.append(scopes.rows, np.int32(-1))[around], _on_track(table, is_marked, activity))
    return np.where(row >= 0, mark[table.name[np.maximum(row, 0)]], -1)


def _on_track(table: TraceTable, is_marked: Bools, activity: DeviceActivity) -> Ints:
    """Of each event the annotation on its stream that began last before it, if it had not ended; else -1."""
    rows = np.flatnonzero(is_marked & (table.kind == Kind.GPU_USER_ANNOTATION))
    found = np.full(len(activity), -1, np.int64)
    for lane in np.unique(table.lane[rows]).tolist():
        own = rows[table.lane[rows] == lane]
        own = own[np.argsort(table.start_ns[own], kind="stable")]
        events = np.flatnonzero(table.lane[activity.rows] == lane)
        at = np.searchsorted(table.start_ns[own], activity.start[events], side="right") - 1
        within = (at >= 0) & (table.ends_ns(own[at]) > activity.start[events])
        found[events[within]] = own[at[within]]
    return found


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
