"""What a job leaves without a profiler: the collectives of each process as NCCL's Inspector plugin or PyTorch's flight
recorder wrote them. Both say how long a collective took on a rank and which one it was, but not precisely when.

Inspector: JSON lines of NCCL's ``plugins/profiler/inspector``, output formats v4.0 to v4.3. Flight recorder: version 2
of the dump (PyTorch 2.5 to 2.13), as JSON or as the pickle ``nccl_trace_rank_N``.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

import msgspec
import numpy as np
import pandas as pd

from tracelens.analysis.attribution.activity import Timeline
from tracelens.analysis.intervals import Ints
from tracelens.analysis.ranks.matching import EVEN, SYNCHRONIZING, Clocks, HostClock, JobCalls
from tracelens.analysis.ranks.rank_summary import (
    DONE,
    ENQUEUED,
    POINT_TO_POINT,
    STARTED,
    CommunicationCall,
    JobLog,
    RankSummary,
    communication_call,
    ranks_text,
)
from tracelens.analysis.reading.process_groups import bus_gb_s
from tracelens.analysis.sheets.priced_calls import sorted_by
from tracelens.errors import InputError
from tracelens.files.memory_limit import MemoryLimit
from tracelens.perf_models.collective import bus_factor
from tracelens.trace.reading.read import FLIGHT_RECORDER, INSPECTOR, Frame, allocated_at, job_log
from tracelens.trace.reading.source import Source
from tracelens.trace.table import RANK_IN_NAME, ProcessGroup
from tracelens.types.units import BYTES_PER_MB, NS_PER_US, counted

_NS_PER_MS = 1_000_000
#: Whole numbers that fit a column, and durations of less than a month.
Whole: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
Micros: TypeAlias = Annotated[float, msgspec.Meta(ge=0, lt=2.6e12)]
Millis: TypeAlias = Annotated[float, msgspec.Meta(ge=0, lt=2.6e9)]


def read_job_log(path: Path) -> tuple[RankSummary, ...]:
    """The ranks that a file of either kind holds. InputError, in one sentence, for one that is damaged."""
    with Source.opened(path, limit=MemoryLimit.of_gb(None)) as source:
        kind, content = job_log(source.start), source.whole()
    return tuple(_inspected(path.name, content)) if kind == INSPECTOR else (_recorded(path.name, content),)


def logged_tables(path: Path) -> tuple[RankSummary, dict[str, pd.DataFrame]]:
    """(the rank, of SQL's tables those that its log answers: ``collectives`` and ``traces``)."""
    ((_, summary), *others) = placed([(path, each) for each in read_job_log(path)])
    if others:
        raise InputError(f"{path.name} holds {len(others) + 1} ranks: a lake takes a file of each")
    took = (summary.end - summary.start) / NS_PER_US
    grouped = pd.Series(took, dtype=float).groupby(summary.message)
    rows = grouped.agg(["sum", "mean", "std", "min", "max"]).add_prefix("duration_us_")
    messages = [summary.messages[code] for code in rows.index.tolist()]
    fields = {"collective": "name", "group_name": "group", "group_size": "size", "dtype": "dtype",
              "in_nelems": "elements_in", "out_nelems": "elements_out"}  # fmt: skip
    for key, field in fields.items():
        rows[key] = pd.Series([getattr(message, field) for message in messages], rows.index, object)
    for side in ("in", "out"):
        nbytes = [getattr(message, f"{side}_bytes") for message in messages]
        rows[f"{side}_mb"] = pd.Series([b and b / BYTES_PER_MB for b in nbytes], rows.index, object)
    rows["operation_count"] = grouped.size()
    rows["effective_bus_gb_s"] = bus_gb_s(rows, rows["duration_us_mean"])
    rows["effective_bus_gb_s_shortest"] = bus_gb_s(rows, rows["duration_us_min"])
    span_us = float(summary.end.max() - summary.start.min()) / NS_PER_US if len(took) else None
    began = str(np.datetime64(summary.begins_ns // NS_PER_US, "us")) if summary.begins_ns else None
    about = pd.DataFrame({"began": [began], "span_us": [span_us], "events": [summary.events]})
    return summary, {"collectives": sorted_by(rows, "duration_us_sum"), "traces": about}


class _Header(msgspec.Struct, gc=False):
    id: str
    rank: Whole
    n_ranks: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    comm_name: str = ""


class _Metadata(msgspec.Struct, gc=False):
    dump_timestamp_us: Whole
    inspector_output_format_version: str = ""
    hostname: str = ""
    pid: int = 0


class _Channel(msgspec.Struct, gc=False):
    kernel_stop_ts: Whole = 0


class _Trace(msgspec.Struct, gc=False):
    kernel_events: list[_Channel] = []


def _named_after(kind: str) -> Callable[[str], str]:
    """The names of the fields of a call in a file: ``coll``, ``coll_sn``; ``p2p``, ``p2p_sn``."""
    return lambda field: kind if field == "name" else field if field == "event_trace_ts" else f"{kind}_{field}"


class _CollectivePerf(msgspec.Struct, gc=False, rename=_named_after("coll")):
    name: str
    sn: Whole
    msg_size_bytes: Whole
    exec_time_us: Micros
    timing_source: str = ""
    algobw_gbs: float | None = None
    busbw_gbs: float | None = None
    event_trace_ts: _Trace = msgspec.field(default_factory=_Trace)


class _PairPerf(msgspec.Struct, gc=False, rename=_named_after("p2p")):
    name: str
    sn: Whole
    peer: int
    msg_size_bytes: Whole
    exec_time_us: Micros
    timing_source: str = ""
    event_trace_ts: _Trace = msgspec.field(default_factory=_Trace)


class _Dropped(msgspec.Struct, gc=False):
    coll_dropped_since_last_dump: Whole = 0
    p2p_dropped_since_last_dump: Whole = 0


class _Line(msgspec.Struct, gc=False):
    """One line of Inspector's: a call, or the statistics of a dump, which from v4.3 on alone say whose calls follow."""

    header: _Header | None = None
    metadata: _Metadata | None = None
    coll_perf: _CollectivePerf | None = None
    p2p_perf: _PairPerf | None = None
    dump_stats: _Dropped | None = None


class _Call(msgspec.Struct, gc=False):
    """One call of a process. ``sequence`` counts the calls of ``group`` that all its ranks number alike, else -1.
    ``duration_ns``: None where it was not measured; ``end_ns``: about when it ended, unless ``is_end_known`` says that
    this is when it was written.
    """

    message: CommunicationCall
    sequenced_in: str
    sequence: int
    state: int
    duration_ns: int | None
    end_ns: int
    is_end_known: bool = True


#: Inspector's names of what moves bytes as it counts them: (word, whose message is the sum over ranks: in, out).
_INSPECTED = {
    "AllReduce": ("all_reduce", 0, 0), "AllGather": ("all_gather", 0, 1), "ReduceScatter": ("reduce_scatter", 1, 0),
    "Broadcast": ("broadcast", 0, 0), "Reduce": ("reduce", 0, 0), "Send": ("send", 0, 0), "Recv": ("recv", 0, 0),
}  # fmt: skip
#: Factor of bus over algorithm bandwidth in Inspector's own sums, and what it rounds to.
_ROUNDED_GB_S = 1e-6


def _lines(name: str, content: bytes) -> Iterator[tuple[_Header, _Metadata, _Line]]:
    """Lines, and whose calls they are. A last one that was cut off, where the process was killed, is left out."""
    decoder = msgspec.json.Decoder(_Line)
    context: tuple[_Header, _Metadata] | None = None
    texts = content.split(b"\n")
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            line = decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if number == len(texts) and number > 1:
                return
            raise InputError(f"{name}, line {number}: not a record of NCCL Inspector ({error})") from error
        whose = context if line.header is None or line.metadata is None else (line.header, line.metadata)
        if whose is None:
            raise InputError(f"{name}, line {number}: a call without a header, and none before it says whose")
        if line.dump_stats is not None:
            context = whose
        yield *whose, line


_NOTES = {
    "dropped": "{} calls were dropped: a larger NCCL_INSPECTOR_DUMP_COLL_RING_SIZE keeps them",
    "enqueued": "{} calls were timed by their enqueueing alone, which is no duration",
    "left_out": "{} records of other communicators of a process with several ranks are left out",
    "wrong": "of {} calls Inspector's bandwidth is not its size over its time: its rates are not used",
}


_UNORDERED = (
    "calls of several communicators are in no common order: a rank that is late because it waited in another one is "
    "not told apart; NCCL_INSPECTOR_DUMP_VERBOSE=1 records when calls ended"
)


def _inspected(name: str, content: bytes) -> Iterator[RankSummary]:
    """A process may drive several ranks, and a file may hold several processes."""
    calls: defaultdict[tuple[str, int, int], list[_Call]] = defaultdict(list)
    members: defaultdict[tuple[str, int, int], dict[str, tuple[int, int]]] = defaultdict(dict)
    version, counts = "", Counter[str]()
    read = list(_lines(name, content))
    widest = _several_ranks(read)
    for header, metadata, line in read:
        process = (metadata.hostname, metadata.pid)
        if widest.get(process, header.id) != header.id:
            counts["left_out"] += 1
            continue
        key = (*process, header.rank if process in widest else -1)
        version = max(version, metadata.inspector_output_format_version)
        members[key][header.id] = (header.rank, header.n_ranks)
        if (stats := line.dump_stats) is not None:
            counts["dropped"] += stats.coll_dropped_since_last_dump + stats.p2p_dropped_since_last_dump
        elif (call := _inspected_call(header, metadata, line)) is not None:
            calls[key].append(call)
            counts["enqueued"] += call.duration_ns is None
            counts["wrong"] += not _adds_up(header, line)
    if not calls:
        raise InputError(f"{name} is NCCL Inspector's output without a call: it records those of 8 KB or more")
    notes = tuple(text.format(f"{counts[key]:,}") for key, text in _NOTES.items() if counts[key])
    for process_rank, own in calls.items():
        is_unordered = len(members[process_rank]) > 1 and not all(call.is_end_known for call in own)
        log = JobLog(kind=INSPECTOR, version=version, process=f"{process_rank[0]}:{process_rank[1]}",
                     members=members[process_rank], notes=(*notes, *[_UNORDERED] * is_unordered))  # fmt: skip
        yield _summary(name, own, log, rank=None, host=process_rank[0] or None)


def _several_ranks(lines: Iterable[tuple[_Header, _Metadata, _Line]]) -> dict[tuple[str, int], str]:
    """By process that drives several ranks its widest communicator: nothing links the ranks of different ones."""
    groups: defaultdict[tuple[str, int], defaultdict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for header, metadata, _ in lines:
        groups[metadata.hostname, metadata.pid][header.id].add(header.rank)
    return {process: max(own, key=lambda name: len(own[name])) for process, own in groups.items()
            if any(len(ranks) > 1 for ranks in own.values())}  # fmt: skip


def _inspected_call(header: _Header, metadata: _Metadata, line: _Line) -> _Call | None:
    own = line.coll_perf or line.p2p_perf
    if own is None:
        return None
    named = f"{header.comm_name} " if header.comm_name not in ("", "unknown") else ""
    group = f"{named}{header.id}"
    name, size, took_us = own.name, own.msg_size_bytes, own.exec_time_us
    known = _INSPECTED.get(name)
    word, sum_in, sum_out = known or (communication_call(name=name, dtype=None).word, 0, 0)
    message = CommunicationCall(
        word=word, name=name, group=group, size=header.n_ranks,
        peer=max(own.peer, -1) if isinstance(own, _PairPerf) else None,
        in_bytes=float(size * (header.n_ranks if sum_in else 1)) if known else None,
        out_bytes=float(size * (header.n_ranks if sum_out else 1)) if known else None,
    )  # fmt: skip
    stop_us = max((channel.kernel_stop_ts for channel in own.event_trace_ts.kernel_events), default=0)
    return _Call(
        message=message,
        # NCCL numbers the calls of each collective by themselves
        sequenced_in="" if word in POINT_TO_POINT else f"{name} of {group}",
        sequence=own.sn,
        state=DONE,
        duration_ns=None if own.timing_source == "collective_cpu" or not took_us else round(took_us * NS_PER_US),
        end_ns=int((stop_us or metadata.dump_timestamp_us) * NS_PER_US),
        is_end_known=stop_us > 0,
    )


def _adds_up(header: _Header, line: _Line) -> bool:
    """Whether the file's own rates are what its sizes and times say (``inspectorComputeOpBw`` of inspector.cc)."""
    own = line.coll_perf
    if own is None or own.name not in _INSPECTED or own.algobw_gbs is None or not own.exec_time_us:
        return True
    word, *sums = _INSPECTED[own.name]
    algo = own.msg_size_bytes * (header.n_ranks if any(sums) else 1) / own.exec_time_us / 1e3
    factor = bus_factor(word, header.n_ranks) or 1.0
    bus = algo * factor if own.busbw_gbs is None else own.busbw_gbs
    return all(
        math.isclose(ours, theirs, rel_tol=1e-3, abs_tol=_ROUNDED_GB_S)
        for ours, theirs in ((algo, own.algobw_gbs), (algo * factor, bus))
    )


class _Entry(msgspec.Struct, gc=False):
    profiling_name: str
    collective_seq_id: Whole
    record_id: Whole = 0
    process_group: tuple[str, str] = ("", "")
    is_p2p: bool = False
    time_created_ns: Whole = 0
    duration_ms: Millis | None = None
    input_sizes: list[list[Whole]] = []
    output_sizes: list[list[Whole]] = []
    input_dtypes: list[str] = []
    state: str = ""
    retired: bool = False
    time_discovered_completed_ns: Whole | None = None
    frames: list[Frame] = []


class _Group(msgspec.Struct, gc=False):
    name: str = ""
    desc: str = ""
    ranks: str | list[Whole] = ""


class _Dump(msgspec.Struct, gc=False):
    version: str
    pg_config: dict[str, _Group] = {}
    entries: list[_Entry] = []


#: Those of dictionaries, lists, tuples, texts and numbers.
_OPCODES = (
    "PROTO", "FRAME", "STOP", "MARK", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "LIST", "TUPLE", "TUPLE1", "TUPLE2",
    "TUPLE3", "APPEND", "APPENDS", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT",
    "BINUNICODE", "SHORT_BINUNICODE", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT", "MEMOIZE",
)  # fmt: skip
#: The unpickler in Python: a forged number makes the one in C take all memory.
_InPython: Any = pickle._Unpickler


class PlainUnpickler(_InPython):  # type: ignore[misc]
    """Any other opcode, those that import or call above all, is unknown to it: nothing in a file can run. Keys are
    texts or numbers: to hash deeply nested ones would overflow the stack.
    """

    def _set_items(self) -> None:
        self._update(self.pop_mark())

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._update([key, value])

    def _update(self, items: list[Any]) -> None:
        target, keys = self.stack[-1], items[::2]
        if type(target) is not dict or any(type(key) not in (str, int) for key in keys):
            raise pickle.UnpicklingError("a key of a dictionary that no dump has")
        target.update(zip(keys, items[1::2], strict=True))

    dispatch: ClassVar[dict[int, Any]] = {
        **{code: _InPython.dispatch[code] for code in (getattr(pickle, name)[0] for name in _OPCODES)},
        pickle.SETITEMS[0]: _set_items,
        pickle.SETITEM[0]: _set_item,
    }


_NO_DUMP = (
    pickle.UnpicklingError, EOFError, IndexError, AttributeError, TypeError, ValueError, struct.error, RecursionError,
)  # fmt: skip


def _decoded(name: str, content: bytes) -> _Dump:
    try:
        if content[:1] == b"\x80":
            return msgspec.convert(PlainUnpickler(io.BytesIO(content)).load(), _Dump)
        return msgspec.json.decode(content, type=_Dump)
    except KeyError as error:
        what = f"its pickle asks for opcode {error}, which a dump does not need and which is not carried out"
    except _NO_DUMP as error:
        what = str(error) or type(error).__name__
    raise InputError(f"{name} is a flight recorder's dump, but damaged ({what}): dump it again")


_INTEGER = re.compile(r"\d{1,9}")
_TRAILING = re.compile(r"(\d{1,6})(?:\.\w+)?$")


def _recorded(name: str, content: bytes) -> RankSummary:
    dump = _decoded(name, content)
    if not dump.version.startswith("2."):
        raise InputError(f"{name} is a flight recorder's dump of version {dump.version[:20]!r}, known are those of 2.")
    groups = _groups(dump)
    rank = next((int(text) for text in (*reversed(RANK_IN_NAME.findall(name)), *_TRAILING.findall(name))), None)
    calls, last = [], {}
    entries = sorted(dump.entries, key=lambda entry: entry.record_id)
    untimed = 0
    for entry in entries:
        calls.append(call := _recorded_call(entry, groups))
        untimed += call.state == DONE and call.duration_ns is None
        last[call.sequenced_in] = allocated_at(entry.frames) if entry.frames else ""
    notes: tuple[str, ...] = ()
    if untimed:
        which = "no call has" if untimed == len(calls) else f"{untimed:,} of {len(calls):,} calls lack"
        notes = (f"{which} a duration: TORCH_NCCL_ENABLE_TIMING=1 records them, and with them who was late",)
    elif not calls:
        notes = ("a dump holds no call: TORCH_FR_BUFFER_SIZE=2000 keeps as many",)
    log = JobLog(kind=FLIGHT_RECORDER, version=dump.version, notes=notes, called_at=last)
    return _summary(name, calls, log, rank=rank, groups=tuple(groups.values()))


def _groups(dump: _Dump) -> dict[str, ProcessGroup]:
    """By the name that calls use; gloo configures its one group without a name."""
    found = {}
    named = {entry.process_group[0] for entry in dump.entries}
    for key, group in dump.pg_config.items():
        name = group.name or key
        if len(dump.pg_config) == len(named) == 1:
            (name,) = named
        whole = _INTEGER.findall(group.ranks) if isinstance(group.ranks, str) else group.ranks
        found[name] = ProcessGroup(name=name, ranks=tuple(int(each) for each in whole), description=group.desc)
    return found


def _recorded_call(entry: _Entry, groups: Mapping[str, ProcessGroup]) -> _Call:
    kind, _, between = entry.profiling_name.partition(":")[2].partition(" ")
    group = entry.process_group[0]
    ranks = groups[group].ranks if group in groups else ()
    ends = [int(each) for each in _INTEGER.findall(between)]
    message = communication_call(
        name=kind, group=group, ranks=ranks or None,
        # "send 0->1", "recv 1<-0", in ranks of the group: the other one stands last
        peer=ranks[ends[-1]] if len(ends) == 2 and ends[-1] < len(ranks) else None,
        dtype=entry.input_dtypes[0] if len(set(entry.input_dtypes)) == 1 else None,
        elements_in=_elements(entry.input_sizes), elements_out=_elements(entry.output_sizes),
    )  # fmt: skip
    state = DONE if entry.state == "completed" or entry.retired else STARTED if entry.state == "started" else ENQUEUED
    took_ns = round((entry.duration_ms or 0) * _NS_PER_MS) if state == DONE else 0
    return _Call(
        message=message,
        sequenced_in="" if entry.is_p2p or message.word in POINT_TO_POINT else group,
        sequence=entry.collective_seq_id,
        state=state,
        duration_ns=took_ns or None,
        # No sooner than this: when PyTorch noticed its end is known to 100 ms
        end_ns=entry.time_created_ns + took_ns,
    )


def _elements(sizes: Sequence[Sequence[int]]) -> int | None:
    return sum(math.prod(shape) for shape in sizes) if sizes else None


def _summary(
    name: str, calls: Sequence[_Call], log: JobLog, *, rank: int | None, host: str | None = None,
    groups: tuple[ProcessGroup, ...] = (),
) -> RankSummary:  # fmt: skip
    codes: dict[CommunicationCall, int] = {}
    labels: dict[str, int] = {}
    message = np.array([codes.setdefault(call.message, len(codes)) for call in calls], np.int64)
    group = np.array(
        [labels.setdefault(c.sequenced_in, len(labels)) if c.sequenced_in else -1 for c in calls], np.int64
    )
    sequence = np.array([call.sequence for call in calls], np.int64)
    rows = np.array([i for i, call in enumerate(calls) if call.duration_ns is not None], np.int64)
    end = np.array([calls[i].end_ns for i in rows.tolist()], np.int64)
    start = end - np.array([calls[i].duration_ns for i in rows.tolist()], np.int64)
    order = np.argsort(end, kind="stable")
    rows, start, end = rows[order], start[order], end[order]
    nothing = np.full(len(rows), -1, np.int64)
    sizes = [len(g.ranks) for g in groups] + [size for _, size in log.members.values()]
    return RankSummary(
        source=name, rank=rank, world_size=max(sizes, default=None), host=host, device=None, events=len(calls),
        groups=groups, messages=tuple(codes), start=start, end=end, message=message[rows], step=nothing,
        exposed=end - start, op=nothing, hidden=np.zeros((len(codes), 0), np.int64),
        begins_ns=int(start.min()) if len(start) else 0,
        timeline=Timeline(total_ns=0, computation_ns=0, exposed_comm_ns=0, exposed_memcpy_ns=0, total_comm_ns=0,
                          total_memcpy_ns=0, start_ns=0),
        log=replace(
            log, groups=tuple(labels), group=group, sequence=sequence, message=message,
            state=np.array([call.state for call in calls], np.int64), timed=rows,
        ),
    )  # fmt: skip


def placed(summaries: Sequence[tuple[Path, RankSummary]]) -> list[tuple[Path, RankSummary]]:
    """Inspector's files with the ranks of the job: those of the communicator that all of them are in, else numbered by
    host and process. What they say of peers and members is in ranks of a communicator until here.
    """
    logs = [log for _, summary in summaries if (log := summary.log) is not None and log.members]
    if not logs:
        return list(summaries)
    ranks, size = _job_ranks(logs)
    note = () if size else ("no communicator holds all processes: ranks are numbered by host and process",)
    rank_of = {id(log): rank for log, rank in zip(logs, ranks, strict=True)}
    members: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for log in logs:
        for name, (own, _) in log.members.items():
            members[name][own] = rank_of[id(log)]
    found = []
    for path, summary in summaries:
        log = summary.log
        if log is not None and id(log) in rank_of:
            summary = _with_rank(summary, rank_of[id(log)], members)
            summary = replace(summary, log=replace(log, notes=(*log.notes, *note)), world_size=size)
        found.append((path, summary))
    return found


def _job_ranks(logs: Sequence[JobLog]) -> tuple[list[int], int | None]:
    """(a rank for each, how many the job has); None where no communicator says so."""
    common = frozenset.intersection(*(frozenset(log.members) for log in logs))
    if common:
        world = max(sorted(common), key=lambda name: logs[0].members[name][1])
        ranks = [log.members[world][0] for log in logs]
        if len(set(ranks)) == len(ranks):
            return ranks, logs[0].members[world][1]
    order = sorted(logs, key=lambda log: [(part.zfill(12), part) for part in re.split(r"(\d+)", log.process)])
    place = {id(log): at for at, log in enumerate(order)}
    return [place[id(log)] for log in logs], None


def _with_rank(summary: RankSummary, rank: int, members: Mapping[str, Mapping[int, int]]) -> RankSummary:
    def job_ranks(name: str, size: int | None) -> tuple[int, ...] | None:
        whole = set(members[name]) == set(range(size or 0))
        return tuple(members[name][each] for each in sorted(members[name])) if whole else None

    messages = []
    for message in summary.messages:
        name = str(message.group).rpartition(" ")[2]
        peer = None if message.peer is None else members[name].get(message.peer)
        messages.append(replace(message, ranks=job_ranks(name, message.size), peer=peer))
    return replace(summary, rank=rank, messages=tuple(messages))


#: Why ranks of logs need no clocks.
BY_DURATIONS = "durations alone: a collective ends on all ranks at once"


def ended_together(calls: JobCalls, ranks: Mapping[int, RankSummary]) -> tuple[JobCalls, Clocks]:
    """The calls with times that their durations imply: those of a collective that no rank can leave before all have
    come end at one moment, so who was shorter in it came later, whatever the clocks. Others begin at one moment, as
    nothing says who waited. Collectives follow each other as they ended, about, and never overlap on a rank.
    """
    start, end = calls.start.copy(), calls.end.copy()
    took = end - start
    rows = np.flatnonzero(calls.instance >= 0)
    rows = rows[np.argsort(calls.instance[rows], kind="stable")]
    at = np.searchsorted(calls.instance[rows], np.arange(calls.instances + 1))
    about = np.array([int(np.median(end[rows[a:b]])) for a, b in pairwise(at.tolist())], np.int64)
    for channel in range(len(calls.channels)):
        mine = calls.channel_of == channel
        about[mine] = np.maximum.accumulate(about[mine])
    waits = np.array([m.word in SYNCHRONIZING for m in calls.messages] or [False], bool)
    free = np.full(len(calls.ranks), np.iinfo(np.int64).min // 2)
    for i in np.argsort(about, kind="stable").tolist():
        own = rows[at[i] : at[i + 1]]
        rank = calls.rank[own]
        until = max(int(about[i]), int((free[rank] + took[own]).max()))
        end[own] = until if waits[calls.message[own]].all() else until - took[own].max() + took[own]
        start[own] = end[own] - took[own]
        free[rank] = end[own]
    clock = HostClock(host="any", ranks=tuple(ranks))
    return replace(calls, start=start, end=end), Clocks(hosts=(clock,), how=BY_DURATIONS)


def unended(ranks: Mapping[int, RankSummary]) -> list[dict[str, Any]]:
    """By group the first call that differs between ranks and the first unended one; then unended sends and receives."""
    groups: defaultdict[tuple[str, tuple[int, ...]], dict[int, _Sequence]] = defaultdict(dict)
    for rank, summary in sorted(ranks.items()):
        if (log := summary.log) is None:
            continue
        members = {group.name: group.ranks for group in summary.groups}
        for code, label in enumerate(log.groups):
            mine = np.flatnonzero(log.group == code)
            if len(mine):
                groups[label, members.get(label, ())][rank] = _Sequence(label, log, mine, summary.messages)
    stuck: dict[int, list[str]] = defaultdict(list)
    found = []
    for (label, expected), own in groups.items():
        if (row := _first_difference(label, own)) is not None:
            found.append(row)
        if (open_call := _first_unended(label, expected, own)) is not None:
            found.append(open_call)
            for rank in open_call["_waiting"]:
                stuck[rank].append(f"{open_call['collective']} {open_call['sequence']} of {open_call['group_name']}")
    for row in found:
        if "_waiting" in row:
            row["text"] += _elsewhere(row, stuck, groups)
    return found + list(_unended_pairs(ranks))


class _Sequence:
    """One rank's calls of a group by number: which message each is, and how far it has come."""

    def __init__(self, label: str, log: JobLog, rows: Ints, messages: Sequence[CommunicationCall]) -> None:
        self.called_at, self.messages = log.called_at.get(label, ""), messages
        numbers, message, state = (column[rows] for column in (log.sequence, log.message, log.state))
        self.first, self.last = int(numbers.min()), int(numbers.max())
        self.message = dict(zip(numbers[::-1].tolist(), message[::-1].tolist(), strict=True))
        # Of calls that share a number the one that is furthest behind counts
        behind = np.argsort(-state, kind="stable")
        self.state = dict(zip(numbers[behind].tolist(), state[behind].tolist(), strict=True))
        self.behind = int(numbers[state != DONE].min()) if (state != DONE).any() else None

    def call(self, number: int) -> CommunicationCall:
        return self.messages[self.message[number]]


def _shown(message: CommunicationCall) -> str:
    """``all_reduce of 4.19 MB (Float)``."""
    size = "" if message.in_bytes is None else f" of {message.in_bytes / BYTES_PER_MB:,.4g} MB"
    return f"{message.name}{size}{f' ({message.dtype})' if message.dtype else ''}"


def _alike(message: CommunicationCall) -> tuple[object, ...]:
    """What must be the same on all ranks; sizes of a collective that may be uneven need not."""
    if message.word not in EVEN - {"all_to_all"} or re.search(r"_v(?:_|$)|coalesced", message.name):
        return (message.word,)
    return (message.word, message.dtype, message.in_bytes, message.out_bytes)


def _first_difference(label: str, own: Mapping[int, _Sequence]) -> dict[str, Any] | None:
    # What a buffer has lost of one rank is not looked for
    first = max(each.first for each in own.values())
    for number in sorted({number for each in own.values() for number in each.message if number >= first}):
        calls = {rank: each.call(number) for rank, each in own.items() if number in each.message}
        kinds = Counter(_alike(call) for call in calls.values())
        if len(kinds) > 1:
            texts = []
            for kind, _ in kinds.most_common():
                of_kind = [rank for rank, call in calls.items() if _alike(call) == kind]
                texts.append(f"{_ranks(of_kind)} {_shown(calls[of_kind[0]])}")
            few = [rank for rank, call in calls.items() if _alike(call) != kinds.most_common(1)[0][0]]
            return {
                "group_name": label, "sequence": number, "collective": calls[few[0]].name, "problem": "differs",
                "ranks": ranks_text(few), "text": f"call {number} of group {label!r} differs: {', '.join(texts)}",
            }  # fmt: skip
    return None


def _first_unended(label: str, members: tuple[int, ...], own: Mapping[int, _Sequence]) -> dict[str, Any] | None:
    number = min((each.behind for each in own.values() if each.behind is not None), default=None)
    if number is None:
        return None
    state = {rank: each.state[number] for rank, each in own.items() if number in each.state}
    waiting = [rank for rank, how in state.items() if how != DONE]
    lacking = [rank for rank, each in own.items() if each.last < number]
    call = own[waiting[0]].call(number)
    said = _open_call({rank: state[rank] for rank in waiting}, lacking, [rank for rank in members if rank not in own])
    return {
        "group_name": label, "sequence": number, "collective": call.name,
        "problem": "not called" if lacking else "not ended", "ranks": ranks_text(lacking or waiting),
        "text": f"call {number} of group {label!r} has not ended, {_shown(call)}: {', '.join(said)}",
        "_waiting": waiting, "_lacking": lacking,
    }  # fmt: skip


def _open_call(waiting: Mapping[int, int], lacking: Sequence[int], absent: Sequence[int]) -> Iterator[str]:
    """Where each rank is. Without timing nothing says that a call has begun."""
    begun = [rank for rank, state in waiting.items() if state == STARTED]
    later = [rank for rank in waiting if rank not in begun]
    if begun:
        yield f"{_ranks(begun)} {_verb(begun, 'waits', 'wait')} in it"
    if later:
        has = _verb(later, "has", "have")
        yield f"{_ranks(later)} {has} enqueued it{', its device not begun it' * bool(begun)}"
    if lacking:
        yield f"{_ranks(lacking)} {_verb(lacking, 'has', 'have')} not called it"
    if absent:
        yield f"there is no log of {_ranks(absent)}"
    if not lacking and not absent and not (begun and later):
        yield "no rank is missing: its transfer does not end, or the dumps caught it under way"


def _elsewhere(
    row: Mapping[str, Any], stuck: Mapping[int, Sequence[str]],
    groups: Mapping[tuple[str, tuple[int, ...]], Mapping[int, _Sequence]],
) -> str:  # fmt: skip
    """What the ranks that lack a call do instead: wait in another, or their last one in the group."""
    said = ""
    for rank in row["_lacking"][:3]:
        if stuck.get(rank):
            said += f"; rank {rank} itself waits in {stuck[rank][0]}"
            continue
        own = next(ranks[rank] for (label, _), ranks in groups.items() if label == row["group_name"] and rank in ranks)
        place = f", at {own.called_at}" if own.called_at else ""
        last = f"{own.last} ({own.call(own.last).name}{place})"
        said += f"; rank {rank} waits in no other group, its last call here is {last}"
    return said


def _unended_pairs(ranks: Mapping[int, RankSummary]) -> Iterator[dict[str, Any]]:
    for rank, summary in sorted(ranks.items()):
        if (log := summary.log) is None:
            continue
        for row in np.flatnonzero((log.group < 0) & (log.state != DONE))[:1].tolist():
            message, number = summary.messages[int(log.message[row])], int(log.sequence[row])
            how = "waits in" if log.state[row] == STARTED else "has enqueued"
            peer = "" if message.peer is None else f" {'to' if message.word == 'send' else 'from'} rank {message.peer}"
            yield {
                "group_name": message.group, "sequence": number, "collective": message.name, "problem": "not ended",
                "ranks": ranks_text([rank]), "text": f"rank {rank} {how} {_shown(message)}{peer}, which has not ended",
            }  # fmt: skip


def _ranks(ranks: Iterable[int]) -> str:
    few = sorted(ranks)
    return f"{'rank' if len(few) == 1 else 'ranks'} {ranks_text(few)}"


def _verb(ranks: Sequence[int], one: str, many: str) -> str:
    return one if len(ranks) == 1 else many


def said_of_logs(ranks: Mapping[int, RankSummary]) -> Iterator[str]:
    """What has to be said of the files themselves, each sentence once with how many ranks it is of."""
    logs = [summary.log for summary in ranks.values() if summary.log is not None]
    for text, count in Counter(note for log in logs for note in log.notes).items():
        yield text if count == len(ranks) else f"{text} ({counted(count, 'rank')})"
    kinds = " and ".join(sorted({log.kind for log in logs}))
    yield (
        f"{kinds}: waits come from durations, as a collective ends on all ranks at once; those in broadcasts, sends "
        "and receives are not told, computation and steps are not known"
    )
