"""Nested host events as paths, the phases of a training step, and the module and call stack of each op."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.analysis.grouping import Codes, distinct_rows, last_begun, order_by
from tracelens.analysis.intervals import Bools, Ints, union_by_group
from tracelens.trace.links import ENGINE_PREFIX
from tracelens.trace.table import Kind, RowColumn, TraceTable
from tracelens.trace.tree import MODULE_PREFIX, OpTree, innermost
from tracelens.types.records import Record, pd
from tracelens.types.units import NS_PER_US

# "<built-in method copy_ of Tensor object at 0x7f22b7f651d0>": another text for every tensor.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+(?=>)")
# "nn.Module: Linear_3" is the fourth Linear of the process.
_INSTANCE = re.compile(r"_\d+$")


def frame_text(name: str) -> str:
    """A frame without the address of the object that it is called on."""
    return _ADDRESS.sub("", name)


def module_class(name: str) -> str:
    """``Linear`` of the frame ``nn.Module: Linear_3``."""
    return _INSTANCE.sub("", name.removeprefix(MODULE_PREFIX))


#: Places of a level below which climbing one by one is faster.
_FEW = 64


def levels(at: npt.NDArray[np.integer], above: npt.NDArray[np.integer]) -> list[RowColumn]:
    """These places and all above them by depth, the top first. ``above``: the place above each, -1 at the top."""
    seen = np.zeros(len(above), bool)
    frontier: npt.NDArray[np.integer] = distinct_rows(at, len(above))
    number = np.zeros(len(above), np.int32)
    while len(frontier) > _FEW:
        seen[frontier] = True
        frontier = above[frontier]
        frontier = frontier[frontier >= 0]
        frontier = frontier[~seen[frontier]]
        # Of those that stand there several times the last one
        number[frontier] = np.arange(len(frontier))
        frontier = frontier[number[frontier] == np.arange(len(frontier))]
    # A deep stack has few places per level: one by one they cost less than an array each.
    for place in frontier.tolist():
        while place >= 0 and not seen[place]:
            seen[place] = True
            place = int(above[place])
    rows: RowColumn = np.flatnonzero(seen).astype(np.int32)
    depth = depths(rows, above)
    order = order_by(depth)
    return np.split(rows[order], np.cumsum(np.bincount(depth))[:-1]) if len(rows) else []


def depths(rows: RowColumn, above: npt.NDArray[np.integer]) -> Codes:
    """How many of ``rows``, with which all above them come, are above each: steps up, twice as far each time."""
    # One more at the end, which index -1 reaches
    place = np.full(len(above) + 1, len(rows), np.int32)
    place[rows] = np.arange(len(rows))
    up = place[np.append(above[rows], -1)]
    depth: Codes = (up < len(rows)).astype(np.int32)
    while (up < len(rows)).any():
        depth = depth + depth[up]
        up = up[up]
    return depth[:-1]


def reached(tree: OpTree, launches: npt.NDArray[np.integer]) -> Bools:
    """Which positions in preorder are at or above these host rows, or at or above the forward op of one that is.

    In a trace with stacks these are few: what looks at all frames takes several columns as long as the table.
    """
    seen = np.zeros(len(tree.table), bool)
    frontier, forward = np.unique(launches[launches >= 0]), tree.forward
    while len(frontier):
        seen[frontier] = True
        up = np.unique(np.concatenate((tree.parent[frontier], forward[frontier])))
        up = up[up >= 0]
        frontier = up[~seen[up]]
    return seen[tree.order]


class Scopes:
    """Some host events, and which of them is round which: ``rows`` of the table in preorder.

    ``above``: index of the innermost other one round each, -1 without one.
    """

    def __init__(self, tree: OpTree, wanted: Bools) -> None:
        """``wanted``: which positions in preorder."""
        self._tree = tree
        self._at = np.flatnonzero(wanted).astype(np.int32)
        self.rows: RowColumn = tree.order[self._at].astype(np.int32)
        # One more at the end, which index -1 reaches, and which nothing is past
        self._last = np.append(tree.last[self.rows], np.int32(np.iinfo(np.int32).max))
        self.above: RowColumn = innermost(self._last[:-1])

    def __len__(self) -> int:
        return len(self.rows)

    def around(self, rows: npt.NDArray[np.integer]) -> Ints:
        """Index of the innermost one at or above each host row; -1 without one, and for rows that are -1."""
        at = np.where(rows >= 0, self._tree.position[np.maximum(rows, 0)], -1)
        found = np.searchsorted(self._at, at, side="right") - 1
        past = np.flatnonzero(self._last[found] <= at)
        for _ in range(_FEW):
            if not len(past):
                return found
            found[past] = self.above[found[past]]
            past = past[self._last[found[past]] <= at[past]]
        # Out of a deep stack many would climb far: they are nested with the scopes instead
        place, which = np.unique(at[past], return_inverse=True)
        order = np.argsort(np.concatenate((self._at, place)), kind="stable")
        inner = innermost(np.concatenate((self._last[:-1], place + 1))[order])
        of_place = np.append(order, -1)[inner[np.argsort(order)[len(self) :]]]
        found[past] = of_place[which]
        return found


def around_launches(tree: OpTree, scopes: Scopes, launches: npt.NDArray[np.integer]) -> Ints:
    """The scope of each launch, else that of its forward op; -1 without one.

    What a thread of autograd's engine runs has no frames of its own: it is the forward op's.
    """
    found = scopes.around(launches)
    free = np.flatnonzero((found < 0) & (launches >= 0))
    if len(free):
        backward = Scopes(tree, tree.forward[tree.order] >= 0)
        op = backward.around(launches[free])
        forward = np.where(op >= 0, tree.forward[np.append(backward.rows, 0)[op]], -1)
        found[free] = scopes.around(forward)
    return found


class Paths:
    """Distinct paths: places are grouped by (path above, code). Path 0 is the empty one."""

    def __init__(self) -> None:
        self.parent: list[int] = [-1]
        self.code: list[int] = [-1]

    def of(self, at: Ints, above: npt.NDArray[np.integer], code: Ints) -> Ints:
        """The path of ``at`` and of what is above them, by place; 0 for other places."""
        result = np.zeros(len(above), np.int64)
        for places in levels(at, above):
            parent = np.where(above[places] >= 0, result[above[places]], 0)
            _, first, inverse = np.unique(parent << 32 | code[places], return_index=True, return_inverse=True)
            result[places] = len(self.parent) + inverse.reshape(-1)
            self.parent += parent[first].tolist()
            self.code += code[places][first].tolist()
        return result

    def codes_of(self, path: int, most: int) -> list[int]:
        """The codes along a path, the innermost first, and no more than ``most``."""
        found = list[int]()
        while path > 0 and len(found) < most:
            found.append(self.code[path])
            path = self.parent[path]
        return found

    def __len__(self) -> int:
        return len(self.parent)


PHASES = FORWARD, RECOMPUTE, BACKWARD, OPTIMIZER, UNLINKED = (
    "forward", "recompute", "backward", "optimizer", "no recorded launch",
)  # fmt: skip
#: The part of the backward phase that the sheet shows on its own where annotations tell it apart.
WEIGHTS = "backward: weights"

# Checkpointing runs the forward again in recompute_fn of torch/utils/checkpoint.py; with use_reentrant in backward.
_RECOMPUTE_FRAME = re.compile(r"torch/utils/checkpoint\.py\(\d+\): recompute_fn$")
_CHECKPOINT_BACKWARD = "CheckpointFunctionBackward"
_OPTIMIZER = re.compile(r"^Optimizer\.step#|^\W*optimizer\W*$", re.IGNORECASE)
# "attention (F)", "(B)mlp": pipeline schedules that split the backward into input (B) and weight (W) gradients.
_MARKED = re.compile(r"\((?P<phase>[FBW])\)")
_WEIGHTS = re.compile(r"w_?grad|weight[ _]?grad", re.IGNORECASE)

# "aten::native_layer_norm_backward", "AddmmBackward0", "## backward ##", "_flash_attn_bwd"; not "forward_backward".
_BACKWARD = re.compile(r"backward|bwd", re.IGNORECASE)
_FORWARD = re.compile(r"forward|fwd", re.IGNORECASE)


class Phases(Record, frozen=True, kw_only=True, eq=False):
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
    by_hand = is_op | (kind == Kind.USER_ANNOTATION)
    by_hand &= named(lambda text: _BACKWARD.search(text) and not _FORWARD.search(text))
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
    # Else the one on the event's stream that began last before it, if it had not ended
    rows = np.append(np.flatnonzero(is_marked & (table.kind == Kind.GPU_USER_ANNOTATION)), -1)
    lane = table.lane[activity.rows]
    on_track = rows[last_begun(table.lane[rows[:-1]], table.start_ns[rows[:-1]], lane, activity.start)]
    on_track = np.where((on_track >= 0) & (table.ends_ns(on_track) > activity.start), on_track, -1)
    row = np.where(around >= 0, np.append(scopes.rows, np.int32(-1))[around], on_track)
    return np.where(row >= 0, mark[table.name[np.maximum(row, 0)]], -1)


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
        # One number per distinct (name, arguments)
        again, others = (
            table.name[at].astype(np.int64) << 32 | (table.signature[at].astype(np.int64) + 1) for at in (rows, outside)
        )
        result[numbered[np.isin(again, others)]] = True
    return result


#: Frames that are shown of one op's stack, and modules of a path, the innermost ones: texts of a deep one stay short.
MAX_FRAMES, MAX_MODULES = 12, 64
_CUT = "…"


def path_text(classes: list[str]) -> str:
    """``Model/Block/Linear`` of the classes of modules, the innermost first; of many the innermost only."""
    return "/".join(reversed([*classes[:MAX_MODULES], _CUT] if len(classes) > MAX_MODULES else classes))


def all_in(phase: str, phases: Phases, tree: OpTree, activity: DeviceActivity) -> Bools:
    """Which rows of the trace are ops whose device work was all launched in that phase."""
    inside = phases.phase == PHASES.index(phase)
    return _launched(tree, activity, inside) & ~_launched(tree, activity, ~inside)


def _launched(tree: OpTree, activity: DeviceActivity, events: Bools) -> Bools:
    """The ops at or above the launches of these events."""
    found = np.zeros(len(tree.table), bool)
    ops = activity.op[events]
    found[tree.at_or_above(ops[ops >= 0])] = True
    return found


def with_places(frame: pd.DataFrame, tree: OpTree, phases: Phases, repeated: Bools) -> pd.DataFrame:
    """``frame`` with ``is_recompute`` (rows in ``repeated``), and ``parent_module``, ``call_stack`` where recorded."""
    rows = frame["example_row"].to_numpy(np.int64)
    if phases.has_recompute:
        frame = frame.assign(is_recompute=repeated[rows])
    if not tree.table.has_stacks:
        return frame
    modules, stacks = (np.array(texts, object) for texts in places_of(tree, rows))
    return frame.assign(parent_module=modules, call_stack=stacks)


def places_around(tree: OpTree, row: int) -> tuple[str | None, str | None]:
    """(``parent_module``, ``call_stack``) of an op, or of its forward op where it has neither."""
    (module,), (stack,) = places_of(tree, np.array([row], np.int64))
    return module, stack


def places_of(tree: OpTree, rows: Ints) -> tuple[list[str | None], list[str | None]]:
    """(``parent_module``, ``call_stack``) of each row; None where not recorded, and for row -1."""
    if not tree.table.has_stacks:
        return [None] * len(rows), [None] * len(rows)
    modules, stacks = _around(tree, rows)
    alone = np.array([not modules[i] or not stacks[i] for i in range(len(rows))], bool)
    if alone.any():
        forward = _around(tree, _forward_of(tree, rows[alone]))
        # A backward op runs on a thread without frames: it has those of its forward
        for i, *others in zip(np.flatnonzero(alone).tolist(), *forward, strict=True):
            modules[i], stacks[i] = modules[i] or others[0], stacks[i] or others[1]
    return [path_text(texts) or None for texts in modules], [" <- ".join(texts) or None for texts in stacks]


def _forward_of(tree: OpTree, rows: Ints) -> Ints:
    """``OpTree.forward_of`` each row."""
    backward = Scopes(tree, tree.forward[tree.order] >= 0)
    op = np.append(backward.rows, np.int32(-1))[backward.around(_hosts(tree, rows))]
    return np.where(op >= 0, tree.forward[op], np.int32(-1)).astype(np.int64)


def _hosts(tree: OpTree, rows: Ints) -> Ints:
    """The rows, of a device row its launch; -1 of row -1."""
    return np.where(rows < 0, -1, np.where(tree.position[rows] >= 0, rows, tree.launch[rows]))


def _around(tree: OpTree, rows: Ints) -> tuple[list[list[str]], list[list[str]]]:
    """Per row the nn.Module classes and Python frames around it, innermost first, as many as shown; none for row -1."""
    table, hosts = tree.table, _hosts(tree, rows)
    at = np.flatnonzero(reached(tree, hosts))
    at = at[table.kind[tree.order[at]] == Kind.PYTHON_FUNCTION]
    is_module = np.array([name.startswith(MODULE_PREFIX) for name in table.names] or [False], bool)
    is_module = is_module[table.name[tree.order[at]]]
    modules = _texts_around(tree, at[is_module], hosts, MAX_MODULES + 1, module_class)
    return modules, _texts_around(tree, at[~is_module], hosts, MAX_FRAMES, frame_text)


def _texts_around(
    tree: OpTree, positions: Ints, hosts: Ints, most: int, text_of: Callable[[str], str]
) -> list[list[str]]:
    """Texts of the innermost ``most`` of the events at these ``positions`` at or above each host row."""
    wanted = np.zeros(len(tree.order), bool)
    wanted[positions] = True
    scopes, names, texts = Scopes(tree, wanted), tree.table.names, cache(text_of)
    found: list[list[str]] = [[] for _ in range(len(hosts))]
    scope = scopes.around(hosts)
    for _ in range(most):
        index = np.flatnonzero(scope >= 0)
        for i, code in zip(index.tolist(), tree.table.name[scopes.rows[scope[index]]].tolist(), strict=True):
            found[i].append(texts(names[code]))
        scope[index] = scopes.above[scope[index]]
    return found
