"""Communicating groups of ranks and their calls as a trace records them, or as the ops above a launch say; what token
exchanges between expert-parallel ranks move, and the share of it that leaves the rank.

A dispatch is not told how many copies of a token it makes, and where its tokens are an FP8 pair not even their size. A
layer's combine is: it returns one row per copy, and the gradients of both come back in the same numbers. On one rank
these are the copies that its dispatch *receives*; over all ranks of a group as many are sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from tracelens.analysis.grouping import Codes, first_of_each, numbered
from tracelens.analysis.intervals import Bools, Floats
from tracelens.analysis.loaded_trace import Trace
from tracelens.analysis.reading.catalog import Reading
from tracelens.analysis.reading.op_readings import OpReadings
from tracelens.errors import UsageError
from tracelens.perf_models.collective import COMBINE, DISPATCH, Collective, EPComm, bus_factor
from tracelens.predict.network.deepep import DEFAULT_SMS, Exchanges, distinct
from tracelens.trace.table import Kind, ProcessGroup, RowColumn, TraceTable
from tracelens.trace.tree import OpTree
from tracelens.types.dtypes import DType
from tracelens.types.records import Record, pd
from tracelens.types.signature import OpSignature, parse_literal
from tracelens.types.units import BYTES_PER_MB, GB_PER_S_IN_BYTES_PER_US

if TYPE_CHECKING:
    from tracelens.backends.base import System

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
    found, above = [], int(tree.launch[row])
    while above >= 0:
        name = table.name_of(above)
        if name == _RECORDER or name.startswith(_PREFIXES):
            found.append(table.signature_of(above))
        above = int(tree.parent[above])
    return tuple(found)


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
    elements_out = next((tensor[0] for call in calls if (tensor := _output(call)) is not None), None)
    size, source = _size_and_source(table, kind, found.get("In msg nelems"), elements_out)
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


def _output(call: OpSignature) -> tuple[int, str] | None:
    return _tensor(call, 0) if call.name in _OUTPUT_FIRST else None


@cache
def collective_word(kind: object) -> str | None:
    """The plain name of a collective (``all_reduce``) however its kind is spelled; None where it is none's."""
    return Collective(kind=kind, elements_in=0, elements_out=0, ranks=None).word if isinstance(kind, str) else None


def message_mb(elements: Any, dtype: Any) -> float | None:
    """Megabytes; None where the number or the type of the elements was not recorded."""
    known = DType.parse(dtype) if isinstance(dtype, str) else None
    return (
        elements * known.width_bytes / BYTES_PER_MB if isinstance(elements, int | float) and known is not None else None
    )


def bus_gb_s(rows: Mapping[str, Iterable[Any]] | pd.DataFrame, time_us: Iterable[float]) -> list[float | None]:
    """Bus bandwidth as nccl-tests counts it; None where a size was not recorded."""
    found: list[float | None] = []
    columns = (rows["collective"], rows["group_size"], rows["in_mb"], rows["out_mb"], time_us)
    for kind, size, sent, received, took in zip(*columns, strict=True):
        word = collective_word(kind)
        megabytes = received if word == "all_gather" else sent
        factor = bus_factor(word, size) if word is not None and isinstance(size, int | None) else None
        known = megabytes is not None and factor is not None and took > 0
        found.append(megabytes * BYTES_PER_MB * factor / took / GB_PER_S_IN_BYTES_PER_US if known else None)
    return found


def collective_rates(
    table: TraceTable, tree: OpTree, rows: RowColumn, duration_us: Floats
) -> tuple[Floats, Floats, Floats]:
    """Of these kernels of collectives, those alike together: GB/s of the bus (NaN: unknown), mean and summed us."""
    attributes, call = attributes_of_calls(table, tree, rows)
    keys = ("Collective name", "Group size", "dtype", "In msg nelems", "Out msg nelems")
    codes: dict[tuple[Any, ...], int] = {}
    code_of = [codes.setdefault(tuple(own.get(key) for key in keys), len(codes)) for own in attributes]
    group = np.array(code_of, np.int64)[call]
    total = np.bincount(group, duration_us, len(codes)).astype(np.float64)
    mean = total / np.maximum(np.bincount(group, minlength=len(codes)), 1)
    kinds, sizes, dtypes, sent, received = zip(*codes, strict=True)
    columns = {
        "collective": kinds, "group_size": sizes, "in_mb": list(map(message_mb, sent, dtypes)),
        "out_mb": list(map(message_mb, received, dtypes)),
    }  # fmt: skip
    return np.array(bus_gb_s(columns, mean.tolist()), np.float64), mean, total


def _size_and_source(table: TraceTable, kind: str, sent: int | None, received: int | None) -> tuple[int | None, str]:
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
    # Row that recorded each kernel's call: its own, else the nearest from its launch upwards; -1 without one.
    source: RowColumn = np.full(len(rows), -1, np.int32)
    searching, current = np.arange(len(rows)), rows
    while len(searching):
        code, which = np.unique(table.signature[current], return_inverse=True)
        says = np.array([table.signatures.signature("", c).attribute(_KIND) is not None for c in code.tolist()])[which]
        source[searching[says]] = current[says]
        upwards = (tree.launch if current is rows else tree.parent)[current[~says]]
        searching, current = searching[~says][upwards >= 0], upwards[upwards >= 0]
    above = np.where((source >= 0) & (source != rows), table.signature[source], -1)
    # What is read from the ops above is no kernel's but its own
    call = numbered(table.signature[rows], above, np.where(source < 0, rows, -1))
    first = first_of_each(call)
    found = []
    for row, says in zip(rows[first].tolist(), source[first].tolist(), strict=True):
        own = dict(table.signature_of(row).attributes)
        if says < 0:
            found.append(enclosing_attributes(table, calls_above(table, tree, row)) | own)
        else:
            found.append(dict(table.signature_of(says).attributes) | own)
    return found, call


#: Where a share comes from: what an op or a collective recorded.
SPLIT_SIZES, TOKEN_COUNTS = "split sizes", "token counts"
#: And of a model that says what leaves.
OF_MODEL = "its perf model"


class RemoteShare(Record, frozen=True, kw_only=True):
    """``share`` of the ``wire_bytes`` leaves the rank; ``source``: what was recorded, or what was assumed."""

    share: float
    source: str


def remote_share(
    model: EPComm, signature: OpSignature, *, rank: int | None, members: tuple[int, ...], ep_size: int | None
) -> RemoteShare | None:
    """The share for one exchange op of ``rank`` in the expert-parallel group ``members`` (() if not recorded).

    Recorded rows per rank, or per expert with the experts in order over the ranks, settle it. Otherwise (p-1)/p of
    the rows under even routing over p ranks: the op's own ``Group size``, else ``ep_size``; None without either. A
    model that knows its share has it in its bytes already.
    """
    if model.known_share is not None:
        return RemoteShare(share=1.0, source=OF_MODEL)
    counts, source = recorded_counts(signature)
    share = share_of_others(counts, rank, members)
    if share is not None:
        return RemoteShare(share=share, source=source)
    ranks = _recorded_size(signature) or ep_size
    return None if ranks is None else even_routing(ranks)


def ranks_of(signature: OpSignature, model: EPComm) -> int | None:
    """Ranks that one exchange op says it is between, or its model does."""
    return _recorded_size(signature) or model.ranks


def _recorded_size(signature: OpSignature) -> int | None:
    recorded = signature.attribute("Group size")
    return recorded if isinstance(recorded, int) and recorded > 0 else None


def even_routing(ranks: int) -> RemoteShare:
    """(p-1)/p, said to be an assumption."""
    return RemoteShare(share=(ranks - 1) / ranks, source=f"assumed: even routing over {ranks} ranks")


def all_to_all_share(attributes: Mapping[str, Any], rank: int | None) -> RemoteShare | None:
    """The share of an all-to-all with these recorded ``attributes``: by its split sizes, which are even where ``[]``.

    None where they, or the group's ranks with ``rank`` among them, were not recorded.
    """
    members = integers(attributes.get("Process Group Ranks")) or ()
    splits = split_sizes(attributes.get("In split size"))
    if splits is None:
        return None
    if splits == ():
        size = attributes.get("Group size")
        ranks = len(members) or (size if isinstance(size, int) else 0)
        return RemoteShare(share=(ranks - 1) / ranks, source="even split") if ranks else None
    share = share_of_others(splits, rank, members)
    return None if share is None else RemoteShare(share=share, source=SPLIT_SIZES)


def share_of_others(counts: Sequence[int] | None, rank: int | None, members: tuple[int, ...]) -> float | None:
    """Share of ``counts``, in order over ``members``, that is not ``rank``'s own; None where that cannot be said."""
    if not counts or rank not in members or len(counts) % len(members) or sum(counts) <= 0:
        return None
    each = len(counts) // len(members)
    at = members.index(rank) * each
    return 1 - sum(counts[at : at + each]) / sum(counts)


def recorded_counts(signature: OpSignature) -> tuple[tuple[int, ...] | None, str]:
    """Rows that an op recorded per rank or per expert, and as what: its split sizes, else its one list of integers."""
    if splits := integers(signature.attribute("In split size")):
        return splits, SPLIT_SIZES
    lists = [
        found
        for i, kind in enumerate(signature.dtypes or ())
        if kind == "ScalarList" and (found := integers(signature.literal(i))) and len(found) > 1
    ]
    return (lists[0], TOKEN_COUNTS) if len(lists) == 1 else (None, "")


def split_sizes(value: object) -> tuple[int, ...] | None:
    """Recorded split sizes; () for an even split, which is recorded as an empty list."""
    return () if value in ("[]", (), []) else integers(value)


def integers(value: object) -> tuple[int, ...] | None:
    """A list of ranks or counts, or its text; None for anything else, also for one cut short (``[0, 1, ...]``)."""
    value = parse_literal(value) if isinstance(value, str) else value
    if not isinstance(value, Sequence) or isinstance(value, str):
        return None
    return tuple(value) if value and all(isinstance(v, int) and 0 <= v < 2**63 for v in value) else None


_Rows = npt.NDArray[np.integer]
Lanes = npt.NDArray[np.int32]

#: Where the number of exchanged rows comes from.
RECORDED, OF_COMBINE, AS_GIVEN = "recorded", "rows of the layer's combine", "each token once: its copies are not known"
BY_MODEL = "bytes as its perf model counts them"
PADDED = "recorded: padded rows, or one per token and expert"


class Routed(Record, frozen=True, kw_only=True):
    """Means over calls: ``own`` tokens of the rank, ``rows`` of them with copies, ``sorted_rows`` one per expert."""

    own: float | None
    rows: float | None
    sorted_rows: float | None
    hidden: int | None
    topk: int | None
    experts: int | None
    is_padded: bool


class Layers:
    """Exchange ops joined into layers: by autograd's links, else a combine with the nearest dispatch before it."""

    def __init__(self, trace: Trace, rows: _Rows, models: Sequence[EPComm], model: _Rows) -> None:
        """``model``: which of the ``models`` each of these rows has."""
        is_dispatch = np.array([m.phase == DISPATCH for m in models], bool)
        is_combine = np.array([m.phase == COMBINE for m in models], bool)
        sorts = np.array([m.per_expert for m in models], bool)
        given = np.array([m.tokens for m in models], np.float64)
        own_tokens = _column(m.own_tokens for m in models)
        rows_moved = _column(m.rows for m in models)
        self._known = np.stack(
            [
                np.where(is_dispatch, given, own_tokens),
                np.where(is_combine & ~sorts, given, rows_moved),
                np.where(is_combine & sorts, given, np.nan),
                *(_column(getattr(m, name) for m in models) for name in ("hidden", "topk", "experts", "buffer_rows")),
            ]
        )[:, model]
        # Views of its lines
        self.own, self.rows, self.sorted_rows, self.hidden, self.topk, self.experts, self.buffer = self._known
        is_dispatch, is_combine = is_dispatch[model], is_combine[model]
        place: RowColumn = np.full(len(trace.table), -1, np.int32)
        place[rows] = np.arange(len(rows))
        forward = trace.tree.forward[rows]
        ahead = np.where(forward >= 0, place[forward], -1)
        linked = (ahead >= 0) & (is_dispatch != is_dispatch[ahead])
        self._spread(np.flatnonzero(linked), ahead[linked])
        lane = trace.table.lane[rows]
        order = np.lexsort((trace.table.start_ns[rows], lane))
        order = order[(is_dispatch | is_combine)[order]]
        self._join(self._join_next(order, is_dispatch, lane), is_dispatch, lane)
        self._spread(np.flatnonzero(linked), ahead[linked])
        self.rows[self.rows == self.buffer] = np.nan

    def _join_next(self, order: _Rows, is_dispatch: Bools, lane: Lanes) -> _Rows:
        """Joins dispatches with the combines that come right after them, again and again; what is left of ``order``."""
        while True:
            one, other = order[:-1], order[1:]
            fits = is_dispatch[one] & ~is_dispatch[other] & (lane[one] == lane[other]) & self._fit(one, other)
            if not fits.any():
                return order
            self._spread(one[fits], other[fits])
            order = order[~(np.append(fits, False) | np.append(False, fits))]

    def _join(self, order: _Rows, is_dispatch: Bools, lane: Lanes) -> None:
        waiting: dict[int, list[int]] = {}
        for at in order.tolist():
            calls = waiting.setdefault(int(lane[at]), [])
            if is_dispatch[at]:
                calls.append(at)
                continue
            fits = np.flatnonzero(self._fit(np.array(calls, np.int64), np.array([at])))
            if len(fits):
                self._spread(np.array([calls.pop(fits[-1])]), np.array([at]))

    def _fit(self, one: _Rows, other: _Rows) -> Bools:
        """Where nothing that is known of both differs."""
        a, b = self._known[:, one], self._known[:, other]
        return ((a == b) | np.isnan(a) | np.isnan(b)).all(axis=0)

    def _spread(self, one: _Rows, other: _Rows) -> None:
        for to, of in ((one, other), (other, one)):
            known = self._known[:, to]
            self._known[:, to] = np.where(np.isnan(known), self._known[:, of], known)

    def of_calls(self, at: _Rows) -> Routed:
        own, rows, sorted_rows = (_mean(column[at]) for column in (self.own, self.rows, self.sorted_rows))
        hidden, topk, experts = (_first(column[at]) for column in (self.hidden, self.topk, self.experts))
        return Routed(
            own=own, rows=rows, sorted_rows=sorted_rows, hidden=hidden, topk=topk, experts=experts,
            is_padded=rows is None and not np.isnan(self.buffer[at]).all(),
        )  # fmt: skip


def _column(values: Iterable[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _mean(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def _first(values: Floats) -> int | None:
    known = values[~np.isnan(values)]
    return int(known[0]) if len(known) else None


def with_rows(model: EPComm, routed: Routed, ranks: int | None, counts: tuple[int, ...] | None) -> tuple[EPComm, str]:
    """``model`` of a group of ``ranks`` with its layer's sizes and its rows, and where their number comes from.

    ``counts``: rows per rank or expert, where recorded; where they add up to the rows given, these are the copies.
    Where neither a router nor a group was recorded, nothing says that a combine's rows are copies of the tokens.
    """
    model = _with_sizes(model, routed, ranks)
    if model.counts_bytes:
        return model, BY_MODEL
    if model.phase == DISPATCH and counts and sum(counts) == model.tokens:
        return replace(model, rows=model.tokens), RECORDED
    is_padded = routed.is_padded or model.per_expert
    if model.rows is not None or (model.phase != DISPATCH and not is_padded):
        return model, RECORDED
    is_bare = ranks is None and model.topk is None and model.experts is None
    if routed.rows is not None and not is_bare:
        return replace(model, rows=routed.rows), OF_COMBINE
    return _evenly_routed(model, routed)


def _with_sizes(model: EPComm, routed: Routed, ranks: int | None) -> EPComm:
    model = replace(
        model, hidden=model.hidden or routed.hidden, topk=model.topk or routed.topk,
        experts=model.experts or routed.experts, ranks=ranks,
    )  # fmt: skip
    return replace(model, own_tokens=routed.own) if model.phase == COMBINE and model.own_tokens is None else model


def _evenly_routed(model: EPComm, routed: Routed) -> tuple[EPComm, str]:
    """With the copies that even routing makes, where the router is known."""
    own = model.tokens if model.phase == DISPATCH else model.own_tokens
    topk, source = model.topk, f"even routing: top-{model.topk}"
    if topk is None and routed.sorted_rows and own:
        topk = max(1, round(routed.sorted_rows / own))
        source = f"even routing: {routed.sorted_rows / own:.3g} experts per token"
    if own is None or not topk or not model.experts or not model.ranks or topk > model.experts:
        return model, AS_GIVEN if model.phase == DISPATCH else PADDED
    copies = float(distinct(model.ranks, model.experts, topk))
    return replace(model, rows=own * copies), f"{source} of {model.experts} experts over {model.ranks} ranks"


#: The share that leaves the rank is unknown: rates are of every row, which is at most what left.
EVERY_ROW = "every row: at most, the ranks were not recorded (--ep-size)"
NO_SIZE = "its tokens were not recorded (an FP8 pair), and no combine of the same layer says their size"

_PHASES: dict[str | None, Literal["dispatch", "combine"]] = {DISPATCH: "dispatch", COMBINE: "combine"}


class ExpertExchange(Record, frozen=True, kw_only=True):
    """One distinct exchange op: the bytes of all its rows, which share leaves the rank, and where both come from.

    ``deepep_us``: the time that DeepEP's kernels are estimated to take on this device's standard node; None where no
    measurement of them carries over, or where the router is not known.
    """

    exchanged_bytes: float | None
    copies: float | None
    rows_from: str
    share: RemoteShare
    deepep_us: float | None


def exchanges_of(
    trace: Trace, readings: OpReadings, ep_size: int | None, system: System | None
) -> tuple[OpReadings, Mapping[int, ExpertExchange]]:
    """``readings`` with what exchanges move, and code -> exchange; one of unknown token size loses its model."""
    codes = {code: r.model for code, r in enumerate(readings.readings) if isinstance(r.model, EPComm)}
    if not codes:
        return readings, {}
    groups, ep_size = expert_groups(trace.table), ep_size_of(trace.table, ep_size)
    members = groups[0].ranks if len(groups) == 1 else ()
    number: Codes = np.full(len(readings.readings), -1, np.int32)
    number[list(codes)] = np.arange(len(codes))
    model_of = number[readings.code]
    rows, model_of = readings.rows[model_of >= 0], model_of[model_of >= 0]
    layers = Layers(trace, rows, list(codes.values()), model_of)
    found: dict[int, ExpertExchange] = {}
    made: dict[int, Reading] = {}
    for each, model in codes.items():
        reading = readings.readings[each]
        routed = layers.of_calls(np.flatnonzero(model_of == number[each]))
        if model.hidden is None and routed.hidden is None:
            made[each] = replace(reading, model=None, note=NO_SIZE)
            continue
        signature = trace.table.signature_of(int(readings.example[each]))
        share = remote_share(model, signature, rank=trace.table.rank, members=members, ep_size=ep_size)
        ranks = ranks_of(signature, model) or ep_size
        if share is None and ranks is not None:
            share = even_routing(ranks)
        model, rows_from = with_rows(model, routed, ranks, recorded_counts(signature)[0])
        if share is None:
            model = replace(model, remote_share=None)
        elif model.known_share is None:
            model = replace(model, remote_share=share.share)
        made[each] = replace(reading, model=model)
        found[each] = ExpertExchange(
            exchanged_bytes=model.exchanged_bytes(), copies=model.copies, rows_from=rows_from,
            share=share or RemoteShare(share=float("nan"), source=EVERY_ROW),
            deepep_us=_deepep_us(model, signature.name, system),
        )  # fmt: skip
    return readings.with_readings(made), found


def _deepep_us(model: EPComm, name: str, system: System | None) -> float | None:
    """What DeepEP's own kernels are estimated to take, counts agreed on; None where that is not known."""
    if system is None or system.topology is None or not system.topology.ranks_per_node:
        return None
    from tracelens.backends.collective_times import exchange_us, fabric, notification_us  # not for workers

    shape = _shape(model, system.topology.ranks_per_node)
    if shape is None:
        return None
    try:
        fabric(system)
    except UsageError:
        return None
    if "low_latency" in name:
        return float(exchange_us(shape, "low_latency", system)[0])
    return float((exchange_us(shape, "normal", system) + notification_us(shape, system))[0])


def _shape(model: EPComm, ranks_per_node: int) -> Exchanges | None:
    """The exchange as DeepEP's kernels see it; None where they make no such, or not all of it is known."""
    phase, width = model.phase, None if model.dtype is None else model.dtype.width_bytes
    if phase not in _PHASES or model.per_expert or (phase == COMBINE and model.own_tokens is None):
        return None
    if not model.topk or not model.experts or not model.hidden or model.topk > model.experts:
        return None
    if width is None or model.ranks is None or model.ranks % ranks_per_node:
        return None
    return Exchanges(
        phase=_PHASES[phase],
        tokens=float(model.tokens if model.own_tokens is None else model.own_tokens),
        hidden=float(model.hidden), topk=float(model.topk), experts=float(model.experts),
        nodes=model.ranks / ranks_per_node,
        sms=float(DEFAULT_SMS), element_bytes=width + 4 / 128 if width == 1 else float(width),
    )  # fmt: skip
