"""One rank reduced to what a comparison needs: its distinct communication calls and step times, as columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import msgspec
import numpy as np

from tracelens.analysis.attribution.activity import DeviceActivity, Timeline, device_activity, gpu_timeline
from tracelens.analysis.attribution.calls import with_communicating_ops
from tracelens.analysis.attribution.steps import StepTimes, device_steps
from tracelens.analysis.intervals import Bools, Ints, covered_ns
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace, active_extensions
from tracelens.analysis.reading import process_groups
from tracelens.analysis.reading.catalog import COMMUNICATION, Catalog
from tracelens.analysis.reading.op_readings import read_ops
from tracelens.perf_models.collective import Collective, EPComm
from tracelens.trace.table import Kind, ProcessGroup, TraceTable
from tracelens.trace.tree import OpTree
from tracelens.types.dtypes import DType
from tracelens.types.records import Record
from tracelens.types.signature import OpSignature

#: Words of calls in which every rank may send something else to every other.
ALL_TO_ALL = ("all_to_all", "all_to_allv")

#: Words of point-to-point calls; each pairs with its counterpart, and pipelines are made of them.
POINT_TO_POINT = ("send", "recv")
#: The word of NCCL's SendRecv kernel where its call was not recorded.
SEND_RECV = "send_recv"
#: What a token exchange's kernel does when it moves no tokens but agrees on their counts.
NOTIFY = "notify"
GLOO = "gloo:"
# As in tracelens/perf_models/kernels.toml: the function of a DeepEP kernel, with or without its namespace.
_EXCHANGE = re.compile(r"(?i)(dispatch|combine)")
# Kernels of an exchange that move no tokens: they announce, plan, clear or wait.
_NOTIFIES = re.compile(r"notify|get_dispatch_layout|barrier|clean|device_sync")
# ncclDevKernel_AllReduce_Sum_f32_RING_LL, ncclKernel_SendRecv_..., rccl's as well; then custom all-reduces.
_NCCL_WORD = re.compile(r"nccl(?:Dev)?Kernel_([A-Za-z]+)")
_SPELLED = {"sendrecv": SEND_RECV, "allreduce": "all_reduce", "crossdevicereduce": "all_reduce"}


class CommunicationCall(Record, frozen=True, kw_only=True):
    """One distinct communication call of a rank. None is *not recorded*.

    ``word``: the plain name (``all_reduce``; of a token exchange's kernel ``dispatch``, ``combine``, ``notify``);
    ``name`` as recorded. ``is_exchange``: tokens between expert-parallel ranks. ``ranks``: the group, global.
    ``in_split``: elements to each rank of an all-to-all, () when even. ``peer``: the other rank of a send or receive.
    ``is_group_of_stream``: the group was not recorded and is that of the other calls of the stream.
    """

    word: str
    name: str
    is_exchange: bool = False
    group: str | None = None
    ranks: tuple[int, ...] | None = None
    size: int | None = None
    dtype: str | None = None
    elements_in: int | None = None
    elements_out: int | None = None
    in_bytes: float | None = None
    out_bytes: float | None = None
    in_split: tuple[int, ...] | None = None
    out_split: tuple[int, ...] | None = None
    peer: int | None = None
    stream: int = -1
    is_group_of_stream: bool = False


class ExchangeOp(Record, frozen=True, kw_only=True):
    """One distinct op that exchanges tokens, as its perf model and its layer say.

    ``tokens``: the rows that it was given. ``rows``: those that it exchanges, copies and those for the own rank
    included; ``rows_from`` says where their number comes from. ``ranks``: of the expert-parallel group. ``counts``:
    rows per rank where recorded. ``known_share``: what leaves the rank, where the perf model itself says so.
    """

    name: str
    tokens: int
    hidden: int | None
    rows: float
    rows_from: str
    exchanged_bytes: float | None
    ranks: int | None
    known_share: float | None
    counts: tuple[int, ...] | None = None
    counts_from: str = ""

    def remote_share(self, rank: int | None, members: tuple[int, ...]) -> process_groups.RemoteShare | None:
        """Share of the rows that leaves ``rank`` of the group ``members``: recorded, else that of even routing."""
        if self.known_share is not None:
            return process_groups.RemoteShare(share=self.known_share, source=process_groups.OF_MODEL)
        share = process_groups.share_of_others(self.counts, rank, members)
        if share is not None:
            return process_groups.RemoteShare(share=share, source=self.counts_from)
        ranks = self.ranks or len(members)
        return process_groups.even_routing(ranks) if ranks else None


class CallReader:
    """Reads each distinct communication call once."""

    def __init__(self, table: TraceTable, tree: OpTree, catalog: Catalog, groups: dict[str, ProcessGroup]) -> None:
        self._table, self._tree, self._catalog, self._groups = table, tree, catalog, groups
        self._known: dict[tuple[Any, ...], int] = {}
        self._op_of_row: dict[int, int] = {}
        self._exchange_models: dict[int, EPComm] = {}
        self.messages: list[CommunicationCall] = []
        self.message: list[int] = []
        self.op: list[int] = []
        self._exchanges: list[tuple[int, tuple[int, ...] | None]] = []

    def device_call(self, activity: DeviceActivity, i: int) -> None:
        row, op = int(activity.rows[i]), int(activity.op[i])
        collective = bool(activity.collective[i])
        above = self._exchange_above(op)
        stream = int(activity.stream[i])
        signature = -1 if op < 0 else (int(self._table.name[op]), int(self._table.signature[op]))
        calls = process_groups.calls_above(self._table, self._tree, row) if collective else ()
        key = (int(activity.name[i]), int(self._table.signature[row]), signature, calls, above >= 0, stream)
        message = self._add(key, lambda: self._read(activity, i, collective=collective, stream=stream))
        if above >= 0 and ("op", above) not in self._known:
            self._known["op", above] = len(self._exchanges)
            self._exchanges.append((above, message.in_split or None))
        self.op.append(self._known.get(("op", above), -1))

    def _add(self, key: tuple[Any, ...], read: Callable[[], CommunicationCall]) -> CommunicationCall:
        """Notes one call more of those that are alike in ``key``; the first of them is read."""
        if key not in self._known:
            self._known[key] = len(self.messages)
            self.messages.append(read())
        self.message.append(self._known[key])
        return self.messages[self._known[key]]

    def gloo_call(self, row: int) -> None:
        """Gloo works on host threads, and its slices say shapes but not the group: known where there is only one."""
        signature = self._table.signature_of(row)
        self._add(("gloo", signature), lambda: self._read_gloo(signature))
        self.op.append(-1)

    def _read_gloo(self, signature: OpSignature) -> CommunicationCall:
        group = next(iter(self._groups.values())) if len(self._groups) == 1 else None
        name = signature.name.removeprefix(GLOO)
        shape = signature.shapes[0] if signature.shapes else ()
        elements = prod(shape) if shape and all(isinstance(n, int) for n in shape) else None
        size = len(group.ranks) or None if group else None
        times = size if name == "all_gather" else 1
        return communication_call(
            name=name, group=group.name if group else None, ranks=group.ranks or None if group else None,
            size=size, dtype=signature.dtype_text(0), elements_in=elements,
            elements_out=None if elements is None or times is None else elements * times, stream=-1,
        )  # fmt: skip

    def is_point_to_point(self, calls: int) -> Bools:
        """Which of the first ``calls`` calls are sends or receives."""
        words = np.array([m.word in POINT_TO_POINT for m in self.messages] or [False], bool)
        return words[np.array(self.message[:calls], np.int64)]

    def _read(self, activity: DeviceActivity, i: int, *, collective: bool, stream: int) -> CommunicationCall:
        kernel = self._table.names[int(activity.name[i])]
        if not collective:
            model = self._model(int(activity.op[i]))
            if isinstance(model, Collective):
                return communication_call(
                    name=model.kind, size=model.ranks, dtype=model.dtype.label if model.dtype else None,
                    elements_in=model.elements_in, elements_out=model.elements_out, stream=stream,
                )  # fmt: skip
            if "reduce" not in kernel and "gather" not in kernel:
                found = _EXCHANGE.findall(kernel)
                word = NOTIFY if _NOTIFIES.search(kernel) else str(found[-1]).lower() if found else "exchange"
                return CommunicationCall(word=word, name=kernel, is_exchange=True, stream=stream)
        attributes = process_groups.recorded_attributes(self._table, self._tree, int(activity.rows[i]))
        name = attributes.get("Collective name")
        ranks = process_groups.integers(attributes.get("Process Group Ranks"))
        group = attributes.get("Process Group Name")
        recorded = self._groups.get(str(group)) if group is not None else None
        word = _word_of_kernel(kernel)
        return communication_call(
            name=name if isinstance(name, str) else word,
            group=None if group is None else str(group),
            ranks=recorded.ranks if recorded is not None and recorded.ranks else ranks,
            size=_int(attributes.get("Group size")),
            dtype=attributes["dtype"] if isinstance(attributes.get("dtype"), str) else None,
            elements_in=_int(attributes.get("In msg nelems")),
            elements_out=_int(attributes.get("Out msg nelems")),
            in_split=process_groups.split_sizes(attributes.get("In split size")),
            out_split=process_groups.split_sizes(attributes.get("Out split size")),
            peer=_int(attributes.get("Dst Rank", attributes.get("Src Rank"))),
            stream=stream,
        )

    def _model(self, op: int) -> object:
        return self._catalog.read(self._table.signature_of(op)).model if op >= 0 else None

    def _exchange_above(self, op: int) -> int:
        """The nearest op at or above that exchanges tokens, -1: none."""
        seen = []
        found = -1
        while op >= 0:
            if op in self._op_of_row:
                found = self._op_of_row[op]
                break
            seen.append(op)
            if isinstance(model := self._model(op), EPComm):
                self._exchange_models[op] = model
                found = op
                break
            op = int(self._tree.op_parent[op])
        for row in seen:
            self._op_of_row[row] = found
        return found

    def exchange_ops(self, trace: Trace, ep_size: int | None) -> tuple[tuple[ExchangeOp, ...], Ints]:
        """The distinct exchange ops of all calls that were read, and which of them each call is."""
        if not self._exchanges:
            return (), np.zeros(0, np.int64)
        rows = np.array([row for row, _ in self._exchanges], np.int64)
        models = [self._exchange_models[row] for row in rows.tolist()]
        layers = process_groups.Layers(trace, rows, models, np.arange(len(rows)))
        ep_size = process_groups.ep_size_of(trace.table, ep_size)
        codes: dict[ExchangeOp, int] = {}
        kinds = np.zeros(len(rows), np.int64)
        known: dict[tuple[OpSignature, tuple[int, ...] | None, process_groups.Routed], int] = {}
        for at, (row, split) in enumerate(self._exchanges):
            signature, routed = self._table.signature_of(row), layers.of_calls(np.array([at]))
            key = (signature, split, routed)
            if key not in known:
                model = self._exchange_models[row]
                counts, source = process_groups.recorded_counts(signature)
                if split and source != process_groups.SPLIT_SIZES:
                    counts, source = split, process_groups.SPLIT_SIZES
                whole, rows_from = process_groups.with_rows(
                    model, routed, process_groups.ranks_of(signature, model) or ep_size, counts
                )
                op = ExchangeOp(
                    name=signature.name,
                    tokens=model.tokens,
                    hidden=whole.hidden,
                    rows=float(whole.tokens if whole.rows is None else whole.rows),
                    rows_from=rows_from,
                    exchanged_bytes=whole.exchanged_bytes(),
                    ranks=whole.ranks,
                    known_share=model.known_share,
                    counts=counts,
                    counts_from=source,
                )
                known[key] = codes.setdefault(op, len(codes))
            kinds[at] = known[key]
        return tuple(codes), kinds


def communication_call(*, name: str, dtype: str | None, **recorded: Any) -> CommunicationCall:
    """With the word, the group's size and the bytes that what was ``recorded`` makes known."""
    message = CommunicationCall(word=name, name=name, dtype=dtype, **recorded)
    # NCCL's one kernel for sends, receives and all-to-alls says which only by its recorded call
    plain = None if name == SEND_RECV else process_groups.collective_word(name)
    word = plain or name
    if plain == "all_to_all" and name.strip("_").lower().endswith("v"):
        word = "all_to_allv"
    parsed = DType.parse(dtype)
    width = None if parsed is None else parsed.width_bytes
    sent, received = message.elements_in, message.elements_out
    return replace(
        message,
        word=word,
        size=message.size if message.size is not None else len(message.ranks or ()) or None,
        in_bytes=None if width is None or sent is None else sent * width,
        out_bytes=None if width is None or received is None else received * width,
    )


def _word_of_kernel(kernel: str) -> str:
    found = _NCCL_WORD.search(kernel)
    text = (found[1] if found else "").lower() or ("allreduce" if "reduce" in kernel.lower() else "unknown")
    return _SPELLED.get(text) or process_groups.collective_word(text) or text


def _int(value: object) -> int | None:
    if isinstance(value, str) and value.strip().lstrip("-").isdecimal():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


#: How far a logged call has come: handed to its stream, begun on the device, ended.
ENQUEUED, STARTED, DONE = 0, 1, 2


def _none() -> Ints:
    return np.zeros(0, np.int64)


class JobLog(Record, frozen=True, kw_only=True, eq=False):
    """What a process logged of its collectives without a profiler (``job_logs``), those that have not ended as well.

    ``members``: (rank, ranks) in each communicator, of files that say no other rank. Columns over all calls in their
    order: ``group`` (into ``groups``, whose calls all ranks number alike; -1: sends and receives), ``sequence``,
    ``message``, ``state``. ``timed``: which of them the calls of the summary are. ``called_at``: by group, the lines of
    code that made the last call.
    """

    kind: str
    process: str = ""
    version: str = ""
    members: Mapping[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    called_at: Mapping[str, str] = msgspec.field(default_factory=dict)
    groups: tuple[str, ...] = ()
    group: Ints = msgspec.field(default_factory=_none)
    sequence: Ints = msgspec.field(default_factory=_none)
    message: Ints = msgspec.field(default_factory=_none)
    state: Ints = msgspec.field(default_factory=_none)
    timed: Ints = msgspec.field(default_factory=_none)


#: Keys under which a trace names its machine.
_HOST_KEYS = ("host_name", "hostname", "hostName")


class RankSummary(Record, frozen=True, kw_only=True, eq=False):
    """One trace, reduced. Times are whole ns: ``baseTimeNanoseconds`` plus the file's own, not yet clock-corrected.

    Call columns, by start: ``start``, ``end``, ``message`` (into ``messages``), ``step`` (its number, -1 outside),
    ``exposed`` (ns without computation), ``op`` (which call of an exchange op it is part of, -1: none). Exchange calls:
    ``op_kind`` (into ``ops``). ``hidden``: ns of each message's calls that ran beside each of ``categories``.
    Step columns: ``step_number``, ``step_start``, ``step_end``, ``step_compute``, and exposed time: ``step_p2p`` (sends
    and receives), ``step_comm`` (other communication), ``step_copies``; without steps one row, number -1.
    ``begins_ns``: the first event of the file. ``log``: of a file of collectives alone; its calls' durations are
    measured, but when each ended is known roughly, and nothing of computation.
    """

    source: str
    rank: int | None
    world_size: int | None
    host: str | None
    device: int | None
    events: int
    notes: tuple[str, ...] = ()
    groups: tuple[ProcessGroup, ...]
    expert_group: ProcessGroup | None = None
    messages: tuple[CommunicationCall, ...]
    ops: tuple[ExchangeOp, ...] = ()
    categories: tuple[str, ...] = ()
    start: Ints
    end: Ints
    message: Ints
    step: Ints
    exposed: Ints
    op: Ints
    op_kind: Ints = msgspec.field(default_factory=_none)
    hidden: Ints
    step_number: Ints = msgspec.field(default_factory=_none)
    step_start: Ints = msgspec.field(default_factory=_none)
    step_end: Ints = msgspec.field(default_factory=_none)
    step_compute: Ints = msgspec.field(default_factory=_none)
    step_p2p: Ints = msgspec.field(default_factory=_none)
    step_comm: Ints = msgspec.field(default_factory=_none)
    step_copies: Ints = msgspec.field(default_factory=_none)
    begins_ns: int
    timeline: Timeline
    log: JobLog | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        columns = (getattr(self, name) for name in self.__struct_fields__)
        return sum(column.nbytes for column in columns if isinstance(column, np.ndarray))


def ranks_text(ranks: Iterable[int], *, most: int = 12) -> str:
    """``0-3, 7, 9-11``; the ranges beyond ``most`` are counted.

    >>> ranks_text([0, 1, 2, 7])
    '0-2, 7'
    """
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in runs[:most]]
    return ", ".join(shown) + (f" and {len(runs) - most} more ranges" if len(runs) > most else "")


def summarize_rank(trace: Trace, options: AnalysisOptions) -> RankSummary:
    """The summary of a loaded trace, also of one without GPU work or without communication."""
    table = trace.table
    catalog = Catalog(active_extensions(table.names, options))
    activity = _activity(trace, catalog)
    _, times, step_of = device_steps(trace.table, trace.tree, activity.rows)
    members = {group.name: group for group in table.process_groups()}
    reader = CallReader(table, trace.tree, catalog, members)

    index = np.flatnonzero(activity.communication)
    index = index[np.lexsort((activity.end[index], activity.start[index]))]
    for i in index.tolist():
        reader.device_call(activity, i)
    start, end = activity.start[index], activity.end[index]
    numbers = np.array([*(s.number for s in times.steps), -1], np.int64)
    step = numbers[step_of[index]]
    gloo = table.is_named([code for code, name in enumerate(table.names) if name.startswith(GLOO)])
    rows = np.flatnonzero(gloo & (table.kind == Kind.USER_ANNOTATION))
    if len(rows):
        rows = rows[np.lexsort((table.duration_ns[rows], table.start_ns[rows]))]
        for row in rows.tolist():
            reader.gloo_call(row)
        at = table.start_ns[rows]
        start, end = np.concatenate((start, at)), np.concatenate((end, at + table.duration_ns[rows]))
        starts = np.array([s.start_ns for s in times.steps], np.int64)
        inside = np.searchsorted(starts, at, side="right") - 1
        step = np.concatenate((step, numbers[inside]))
    compute = ~activity.communication & ~activity.memcpy
    message, op = np.array(reader.message, np.int64), np.array(reader.op, np.int64)
    ops, op_kind = reader.exchange_ops(trace, options.ep_size)
    categories, hidden = _hidden(activity, compute, start, end, message, len(reader.messages))
    devices = np.unique(table.device[activity.rows])
    devices = devices[devices >= 0]
    base = table.base_ns
    order = np.lexsort((end, start))
    return RankSummary(
        source=table.source,
        rank=table.rank,
        world_size=table.world_size,
        host=next((v for key in _HOST_KEYS if isinstance(v := table.metadata.get(key), str) and v), None),
        device=int(devices[0]) if len(devices) == 1 else None,
        events=table.events_total,
        notes=table.losses.notes,
        groups=table.process_groups(),
        expert_group=next(iter(process_groups.expert_groups(table)), None),
        messages=tuple(reader.messages),
        ops=ops,
        categories=categories,
        start=(start + base)[order],
        end=(end + base)[order],
        message=message[order],
        step=step[order],
        exposed=(end - start - covered_ns(activity.start[compute], activity.end[compute], start, end))[order],
        op=op[order],
        op_kind=op_kind,
        hidden=hidden,
        begins_ns=base + (int(table.start_ns.min()) if len(table) else 0),
        timeline=gpu_timeline(activity),
        **_step_columns(activity, times, reader.is_point_to_point(len(index)), index, base),
    )


def _activity(trace: Trace, catalog: Catalog) -> DeviceActivity:
    """Device events; ops are read only where one that communicates was recorded."""
    table, activity = trace.table, device_activity(trace.table, trace.tree, catalog.kernel_patterns)
    ops = np.unique(table.name[table.kind == Kind.CPU_OP]).tolist()
    says_op = (table.kind == Kind.KERNEL) & (table.signature[:] >= 0) & (table.sequence_number[:] >= 0)
    if not says_op.any() and not any(catalog.category_of(table.names[code]) in COMMUNICATION for code in ops):
        return activity
    return with_communicating_ops(activity, *read_ops(trace, catalog, activity))


def _hidden(
    activity: DeviceActivity, compute: Bools, start: Ints, end: Ints, message: Ints, messages: int
) -> tuple[tuple[str, ...], Ints]:
    categories = tuple(sorted(set(activity.category[compute].tolist())))
    hidden = np.zeros((messages, len(categories)), np.int64)
    for column, name in enumerate(categories):
        of_category = compute & activity.category.are(name)
        covered = covered_ns(activity.start[of_category], activity.end[of_category], start, end)
        np.add.at(hidden[:, column], message, covered)
    return categories, hidden


def _step_columns(
    activity: DeviceActivity, times: StepTimes, point_to_point: Bools, calls: Ints, base: int
) -> dict[str, Any]:
    if len(times):
        number = np.array([s.number for s in times.steps], np.int64)
        start, end = times.start_ns, times.end_ns
    elif len(activity):
        number = np.array([-1], np.int64)
        start, end = activity.start.min(keepdims=True), activity.end.max(keepdims=True)
    else:
        number = start = end = np.zeros(0, np.int64)
    p2p = np.zeros(len(activity), bool)
    p2p[calls[point_to_point]] = True
    compute = ~activity.communication & ~activity.memcpy
    covered, so_far = [], compute
    for more in (np.zeros(len(activity), bool), activity.communication & ~p2p, p2p, activity.memcpy):
        so_far = so_far | more
        covered.append(covered_ns(activity.start[so_far], activity.end[so_far], start, end))
    return {
        "step_number": number,
        "step_start": start + base,
        "step_end": end + base,
        "step_compute": covered[0],
        "step_comm": covered[1] - covered[0],
        "step_p2p": covered[2] - covered[1],
        "step_copies": covered[3] - covered[2],
    }
