"""What a trace records of communicating groups of ranks and of their calls; where no metadata was recorded, what the
ops above a launch say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from math import prod
from typing import Any

import numpy as np

from tracelens.analysis.grouping import Codes, first_of_each, numbered
from tracelens.perf_models.collective import Collective
from tracelens.signature import OpSignature
from tracelens.trace.table import Kind, ProcessGroup, RowColumn, TraceTable
from tracelens.trace.tree import OpTree

#: Key of the sentence that says where sizes come from which the kernel's own metadata does not hold.
SIZES_FROM = "Sizes from"
_RECORDER = "record_param_comms"
# ProcessGroupNCCL's range ("nccl:all_reduce", input only), the dispatcher's ops, and the functional ones.
_PREFIXES = ("nccl:", "rccl:", "c10d::", "c10d_functional::", "_c10d_functional::")
# torch/csrc/distributed/c10d/Ops.cpp: these take the output first, then the input.
_OUTPUT_FIRST = ("c10d::alltoall_base_", "c10d::_allgather_base_", "c10d::_reduce_scatter_base_")
_NO_TENSOR = ("Scalar", "TensorList", "ScalarList", "")


def calls_above(table: TraceTable, tree: OpTree, row: int) -> tuple[OpSignature, ...]:
    """The signatures of the communication ops above a kernel's launch, innermost first."""
    return tuple(_calls(table, tree, int(tree.launch[row])))


def _calls(table: TraceTable, tree: OpTree, row: int) -> Iterator[OpSignature]:
    while row >= 0:
        name = table.name_of(row)
        if name == _RECORDER or name.startswith(_PREFIXES):
            yield table.signature_of(row)
        row = int(tree.parent[row])


def enclosing_attributes(table: TraceTable, calls: tuple[OpSignature, ...]) -> dict[str, Any]:
    """As ``recorded_attributes``, from the recorded dims and types of these ops.

    The group is taken to be the whole job (``distributedInfo``'s world size), and said to be, unless the trace records
    groups of another size.
    """
    named = next((call for call in calls if call.name != _RECORDER), None)
    if named is None:
        return {}
    # "nccl:send 0->1", "c10d::allreduce_"
    kind = named.name.rpartition(":")[2].split(" ")[0].strip("_")
    found: dict[str, Any] = {"Collective name": kind}
    sources = []
    sent = next(((call, tensors) for call in calls if (tensors := _inputs(call))), None)
    if sent is not None:
        call, tensors = sent
        elements = sum(count for count, _ in tensors)
        found |= {"In msg nelems": elements, "dtype": tensors[0][1]}
        sources.append(f"dims of {call.name}")
    outputs = (_tensor(call, 0) for call in calls if call.name in _OUTPUT_FIRST)
    elements_out = next((tensor[0] for tensor in outputs if tensor is not None), None)
    size, source = _group_size(table, kind, found.get("In msg nelems"), elements_out)
    if size is not None:
        found["Group size"] = size
        sources.append(f"group size: {source}")
    if elements_out is None and "In msg nelems" in found:
        elements_out = _received(kind, found["In msg nelems"], size)
    if elements_out is not None:
        found["Out msg nelems"] = elements_out
    if sources:
        found[SIZES_FROM] = "; ".join(sources)
    return found


def _inputs(call: OpSignature) -> list[tuple[int, str]]:
    """(elements, type) of the tensors that the rank sends; () where one is unknown or their types differ."""
    if call.name in _OUTPUT_FIRST:
        places: tuple[int, ...] = (1,)
    else:
        places = tuple(range(len(call.shapes or ()))) if call.name.startswith(("nccl:", "rccl:")) else (0,)
    tensors = [tensor for place in places if (tensor := _tensor(call, place)) is not None]
    return tensors if len({dtype for _, dtype in tensors}) == 1 else []


def _tensor(call: OpSignature, place: int) -> tuple[int, str] | None:
    shape = call.shapes[place] if call.shapes and place < len(call.shapes) else None
    dtype = call.dtype_text(place)
    if shape is None or not dtype or dtype in _NO_TENSOR or not all(isinstance(n, int) for n in shape):
        return None
    return prod(shape), dtype


@cache
def collective_word(kind: object) -> str | None:
    """The plain name of a collective (``all_reduce``) however its kind is spelled; None where it is none's."""
    return Collective(kind=kind, elements_in=0, elements_out=0, ranks=None).word if isinstance(kind, str) else None


def _group_size(table: TraceTable, kind: str, sent: int | None, received: int | None) -> tuple[int | None, str]:
    """(ranks, where that is from): a gather's output is so many times its input; else the whole job's."""
    if collective_word(kind) in ("all_gather", "reduce_scatter") and sent and received:
        times, rest = divmod(max(sent, received), min(sent, received))
        if not rest:
            return times, "output and input"
    return _whole_job(table), "the job's world size"


def _received(kind: str, sent: int, size: int | None) -> int | None:
    """Elements that come out of a collective over ``size`` ranks."""
    word = collective_word(kind)
    if word in ("all_reduce", "broadcast", "reduce", "send", "recv"):
        return sent
    if word == "all_gather":
        return None if size is None else sent * size
    return sent // size if word == "reduce_scatter" and size else None


def _whole_job(table: TraceTable) -> int | None:
    info = table.metadata.get("distributedInfo")
    size = info.get("world_size") if isinstance(info, dict) else None
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        return None
    others = {len(group.ranks) for group in table.process_groups() if group.ranks}
    return size if others <= {size} else None


# How training frameworks describe the group in which experts exchange tokens.
_EXPERT_GROUP = re.compile(r"(?:expert(?:_model)?_parallel|ep)(?:_group)?", re.IGNORECASE)
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
