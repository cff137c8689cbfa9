"""``what_if``: the step that a trace would show if something about it were different, before and after, op by op,
and the trace with events at their new times.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from os import PathLike
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity, Timeline, timeline_of
from tracelens.analysis.attribution.host_time import HOST_WORK, host_calls
from tracelens.analysis.attribution.steps import typical_step
from tracelens.analysis.attribution.window import Window
from tracelens.analysis.idle.dependencies import KINDS, Changes, DependencyReplay, NewTimes, critical_path
from tracelens.analysis.idle.idle_time import CAUSES, IdleTime, queue
from tracelens.analysis.intervals import Bools, Ints
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace, load
from tracelens.comparison.whatif import WhatIfOptions
from tracelens.comparison.whatif.changes import PLACE, changes
from tracelens.comparison.whatif.plan import LEAST, LIKELY, MOST, Z90, ChangePlan, Subject, price
from tracelens.files.option_fields import build_options, takes
from tracelens.hardware.power import BY_CLOCK, power_constants, room_w
from tracelens.trace.narrow_columns import Column
from tracelens.trace.rewriting import microseconds, rewrite
from tracelens.trace.table import Kind, RowColumn, TraceTable
from tracelens.types.records import Record
from tracelens.types.units import NS_PER_S, NS_PER_US, US_PER_S


class Clock:
    """From recorded to new times, lane by lane (threads and streams): between two known points time runs evenly.

    A lane without known points has the clock of the thread with most of them in its process, else of its stream with
    most, else of the thread with most: steps and programs that a device recorded move with its kernels.
    """

    def __init__(self, table: TraceTable, replay: DependencyReplay, times: NewTimes) -> None:
        threads, device = replay.threads, replay.device
        stream_lane = table.lane[device.rows]
        lane = np.concatenate((threads.lane, stream_lane, stream_lane))
        old = np.concatenate((threads.time, device.start, device.end))
        new = np.concatenate((times.reached, times.start, times.done))
        order = np.lexsort((new, old, lane))
        self._base = int(old.min()) if len(old) else 0
        self._points: dict[int, tuple[Ints, Ints]] = {}
        for part in np.split(order, np.flatnonzero(np.diff(lane[order])) + 1) if len(order) else ():
            last = np.append(np.diff(old[part]) > 0, True)
            later = np.maximum.accumulate(new[part])
            self._points[int(lane[part[0]])] = old[part][last] - self._base, later[last] - self._base
        self._lane_of = self._stand_ins(table, threads.lane, stream_lane.astype(np.int64))

    def _stand_ins(self, table: TraceTable, *anchored: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """The lane that gives each lane its clock; -1 where no lane has one."""
        busiest: dict[object, int] = {}
        for lanes in anchored:
            counts = np.bincount(lanes, minlength=len(table.lanes))
            for lane in np.argsort(-counts, kind="stable").tolist():
                if counts[lane]:
                    busiest.setdefault(table.lanes[lane][0], lane)
        default = next(iter(busiest.values()), -1)
        return np.array(
            [lane if lane in self._points else busiest.get(pid, default) for lane, (pid, _) in enumerate(table.lanes)]
        )

    def at(self, lane: npt.NDArray[np.integer], *times: Ints) -> tuple[Ints, ...]:
        """The new time of each point (lane, recorded time), of each column of recorded times."""
        results = tuple(time.copy() for time in times)
        source = self._lane_of[lane]
        for one in sorted(set(self._lane_of[self._lane_of >= 0].tolist())):
            at = np.flatnonzero(source == one)
            for time, result in zip(times, results, strict=True) if len(at) else ():
                result[at] = _on_points(time[at] - self._base, *self._points[one]) + self._base
        return results

    def moment(self, lane: int, time: int) -> int:
        """The new time of one point."""
        source = int(self._lane_of[lane])
        if source < 0:
            return time
        old, new = self._points[source]
        # The points around it alone: what lies between two of them depends on no other
        after = min(max(int(np.searchsorted(old, time - self._base, "right")), 1), len(old))
        near = slice(after - 1, after + 1)
        return int(_on_points(np.array([time - self._base], np.int64), old[near], new[near])[0]) + self._base


def _on_points(moment: Ints, old: Ints, new: Ints) -> Ints:
    inside: Ints = np.rint(np.interp(moment, old, new)).astype(np.int64)
    before, after = moment < old[0], moment > old[-1]
    inside[before] = moment[before] + new[0] - old[0]
    inside[after] = moment[after] + new[-1] - old[-1]
    return inside


def retimed(
    trace: Trace, replay: DependencyReplay, changes: Changes, times: NewTimes, gone: RowColumn
) -> tuple[Trace, Clock]:
    """The trace at its new times (what is removed or ``gone`` has no kind) and the clock of everything else."""
    table = trace.table
    clock = Clock(table, replay, times)
    start, end = clock.at(table.lane[:], table.start_ns, table.start_ns + table.duration_ns)
    rows = replay.device.rows
    start[rows] = times.start
    end[rows] = times.start + np.rint(changes.length).astype(np.int64)
    kind = table.kind.copy()
    kind[removed_rows(replay, changes, gone, len(table))] = Kind.OTHER
    new = replace(table, kind=kind, start_ns=start, duration_ns=Column(np.maximum(end - start, 0), np.int64))
    tree = copy.copy(trace.tree)
    tree.table = new
    return Trace(table=new, tree=tree), clock


def removed_rows(replay: DependencyReplay, changes: Changes, gone: RowColumn, rows: int) -> Bools:
    """Which rows of the table are not there any more."""
    removed = np.zeros(rows, bool)
    removed[replay.device.rows[changes.removed]] = True
    removed[gone] = True
    return removed


class StepFigures(Record, frozen=True, kw_only=True):
    """Times in us per step, the mean of the complete ones; of the whole window without steps.

    ``compute_us``, ``communication_us``, ``copies_us`` and ``idle_us`` add up to ``step_us``; communication and copies
    are what nothing else covers. ``idle``: by cause. ``bound_by``: the critical path through the typical step, by kind.
    """

    step_us: float
    compute_us: float
    communication_us: float
    copies_us: float
    idle_us: float
    idle: Mapping[str, float] = msgspec.field(default_factory=dict)
    bound_by: Mapping[str, float] = msgspec.field(default_factory=dict)


def step_figures(subject: Subject, trace: Trace) -> StepFigures:
    """``trace``: the subject's own, or one with the same rows at other times."""
    window, timeline = _window(subject, trace)
    chosen, times = window.complete_steps, window.times
    table, tree = trace.table, trace.tree
    steps = max(len(chosen), 1)
    host = host_calls(table, tree)
    activity = _activity(subject, window)
    queued = queue(table, tree, host, activity)
    idle = IdleTime(table, tree, host, activity.select(window.inside), queued, timeline.spans)
    causes = idle.gaps().idle
    spans = times.spans(typical_step(times, chosen)) if chosen else timeline.spans
    path = critical_path(table, tree, host, activity, idle, spans)
    bound = np.zeros(len(KINDS), np.int64)
    if path is not None:
        np.add.at(bound, path.kind, path.length)
    parts = (timeline.computation_ns, timeline.exposed_comm_ns, timeline.exposed_memcpy_ns, timeline.idle_ns)
    compute, communication, copies, none = (ns / steps / NS_PER_US for ns in parts)
    return StepFigures(
        step_us=float(times.duration_ns[chosen].mean() if chosen else timeline.total_ns) / NS_PER_US,
        compute_us=compute,
        communication_us=communication,
        copies_us=copies,
        idle_us=none,
        idle={CAUSES[i]: int(causes[i]) / steps / NS_PER_US for i in np.argsort(-causes, kind="stable") if causes[i]},
        bound_by={KINDS[i]: int(bound[i]) / NS_PER_US for i in np.argsort(-bound, kind="stable") if bound[i]},
    )


def _window(subject: Subject, trace: Trace) -> tuple[Window, Timeline]:
    window = Window.of_file(replace(subject.recording, trace=trace), subject.options)
    window = replace(window, selected=subject.window.selected)
    activity = _activity(subject, window)
    chosen = window.complete_steps
    if not chosen:
        return window, window.timeline(activity)
    times = window.times
    span = int(times.start_ns[chosen[0]]), int(times.end_ns[chosen[-1]])
    return window, timeline_of(activity.select(window.inside), span, times.left_out)


def _activity(subject: Subject, window: Window) -> DeviceActivity:
    """The window's events with what the subject's ops say of them."""
    own = subject.activity
    at = np.searchsorted(own.rows, window.activity.rows)
    return replace(window.activity, communication=own.communication[at])


#: What is idle in a step that is done again and again, and was not in the recorded one.
HEAD_START = "the head start of the recording is used up"
#: Version of the JSON document.
SCHEMA = "tracelens.whatif/1"


class OpChange(Record, frozen=True, kw_only=True):
    """Calls of one op and category in a step: kernel time in us before and after, with the bounds of 90 %."""

    name: str
    category: str
    calls: float
    before_us: float
    after_us: float
    low_us: float
    high_us: float

    @property
    def change_us(self) -> float:
        return self.after_us - self.before_us


class EnergyChange(Record, frozen=True, kw_only=True):
    """Modelled J of the device per step (docs/energy.md), between what they lie, and its mean watts, before and after;
    ``limit_w``: afterwards. ``unknown``: why they are, None where they are known.
    """

    before_j: float | None = None
    before_low_j: float | None = None
    before_high_j: float | None = None
    after_j: float | None = None
    after_low_j: float | None = None
    after_high_j: float | None = None
    before_w: float | None = None
    after_w: float | None = None
    limit_w: float | None = None
    unknown: str | None = None


#: What may be asked for the joules afterwards to be known: the work stays, and its energy goes with the clock's square.
_OF_A_CLOCK = frozenset({"gpu_clock", "power_limit", "steps"})


#: By which share joules and their sum may differ.
_ROUNDING = 1e-3


def _energy(trace: Trace, plan: ChangePlan, asked: Mapping[str, Any], after: StepFigures) -> EnergyChange | None:
    """Of a step that is ``after``, by the clock (``BY_CLOCK``) within the limit; None if others are asked for."""
    from tracelens.analysis.analyze import analyze

    if plan.system is None or plan.recorded_on is None or asked.keys() <= {"steps"} or not asked.keys() <= _OF_A_CLOCK:
        return None
    before, device = analyze(trace, plan.subject.options, on_demand=True), plan.system.device
    energy, constants = before.energy, power_constants(device)
    if energy is None or constants is None:
        return EnergyChange(unknown=f"nobody measured what {device.label} draws")
    total_ns, steps = before.timeline.total_ns, plan.subject.steps
    whole = energy.of_spans(np.zeros(len(before.activity), np.int32), np.array([total_ns]))
    if np.isnan(whole.power_w[0]):
        return EnergyChange(unknown="kernels of unknown work run for too much of the time")
    idle_w, clock = energy.constants.idle_w, device.clock_scale / plan.recorded_on.device.clock_scale
    before_s, after_s = total_ns / steps / NS_PER_S, after.step_us / US_PER_S
    old = [float(each[0]) / steps for each in whole]
    most_j = room_w(constants) * (after.step_us - after.idle_us) / US_PER_S
    over_j = [max(joules - idle_w * before_s, 0.0) * clock**BY_CLOCK for joules in old]
    new = [idle_w * after_s + min(joules, most_j) for joules in over_j]
    if over_j[0] > most_j * (1 + _ROUNDING):
        if clock > 1:
            return EnergyChange(unknown="at that clock kernels would draw more than the limit, which holds it down")
        plan.note("some kernels need a still lower clock for that limit; those that follow it take longer than said")
    return EnergyChange(
        before_j=old[0], before_low_j=old[1], before_high_j=old[2], after_j=new[0], after_low_j=new[1],
        after_high_j=new[2], before_w=old[0] / before_s, after_w=new[0] / after_s, limit_w=constants.limit_w,
    )  # fmt: skip


class WhatIf(Record, frozen=True, kw_only=True, eq=False):
    """``low_us`` to ``high_us``: where the step would lie in 90 of 100 cases, by what estimates are off by on measured
    kernels; the same figure where nothing was estimated. ``explained``: the share of the recorded time that the
    dependencies give without the delays that were kept. ``energy``: of another clock or power limit."""

    plan: ChangePlan
    times: NewTimes
    asked: dict[str, Any]
    before: StepFigures
    after: StepFigures
    low_us: float
    high_us: float
    explained: float
    energy: EnergyChange | None = None

    @property
    def has_steps(self) -> bool:
        return bool(self.plan.subject.window.complete_steps)

    @property
    def is_estimated(self) -> bool:
        """Whether any time is by an estimate, which may be off, and not as recorded or as asked for."""
        return bool(self.plan.families) or self.plan.gaps is not None or bool(self.plan.host_sigma)

    @property
    def rows(self) -> list[OpChange]:
        """One per op and category, the largest change first, then the longest."""
        plan, subject = self.plan, self.plan.subject
        category = subject.category
        names = subject.op_name
        keys = [(name, category.texts[code]) for name, code in zip(names, category.code.tolist(), strict=True)]
        number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        of, counted = np.array([number[key] for key in keys]), subject.counted

        def total(values: Any) -> Any:
            return np.bincount(of[counted], values[counted], minlength=len(number)) / subject.steps / NS_PER_US

        duration = subject.activity.duration.astype(np.float64)
        after = np.where(plan.removed, 0.0, duration * plan.factor)
        low, high = after * np.exp(-Z90 * plan.sigma), after * np.exp(Z90 * plan.sigma)
        call = np.where(subject.call_of_event >= 0, subject.call_of_event, -1 - np.arange(len(of)))
        first = np.zeros(len(of))
        first[np.unique(call, return_index=True)[1]] = 1
        columns = [total(column).tolist() for column in (first * NS_PER_US, duration, after, low, high)]
        made = [OpChange(name=n, category=c, calls=k, before_us=b, after_us=a, low_us=lo, high_us=hi)
                for (n, c), k, b, a, lo, hi in zip(number, *columns, strict=True) if b or a]  # fmt: skip
        return sorted(made, key=lambda row: (-abs(row.change_us), -row.before_us, row.name, row.category))

    def document(self) -> dict[str, Any]:
        """The result as plain values; times in us per step, or of the window where there are no steps."""
        return {
            "schema": SCHEMA,
            "input": {"file": self.plan.subject.table.source, "steps": len(self.plan.subject.window.complete_steps)},
            "asked": self.asked,
            "step": {
                "before_us": self.before.step_us,
                "after_us": self.after.step_us,
                "low_us": self.low_us,
                "high_us": self.high_us,
                "change_us": self.after.step_us - self.before.step_us,
            },
            **({} if self.energy is None else {"energy": asdict(self.energy)}),
            "before": asdict(self.before),
            "after": asdict(self.after),
            "explained": self.explained,
            "rows": [asdict(row) | {"change_us": row.change_us} for row in self.rows],
            "notes": list(self.plan.notes),
        }

    def write_trace(self, path: str | PathLike[str]) -> int:
        """Writes the trace in Kineto's format without what was removed; returns the number of events."""
        subject, changes = self.plan.subject, self.plan.changes()
        rows = np.flatnonzero(self.plan.gone).astype(np.int32)
        new, clock = retimed(subject.recording.trace, subject.replay, changes, self.times, rows)
        removed = removed_rows(subject.replay, changes, rows, len(subject.table))
        recorded = subject.recording.recorded.table
        start, length = new.table.start_ns.tolist(), new.table.duration_ns.tolist()
        lanes: dict[Any, int] = {lane: i for i, lane in enumerate(recorded.lanes)}
        gone = set(recorded.correlation[np.flatnonzero(removed[: len(recorded)])].tolist()) - {-1}

        def edit(row: int, event: dict[str, Any]) -> dict[str, Any] | None:
            if row >= 0:
                if removed[row]:
                    return None
                return event | {"ts": microseconds(start[row]), "dur": microseconds(length[row])}
            if event.get("ph") in ("s", "f") and event.get("cat") == "ac2g" and event.get("id") in gone:
                return None
            # What is no complete event (a flow, an instant, a counter), at its new time.
            time, phase = event.get("ts"), event.get("ph")
            lane = lanes.get((event.get("pid"), event.get("tid")), 0)
            if phase == "M" or not isinstance(time, int | float) or abs(time) > 2**52:
                return event
            return event | {"ts": microseconds(clock.moment(lane, round(time * 1000)))}

        return rewrite(recorded, path, edit)


def outcome(plan: ChangePlan, asked: dict[str, Any]) -> WhatIf:
    """Replays the plan, and again for each family of operations whose time is uncertain."""
    subject, replay = plan.subject, plan.subject.replay
    changes = plan.changes()
    times = replay.times(changes)
    before = step_figures(subject, subject.recording.trace)
    claims = plan.claims if asked.keys() <= {"apply", "steps"} else []
    step_us = before.step_us - _gained_us(plan, claims=claims)
    gone = np.flatnonzero(plan.gone).astype(np.int32)
    new, _ = retimed(subject.recording.trace, replay, changes, times, gone)
    beside = any(claimed.is_beside for claimed, _ in claims)
    after = _in_the_long_run(step_figures(subject, new), step_us, HOST_WORK if beside else HEAD_START)
    low, high = (_off_by_us(plan, before.step_us - step_us, *side) for side in ((-Z90, LEAST), (Z90, MOST)))
    nodes = np.concatenate((replay.device.start, replay.threads.time))
    alone, recorded = replay.times(replay.recorded, delays=False), replay.times(replay.recorded)
    ends = [max(found.done.max(initial=0), found.reached.max(initial=0)) - nodes.min() for found in (alone, recorded)]
    return WhatIf(
        plan=plan,
        times=times,
        asked=asked,
        before=before,
        after=after,
        low_us=max(after.step_us - low, 0.0),
        high_us=after.step_us + high,
        explained=float(ends[0] / ends[1]) if ends[1] else 1.0,
    )


def _gained_us(
    plan: ChangePlan,
    shifted: Bools | None = None,
    by: float = 0.0,
    gap: int = LIKELY,
    claims: Sequence[Any] = (),
    host: float = 1.0,
) -> float:
    """What a repeated step gains; by ``claims`` alone as in the report. ``host``: factor of planned host time."""
    if claims and plan.replayed is not None:
        return plan.replayed.gain_ns(claims) / plan.subject.steps / NS_PER_US
    steady = plan.subject.steady
    changes = plan.changes(shifted, by, gap, graph=steady.graph)
    gained = steady.recorded_ns - steady.round_ns(replace(changes, host=changes.host * host))
    return gained / steady.steps / NS_PER_US


def _in_the_long_run(figures: StepFigures, step_us: float, cause: str) -> StepFigures:
    """The figures of the replayed recording, with the step as it is when it is done again and again. ``cause``: of what
    it is idle longer.
    """
    more = step_us - figures.step_us
    if abs(more) * NS_PER_US < 1:
        return replace(figures, step_us=step_us)
    idle, bound_by, kind = dict(figures.idle), dict(figures.bound_by), f"idle: {cause}"
    idle[cause] = idle.get(cause, 0.0) + more
    if kind in bound_by:
        bound_by[kind] += more
    return replace(figures, step_us=step_us, idle_us=figures.idle_us + more, idle=idle, bound_by=bound_by)


def _off_by_us(plan: ChangePlan, middle_us: float, sigmas: float, gap: int) -> float:
    """How far (us) the step is off the one that gains ``middle_us`` when the times of each family do, by so many
    deviations, when another machine's host does, and when the kernels of graphs start ``gap`` after each other.

    The errors of a family are taken to be one, those of several families, and of the host, independent.
    """
    gained = [_gained_us(plan, events, sigmas) for events in plan.families]
    gained += [_gained_us(plan, gap=gap)] if plan.gaps is not None else []
    if plan.host_sigma:
        gained.append(_gained_us(plan, host=float(np.exp(sigmas * plan.host_sigma))))
    return float(sum((us - middle_us) ** 2 for us in gained) ** 0.5)


#: Share of the step by which a replay may be off the line between its neighbors, and how often a part is halved for it.
_BENT, _HALVED = 2e-4, 5


def step_by_factor(subject: Subject, selector: str) -> list[tuple[float, float]]:
    """How long the step takes when events take from none to twice of their time: what ``--scale`` gives for each.

    As (factor, us), each replayed; between two of them the step is off a line by no more than ``_BENT`` of it.
    """
    events, before = subject.events_of(selector), step_figures(subject, subject.recording.trace).step_us

    def step_us(factor: float) -> float:
        plan = ChangePlan.of(subject)
        plan.multiply(events, factor)
        return before - _gained_us(plan)

    def between(low: tuple[float, float], high: tuple[float, float], left: int) -> list[tuple[float, float]]:
        factor = (low[0] + high[0]) / 2
        middle = factor, step_us(factor)
        if left and abs(middle[1] - (low[1] + high[1]) / 2) > _BENT * before:
            return [*between(low, middle, left - 1), middle, *between(middle, high, left - 1)]
        return [middle]

    none, same, twice = ((factor, step_us(factor)) for factor in (0.0, 1.0, 2.0))
    return [none, *between(none, same, _HALVED), same, *between(same, twice, _HALVED), twice]


@takes(WhatIfOptions)
def what_if(trace: Trace | str | PathLike[str], options: WhatIfOptions | None = None, **given: Any) -> WhatIf:
    """The trace with its operations timed anew and everything that depends on them replayed.

    ``options`` are what ``given`` keywords change. InputError for an unreadable file, NothingToAnalyzeError for one
    without GPU work, UsageError for a name that fits nothing.
    """
    asked = build_options(WhatIfOptions, given, options)
    read = trace if isinstance(trace, Trace) else load(trace)
    subject = Subject.of(read, AnalysisOptions(steps=asked.steps))
    plan = ChangePlan.of(subject)
    values = {each.name: getattr(asked, each.name) for each in fields(asked)}
    wanted = {name: value for name, value in values.items() if value not in (None, (), False)}
    known = changes()
    ordered = sorted(wanted.keys() & known.keys(), key=lambda name: (known[name].options["stage"], name))
    for name in ordered:
        if known[name].options["stage"] <= PLACE:
            known[name].target(plan, wanted[name])
    price(plan)
    for name in ordered:
        if known[name].options["stage"] > PLACE:
            known[name].target(plan, wanted[name])
    found = outcome(plan, {name: list(value) if isinstance(value, tuple) else value for name, value in wanted.items()})
    return replace(found, energy=_energy(read, plan, wanted, found.after))
