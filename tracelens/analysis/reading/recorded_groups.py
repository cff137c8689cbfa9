"""What a trace records of the groups of ranks that communicate, and of their calls."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from tracelens.analysis.grouping import Codes, first_of_each, numbered
from tracelens.analysis.reading.enclosing_calls import calls_above, enclosing_attributes
from tracelens.lazy.patterns import lazy_pattern
from tracelens.trace.table import Kind, ProcessGroup, RowColumn, TraceTable
from tracelens.trace.tree import OpTree

# How training frameworks describe the group in which experts exchange tokens.
_EXPERT_GROUP = lazy_pattern(r"(?:expert(?:_model)?_parallel|ep)(?:_group)?", re.IGNORECASE)
#: Where the metadata of a collective says which one it is.
_KIND = "Collective name"
# The first number among the template arguments, after at most one type or flag
_INTRANODE, _INTERNODE = (
    re.compile(rf"\bdeep_ep::{where}::\w+<(?:[^<>,\d][^<>,]*, ?)?(\d+)\b") for where in ("intranode", "internode")
)
# NUM_MAX_NVL_PEERS of DeepEP's csrc/kernels/configs.cuh
_RANKS_OF_A_NODE = 8


def expert_groups(table: TraceTable) -> tuple[ProcessGroup, ...]:
    """The process groups of this rank that are expert-parallel by their recorded description."""
    return tuple(
        group
        for group in table.process_groups()
        if _EXPERT_GROUP.fullmatch(group.description) and (table.rank is None or table.rank in group.ranks)
    )


def recorded_ep_size(table: TraceTable) -> int | None:
    """Ranks of this rank's expert-parallel group, by the group's recorded description; None unless exactly one size."""
    sizes = {len(group.ranks) for group in expert_groups(table)}
    return sizes.pop() if len(sizes) == 1 else None


def ranks_of_kernels(names: Iterable[str]) -> int | None:
    """Ranks that DeepEP's kernels are built for, a template argument of theirs; None unless all say the same."""
    sizes = set()
    for name in names:
        if "deep_ep::int" not in name:
            continue
        if match := _INTRANODE.search(name):
            sizes.add(int(match[1]))
        elif match := _INTERNODE.search(name):
            sizes.add(_RANKS_OF_A_NODE * int(match[1]))
    return sizes.pop() if len(sizes) == 1 else None


def ep_size_of(table: TraceTable, given: int | None) -> int | None:
    """Ranks of the expert-parallel group: as ``given``, else as recorded, else as DeepEP's kernels are built."""
    kernels = np.unique(table.name[table.kind == Kind.KERNEL]).tolist()
    return given or recorded_ep_size(table) or ranks_of_kernels(table.names[code] for code in kernels)


def recorded_attributes(table: TraceTable, tree: OpTree, row: int) -> dict[str, Any]:
    """What a collective's kernel records of its call, else ``record_param_comms`` above its launch, else its ops."""
    return attributes_of_calls(table, tree, np.array([row], np.int32))[0][0]


def attributes_of_calls(table: TraceTable, tree: OpTree, rows: RowColumn) -> tuple[list[dict[str, Any]], Codes]:
    """(``recorded_attributes`` of each distinct call, which of them each of these kernels is of)."""
    source = _recording_rows(table, tree, rows)
    above = np.where((source >= 0) & (source != rows), table.signature[source], -1)
    # What is read from the ops above is no kernel's but its own
    call = numbered(table.signature[rows], above, np.where(source < 0, rows, -1))
    first = first_of_each(call)
    of_first = zip(rows[first].tolist(), source[first].tolist(), strict=True)
    return [_attributes(table, tree, row, source_row) for row, source_row in of_first], call


def _attributes(table: TraceTable, tree: OpTree, row: int, source: int) -> dict[str, Any]:
    if source < 0:
        above = enclosing_attributes(table, calls_above(table, tree, row))
    else:
        above = dict(table.signature_of(source).attributes)
    return above | dict(table.signature_of(row).attributes)


def _recording_rows(table: TraceTable, tree: OpTree, rows: RowColumn) -> RowColumn:
    """Where the call of each of these kernels was recorded: its own row, else the next one from its launch upwards; -1
    where nowhere.
    """
    source: RowColumn = np.full(len(rows), -1, np.int32)
    searching, current = np.arange(len(rows)), rows
    while len(searching):
        code, which = np.unique(table.signature[current], return_inverse=True)
        says = np.array([table.signatures.signature("", c).attribute(_KIND) is not None for c in code.tolist()])[which]
        source[searching[says]] = current[says]
        above = (tree.launch if current is rows else tree.parent)[current[~says]]
        searching, current = searching[~says][above >= 0], above[above >= 0]
    return source
