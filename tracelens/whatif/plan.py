"""The recorded trace that something is to be different about, and the plan of the changes to it."""

from __future__ import annotations

import fnmatch
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.attribution.activity import DeviceActivity, Labels
from tracelens.analysis.attribution.calls import SYNTHETIC
from tracelens.analysis.attribution.host_time import HostCalls, host_calls
from tracelens.analysis.attribution.window import Attribution, Recording, Window, attribute, no_device_events
from tracelens.analysis.idle.dependency_replay import Bools, Changes, DependencyReplay, Floats
from tracelens.analysis.idle.steady_step import SteadyStep, steady_steps
from tracelens.analysis.intervals import Ints
from tracelens.analysis.loaded_trace import AnalysisOptions
from tracelens.analysis.reading.catalog import Reading
from tracelens.analysis.sheets.module_time import module_paths
from tracelens.backends.base import System
from tracelens.errors import UsageError
from tracelens.files.safe_text import short_kernel_name
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import PerfModel
from tracelens.perf_models.kernels import ComputeType
from tracelens.trace.table import Kind, RowColumn, TraceTable
from tracelens.trace.tree import MODULE_PREFIX, OpTree

if TYPE_CHECKING:
    from tracelens.analysis.findings.replayed_gain import ReplayedGain
    from tracelens.analysis.findings.rule import Claimed
    from tracelens.analysis.loaded_trace import Trace


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """``window.activity`` are all device events of the file, in file order; columns per event are in that order.

    What is different is so in all steps; figures are of those that the window has selected.
    """

    recording: Recording
    options: AnalysisOptions
    window: Window
    attribution: Attribution
    host: HostCalls

    @classmethod
    def of(cls, trace: Trace, options: AnalysisOptions) -> Subject:
        """NothingToAnalyzeError for a trace without device work."""
        recording = Recording.of(trace, options)
        if not recording.trace.table.has_device_events:
            raise no_device_events(recording.trace.table)
        selected = Window.of(recording, options).selected
        window = replace(Window.of_file(recording, options), selected=selected)
        return cls(
            recording=recording,
            options=options,
            window=window,
            attribution=attribute(recording, window, options),
            host=host_calls(recording.trace.table, recording.trace.tree),
        )

    @property
    def table(self) -> TraceTable:
        return self.recording.trace.table

    @property
    def tree(self) -> OpTree:
        return self.recording.trace.tree

    @property
    def activity(self) -> DeviceActivity:
        return self.attribution.activity

    @property
    def category(self) -> Labels:
        """The category that each device event is counted in."""
        return self.attribution.event_category

    @cached_property
    def replay(self) -> DependencyReplay:
        """The dependencies of the whole file."""
        return DependencyReplay(self.table, self.tree, self.host, self.window.everything)

    @cached_property
    def steady(self) -> SteadyStep:
        """The steps that stand for all, as in a report."""
        recorded = self.recording.recorded
        host = host_calls(recorded.table, recorded.tree)
        return SteadyStep(recorded.table, recorded.tree, host, self.window, steady_steps(self.window))

    @cached_property
    def call_of_event(self) -> Ints:
        """Index into ``attribution.unified`` of each event's call, -1 for one in none."""
        calls = self.attribution.unified
        found = np.full(len(self.activity), -1)
        found[calls.events] = calls.call_of_event
        return found

    @cached_property
    def reading_of_event(self) -> Ints:
        """Code of the reading with the perf model that speaks of each event, -1 without one."""
        calls, readings = self.attribution.unified, self.attribution.readings
        code = np.where(calls.kernel_name >= 0, -1, readings.code_of(calls.row)).astype(np.int64)
        known = np.array([*(reading.model is not None for reading in readings.readings), False])
        return np.append(np.where(known[code], code, -1), -1)[self.call_of_event]

    @property
    def readings(self) -> list[Reading]:
        return self.attribution.readings.readings

    @cached_property
    def op_name(self) -> list[str]:
        """Name of each event's op: of its call, else of the op that launched it, else of the kernel itself."""
        table, activity = self.table, self.activity
        row = np.append(self.attribution.unified.row, -1)[self.call_of_event]
        row = np.where(row >= 0, row, activity.op)
        is_op = (row >= 0) & (table.kind[row] == Kind.CPU_OP)
        code = np.where(is_op, table.name[row], activity.name)
        return [table.names[number] for number in code.tolist()]

    @cached_property
    def counted(self) -> Bools:
        """Which events figures per step are made of."""
        return self.window.inside

    @cached_property
    def in_steps(self) -> Bools:
        """Which events are of a step; all without steps. What was queued as recording began stays as it is."""
        has_steps = len(self.window.times) > 0
        return self.window.step_of >= 0 if has_steps else np.ones(len(self.activity), bool)

    @property
    def steps(self) -> int:
        """Among how many steps what is counted is divided; 1 without steps."""
        return max(len(self.window.complete_steps), 1)

    def rows_named(self, name: str) -> Bools:
        """Host rows (ops, annotations, modules; modules of that class or path of classes) called ``name``, and all that
        is below them.
        """
        table, tree = self.table, self.tree
        names = np.array([text == name or text == f"{MODULE_PREFIX}{name}" for text in table.names] or [False])
        kinds = (Kind.CPU_OP, Kind.USER_ANNOTATION, Kind.PYTHON_FUNCTION)
        found: RowColumn = np.flatnonzero(names[table.name] & table.is_of(kinds) & (tree.position >= 0)).astype(
            np.int32
        )
        if not len(found):
            found = self._modules_of(name)
        depth = np.zeros(len(tree.order) + 1, np.int64)
        np.add.at(depth, tree.position[found], 1)
        np.add.at(depth, tree.last[found], -1)
        below = np.zeros(len(table), bool)
        below[tree.order] = np.cumsum(depth[:-1]) > 0
        return below

    def _modules_of(self, classes: str) -> RowColumn:
        """Calls of the modules of a class (``Linear``) or of a path of classes (``Model/Block/Linear``)."""
        modules = module_paths(self.table, self.tree, self.tree.launch[self.activity.rows], self.window.stem)
        if modules is None:
            return np.empty(0, np.int32)
        texts = [modules.text(path) for path in range(len(modules.paths))]
        fits = np.array([classes in (text, short_kernel_name(text), text.rpartition("/")[2]) for text in texts])
        found: RowColumn = modules.scopes.rows[fits[modules.path]]
        return found

    def events_of(self, selector: str) -> Bools:
        """The device events of a category, of an op, module or range with all below, or of kernels whose name, whole or
        as a report shortens it, fits.

        UsageError where there is none.
        """
        for text in self.category.texts:
            if text.casefold() == selector.casefold() and (found := self.category.are(text)).any():
                return found
        below, launch = self.rows_named(selector), self.tree.launch[self.activity.rows]
        found = np.append(below, False)[launch]
        if found.any():
            return found
        fitting = np.isin(self.activity.name, self._kernels_named(selector))
        if not fitting.any():
            fitting = self._launched_by(selector)
        if not fitting.any():
            there = {text for text in self.category.texts if self.category.are(text).any()}
            known = sorted({*there, *self.op_name})
            raise UsageError.unknown("category, op or kernel with device time", selector, known)
        return fitting

    def _launched_by(self, selector: str) -> Bools:
        """Events called ``op->kernel``, as a report calls kernels that are ops of their own."""
        op, _, kernel = selector.removesuffix(SYNTHETIC).partition("->")
        of_op = np.array([name == op for name in self.op_name], bool)
        kernels = [code for code in np.unique(self.activity.name).tolist() if self.table.names[code] == kernel]
        found: Bools = of_op & np.isin(self.activity.name, kernels)
        return found

    def _kernels_named(self, selector: str) -> list[int]:
        """Codes of the kernels that are called so, in full or as a report shortens it, or whose name fits.

        UsageError where several have this short name.
        """
        names = {code: self.table.names[code] for code in np.unique(self.activity.name).tolist()}
        short = {code: short_kernel_name(name) for code, name in names.items()}
        for called in (names, short):
            found = [code for code, name in called.items() if name == selector]
            if len(found) > 1:
                whole = " and ".join(sorted(names[code] for code in found)[:2])
                raise UsageError(
                    f"{selector!r} is short for {len(found)} kernels; give a whole name, such as {whole}, "
                    f"or {selector + '*'!r} for all"
                )
            if found:
                return found
        return [
            code for code, name in names.items()
            if fnmatch.fnmatchcase(name, selector) or fnmatch.fnmatchcase(short[code], selector)
        ]  # fmt: skip


#: Of a normal distribution, how many standard deviations to each side hold 90 %.
Z90 = 1.645
#: Places in ``Plan.gaps``.
LEAST, LIKELY, MOST = range(3)


@dataclass(slots=True, kw_only=True, eq=False)
class ChangePlan:
    """Changes put one on top of the other.

    ``factor``: what the duration of each device event is multiplied with; ``sigma``: the standard deviation of that
    factor's logarithm. ``models``, ``computed_in``: of each reading of the trace, as they are to be; ``amount``: how
    many times the work of its model a reading does; ``more_us``: what a call of it takes beside. ``recorded_on`` and
    ``system``: what the trace ran on, and what it is to run on. ``host``: what host time is multiplied with. ``gone``:
    rows of host events that fall away; ``saved``: spans of threads (lane, start, end in ns) that do; ``sooner``: how
    much (ns) of the delay before each device event that nothing recorded explains does. ``gaps``: how long (ns) after
    one kernel of a graph the next starts: at least, most likely, at most. ``claims``: of the findings that are applied,
    with how much (ns) of each part goes; ``replayed``: what says their gain in a report. ``notes``: what was assumed,
    for people.
    """

    subject: Subject
    factor: Floats
    sigma: Floats
    removed: Bools
    detached: Bools
    gone: Bools
    models: list[PerfModel | None]
    computed_in: list[ComputeType | None]
    system: System | None
    recorded_on: System | None
    amount: Floats
    more_us: Floats
    sooner: Ints
    host: float = 1.0
    replayed: ReplayedGain | None = None
    claims: list[tuple[Claimed, Floats]] = field(default_factory=list)
    gaps: tuple[int, int, int] | None = None
    saved: list[tuple[int, int, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, subject: Subject) -> ChangePlan:
        """Nothing is different yet."""
        events, device = len(subject.activity), subject.recording.device
        system = None if device is None else System.of_device(device)
        return cls(
            subject=subject,
            factor=np.ones(events),
            sigma=np.zeros(events),
            removed=np.zeros(events, bool),
            detached=np.zeros(events, bool),
            gone=np.zeros(len(subject.table), bool),
            models=[reading.model for reading in subject.readings],
            computed_in=[reading.computed_in for reading in subject.readings],
            system=system,
            recorded_on=system,
            amount=np.ones(len(subject.readings)),
            more_us=np.zeros(len(subject.readings)),
            sooner=np.zeros(events, np.int64),
        )

    def multiply(self, events: Bools, by: float | Floats, sigma: float | Floats = 0.0) -> None:
        """Their time ``by`` as long; errors of independent changes add up as squares."""
        self.factor[events] *= by
        self.sigma[events] = np.hypot(self.sigma[events], sigma)

    def note(self, text: str) -> None:
        """Says something once."""
        if text not in self.notes:
            self.notes.append(text)

    def changes(
        self, shifted: Bools | None = None, by: float = 0.0, gap: int = LIKELY, *, graph: DependencyReplay | None = None
    ) -> Changes:
        """As a replay takes it (``graph``; of the whole file where none is given); the events that are ``shifted`` lie
        ``by`` of their standard deviations beside.

        ``gap``: which of ``gaps``.
        """
        activity, inside = self.subject.activity, self.subject.in_steps
        at = self.subject.replay.at if graph is None else np.searchsorted(activity.rows, graph.device.rows)
        factor = self.factor if shifted is None else self.factor * np.exp(np.where(shifted, by * self.sigma, 0.0))
        length = activity.duration.astype(np.float64) * np.where(inside, factor, 1.0)
        return Changes(
            length=length[at],
            removed=(self.removed & inside)[at],
            detached=(self.detached & inside)[at],
            host=self.host,
            without=self._spans(),
            gap=None if self.gaps is None else self.gaps[gap],
            sooner=self.sooner[at],
        )

    @property
    def families(self) -> list[Bools]:
        """The events of each category that have an uncertain time."""
        category, uncertain = self.subject.category, (self.sigma > 0) & ~self.removed
        found = [category.are(text) & uncertain for text in category.texts]
        return [events for events in found if events.any()]

    def _spans(self) -> tuple[Ints, Ints, Ints] | None:
        rows, table = np.flatnonzero(self.gone), self.subject.table
        saved = np.array(self.saved, np.int64).reshape(-1, 3)
        if not len(rows) and not len(saved):
            return None
        spans = table.lane[rows].astype(np.int64), table.start_ns[rows], table.ends_ns(rows)
        lane, start, end = (np.concatenate((own, more)) for own, more in zip(spans, saved.T, strict=True))
        return lane, start, end
