"""Host events as paths from the outside in: which level is above which, level by level."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens.analysis.grouping import Codes, distinct_rows, order_by
from tracelens.analysis.intervals import Ints
from tracelens.lazy.patterns import lazy_pattern
from tracelens.trace.nesting import innermost
from tracelens.trace.table import RowColumn
from tracelens.trace.tree import MODULE_PREFIX, OpTree

Bools = npt.NDArray[np.bool_]

# "<built-in method copy_ of Tensor object at 0x7f22b7f651d0>": another text for every tensor.
_ADDRESS = lazy_pattern(r" at 0x[0-9a-f]+(?=>)")
# "nn.Module: Linear_3" is the fourth Linear of the process.
_INSTANCE = lazy_pattern(r"_\d+$")


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
        while (past := self._last[found] <= at).any():
            found[past] = self.above[found[past]]
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

    def codes_of(self, path: int) -> list[int]:
        """The codes along a path, the innermost first."""
        found = []
        while path > 0:
            found.append(self.code[path])
            path = self.parent[path]
        return found

    def __len__(self) -> int:
        return len(self.parent)
