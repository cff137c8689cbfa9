"""Real traces with one thing changed, as a recording of the changed program would have it."""

from __future__ import annotations

import copy
import gzip
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from tests.trace.event_texts import read_events
from tracelens.analysis.attribution.window import Recording, Window
from tracelens.analysis.intervals import Ints, covered_ns
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace
from tracelens.comparison.sides import Call, Recorded, Side
from tracelens.comparison.traced_side import recorded
from tracelens.trace.table import HOST_KINDS, Kind
from tracelens.trace.tree import nest
from tracelens.types.units import NS_PER_MS

Events = list[dict[str, Any]]


def side_of_trace(trace: Trace) -> Side:
    return Side(name=trace.table.source, parts=((recorded(trace, AnalysisOptions()),),))


@dataclass(frozen=True, eq=False)
class Original:
    """A real trace, its events, and the table rows of the device events that are compared."""

    events: Events
    metadata: dict[str, Any]
    trace: Trace
    side: Side
    rows: Ints

    @property
    def one(self) -> Recorded:
        return self.side.first

    def events_of(self, call: Call) -> Ints:
        """Device rows of the units of a call."""
        return self.rows[self._is_of((call,))[self.one.event_unit]]

    def step_ms_of(self, calls: Sequence[Call]) -> float:
        """The part of the mean step that is the time of these calls."""
        ns = self.one.piece_ns[self._is_of(calls)[self.one.piece_unit]]
        return float(ns.sum()) / len(self.one.durations_ns) / NS_PER_MS

    def _is_of(self, calls: Sequence[Call]) -> npt.NDArray[np.bool_]:
        """By unit: whether it is one of these calls."""
        wanted = set(calls)
        return np.array([each in wanted for each in self.one.calls], bool)[self.one.call]


@lru_cache(maxsize=32)
def original(path: Path) -> Original:
    document = orjson.loads(gzip.decompress(path.read_bytes()))
    if isinstance(document, list):
        document = {"traceEvents": document}
    events = document.pop("traceEvents")
    # Times of today in us leave a float a resolution of 0.25 us, at which edited kernels would run into each other
    timed = [event for event in events if isinstance(event.get("ts"), int | float)]
    base = min(int(event["ts"]) for event in timed)
    for event in timed:
        event["ts"] -= base
    _end_with_callers(events, document)
    trace = Trace.of(read_events(events, document, source=path.name))
    recording = Recording.of(trace, AnalysisOptions())
    window = Window.of(recording, AnalysisOptions())
    return Original(events, document, trace, side_of_trace(trace), window.activity.rows.astype(np.int64))


def _end_with_callers(events: Events, metadata: dict[str, Any]) -> None:
    """Calls end with their callers: where rounding lets one end later, stretched times would tell another caller."""
    while True:
        table = read_events(events, metadata)
        host = table.rows_of(HOST_KINDS)
        found = nest(table.lane[host], table.start_ns[host], table.duration_ns[host], np.zeros(len(host), np.uint8))
        rows = host[found.order]
        late = np.flatnonzero(found.overlaps & np.isin(table.kind[rows], (Kind.CPU_OP, Kind.RUNTIME, Kind.DRIVER)))
        if not len(late):
            return
        for row, end in zip(rows[late].tolist(), found.outlived[late].tolist(), strict=True):
            events[int(table.file_index[row])]["dur"] = (end - int(table.start_ns[row])) / 1000


def read_again(before: Original, events: Events) -> Side:
    return side_of_trace(Trace.of(read_events(events, before.metadata, source=before.one.source)))


def stretched(before: Original, rows: Ints, factor: float) -> Events:
    """All events on a clock that runs ``factor`` times as long while the device events ``rows`` run.

    Moments that differ stay apart by a ns at least: what lies in one another still does.
    """
    table = before.trace.table
    start, end = table.start_ns[rows], table.start_ns[rows] + table.duration_ns[rows]
    found = copy.deepcopy(before.events)
    timed, starts, ends = _spans(found)
    moments, at = np.unique(np.concatenate((starts, ends)), return_inverse=True)
    longer = np.rint((factor - 1) * covered_before(start, end, moments)).astype(np.int64)
    apart = np.maximum(np.diff(moments + longer), 1)
    moved = np.concatenate((moments[:1] + longer[:1], moments[0] + longer[0] + np.cumsum(apart)))[at]
    for event, begins, stops in zip(timed, moved[: len(timed)].tolist(), moved[len(timed) :].tolist(), strict=True):
        event["ts"] = begins / 1000
        if "dur" in event:
            event["dur"] = (stops - begins) / 1000
    return found


def covered_before(start: Ints, end: Ints, moments: Ints) -> Ints:
    """How much (ns) of the union of ``[start, end)`` lies before each moment."""
    return covered_ns(start, end, np.full(len(moments), start.min(initial=0)), moments)


def _spans(events: Events) -> tuple[Events, Ints, Ints]:
    """The events that have a time, and where they begin and end."""
    timed = [event for event in events if isinstance(event.get("ts"), int | float)]
    starts = np.array([round(event["ts"] * 1000) for event in timed], np.int64)
    return timed, starts, starts + np.array([round((event.get("dur") or 0) * 1000) for event in timed], np.int64)


def at_an_end(before: Original, call: Call) -> bool:
    """Whether a window without steps begins or ends with this call."""
    table, own = before.trace.table, before.events_of(call)
    start, end = table.start_ns, table.start_ns + table.duration_ns
    return bool(start[own].min() == start[before.rows].min() or end[own].max() == end[before.rows].max())


def leaves_out(before: Original) -> bool:
    """Whether steps leave out the time of work that was queued before recording began."""
    times = Window.of(Recording.of(before.trace, AnalysisOptions()), AnalysisOptions()).times
    return times is not None and times.before_events > 0


def moments_within(before: Original, call: Call) -> int:
    """How many moments at which anything begins or ends lie within the device events of a call."""
    table, rows = before.trace.table, before.events_of(call)
    # The table leaves out flows and marks, whose moments stay apart as well
    _, *spans = _spans(before.events)
    moments = np.unique(np.concatenate(spans))
    start, end = table.start_ns[rows], table.start_ns[rows] + table.duration_ns[rows]
    return int((np.searchsorted(moments, end, "right") - np.searchsorted(moments, start)).sum())


def event_of(before: Original, row: int) -> int:
    return int(before.trace.table.file_index[row])


def slower(before: Original, call: Call, factor: float = 1.3) -> Events:
    return stretched(before, before.events_of(call), factor)


def without(before: Original, call: Call) -> Events:
    rows = before.events_of(call)
    gone = {event_of(before, row) for row in rows.tolist()}
    moved = stretched(before, rows, 0.0)
    return [event for number, event in enumerate(moved) if number not in gone]


def renamed(before: Original, kernel: str) -> Events:
    found = copy.deepcopy(before.events)
    for row in before.rows.tolist():
        event = found[event_of(before, row)]
        if event["name"] == kernel:
            event["name"] = f"{kernel}_v2"
    return found


def doubled(before: Original, call: Call) -> Events:
    """All sizes of the call's tensors twice as large, its kernels twice as long."""
    tree, rows = before.trace.tree, before.events_of(call)
    found = stretched(before, rows, 2.0)
    done: set[int] = set()
    for row in rows.tolist():
        op, outermost = int(tree.op[row]), -1
        while op >= 0:
            if before.trace.table.name_of(op) == call.name:
                outermost = op
            op = int(tree.op_parent[op])
        for host in tree.subtree(outermost).tolist() if outermost >= 0 else ():
            args = found[event_of(before, host)].get("args") or {}
            # PyTorch 1.8 spells it with a small d
            for key in {"Input Dims", "Input dims"} & args.keys() if host not in done else ():
                args[key] = _twice(args[key])
            done.add(host)
    return found


def _twice(value: Any) -> Any:
    return [_twice(v) for v in value] if isinstance(value, list) else value * 2 if isinstance(value, int) else value


def calls_that(before: Original, wanted: Callable[[Call, int], bool]) -> list[Call]:
    """Distinct calls that take at least a microsecond of the steps and are wanted, given the call and its ns."""
    ns: dict[Call, int] = {}
    for number, time in zip(before.one.call[before.one.piece_unit].tolist(), before.one.piece_ns.tolist(), strict=True):
        ns[before.one.calls[number]] = ns.get(before.one.calls[number], 0) + time
    return [call for call, time in ns.items() if not call.is_idle and time >= 1000 and wanted(call, time)]


def on_other_clock(before: Original, ratio: float, calls: list[Call]) -> Events:
    """The kernels of these calls as on a clock of ``ratio`` times the frequency."""
    return stretched(before, np.concatenate([before.events_of(call) for call in calls]), 1 / ratio)


def fused(before: Original, one: Call, other: Call) -> Events:
    """Where ``other`` follows ``one`` and both launch one kernel, a single compiled kernel does the work of both."""
    rows, table, tree = before.rows, before.trace.table, before.trace.tree
    launched = rows[np.argsort(table.start_ns[rows], kind="stable")]
    of = dict.fromkeys(before.events_of(one).tolist(), one) | dict.fromkeys(before.events_of(other).tolist(), other)
    found, gone = copy.deepcopy(before.events), set()
    for first, second in zip(launched.tolist(), launched[1:].tolist(), strict=False):
        if of.get(first) is one and of.get(second) is other:
            found[event_of(before, first)]["name"] = FUSED_KERNEL
            op = int(tree.op[first])
            while op >= 0:
                if table.name_of(op) == one.name:
                    found[event_of(before, op)]["name"] = FUSED_KERNEL
                op = int(tree.op_parent[op])
            gone.add(event_of(before, second))
    return [event for number, event in enumerate(found) if number not in gone]


FUSED_KERNEL = "triton_poi_fused_planted_0"
