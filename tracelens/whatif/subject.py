"""The recorded trace that something is to be different about: its device events with what they belong to."""

from __future__ import annotations

import fnmatch
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.attribution.activity import DeviceActivity, Labels
from tracelens.analysis.attribution.calls import SYNTHETIC
from tracelens.analysis.attribution.host_time import HostCalls, host_calls
from tracelens.analysis.attribution.window import Attribution, Window, attribute
from tracelens.analysis.idle.dependency_replay import Bools, DependencyReplay
from tracelens.analysis.idle.steady_step import SteadyStep, steady_steps
from tracelens.analysis.intervals import Ints
from tracelens.analysis.loaded_trace import Options
from tracelens.analysis.reading.catalog import Reading
from tracelens.analysis.reading.recording import Recording, no_device_events
from tracelens.analysis.sheets.module_time import module_paths
from tracelens.errors import UsageError
from tracelens.files.short_names import short_kernel_name
from tracelens.lazy.records import dataclass
from tracelens.trace.table import Kind, RowColumn, TraceTable
from tracelens.trace.tree import MODULE_PREFIX, OpTree

if TYPE_CHECKING:
    from tracelens.analysis.loaded_trace import Trace


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """``window.activity`` are all device events of the file, in file order; columns per event are in that order.

    What is different is so in all steps; figures are of those that the window has selected.
    """

    recording: Recording
    options: Options
    window: Window
    attribution: Attribution
    host: HostCalls

    @classmethod
    def of(cls, trace: Trace, options: Options) -> Subject:
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
