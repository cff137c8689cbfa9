"""A trace cut to some of its steps, to one of its ranks, or to some categories."""

from __future__ import annotations

import math
from os import PathLike
from typing import Any

import numpy as np

from tracelens.analysis.attribution.activity import Bools
from tracelens.analysis.attribution.steps import select_steps
from tracelens.analysis.attribution.window import Window
from tracelens.analysis.loaded_trace import Options, Trace
from tracelens.analysis.reading.recording import Recording
from tracelens.errors import NothingToAnalyzeError, UsageError
from tracelens.lazy.records import dataclass
from tracelens.trace.rewriting import rewrite
from tracelens.trace.table import DEVICE_KINDS, HOST_KINDS, Kind, TraceTable

_SLICES, _FLOWS = ("X", "B", "E"), ("s", "t", "f")
_ALWAYS = -math.inf, math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What stays. ``steps``: ``3``, ``3-5`` or ``steady``; ``rank``: of a merged file; ``categories`` as recorded."""

    steps: str | None = None
    rank: int | None = None
    categories: tuple[str, ...] = ()


def slim(trace: Trace, path: str | PathLike[str], cut: Cut) -> tuple[int, int]:
    """Writes what stays to ``path``; returns (events written, events of the file).

    Of steps: what runs on the host in them, what they launched, and what the device still did of earlier work as they
    began: as if recording had begun there. UsageError for steps or a category that the trace does not have.
    """
    recording = Recording.of(trace, Options(rank=cut.rank, cpu=True))
    table = recording.recorded.table
    kept = np.ones(len(table), bool)
    window: tuple[int, int] | None = None
    if cut.steps is not None:
        kept, window = _of_steps(recording, cut.steps)
    if cut.categories:
        unknown = set(cut.categories) - set(table.categories)
        if unknown:
            raise UsageError.unknown("category", min(unknown), table.categories)
        kept &= np.isin(table.category, [i for i, name in enumerate(table.categories) if name in cut.categories])
    if not kept.any():
        raise NothingToAnalyzeError(f"{table.source}: no event is of all that was asked for")
    others = _Others(table, kept, None if cut.categories else window or _ALWAYS)

    def edit(row: int, event: dict[str, Any]) -> dict[str, Any] | None:
        return others.edit(event) if row < 0 else event if kept[row] else None

    return rewrite(table, path, edit), table.events_total


class _Others:
    """Which events stay that are no rows: names of processes that stay, and what happens on their lanes meanwhile."""

    def __init__(self, table: TraceTable, kept: Bools, window: tuple[float, float] | None) -> None:
        """``window``: None leaves out all but names."""
        self._window = window
        self._lanes = {table.lanes[lane] for lane in np.unique(table.lane[kept]).tolist()}
        self._pids = {pid for pid, _ in self._lanes}
        self._left_out = set(table.correlation[~kept].tolist()) - set(table.correlation[kept].tolist())

    def edit(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """The event, or None."""
        phase = event.get("ph")
        try:
            if phase == "M":
                return event if event.get("pid") in self._pids else None
            here = (event.get("pid"), event.get("tid")) in self._lanes
            if phase in _SLICES or not here or (phase in _FLOWS and event.get("id") in self._left_out):
                return None
        except TypeError:  # a list or an object where a number belongs
            return None
        time, window = event.get("ts"), self._window
        inside = window is not None and isinstance(time, int | float) and window[0] <= time * 1000 < window[1]
        return event if inside else None


def _of_steps(recording: Recording, steps: str) -> tuple[Bools, tuple[int, int]]:
    """(rows that stay, from when to when)."""
    table: TraceTable = recording.recorded.table
    window = Window.of_file(recording, Options())
    window = window.within(tuple(select_steps(steps, window.times, window.steady)))
    if not len(window.activity):
        raise NothingToAnalyzeError(f"{table.source}: no GPU work was launched in steps {steps}")
    chosen = [window.times.steps[i] for i in window.selected]
    following = [s.start_ns for s in window.times.steps if s.start_ns >= chosen[-1].end_ns]
    span = chosen[0].start_ns, min(following, default=chosen[-1].end_ns)
    start, end = table.start_ns, table.start_ns + table.duration_ns
    kept = (start < span[1]) & (end > span[0])
    others = {(s.start_ns, s.end_ns) for s in window.times.steps} - {(s.start_ns, s.end_ns) for s in chosen}
    annotations = np.flatnonzero(kept & (table.kind == Kind.USER_ANNOTATION)).tolist()
    kept[[row for row in annotations if (int(start[row]), int(end[row])) in others]] = False
    launched = np.zeros(len(table), bool)
    launched[window.activity.rows[window.activity.rows < len(table)]] = True
    last = max(span[1], int(end[launched].max(initial=span[1])))
    # The device may be far behind: what was launched earlier runs as the steps begin, what was launched later does not
    device = np.flatnonzero(table.is_of(DEVICE_KINDS))
    launch = recording.recorded.tree.launch[device]
    earlier = (launch < 0) | (start[launch] < span[0])
    kept[device] = launched[device] | (earlier & (end[device] > span[0]) & (start[device] < last))
    other = ~np.isin(table.kind, (*HOST_KINDS, *DEVICE_KINDS))
    kept[other] = (start[other] < last) & (end[other] > span[0])
    return kept, (span[0], last)
