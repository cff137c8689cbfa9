"""What a trace records of the groups of ranks that communicate, and of their calls."""

from __future__ import annotations

import re
from typing import Any

from tracelens.analysis.enclosing_calls import calls_above, enclosing_attributes
from tracelens.trace.table import ProcessGroup, TraceTable
from tracelens.trace.tree import OpTree

# How training frameworks describe the group in which experts exchange tokens.
_EXPERT_GROUP = re.compile(r"(?:expert(?:_model)?_parallel|ep)(?:_group)?", re.IGNORECASE)


def expert_groups(table: TraceTable) -> tuple[ProcessGroup, ...]:
    """The process groups of this rank that are expert-parallel by their recorded description."""
    return tuple(
        group
        for group in table.process_groups()
        if _EXPERT_GROUP.fullmatch(group.description) and (table.rank is None or table.rank in group.ranks)
    )


def recorded_attributes(table: TraceTable, tree: OpTree, row: int) -> dict[str, Any]:
    """What a collective's kernel records of its call, else ``record_param_comms`` above its launch, else its ops."""
    attributes = dict(table.signature_of(row).attributes)
    if "Collective name" not in attributes and tree.launch[row] >= 0:
        attributes = _metadata_above(table, tree, int(tree.launch[row])) | attributes
    if "Collective name" not in attributes and tree.launch[row] >= 0:
        attributes = enclosing_attributes(table, calls_above(table, tree, row)) | attributes
    return attributes


def _metadata_above(table: TraceTable, tree: OpTree, launch: int) -> dict[str, Any]:
    row = launch
    while row >= 0:
        signature = table.signature_of(row)
        if signature.attribute("Collective name") is not None:
            return dict(signature.attributes)
        row = int(tree.parent[row])
    return {}
