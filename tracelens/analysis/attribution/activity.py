"""Device events: their class, launching op and step, overlap and concurrency, and how the device's time divides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracelens.analysis.grouping import Codes, distinct_rows, first_of_each, numbered
from tracelens.analysis.intervals import Bools, Floats, Ints, Spans, union_by_group, union_ns
from tracelens.analysis.reading.catalog import OTHER
from tracelens.perf_models.kernels import KernelPattern, classify, copy_path
from tracelens.trace.narrow_columns import narrowed
from tracelens.trace.table import DEVICE_KINDS, Kind, RowColumn, TraceTable
from tracelens.trace.tree import OpTree
from tracelens.types.records import Record, pd
from tracelens.types.units import NS_PER_US


class Labels(Record, frozen=True, eq=False):
    """A text per event: ``code`` indexes ``texts``, which are distinct and in order."""

    code: Codes
    texts: tuple[str, ...]

    @classmethod
    def of(cls, code: npt.NDArray[np.integer], texts: Sequence[str]) -> Labels:
        """From codes into texts that may repeat."""
        distinct = tuple(sorted(set(texts)))
        place = {text: number for number, text in enumerate(distinct)}
        renumbered = np.array([place[text] for text in texts] or [0], np.int32)
        return cls(narrowed(renumbered)[code], distinct)

    def __getitem__(self, at: Bools | npt.NDArray[np.integer] | slice) -> Labels:
        """Those of the events where ``at`` is true, or at these positions."""
        return Labels(self.code[at], self.texts)

    def are(self, text: str) -> Bools:
        """Which events have this one."""
        return self.code == (self.texts.index(text) if text in self.texts else -1)

    def tolist(self) -> list[str]:
        return [self.texts[code] for code in self.code.tolist()]


class DeviceActivity(Record, frozen=True, kw_only=True):
    """Columns over the device events that a report covers, in file order.

    ``op``: table row of the launching op, -1 when unlinked; the device event itself, the first of its call, where that
    is recorded as the op. ``communication``, ``memcpy``: the timeline's classes;
    ``collective``: NCCL/RCCL kernels, which have their own sheets and stay out of op rows. ``host_copy``,
    ``peer_copy``: copies between the device and the host, or another device; ``rearranges``: kernels that only lay out
    operands of others. ``category``: what the kernel's name alone says, ``other`` when nothing. ``gap_before``: how
    long (ns) its stream had been idle when the event started, -1 for the first event of a stream.
    """

    rows: RowColumn
    start: Ints
    end: Ints
    op: RowColumn
    name: Codes
    stream: Codes
    communication: Bools
    memcpy: Bools
    collective: Bools
    host_copy: Bools
    peer_copy: Bools
    rearranges: Bools
    gap_before: npt.NDArray[np.integer]
    category: Labels

    @property
    def duration(self) -> Ints:
        return self.end - self.start

    @property
    def between_memories(self) -> Bools:
        """Which events are copies between the device and the host or another device."""
        return self.host_copy | self.peer_copy

    def duration_us(self, at: npt.NDArray[np.integer] | slice = slice(None)) -> npt.NDArray[np.float64]:
        """Durations of the events at these positions."""
        return (self.end[at] - self.start[at]) / NS_PER_US

    def __len__(self) -> int:
        return len(self.rows)

    def of_ops(self) -> RowColumn:
        """Positions of the events that count for the op that launched them: linked ones, collectives left out."""
        return np.flatnonzero((self.op >= 0) & ~self.collective).astype(np.int32)

    def select(self, mask: Bools | Ints) -> DeviceActivity:
        """The events where ``mask`` is true, or at these positions; of events that follow each other, views."""
        if mask.dtype == np.bool_ and mask.any():
            first, last = int(mask.argmax()), len(mask) - int(mask[::-1].argmax())
            if mask[first:last].all():
                return self._at(slice(first, last))
        return self._at(mask)

    def _at(self, at: Bools | Ints | slice) -> DeviceActivity:
        return DeviceActivity(**{key: getattr(self, key)[at] for key in self.__struct_fields__})


def device_activity(table: TraceTable, tree: OpTree, patterns: tuple[KernelPattern, ...]) -> DeviceActivity:
    """All device events of a trace; kernel names are classified once per distinct name."""
    rows = table.rows_of(DEVICE_KINDS)
    name = narrowed(table.name[rows])
    codes, inverse = np.unique(name, return_inverse=True)
    names = [table.names[code] for code in codes.tolist()]
    found, paths = classify(names, patterns), [copy_path(name) for name in names]

    def of_name(values: Iterable[bool]) -> Bools:
        return np.fromiter(values, bool, len(names))[inverse]

    def says(key: str) -> Bools:
        return of_name(getattr(pattern, key, False) for pattern in found)

    kind = table.kind[rows]
    start = table.start_ns[rows]
    end = start + table.duration_ns[rows]
    stream = narrowed(table.stream[rows])
    return DeviceActivity(
        rows=rows,
        start=start,
        end=end,
        op=_ops(table, tree, rows),
        name=name,
        stream=stream,
        communication=says("communication"),
        memcpy=says("memcpy") | (kind == Kind.MEMCPY),
        collective=says("collective"),
        host_copy=of_name(p is not None and p.host_memory is not None for p in paths) & (kind == Kind.MEMCPY),
        peer_copy=of_name(p is not None and p.host_memory is None for p in paths) & (kind == Kind.MEMCPY),
        rearranges=says("rearranges"),
        gap_before=_gap_before(table.device[rows], stream, start, end),
        category=Labels.of(inverse, [OTHER if p is None else p.category for p in found]),
    )


def _ops(table: TraceTable, tree: OpTree, rows: RowColumn) -> RowColumn:
    """The launching ops. Events that say themselves which call of an op they are (XLA's) but were not launched by that
    op (a graph's, a TPU's) are of the op that launched others of their call, else of the first event of the call.
    """
    op, signature, call = tree.op[rows], table.signature[rows], table.sequence_number[rows]
    known = np.flatnonzero((signature >= 0) & (call >= 0))
    if not len(known):
        return op
    launched = (op[known] >= 0) & (table.signature[op[known]] == signature[known])
    code = numbered(table.device[rows[known]], call[known])
    of_call = rows[known][first_of_each(code)]
    of_call[code[launched]] = op[known][launched]
    op[known[~launched]] = of_call[code[~launched]]
    return op


def streams_of(table: TraceTable, activity: DeviceActivity) -> tuple[Ints, Codes]:
    """((device, stream) per distinct stream, which of them each event ran on)."""
    device = table.device[activity.rows]
    lane = numbered(device, activity.stream)
    first = first_of_each(lane)
    return np.stack((device[first], activity.stream[first]), axis=1).astype(np.int64), lane


def _gap_before(device: npt.NDArray[np.int32], stream: Codes, start: Ints, end: Ints) -> npt.NDArray[np.integer]:
    gap = np.full(len(start), -1, np.int64)
    order = np.lexsort((end, start, stream, device))
    fresh = np.concatenate(([True], (np.diff(stream[order]) != 0) | (np.diff(device[order]) != 0)))[: len(order)]
    for part in np.split(order, np.flatnonzero(fresh)[1:]):
        if len(part) > 1:
            free_at = np.maximum.accumulate(end[part])[:-1]
            gap[part[1:]] = np.maximum(start[part[1:]] - free_at, 0)
    return narrowed(gap)


class StreamOverlaps(Record, frozen=True, kw_only=True):
    """Events that end after the next of their stream began and before it ended. ``time_ns``: by how much in all.

    ``events`` are their positions, ``ends`` where the next one began; ``clipped``: whether they are made to end there.
    An event that lies in another as a whole is no overlap of this kind: it is concurrent on purpose, and stays.
    """

    events: Ints
    ends: Ints
    time_ns: int
    clipped: bool

    @property
    def count(self) -> int:
        return len(self.events)


def stream_overlaps(table: TraceTable, activity: DeviceActivity, *, clip: bool) -> StreamOverlaps:
    """The overlaps of all streams. Events without a recorded stream are left out."""
    lane = table.lane[activity.rows]
    order = np.lexsort((activity.end, activity.start, activity.stream, lane))
    order = order[activity.stream[order] >= 0]
    one, following = order[:-1], order[1:]
    same = (lane[one] == lane[following]) & (activity.stream[one] == activity.stream[following])
    partial = same & (activity.end[one] > activity.start[following]) & (activity.end[one] < activity.end[following])
    # Two that begin together have no order: cutting the first would leave nothing of it.
    partial &= activity.start[one] < activity.start[following]
    early, cut = one[partial], activity.start[following[partial]]
    return StreamOverlaps(events=early, ends=cut, time_ns=int((activity.end[early] - cut).sum()), clipped=clip)


def with_clipped(activity: DeviceActivity, overlaps: StreamOverlaps) -> DeviceActivity:
    """The activity with each overlapping event ended where the next of its stream begins, if that was asked for."""
    if not overlaps.clipped:
        return activity
    end = activity.end.copy()
    end[overlaps.events] = overlaps.ends
    return replace(activity, end=end)


def devices_of(activity: DeviceActivity, table: TraceTable) -> tuple[Codes, list[str]]:
    """(the device of each event, the names of the devices): a process of the file each."""
    names = sorted({str(table.lanes[lane][0]) for lane in distinct_rows(table.lane[activity.rows], len(table.lanes))})
    place = {name: number for number, name in enumerate(names)}
    of_lane = np.array([place.get(str(pid), -1) for pid, _ in table.lanes], np.int32)
    return of_lane[table.lane[activity.rows]], names


def at_a_time(activity: DeviceActivity, table: TraceTable, group: npt.NDArray[np.integer], groups: int) -> Floats:
    """Of each group its summed durations over the time in which one of it at least ran, on each device by itself; 1 of
    a group without events. Events of group -1 are in none.

    A rate over summed durations, times this, is a rate over the time that they took.
    """
    device, _ = devices_of(activity, table)
    mine = np.flatnonzero((group >= 0) & (activity.end > activity.start))
    start, end, of = activity.start[mine], activity.end[mine], group[mine].astype(np.int64)
    took = np.bincount(of, end - start, groups)
    part = numbered(of, device[mine])
    first = first_of_each(part)
    busy = union_by_group(part, start, end, len(first))
    busy_of_all = np.bincount(of[first], busy, groups)
    return np.divide(took, busy_of_all, out=np.ones(groups), where=busy_of_all > 0)


class Timeline(Record, frozen=True, kw_only=True):
    """Interval unions in ns. computation + exposed_comm + exposed_memcpy + idle = total, exactly.

    Communication is what runs NCCL, RCCL, DeepEP or custom collective kernels; memcpy is copies; computation is the
    rest, memset included. Time in which several ran counts for the first of computation, communication, memcpy.
    ``start_ns``: where the window begins, in the trace's own clock. ``left_out``: (start, end) of what is not counted.
    """

    total_ns: int
    computation_ns: int
    exposed_comm_ns: int
    exposed_memcpy_ns: int
    total_comm_ns: int
    total_memcpy_ns: int
    start_ns: int
    left_out: tuple[tuple[int, int], ...] = ()

    @property
    def busy_ns(self) -> int:
        return self.computation_ns + self.exposed_comm_ns + self.exposed_memcpy_ns

    @property
    def window(self) -> tuple[int, int]:
        """(start, end) in ns, with what is left out."""
        return self.start_ns, self.start_ns + self.total_ns + sum(end - start for start, end in self.left_out)

    @property
    def spans(self) -> Spans:
        """The window without what is left out."""
        first, last = self.window
        opens = np.array([first, *(end for _, end in self.left_out)], np.int64)
        closes = np.array([*(start for start, _ in self.left_out), last], np.int64)
        kept = closes > opens
        return (opens[kept], closes[kept]) if kept.any() else (opens[:1], opens[:1])

    @property
    def idle_ns(self) -> int:
        return self.total_ns - self.busy_ns

    def frame(self) -> pd.DataFrame:
        """Rows as in the ``gpu_timeline`` sheet: type, time_us, percent_of_window."""
        parts = ("computation", "exposed_comm", "exposed_memcpy", "busy", "idle", "total", "total_comm", "total_memcpy")
        times: list[int] = [getattr(self, f"{part}_ns") for part in parts]
        return pd.DataFrame(
            {
                "type": [f"{part}_time" for part in parts],
                "time_us": [ns / NS_PER_US for ns in times],
                "percent_of_window": [100 * ns / self.total_ns if self.total_ns else 0.0 for ns in times],
            }
        )


def gpu_timeline(activity: DeviceActivity, span_ns: tuple[int, int] | None = None) -> Timeline:
    """``span_ns``: (start, end) of the window when it is wider than the events in it, else their own span."""
    start, end = activity.start, activity.end
    comm, copies = activity.communication, activity.memcpy & ~activity.communication
    compute = ~(comm | copies)

    def union(mask: Bools) -> int:
        return union_ns(start[mask], end[mask])

    computation = union(compute)
    with_comm = union(compute | comm)
    busy = union_ns(start, end)
    first = int(start.min()) if len(activity) else 0
    last = int(end.max()) if len(activity) else 0
    if span_ns is not None:
        first, last = min(first, span_ns[0]) if len(activity) else span_ns[0], max(last, span_ns[1])
    return Timeline(
        total_ns=last - first,
        computation_ns=computation,
        exposed_comm_ns=with_comm - computation,
        exposed_memcpy_ns=busy - with_comm,
        total_comm_ns=union(comm),
        total_memcpy_ns=union(copies),
        start_ns=first,
    )


def timeline_of(activity: DeviceActivity, window: tuple[int, int], left_out: Spans) -> Timeline:
    """The timeline of a window without the spans left out of it: what ran outside of it does not count."""
    first, last = window
    pairs = zip(left_out[0].tolist(), left_out[1].tolist(), strict=True)
    skipped = tuple(span for span in pairs if first <= span[0] < last)
    start, end = np.clip(activity.start, first, last), np.clip(activity.end, first, last)
    within = gpu_timeline(replace(activity, start=start, end=end), window)
    return replace(within, total_ns=within.total_ns - sum(b - a for a, b in skipped), left_out=skipped)
