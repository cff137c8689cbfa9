"""Kernel time by who asked for it: modules, ops and kernels, added up over equal paths."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracelens.analysis.analyze import Analysis
from tracelens.analysis.cpu import self_ns
from tracelens.analysis.intervals import Ints
from tracelens.analysis.scopes import levels, positions
from tracelens.analysis.steps import is_step_annotation
from tracelens.analysis.tables import UNLINKED_NAME
from tracelens.trace.nesting import nearest
from tracelens.trace.table import Kind
from tracelens.trace.tree import MODULE_PREFIX, OpTree

MAX_NODES = 3000

ALL, MODULE, ANNOTATION, OP, KERNEL = "all", "module", "annotation", "op", "kernel"
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """``time_ns`` includes what is below. ``parent`` is an index into the nodes, -1 for the first, which is everything.

    ``calls``: host calls of this path, for a kernel how often it ran. ``category``: the one with most of the time, None
    where there is none. ``kind``: all, module, annotation, op or kernel.
    """

    parent: int
    name: str
    kind: str
    time_ns: int
    calls: int
    category: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Icicle:
    """Nodes, parents before children, by time. ``left_out``: how many small ones are missing; their parents' time
    includes them. ``is_cpu``: times are CPU self time, for want of kernels."""

    nodes: tuple[Node, ...]
    left_out: int
    is_cpu: bool


def icicle(analysis: Analysis, *, max_nodes: int = MAX_NODES) -> Icicle | None:
    """The tree of the window analyzed: summed durations of device events, unlinked ones included; None without time.

    Backward ops run on a thread without module frames: they stand below the module of their forward op. Step
    annotations are no level, nor are annotations round modules, in which a backward op would look like a forward one.
    """
    is_cpu = not len(analysis.activity)
    tree = analysis.trace.tree
    if not len(tree) and is_cpu:
        return None
    shown, is_module = _shown_positions(analysis)
    above = _parents(tree, shown, is_module)
    builder = _Builder(analysis, shown)
    if is_cpu:
        own = self_ns(analysis.trace)[tree.order]
        at = np.flatnonzero(analysis.trace.table.kind[tree.order] == Kind.CPU_OP)
        builder.add_paths(at, above)
        builder.add_time(builder.node_of[at], own[at], np.zeros(len(at), np.int64))
    else:
        _add_kernels(builder, analysis, shown, above)
    return builder.result(max_nodes, is_cpu=is_cpu)


def _shown_positions(analysis: Analysis) -> tuple[Bools, Bools]:
    """(what is a level of the tree, what is a module), by position in preorder."""
    table, tree = analysis.trace.table, analysis.trace.tree
    kind, name = table.kind[tree.order], table.name[tree.order]
    named_module = np.array([text.startswith(MODULE_PREFIX) for text in table.names] or [False], bool)
    numbered_step = np.array([is_step_annotation(text, analysis.step_stem) for text in table.names] or [False], bool)
    is_module = (kind == Kind.PYTHON_FUNCTION) & named_module[name]
    before = np.concatenate((np.zeros(1, np.int32), np.cumsum(is_module, dtype=np.int32)))
    holds_module = before[tree.last[tree.order]] > before[:-1]
    is_annotation = (kind == Kind.USER_ANNOTATION) & ~numbered_step[name] & ~holds_module
    return (kind == Kind.CPU_OP) | is_module | is_annotation, is_module


def _parents(tree: OpTree, shown: Bools, is_module: Bools) -> Ints:
    """The position of the level above each position, -1 at the top."""
    order, start = tree.order, tree.table.start_ns
    parent = positions(tree, tree.parent[order])
    above = nearest(parent, shown)
    top = np.flatnonzero((above < 0) & (tree.forward[order] >= 0))
    if len(top) and is_module.any():
        module = parent[tree.position[tree.forward[order[top]]]]
        while len(further := np.flatnonzero((module >= 0) & ~is_module[module])):
            module[further] = parent[module[further]]
        # What starts later cannot be above: the links stay free of circles, whatever a file says
        earlier = (module >= 0) & (start[order[np.maximum(module, 0)]] < start[order[top]])
        above[top[earlier]] = module[earlier]
    return above


def _add_kernels(builder: _Builder, analysis: Analysis, shown: Bools, above: Ints) -> None:
    activity, tree = analysis.activity, analysis.trace.tree
    at = positions(tree, tree.launch[activity.rows])
    linked = at >= 0
    owner = np.where(linked & ~shown[at], above[at], at) if len(shown) else at
    builder.add_paths(np.unique(owner[owner >= 0]), above)
    parent = np.where(owner >= 0, builder.node_of[owner], 0) if len(shown) else np.zeros(len(owner), np.int64)
    if not linked.all():
        parent[~linked] = builder.add_node(UNLINKED_NAME, ANNOTATION, calls=int((~linked).sum()))
    node = builder.add_children(parent, activity.name, KERNEL)
    categories, category = np.unique(analysis.event_category.astype(str), return_inverse=True)
    builder.categories = categories.tolist()
    builder.add_time(node, activity.duration, category.reshape(-1).astype(np.int64))


class _Builder:
    """Nodes as growing columns: every level's rows are grouped by (node above, name) at once."""

    def __init__(self, analysis: Analysis, shown: Bools) -> None:
        self._table, self._tree = analysis.trace.table, analysis.trace.tree
        self.node_of = np.full(len(shown), -1, np.int64)
        self.categories: list[str] = []
        self._parent: list[int] = [-1]
        self._name: list[str] = [self._table.source]
        self._kind: list[str] = [ALL]
        self._calls: list[int] = [1]
        self._time: list[tuple[Ints, Ints, Ints]] = []

    def add_paths(self, at: Ints, above: Ints) -> None:
        """Nodes for the rows at these positions and all that is above them."""
        for rows in levels(at, above):
            parent = np.where(above[rows] >= 0, self.node_of[above[rows]], 0)
            kinds = self._table.kind[self._tree.order[rows]]
            names = self._table.name[self._tree.order[rows]].astype(np.int64)
            self.node_of[rows] = self.add_children(parent, names, kinds)

    def add_children(self, parent: Ints, name: Ints, kind: str | npt.NDArray[np.uint8]) -> Ints:
        """The node of each (parent node, name code), made where it is new."""
        key = parent * len(self._table.names) + name
        _, first, inverse, calls = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
        fresh = np.arange(len(first)) + len(self._parent)
        self._parent += parent[first].tolist()
        self._name += [self._table.names[code] for code in name[first].tolist()]
        self._kind += (
            [kind] * len(first) if isinstance(kind, str) else [_KINDS[Kind(code)] for code in kind[first].tolist()]
        )
        self._calls += calls.tolist()
        node: Ints = fresh[inverse.reshape(-1)]
        return node

    def add_node(self, name: str, kind: str, *, calls: int) -> int:
        """One node at the top."""
        self._parent.append(0)
        self._name.append(name)
        self._kind.append(kind)
        self._calls.append(calls)
        return len(self._parent) - 1

    def add_time(self, node: Ints, time_ns: Ints, category: Ints) -> None:
        """Time (ns) at nodes, by index into ``categories``."""
        self._time.append((node, time_ns, category))

    def result(self, max_nodes: int, *, is_cpu: bool) -> Icicle | None:
        """The nodes with time, at most ``max_nodes``: the largest, and so always with what is above them."""
        count = len(self._parent)
        by_category = np.zeros((count, max(1, len(self.categories))), np.int64)
        for at, time_ns, category in self._time:
            np.add.at(by_category, (at, category), time_ns)
        parent = np.array(self._parent, np.int64)
        for node in range(count - 1, 0, -1):
            by_category[parent[node]] += by_category[node]
        total = by_category.sum(axis=1)
        if not total[0]:
            return None
        positive = int((total > 0).sum())
        kept = np.lexsort((np.arange(count), -total))[: min(max_nodes, positive)]
        place = np.full(count, -1, np.int64)
        place[kept] = np.arange(len(kept))
        largest = by_category.argmax(axis=1)
        nodes = tuple(
            Node(
                parent=int(place[parent[i]]) if i else -1,
                name=self._name[i].removeprefix(MODULE_PREFIX) if self._kind[i] == MODULE else self._name[i],
                kind=self._kind[i],
                time_ns=int(total[i]),
                calls=self._calls[i],
                category=self.categories[largest[i]] if self.categories else None,
            )
            for i in kept.tolist()
        )
        return Icicle(nodes=nodes, left_out=positive - len(nodes), is_cpu=is_cpu)


_KINDS = {Kind.CPU_OP: OP, Kind.PYTHON_FUNCTION: MODULE, Kind.USER_ANNOTATION: ANNOTATION}
