"""Host events as paths from the outside in: which level is above which, level by level."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens.analysis.intervals import Ints
from tracelens.trace.nesting import nearest
from tracelens.trace.tree import OpTree

Bools = npt.NDArray[np.bool_]


def positions(tree: OpTree, rows: npt.NDArray[np.integer]) -> Ints:
    """Positions in preorder of host rows, -1 where the row is -1 or no host row."""
    return np.where(rows >= 0, tree.position[np.maximum(rows, 0)], -1).astype(np.int64)


def levels(at: Ints, above: Ints) -> list[Ints]:
    """These positions and all above them by depth, the top first. ``above``: the position above each, -1 at the top."""
    seen = np.zeros(len(above), bool)
    frontier = np.unique(at)
    while len(frontier):
        seen[frontier] = True
        frontier = np.unique(above[frontier])
        frontier = frontier[(frontier >= 0)]
        frontier = frontier[~seen[frontier]]
    rows = np.flatnonzero(seen)
    depth = np.zeros(len(rows), np.int64)
    up = above[rows]
    while (going := up >= 0).any():
        depth += going
        up = np.where(going, above[np.maximum(up, 0)], -1)
    order = np.argsort(depth, kind="stable")
    return np.split(rows[order], np.cumsum(np.bincount(depth))[:-1]) if len(rows) else []


def enclosing(tree: OpTree, at: Ints, wanted: Bools) -> Ints:
    """For each position the nearest ``wanted`` one at or above it, else at or above its forward op; -1 without any.

    What a thread of autograd's engine runs has no frames of its own: it is the forward op's.
    """
    if not len(wanted):
        return np.full(len(at), -1, np.int64)
    parent = positions(tree, tree.parent[tree.order])

    def at_or_above(place: Ints, marked: Bools, above: Ints) -> Ints:
        return np.where((place >= 0) & ~marked[place], above[place], place)

    found = at_or_above(at, wanted, (around := nearest(parent, wanted)))
    free = np.flatnonzero((found < 0) & (at >= 0))
    if len(free):
        has_forward = tree.forward[tree.order] >= 0
        backward = at_or_above(at[free], has_forward, nearest(parent, has_forward))
        forward = np.where(backward >= 0, positions(tree, tree.forward[tree.order])[backward], -1)
        found[free] = at_or_above(forward, wanted, around)
    return found


class Paths:
    """Distinct paths: places are grouped by (path above, code). Path 0 is the empty one."""

    def __init__(self) -> None:
        self.parent: list[int] = [-1]
        self.code: list[int] = [-1]

    def of(self, at: Ints, above: Ints, code: Ints) -> Ints:
        """The path of every position (0 for those not asked for), which are ``at`` and what is above them."""
        result = np.zeros(len(above), np.int64)
        for places in levels(at, above):
            parent = np.where(above[places] >= 0, result[above[places]], 0)
            pairs, inverse = np.unique(np.stack((parent, code[places]), axis=1), axis=0, return_inverse=True)
            result[places] = len(self.parent) + inverse.reshape(-1)
            self.parent += pairs[:, 0].tolist()
            self.code += pairs[:, 1].tolist()
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
