"""What a step gains when parts of it go: the step replayed in steady state without them (``SteadyStep``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens.analysis.findings.rule import Claimed
from tracelens.analysis.idle.dependency_replay import Changes
from tracelens.analysis.idle.steady_step import MOST_OF_FILE, SteadyStep, parts_of
from tracelens.analysis.intervals import Ints
from tracelens.lazy.records import dataclass
from tracelens.trace.table import DEVICE_KINDS
from tracelens.units import NS_PER_US

if TYPE_CHECKING:
    from tracelens.analysis.findings.rule import Observed

Floats = npt.NDArray[np.float64]
#: (lane, start, end) of spans of threads.
ThreadSpans: TypeAlias = tuple[Ints, Ints, Ints]
#: Share of what a step has on average of a claim from which the replayed steps can stand for all.
_FAIR_SHARE = 0.5
#: What may limit a step, and of its time the share by which what limits it may take less.
HOST, DEVICE, _NEARLY = "host", "device", 0.02


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spared:
    """What goes when a claim does.

    ``events``: of the device events (by position in the window's) that become shorter, ``share`` of each. ``spans``: of
    threads, which fall away. ``late``: events (table rows) that come sooner, by ``sooner_ns`` of the delay before them
    that nothing explains.
    """

    events: Ints
    share: Floats
    is_removed: npt.NDArray[np.bool_]
    spans: ThreadSpans
    late: Ints
    sooner_ns: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A replayed step, per step in us: as recorded, with what goes, then also without any device event's time
    (``host_us``) or without the host's (``device_us``, None where the host alone limits it).
    """

    before_us: float
    after_us: float
    host_us: float
    device_us: float | None = None

    @property
    def by(self) -> str | None:
        """``host`` or ``device``, whichever takes as long as the step alone; None where neither does."""
        nearly = self.after_us * (1 - _NEARLY)
        if self.host_us >= nearly:
            return HOST
        return DEVICE if self.device_us is not None and self.device_us >= nearly else None


class ReplayedGain:
    """The gain of claims on the window of ``seen``."""

    def __init__(self, seen: Observed) -> None:
        self._seen = seen
        self._replays: dict[tuple[int, ...], SteadyStep] = {}

    def gain_ns(self, claims: Sequence[tuple[Claimed, Floats]]) -> float:
        """What all of the window's steps gain when of each claim so many ns of each part go; at most these.

        Replayed are steps that have their share of it, else the one that has most.
        """
        claims = [(claimed, ns) for claimed, ns in claims if ns.any()]
        if not claims:
            return 0.0
        total = sum(float(ns.sum()) for _, ns in claims)
        chosen, times = self._steps_for(claims, total)
        replay = self.replay_of(chosen)
        gained = replay.recorded_ns - replay.round_ns(self.changes(replay, claims))
        return min(max(gained * times, 0.0), total)

    def limit(self, claims: Sequence[tuple[Claimed, Floats]]) -> Limit:
        """What keeps the step from becoming any shorter once the claims are gone."""
        total = sum(float(ns.sum()) for _, ns in claims)
        replay = self.replay_of(self._steps_for(claims, total)[0])
        if self._file_parts is not None:
            return Limit(before_us=0.0, after_us=1.0, host_us=0.0)
        changes, per_us = self.changes(replay, claims), NS_PER_US * replay.steps
        before_us, after_us, host_us = (
            ns / per_us for ns in (replay.recorded_ns, replay.round_ns(changes), replay.without_device(changes))
        )
        limit = Limit(before_us=before_us, after_us=after_us, host_us=host_us)
        return limit if limit.by == HOST else replace(limit, device_us=replay.without_host(changes) / per_us)

    def replay_of(self, chosen: tuple[int, ...]) -> SteadyStep:
        """These steps, or the part of the file whose number is -1 less the only one, made once."""
        if chosen not in self._replays:
            context, parts = self._seen.context, self._file_parts
            one_part = None if parts is None else parts == -1 - chosen[0]
            self._replays[chosen] = context.steady_step(chosen if parts is None else (), one_part)
        return self._replays[chosen]

    def _steps_for(self, claims: Sequence[tuple[Claimed, Floats]], total: float) -> tuple[tuple[int, ...], float]:
        """(positions of the steps to replay, how many times of what they have of the claims all steps have)."""
        usual, complete = self._seen.context.steady_steps, self._seen.context.window.selected
        if not usual:
            return self._part_for(claims, total)
        if len(usual) == len(complete):
            return usual, 1.0
        of_step = np.zeros(len(self._seen.context.step_times))
        for claimed, ns in claims:
            step = self._step_of_part[claimed.part]
            np.add.at(of_step, step[step >= 0], ns[step >= 0])
        there = float(of_step[list(usual)].sum())
        if there < _FAIR_SHARE * total * len(usual) / len(complete):
            usual = (int(of_step.argmax()),)
            there = float(of_step[usual[0]])
        return usual, total / there if there > 0 else 0.0

    def _part_for(self, claims: Sequence[tuple[Claimed, Floats]], total: float) -> tuple[tuple[int, ...], float]:
        """Of a file without steps that is too large to be replayed at once, the part that has most of the claims."""
        if self._file_parts is None:
            return (), 1.0
        first = self._part_begins
        own = np.concatenate((self._seen.activity.start, self._seen.idle.start))
        of_part = np.zeros(len(first))
        for claimed, ns in claims:
            at = np.searchsorted(first, own[claimed.part], side="right") - 1
            np.add.at(of_part, np.maximum(at, 0), ns)
        most = int(of_part.argmax())
        return (-1 - most,), total / float(of_part[most])

    @cached_property
    def _part_begins(self) -> Ints:
        """When each part of a large file without steps begins."""
        starts = np.sort(self._seen.context.window.everything.start)
        return starts[::MOST_OF_FILE]

    @cached_property
    def _file_parts(self) -> Ints | None:
        return parts_of(self._seen.context.window)

    @cached_property
    def _step_of_part(self) -> npt.NDArray[np.int32]:
        """The step that each part of the window is of, -1 for none."""
        seen, window = self._seen, self._seen.context.window
        at = np.searchsorted(window.activity.rows, seen.activity.rows)
        starts = window.times.start_ns
        idle = np.searchsorted(starts, seen.idle.start, side="right") - 1
        return np.concatenate((window.step_of[at], idle)).astype(np.int32)

    def changes(self, replay: SteadyStep, claims: Sequence[tuple[Claimed, Floats]]) -> Changes:
        """What is different in these steps when the claims go."""
        seen, graph = self._seen, replay.graph
        length = graph.recorded.length.copy()
        removed, sooner = np.zeros(graph.events, bool), np.zeros(graph.events, np.int64)
        rows, order = replay.by_row

        def place(wanted: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
            at = np.minimum(np.searchsorted(rows, wanted), len(rows) - 1)
            return order[at], rows[at] == wanted

        spans = []
        for claimed, ns in claims:
            spared = spared_by(seen, claimed, ns)
            at, known = place(seen.activity.rows[spared.events].astype(np.int64))
            length[at[known]] *= 1 - spared.share[known]
            removed[at[known & spared.is_removed]] = True
            late, known = place(spared.late)
            np.add.at(sooner, late[known], spared.sooner_ns[known])
            spans.append(spared.spans)
        lane, start, end = (np.concatenate(column) for column in zip(*spans, strict=True))
        inside = (end > replay.span[0]) & (start < replay.span[1])
        without = (lane[inside], start[inside], end[inside]) if inside.any() else None
        return replace(graph.recorded, length=length, removed=removed, sooner=sooner, without=without)


def spared_by(seen: Observed, claimed: Claimed, ns: Floats) -> Spared:
    """What goes with so many ``ns`` of each part of a claim: device events become shorter, with their launches where
    those are spared; the host spends that much less in idle time that waits for it, and what was late comes that much
    sooner.
    """
    table = seen.table
    is_event = claimed.part < seen.time.events
    events = claimed.part[is_event].astype(np.int64)
    share = _shares(seen, events, ns[is_event])
    spans = [_copying(seen, events, share)]
    if claimed.spares_launches:
        spans.append(_launching(seen, events, share))
    parts, idle_ns = claimed.part[~is_event] - seen.time.events, np.rint(ns[~is_event]).astype(np.int64)
    late = seen.idle.row[parts].astype(np.int64)
    is_device = (late >= 0) & np.isin(table.kind[late], list(DEVICE_KINDS))
    row = np.where(is_device, seen.tree.launch[late], late)
    start = seen.idle.start[parts]
    known = (row >= 0) & (idle_ns > 0)
    spans.append((table.lane[row[known]].astype(np.int64), start[known], (start + idle_ns)[known]))
    lane, begins, ends = (np.concatenate(column) for column in zip(*spans, strict=True))
    return Spared(
        events=events,
        share=share,
        is_removed=(share >= 1) & claimed.spares_launches,
        spans=(lane, begins, ends),
        late=late[is_device],
        sooner_ns=idle_ns[is_device],
    )


def _shares(seen: Observed, events: Ints, ns: Floats) -> Floats:
    """By how much of it each event becomes shorter when so many ``ns`` of its own time go.

    A faster kernel is so all the time that it runs, also while others run; one that others cover throughout is as much
    faster as those of the same claim. Of communication and copies, what computation hides stays as it is.
    """
    activity, own_ns = seen.activity, seen.time.own_ns[events]
    hides = activity.communication[events] | activity.memcpy[events]
    share = ns / np.maximum(np.where(hides, activity.duration[events], own_ns), 1)
    covered = ~activity.communication[events] & (own_ns == 0)
    faster = ~activity.communication[events] & ~covered
    share[covered] = ns[faster].sum() / max(own_ns[faster].sum(), 1)
    found: Floats = np.minimum(share, 1.0)
    return found


def _copying(seen: Observed, events: Ints, share: Floats) -> ThreadSpans:
    """A call that copies from pageable memory does so itself while its copy runs: that time of the thread goes too."""
    table, activity = seen.table, seen.activity
    launch = seen.tree.launch[activity.rows[events]]
    copies = activity.memcpy[events] & (launch >= 0)
    call, copy = launch[copies], events[copies]
    start = np.maximum(table.start_ns[call], activity.start[copy])
    both = np.minimum(table.ends_ns(call), activity.end[copy]) - start
    return (
        table.lane[call].astype(np.int64),
        start,
        start + np.rint(np.maximum(both, 0) * share[copies]).astype(np.int64),
    )


def _launching(seen: Observed, events: Ints, share: Floats) -> ThreadSpans:
    """The ops that launch ``events`` take less of the host's time, by the share of their kernels that goes."""
    table, op = seen.table, seen.activity.op
    linked = op[events] >= 0
    rows, number = np.unique(op[events[linked]], return_inverse=True)
    gone = np.bincount(number, share[linked], minlength=len(rows))
    kernels = seen.kernels_of_op[rows]
    end = table.start_ns[rows] + np.rint(table.duration_ns[rows] * gone / np.maximum(kernels, 1)).astype(np.int64)
    return table.lane[rows].astype(np.int64), table.start_ns[rows], end
