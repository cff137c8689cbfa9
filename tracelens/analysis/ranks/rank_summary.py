"""What one rank brings to a comparison of ranks: its communication calls and step times, as a few small columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity, Timeline, device_activity, gpu_timeline
from tracelens.analysis.attribution.calls import with_communicating_ops
from tracelens.analysis.attribution.steps import StepTimes, device_steps
from tracelens.analysis.intervals import Ints, covered_ns
from tracelens.analysis.loaded_trace import Options, Trace, active_extensions
from tracelens.analysis.ranks.messages import GLOO, CallReader, ExchangeOp, Message
from tracelens.analysis.reading.catalog import COMMUNICATION, Catalog
from tracelens.analysis.reading.op_readings import read_ops
from tracelens.analysis.reading.recorded_groups import expert_groups
from tracelens.lazy.records import dataclass
from tracelens.trace.table import Kind, ProcessGroup, TraceTable

Bools = npt.NDArray[np.bool_]

#: Keys under which a trace names its machine.
_HOST_KEYS = ("host_name", "hostname", "hostName")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankSummary:
    """One trace, reduced. Times are whole ns: ``baseTimeNanoseconds`` plus the file's own, not yet clock-corrected.

    Call columns, by start: ``start``, ``end``, ``message`` (into ``messages``), ``step`` (its number, -1 outside),
    ``exposed`` (ns without computation), ``op`` (which call of an exchange op it is part of, -1: none). Exchange calls:
    ``op_kind`` (into ``ops``). ``hidden``: ns of each message's calls that ran beside each of ``categories``.
    Step columns: ``step_number``, ``step_start``, ``step_end``, ``step_compute``, and exposed time: ``step_p2p`` (sends
    and receives), ``step_comm`` (other communication), ``step_copies``; without steps one row, number -1.
    ``begins_ns``: the first event of the file.
    """

    source: str
    rank: int | None
    world_size: int | None
    host: str | None
    device: int | None
    events: int
    notes: tuple[str, ...]
    groups: tuple[ProcessGroup, ...]
    expert_group: ProcessGroup | None
    messages: tuple[Message, ...]
    ops: tuple[ExchangeOp, ...]
    categories: tuple[str, ...]
    start: Ints
    end: Ints
    message: Ints
    step: Ints
    exposed: Ints
    op: Ints
    op_kind: Ints
    hidden: Ints
    step_number: Ints
    step_start: Ints
    step_end: Ints
    step_compute: Ints
    step_p2p: Ints
    step_comm: Ints
    step_copies: Ints
    begins_ns: int
    timeline: Timeline

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        columns = (getattr(self, name) for name in self.__slots__)
        return sum(column.nbytes for column in columns if isinstance(column, np.ndarray))


def summarize_rank(trace: Trace, options: Options) -> RankSummary:
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
    rows = _gloo_rows(table)
    if len(rows):
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
    base = table.base_ns
    order = np.lexsort((end, start))
    return RankSummary(
        source=table.source,
        rank=table.rank,
        world_size=table.world_size,
        host=_host(table),
        device=_device(table, activity),
        events=table.events_total,
        notes=table.losses.notes,
        groups=table.process_groups(),
        expert_group=next(iter(expert_groups(table)), None),
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
    if not any(catalog.category_of(table.names[code]) in COMMUNICATION for code in ops):
        return activity
    return with_communicating_ops(activity, trace.tree, read_ops(trace, catalog, activity)[2])


def _gloo_rows(table: TraceTable) -> Ints:
    codes = [code for code, name in enumerate(table.names) if name.startswith(GLOO)]
    rows = np.flatnonzero(table.is_named(codes) & (table.kind == Kind.USER_ANNOTATION))
    return rows[np.lexsort((table.duration_ns[rows], table.start_ns[rows]))].astype(np.int64)


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
) -> dict[str, Ints]:
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


def _host(table: TraceTable) -> str | None:
    return next((v for key in _HOST_KEYS if isinstance(v := table.metadata.get(key), str) and v), None)


def _device(table: TraceTable, activity: DeviceActivity) -> int | None:
    devices = np.unique(table.device[activity.rows])
    devices = devices[devices >= 0]
    return int(devices[0]) if len(devices) == 1 else None
