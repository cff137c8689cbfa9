"""Who called whom: nesting of host events, the device events that they launched, and forward ops of backward ops.

Some host events are recorded as outliving their caller. A Python frame whose end was recorded late contains what its
caller contains as well, and ends after it: taken as it stands, all calls in it leave their op. In old files times are
whole microseconds, each rounded by itself, so that a launch may end a microsecond after its op.
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_int64, c_void_p
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens.files.compiled import address, library
from tracelens.trace.links import HostRows, LinkedBy, forward_links, launch_links
from tracelens.trace.narrow_columns import Column, Derived
from tracelens.trace.table import DEVICE_KINDS, HOST_KINDS, Kind, RowColumn, TraceTable
from tracelens.types.records import Record
from tracelens.types.signature import OpSignature
from tracelens.types.units import NS_PER_US

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: Positions in preorder; depths.
Places: TypeAlias = npt.NDArray[np.int32]
#: Of each interval in preorder: whether its lane begins there (1), or it lies beside the one before it (2).
_Beginnings: TypeAlias = npt.NDArray[np.uint8]
#: Of each interval: its parent, the end of its subtree, its depth, whether it overlaps, and what it outlived.
_Forest: TypeAlias = tuple[Places, Places, Places, Bools, Ints]
_SOURCE, _LAYOUT = Path(__file__).with_name("nest.c"), 3

_NONE = np.iinfo(np.int64).min


class Nesting(Record, frozen=True, kw_only=True, eq=False):
    """The forest of n intervals, by position in preorder (``order[position]`` is the interval's index).

    ``parent``: position of the innermost interval that contains this one, -1 for a root. ``last``: end of the subtree,
    exclusive. ``overlaps``: this one outlives its caller: one that started after its parent did is still open when it
    starts, and ends before it does. ``outlived``: where that is so, the end of the last of those, in ns; else 0.
    """

    order: Ints
    parent: Places
    last: Places
    depth: Places
    overlaps: Bools
    outlived: Ints


def nest(lane: npt.NDArray[np.int32], start: Ints, duration: Ints, rank: npt.NDArray[np.uint8]) -> Nesting:
    """Nests the intervals of each lane; times in whole ns, below 2^62.

    The parent is the innermost earlier interval of the lane that ends no sooner; an interval that outlives its caller
    goes to the innermost one that does contain it. Intervals are half-open: one of zero length at the end of another
    lies outside it, and inside one that starts there. Of intervals with the same span the lower ``rank`` is outside,
    then the one with the lower index; without length and of one rank, they lie beside each other: a clock that tells
    no time between calls does not say that one made the other.
    """
    # In place and let go of early: the sort is where loading a trace needs most memory.
    closing = start + duration
    closing *= -2
    closing -= duration == 0
    del duration
    order = np.lexsort((start, lane))
    start, lane = start[order], lane[order]
    begins = np.ones(len(order), np.uint8)
    begins[1:] = lane[1:] != lane[:-1]
    # Files are nearly in order of these two, and few events share both
    same = (start[1:] == start[:-1]) & (begins[1:] == 0)
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    at = order[tied]
    order[tied] = at[np.lexsort((rank[at], closing[at], start[tied], lane[tied]))]
    key = -closing[order]
    later = np.flatnonzero(same) + 1
    alike = (key[later] & 1 == 1) & (key[later] == key[later - 1]) & (rank[order[later]] == rank[order[later - 1]])
    begins[later[alike]] = 2
    del rank, lane, closing
    parent, last, depth, overlaps, outlived = _compiled(key, start, begins) or _plain(key, start, begins)
    return Nesting(order=order, parent=parent, last=last, depth=depth, overlaps=overlaps, outlived=outlived)


def _compiled(key: Ints, start: Ints, begins: _Beginnings) -> _Forest | None:
    """None where ``nest.c`` was not compiled, or is not wanted."""
    found = library(_SOURCE, _LAYOUT)
    if found is None:
        return None
    n = len(key)
    parent, last, depth = (np.empty(n, np.int32) for _ in range(3))
    overlaps, outlived = np.zeros(n, np.bool_), np.zeros(n, np.int64)
    arrays = (key, start, begins, parent, last, depth, overlaps, outlived)
    found.tracelens_nest(c_int64(n), *(c_void_p(address(array)) for array in arrays))
    return parent, last, depth, overlaps, outlived


def _plain(key: Ints, start: Ints, begins: _Beginnings) -> _Forest:
    """As ``tracelens_nest`` of ``nest.c``."""
    n = len(key)
    parent, last, depth = np.full(n, -1, np.int32), np.arange(1, n + 1, dtype=np.int32), np.zeros(n, np.int32)
    overlaps, outlived = np.zeros(n, np.bool_), np.zeros(n, np.int64)
    # Views give Python's own integers, and take no memory of their own
    keys, starts, beginnings = key.data, start.data, begins.data
    above, ends, depths = parent.data, last.data, depth.data
    for i in range(n):
        begun, passed = beginnings[i], _NONE
        j = -1 if begun == 1 else above[i - 1] if begun == 2 else i - 1
        # Each interval is passed over once
        while j >= 0 and keys[j] < keys[i]:
            passed = max(passed, keys[j])
            j = above[j]
        above[i] = j
        if j >= 0:
            depths[i] = depths[j] + 1
        if passed != _NONE and passed >> 1 > starts[i]:
            overlaps[i], outlived[i] = True, passed >> 1
    for i in range(n - 1, -1, -1):
        if above[i] >= 0 and ends[above[i]] < ends[i]:
            ends[above[i]] = ends[i]
    return parent, last, depth, overlaps, outlived


def innermost(last: Places) -> Places:
    """For each of some nodes in preorder the innermost other one round it, by where their subtrees end; -1 without."""
    begins, key = np.zeros(len(last), np.uint8), last.astype(np.int64)
    begins[:1] = 1
    return (_compiled(key, key, begins) or _plain(key, key, begins))[0]


def nearest(above: Places, wanted: Bools) -> Places:
    """For each node the nearest strict ancestor that is ``wanted``, -1 without one.

    ``above`` holds the parents, each of which comes before its children.
    """
    compiled, n = library(_SOURCE, _LAYOUT), len(above)
    if compiled is not None:
        found = np.empty(n, np.int32)
        compiled.tracelens_nearest(c_int64(n), *(c_void_p(address(array)) for array in (above, wanted, found)))
        return found
    found = above.copy()
    for i in np.flatnonzero((above >= 0) & ~wanted[above]).tolist():
        found[i] = found[above[i]]
    return found


#: How much (ns) later than its caller a call may end by rounding to microseconds.
ROUNDING_NS = 1000


def nest_host(table: TraceTable, host: RowColumn, rank: npt.NDArray[np.uint8]) -> tuple[Nesting, int]:
    """Nests the host rows; ``overlaps`` are those that outlive their caller as recorded. And ``OpTree.skewed``.

    A broken frame that hides a call begins, for this, where the last of the callers that it outlives ends; a call that
    outlives its caller by no more than rounding ends with it.
    """
    found = nest(table.lane[host], table.start_ns[host], table.duration_ns[host], rank)
    if not found.overlaps.any():
        return found, 0
    at = np.flatnonzero(found.overlaps)
    rows = host[found.order[at]]
    is_launch = np.isin(table.kind[rows], (Kind.RUNTIME, Kind.DRIVER))
    is_rounded = table.ends_ns(rows) - found.outlived[at] <= ROUNDING_NS
    # Launches that end later than their callers by more than rounding: their clock is not that of the ops
    skewed = int(np.count_nonzero(is_launch & ~is_rounded))
    calls = at[(is_launch | (table.kind[rows] == Kind.CPU_OP)) & is_rounded]
    frames, mended = _hiding_frames(table, host, found), found
    while len(frames) or len(calls):
        start, duration = table.start_ns[host], table.duration_ns[host]
        at, outlived = found.order[frames], found.outlived[frames]
        duration[at] -= outlived - start[at]
        start[at] = outlived
        at = found.order[calls]
        duration[at] = found.outlived[calls] - start[at]
        mended = nest(table.lane[host], start, duration, rank)
        # Which of the ``moved`` host events lie in one that began after them: as long as that, they stay broken
        at = np.flatnonzero(np.isin(mended.order, found.order[frames]))
        at = at[mended.parent[at] >= 0]
        start = table.start_ns[host]
        own, parent = mended.order[at], mended.order[mended.parent[at]]
        misplaced = own[start[parent] > start[own]]
        if not len(misplaced):
            break
        frames, mended = frames[~np.isin(found.order[frames], misplaced)], found
    return replace(mended, overlaps=found.overlaps), skewed


def _hiding_frames(table: TraceTable, host: RowColumn, found: Nesting) -> Ints:
    """Positions of the broken Python frames in which an op or a launch begins before the outlived callers end."""
    rows = host[found.order]
    is_call = np.isin(table.kind[rows], (Kind.CPU_OP, Kind.RUNTIME, Kind.DRIVER))
    calls_before = np.concatenate(([0], np.cumsum(is_call)))
    start = table.start_ns[rows]
    frames = np.flatnonzero(found.overlaps & (table.kind[rows] == Kind.PYTHON_FUNCTION))
    until = [
        first + int(np.searchsorted(start[first:last], end))
        for first, last, end in zip(frames + 1, found.last[frames], found.outlived[frames], strict=True)
    ]
    return frames[calls_before[np.array(until, np.int64)] > calls_before[frames + 1]]


#: An op of this name only passes calls on: the kernels launched in it belong to the op above.
PASSED_OVER = "execute"
MODULE_PREFIX = "nn.Module: "
# Climbs look at each row for it, and a member of an enumeration takes NumPy five times as long as a number.
_UNLINKED = int(LinkedBy.NOTHING)


class OpTree:
    """Index arrays over the rows of a trace, -1 where there is nothing.

    Host rows (ops, runtime and driver calls, annotations, Python frames): ``parent`` (innermost event of the lane that
    contains it), ``depth`` (roots 0), ``op_parent`` (nearest ancestor that is a cpu_op), ``order`` (rows in preorder),
    ``position`` (where in ``order``), ``size`` (how many rows of ``order`` its subtree is, itself included; 0 for
    device rows). Device rows: ``linked_by`` (``LinkedBy``). ``unlinked``: device rows without a launch, mostly launched
    before the window. ``overlaps``: how many host events outlive their caller; they hang on the innermost event that
    does contain them, or, where a call would leave its op for that, on the one that ``nest_host`` says. ``skewed``: how
    many launches do so by more than rounding; each may hang on a neighbour of its op. ``ambiguous``: how many of
    ``unlinked`` could have been launched by several processes of the file.
    """

    __slots__ = (
        "_launch_or_forward", "_launched", "_launched_at", "ambiguous", "depth", "linked_by", "op_parent", "order",
        "overlaps", "parent", "position", "size", "skewed", "table", "unlinked",
    )  # fmt: skip

    def __init__(self, table: TraceTable) -> None:
        self.table = table
        n = len(table)
        host = table.rows_of(HOST_KINDS)
        # Where spans are the same, a launch is never outside, and a driver call lies in its runtime call
        kind = table.kind[host]
        outer = (kind == Kind.RUNTIME) + np.uint8(2) * (kind == Kind.DRIVER)
        nesting, self.skewed = nest_host(table, host, outer)
        order = host[nesting.order]
        self.order: RowColumn = order
        self.overlaps = int(nesting.overlaps.sum())
        place = np.arange(len(order), dtype=np.int32)
        self.position: RowColumn = _scattered(n, order, place)
        self.size = Column(_scattered(n, order, nesting.last - place, empty=0), np.int32)
        self.depth = Column(_scattered(n, order, nesting.depth), np.int32)
        parent = nesting.parent
        # What is done with goes at once: the peak of a load is here, 14 bytes per event lower for it.
        del nesting, place
        row_or_none = np.append(order, np.int32(-1))
        self.parent: RowColumn = _scattered(n, order, row_or_none[parent])
        host_rows = HostRows.of(table, order)
        self.op_parent: RowColumn = _scattered(n, order, row_or_none[nearest(parent, host_rows.is_op)])
        del parent, row_or_none

        self.linked_by: npt.NDArray[np.uint8]
        self.ambiguous: int
        launch, self.linked_by, self.ambiguous = launch_links(table, host_rows)
        device = table.rows_of(DEVICE_KINDS)
        linked = device[launch[device] >= 0]
        self.unlinked: RowColumn = device[launch[device] < 0]
        # Linked device rows by the preorder position of their launch: those of any subtree are one slice
        launched_at = self.position[launch[linked]]
        by_launch = np.lexsort((table.start_ns[linked], launched_at))
        self._launched: RowColumn = linked[by_launch]
        self._launched_at: RowColumn = launched_at[by_launch]
        launches = launch[linked]
        del launch, launched_at, by_launch
        # Of a device row its launch, of a host row its forward op
        self._launch_or_forward: RowColumn = forward_links(table, host_rows.ops, self.op_parent)
        self._launch_or_forward[linked] = launches

    def __len__(self) -> int:
        return len(self.order)

    @property
    def last(self) -> Derived[np.int32]:
        """Where in ``order`` the subtree of a host row ends, exclusive."""
        return Derived(len(self.table), lambda at: self.position[at] + self.size[at])

    @property
    def launch(self) -> Derived[np.int32]:
        """Of a device row the host row that launched it."""
        return Derived(len(self.table), lambda at: self._of_linked(at, self.linked_by[at] != _UNLINKED))

    @property
    def forward(self) -> Derived[np.int32]:
        return Derived(len(self.table), lambda at: self._of_linked(at, self.linked_by[at] == _UNLINKED))

    def _of_linked(self, at: Any, is_asked: npt.NDArray[np.bool_]) -> RowColumn:
        return np.where(is_asked, self._launch_or_forward[at], np.int32(-1))

    @property
    def op(self) -> Derived[np.int32]:
        """Of a device row the nearest cpu_op from its launch up, but ``execute``; else the launch itself."""
        return Derived(len(self.table), lambda at: _launching_ops(self.table, self.op_parent, self.launch[at]))

    def __repr__(self) -> str:
        return (
            f"<OpTree of {self.table.source}: {len(self.order):,} host events, "
            f"{len(self._launched):,} linked and {len(self.unlinked):,} unlinked device events>"
        )

    def roots(self) -> RowColumn:
        """Host rows without a caller, lane by lane."""
        return self.order[self.parent[self.order] < 0]

    def children(self, row: int) -> RowColumn:
        """Host rows whose innermost caller is ``row``, by start."""
        below = self.subtree(row)
        return below[self.parent[below] == row]

    def subtree(self, row: int) -> RowColumn:
        """``row`` and all host rows below it, in preorder; empty for a device row."""
        if self.position[row] < 0:
            return self.order[:0]
        return self.order[self.position[row] : self.last[row]]

    def at_or_above(self, rows: RowColumn) -> RowColumn:
        """These host rows and all ops above them, each once, in preorder; without device rows among them."""
        given = np.zeros(len(self.order), np.bool_)
        position = self.position[rows]
        given[position[position >= 0]] = True
        before = np.concatenate((np.zeros(1, np.int32), np.cumsum(given, dtype=np.int32)))
        last = np.arange(len(self.order), dtype=np.int32) + self.size[self.order]
        at = np.flatnonzero(before[last] > before[:-1])
        found: RowColumn = self.order[at]
        return found[given[at] | (self.table.kind[found] == Kind.CPU_OP)]

    def ancestors(self, row: int) -> Ints:
        """Callers of a host row, the innermost first; for a device row its launch and the callers of that."""
        return np.array(list(self._above(row)), np.int64)

    def launched_by(self, row: int) -> RowColumn:
        """Device rows that this very host row launched, by start."""
        return self._launched_within(self.position[row], self.position[row] + 1)

    def kernels_below(self, row: int) -> RowColumn:
        """Device rows launched by ``row`` or by anything below it, in order of launch."""
        return self._launched_within(self.position[row], self.last[row])

    def subtree_sum(self, values: npt.ArrayLike) -> Ints:
        """Exact sum of integer ``values`` (one per table row) over each host row's subtree; 0 for other rows.

        The value of a device row counts at the event that launched it: with the durations of device rows and 0
        elsewhere the result is the kernel time below each op, in ns. Values of unlinked device rows are in no sum.
        ValueError for anything but one integer (or boolean) per row.
        """
        given = np.asarray(values)
        if given.shape != (len(self.table),) or (given.size and given.dtype.kind not in "iub"):
            raise ValueError(f"subtree_sum needs {len(self.table)} integers, got {given.dtype} of shape {given.shape}")
        given = given.astype(np.int64)
        device = np.concatenate((np.zeros(1, np.int64), np.cumsum(given[self._launched])))
        at_launch = np.diff(device[np.searchsorted(self._launched_at, np.arange(len(self.order) + 1))])
        running = np.concatenate((np.zeros(1, np.int64), np.cumsum(given[self.order] + at_launch)))
        result = np.zeros(len(self.table), np.int64)
        result[self.order] = running[self.last[self.order]] - running[:-1]
        return result

    def forward_of(self, row: int) -> int:
        """The forward op behind a row: that of the nearest op at or above it which has one, -1 without.

        Also for device rows. Ops that a checkpoint recomputes inside a backward op give the checkpointed call.
        """
        for above in (row, *self._above(row)):
            forward = self._launch_or_forward[above]
            if forward >= 0 and self.linked_by[above] == _UNLINKED:
                return int(forward)
        return -1

    def module_of(self, row: int) -> tuple[str, ...]:
        """The nn.Module frames round a row as traced (``"nn.Module: Linear_3"``), the outermost first.

        A backward op runs on a thread without frames: it has those of its forward. Empty without recorded stacks.
        """
        found = self._modules(row)
        if not found and (forward := self.forward_of(row)) >= 0:
            found = self._modules(forward)
        return found

    def node(self, row: int) -> OpNode:
        return OpNode(tree=self, row=int(row))

    def self_check(self) -> list[str]:
        """The invariants that do not hold, as sentences; empty when all do."""
        return [*self._check_forest(), *self._check_links(), *self._check_forward()]

    def _launched_within(self, first: np.int32, last: np.int32) -> RowColumn:
        """Device rows by the positions in preorder of their launches; none for a device row, whose position is -1."""
        if first < 0:
            return self._launched[:0]
        return self._launched[slice(*np.searchsorted(self._launched_at, (first, last)))]

    def _above(self, row: int) -> Iterator[int]:
        above = int(self.parent[row] if self.position[row] >= 0 else self.launch[row])
        while above >= 0:
            yield above
            above = int(self.parent[above])

    def _modules(self, row: int) -> tuple[str, ...]:
        names = (
            self.table.name_of(above)
            for above in (row, *self._above(row))
            if self.table.kind[above] == Kind.PYTHON_FUNCTION
        )
        return tuple(name for name in names if name.startswith(MODULE_PREFIX))[::-1]

    def _check_forest(self) -> Iterator[str]:
        table, order = self.table, self.order
        place = np.arange(len(order))
        host = table.rows_of(HOST_KINDS)
        if not np.array_equal(np.sort(order), host):
            yield "order is not a permutation of the host rows"
            return
        if not np.array_equal(self.position[order], place):
            yield "position is not the inverse of order"
            return
        child = order[self.parent[order] >= 0]
        parent = self.parent[child]
        end = table.start_ns + table.duration_ns
        inside = (table.start_ns[parent] <= table.start_ns[child]) & (end[child] <= end[parent] + ROUNDING_NS)
        # Half-open: what starts where its parent ends lies outside it, unless both have no length
        inside &= (table.start_ns[child] < end[parent]) | (table.duration_ns[parent] == 0)
        yield from _violated(table.lane[child] == table.lane[parent], "parents are in another lane", child)
        yield from _violated(inside, "events are not contained in their parents", child)
        yield from _violated(self.position[parent] < self.position[child], "events come before their parents", child)
        deeper = self.depth[child] == self.depth[parent] + 1
        yield from _violated(deeper, "depths are not one more than the parent's", child)
        roots = order[self.parent[order] < 0]
        yield from _violated(self.depth[roots] == 0, "roots have a depth", roots)
        yield from _violated(self.last[child] <= self.last[parent], "subtrees reach beyond their parent's", child)
        # Together with the line above: the slices are exactly the subtrees
        sizes = np.ones(len(order), np.int64)
        at, above = self.position[child], self.position[parent]
        depth = self.depth[child]
        by_depth = np.argsort(depth, kind="stable")
        for level in np.split(by_depth, 1 + np.flatnonzero(np.diff(depth[by_depth])))[::-1]:
            np.add.at(sizes, above[level], sizes[at[level]])
        yield from _violated(self.size[order] == sizes, "subtree slices have the wrong length", order)

    def _check_links(self) -> Iterator[str]:
        table = self.table
        device = table.rows_of(DEVICE_KINDS)
        other = np.ones(len(table), np.bool_)
        other[device] = False
        if self.linked_by[other].any():
            yield "rows are linked that are no device events"
        linked = device[self.launch[device] >= 0]
        launch, how = self.launch[linked], self.linked_by[linked]
        yield from _violated(self.position[launch] >= 0, "launches are no host events", linked)
        direct = (table.kind[launch] == Kind.RUNTIME) | (table.kind[launch] == Kind.DRIVER)
        by_correlation = how == LinkedBy.CORRELATION
        yield from _violated(direct | ~by_correlation, "correlated launches are no runtime or driver events", linked)
        same = table.correlation[launch] == table.correlation[linked]
        yield from _violated(same | ~by_correlation, "correlations of launch and device event differ", linked)
        if not np.array_equal(self.linked_by[device] != LinkedBy.NOTHING, self.launch[device] >= 0):
            yield "linked_by and launch disagree on what is linked"
        if not np.array_equal(np.sort(self._launched), linked):
            yield "a device event is in no launch, or in more than one"
        op = self.op[linked]
        around = (self.position[op] <= self.position[launch]) & (self.position[launch] < self.last[op])
        yield from _violated(around, "ops are not at or above the launch", linked)
        is_op = (table.kind[op] == Kind.CPU_OP) & (table.name[op] != _passed_over(table))
        yield from _violated(is_op | (op == launch), "launching ops are neither a cpu_op nor the launch", linked)
        busy = table.duration_ns * ~other
        below = self.subtree_sum(busy)[self.roots()].sum() + busy[self.unlinked].sum()
        if below != busy.sum():
            yield f"linked and unlinked device time is {below} ns, all device time {busy.sum()} ns"

    def _check_forward(self) -> Iterator[str]:
        table = self.table
        backward = np.flatnonzero(self.forward >= 0)
        forward = self.forward[backward]
        ops = (table.kind[backward] == Kind.CPU_OP) & (table.kind[forward] == Kind.CPU_OP)
        yield from _violated(ops, "forward links join rows that are no ops", backward)
        earlier = table.start_ns[forward] < table.start_ns[backward]
        yield from _violated(earlier, "forward ops start after their backward", backward)


class OpNode(Record, frozen=True, kw_only=True):
    """One event of the tree, for looking around; every property is looked up when asked. Times in µs."""

    tree: OpTree
    row: int

    @property
    def name(self) -> str:
        return self.tree.table.name_of(self.row)

    @property
    def kind(self) -> Kind:
        return Kind(int(self.tree.table.kind[self.row]))

    @property
    def start_us(self) -> float:
        return float(self.tree.table.start_ns[self.row]) / NS_PER_US

    @property
    def duration_us(self) -> float:
        return float(self.tree.table.duration_ns[self.row]) / NS_PER_US

    @property
    def signature(self) -> OpSignature:
        return self.tree.table.signature_of(self.row)

    @property
    def parent(self) -> OpNode | None:
        """The caller; of a device event its launch."""
        above = next(self.tree._above(self.row), -1)
        return self.tree.node(above) if above >= 0 else None

    @property
    def children(self) -> tuple[OpNode, ...]:
        """The calls made directly, by start."""
        return tuple(self.tree.node(row) for row in self.tree.children(self.row).tolist())

    @property
    def kernels(self) -> tuple[OpNode, ...]:
        """Device events launched here or below, in order of launch."""
        return tuple(self.tree.node(row) for row in self.tree.kernels_below(self.row).tolist())

    @property
    def forward(self) -> OpNode | None:
        forward = self.tree.forward_of(self.row)
        return self.tree.node(forward) if forward >= 0 else None

    def __repr__(self) -> str:
        return f"<OpNode {self.name} row {self.row}, {self.duration_us:.3f} us, {len(self.kernels)} kernels>"


def _launching_ops(table: TraceTable, op_parent: RowColumn, launch: RowColumn) -> RowColumn:
    passed_over, found = _passed_over(table), launch.copy()
    climbs = (table.kind[launch] != Kind.CPU_OP) | (table.name[launch] == passed_over)
    climbing = np.flatnonzero(climbs & (launch >= 0))
    while len(climbing):
        above = op_parent[found[climbing]]
        found[climbing] = above
        climbing = climbing[(above >= 0) & (table.name[above] == passed_over)]
    return np.where(found >= 0, found, launch)


def _passed_over(table: TraceTable) -> int:
    """Code of the op name that owns no kernels, -1 when the trace has none."""
    return table.names.index(PASSED_OVER) if PASSED_OVER in table.names else -1


def _scattered(n: int, at: RowColumn, values: npt.NDArray[np.integer], empty: int = -1) -> RowColumn:
    column = np.full(n, empty, np.int32)
    column[at] = values
    return column


def _violated(holds: npt.NDArray[np.bool_], what: str, rows: npt.NDArray[np.integer]) -> Iterator[str]:
    if not holds.all():
        wrong = rows[~holds]
        yield f"{len(wrong)} {what}, the first at row {wrong[0]}"
