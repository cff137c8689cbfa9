"""When steps begin and end: from their host windows and the device work that was launched in each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracelens.analysis.grouping import Codes, numbered
from tracelens.analysis.intervals import Ints, Spans, idle_spans, union_ns
from tracelens.lazy.records import dataclass
from tracelens.perf_models.kernels import copy_path
from tracelens.trace.table import Kind, RowColumn, TraceTable
from tracelens.trace.tree import OpTree

Bools = npt.NDArray[np.bool_]
#: When work was launched that was in the queue as recording began.
_BEFORE_RECORDING = np.iinfo(np.int64).min
_NEVER = np.iinfo(np.int64).max
#: A launch on an idle device starts within some 5 to 20 us, with the profiler on and for a graph's first kernel a few
#: times that; what takes longer waited for something.
LONGEST_LATENCY_NS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: its number and its host window in the trace's own clock (ns)."""

    number: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceWork:
    """Device events as steps need them, in ns of the trace's own clock.

    ``launch``: when each was launched; without a recorded launch the moment at which it ran, and for events that were
    ``before`` (in the queue as recording began) a time before all others. ``stream`` numbers streams from 0.
    ``unseen_end``: until when the device worked on what was in the queue and was not recorded.
    """

    start: Ints
    end: Ints
    stream: Codes
    launch: Ints
    launched: Bools
    before: Bools
    unseen_end: int | None = None

    @classmethod
    def of(cls, table: TraceTable, tree: OpTree, rows: RowColumn) -> DeviceWork:
        """From the device events in ``rows``."""
        start, by = table.start_ns[rows], tree.launch[rows]
        end, launched = start + table.duration_ns[rows], by >= 0
        stream = numbered(table.device[rows], table.stream[rows])
        before = _queued_before(launched, start, end, stream)
        launch = np.where(launched, table.start_ns[by], start)
        launch[before] = _BEFORE_RECORDING
        return cls(start=start, end=end, stream=stream, launch=launch, launched=launched, before=before)

    @property
    def earlier_end(self) -> int | None:
        """When the last event ended that was in the queue as recording began; None without any."""
        known = [int(self.end[self.before].max())] if self.before.any() else []
        return max([*known, *([] if self.unseen_end is None else [self.unseen_end])], default=None)

    def with_unseen(self, table: TraceTable, tree: OpTree, rows: RowColumn) -> DeviceWork:
        """Where what was in the queue as recording began was not recorded itself, as an engine's profiler starts in the
        middle of its loop: with ``unseen_end``, the start of the first event of the stream with most events.

        It had been launched, is no copy from or to the host, and did not start on an idle device for longer than
        launches take, nor for as long as the recording had lasted when it was launched.
        """
        main = np.flatnonzero(self.stream == np.argmax(np.bincount(self.stream))) if len(self.start) else self.stream
        if not len(main):
            return self
        at = int(main[np.argmin(self.start[main])])
        path = copy_path(table.name_of(rows[at])) if table.kind[rows[at]] == Kind.MEMCPY else None
        if not self.launched[at] or (path is not None and path.host_memory is not None):
            return self
        start = int(self.start[at])
        launched = min(int(table.ends_ns(tree.launch[rows[at : at + 1]])[0]), start)
        idle_since = max(launched, int(self.end[self.start < start].max(initial=launched)))
        waited = start - idle_since
        is_unseen = waited > LONGEST_LATENCY_NS and launched - int(table.start_ns.min()) < waited
        return replace(self, unseen_end=start) if is_unseen else self


def _queued_before(launched: Bools, start: Ints, end: Ints, stream: Codes) -> Bools:
    """Which events were launched before recording began: those without a launch that ran first.

    A stream runs its work in order, so what it ran before its first event with a launch was in its queue earlier. On a
    stream without launches: what began before the last of these ended. None where no launches were recorded at all.
    """
    if launched.all() or not launched.any():
        return np.zeros(len(start), bool)
    first = np.full(int(stream.max()) + 1, _NEVER)
    np.minimum.at(first, stream[launched], start[launched])
    queued = ~launched & (start < first[stream]) & (first[stream] != _NEVER)
    horizon = max(int(start[launched].min()), int(end[queued].max(initial=_BEFORE_RECORDING)))
    found: Bools = queued | (~launched & (first[stream] == _NEVER) & (start < horizon))
    return found


def step_of_events(steps: list[Step], launch: Ints) -> Codes:
    """Index into ``steps`` of the step whose host window holds each launch; -1 outside of all.

    A window lasts until the next one begins, the last until its annotation ends.
    """
    if not steps:
        return np.full(len(launch), -1, np.int32)
    starts = np.array([s.start_ns for s in steps], np.int64)
    index = (np.searchsorted(starts, launch, side="right") - 1).astype(np.int32)
    return np.where(launch <= steps[-1].end_ns, index, np.int32(-1))


def step_bounds(steps: list[Step], work: DeviceWork, step_of: Codes) -> tuple[Ints, Ints]:
    """(begins, ends) of steps that follow each other without a gap.

    A step begins when its host code does, or when the device has finished what was launched earlier, whichever is
    later; the last one ends when both its host code and the device work that it launched have ended. Of several streams
    the one with most events says when earlier work is finished: the others may run ahead or lag behind.
    """
    starts = np.array([s.start_ns for s in steps], np.int64)
    begins, inside = starts.copy(), step_of >= 0
    if inside.any():
        main = work.stream == np.argmax(np.bincount(work.stream[inside]))
        # How many steps had begun on the host at the launch: the work delays those after them
        begun = np.searchsorted(starts, work.launch[main], side="right")
        finished = np.full(len(steps) + 1, _BEFORE_RECORDING)
        np.maximum.at(finished, begun, work.end[main])
        if work.unseen_end is not None:
            finished[0] = max(int(finished[0]), work.unseen_end)
        begins = np.maximum(starts, np.maximum.accumulate(finished[:-1]))
    own = work.end[step_of == len(steps) - 1]
    last = max(steps[-1].end_ns, int(begins[-1]), int(own.max(initial=_BEFORE_RECORDING)))
    return begins, np.append(begins[1:], last)


def device_periods(work: DeviceWork, step_of: Codes, count: int) -> Ints:
    """From each step's first device event to the next one's, of the last to its end; -1 where one has none.

    On the stream with most events of steps, where a step has any there.
    """
    periods, inside = np.full(count, -1, np.int64), step_of >= 0
    if not inside.any():
        return periods
    main = work.stream == np.argmax(np.bincount(work.stream[inside]))
    first, last = np.full(count, _NEVER), np.full(count, _BEFORE_RECORDING)
    np.minimum.at(first, step_of[inside & main], work.start[inside & main])
    anywhere = np.full(count, _NEVER)
    np.minimum.at(anywhere, step_of[inside], work.start[inside])
    first = np.where(first == _NEVER, anywhere, first)
    np.maximum.at(last, step_of[inside], work.end[inside])
    known = (first[:-1] != _NEVER) & (first[1:] != _NEVER)
    periods[:-1][known] = (first[1:] - first[:-1])[known]
    if first[-1] != _NEVER:
        periods[-1] = last[-1] - first[-1]
    return periods


def waited_for_earlier(calls: Spans, window: tuple[int, int], work: DeviceWork) -> int:
    """How long (ns) the blocking ``calls`` of a host window waited for work from before recording."""
    earlier = work.earlier_end
    if earlier is None:
        return 0
    start, end = calls
    chosen = (start >= window[0]) & (start < min(window[1], earlier))
    return union_ns(start[chosen], np.minimum(end[chosen], earlier))


def refill_spans(bounds: tuple[int, int], work: DeviceWork, first: Bools, longest: int) -> Spans:
    """The first ``longest`` ns of idle time between ``bounds`` that a full queue would not have had.

    ``first``: the events of the step. These are the gaps whose next event was launched after the device was free: up to
    its start, as the launch takes its time only because the queue was empty.
    """
    known = first | work.before
    opens, closes = idle_spans(work.start[known], work.end[known], *bounds)
    order = np.lexsort((work.launch[known], work.start[known]))
    start, launch = work.start[known][order], work.launch[known][order]
    empty = np.append(launch, _NEVER)[np.searchsorted(start, closes)] > opens
    opens, closes = opens[empty], closes[empty]
    before = np.cumsum(closes - opens) - (closes - opens)
    closes = np.minimum(closes, opens + np.maximum(longest - before, 0))
    kept = closes > opens
    return opens[kept], closes[kept]
