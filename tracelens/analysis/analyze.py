"""A trace measured beside what it could be: every frame and figure of a report, from one pass."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from tracelens.analysis.attribution.activity import (
    DeviceActivity,
    Labels,
    StreamOverlaps,
    Timeline,
    device_activity,
    gpu_timeline,
)
from tracelens.analysis.attribution.calls import ExecutedWork
from tracelens.analysis.attribution.steps import FoundSteps, StepTimes, device_steps, find_steps
from tracelens.analysis.attribution.window import Recording, Window, attribute, chosen_steps
from tracelens.analysis.energy import EventEnergy
from tracelens.analysis.findings.ranking import Found, findings
from tracelens.analysis.findings.rule import RuleFailure
from tracelens.analysis.grouping import Codes
from tracelens.analysis.intervals import Ints
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace
from tracelens.analysis.reading.added_ops import GraphLinks, KnownShapes
from tracelens.analysis.reading.catalog import ExtensionFailure
from tracelens.analysis.sheets import device_timeline, perf_summary
from tracelens.analysis.sheets.context import HostContext, SheetContext, plain_strings
from tracelens.analysis.sheets.device_timeline import not_shown
from tracelens.analysis.sheets.priced_calls import PricedCalls
from tracelens.analysis.step_rectangles import StepIdle
from tracelens.analysis.verdict.summary import Coverage, Excluded, Finding, FixesTogether, Notice, Unanswered
from tracelens.extensions import Extension
from tracelens.files.memory_limit import end_stage
from tracelens.hardware import HardwareSpec, Recognition
from tracelens.trace.provenance import MergedRanks
from tracelens.trace.reading.read import PowerLog
from tracelens.types.records import Record


class Analysis(Record, frozen=True, kw_only=True, eq=False):
    """Frames by sheet name, per-family frames, and the figures that a summary is made of.

    All of it is of one scope: the steps at ``selected_steps``, else the file; ``excluded``: the file's other events.
    ``step_times``: all steps of the file.
    ``event_category``: of each device event of ``activity``, the category of the row that it is counted in.
    ``executed``: None where no model's utilization was asked for. ``graphs``: None without a trace of the capture; with
    one, ``trace`` has the captured ops as rows of its own. ``missing``: what a view was not recorded for.
    ``step_idle``: when and why the device was idle in the typical step, whose critical path is shown; without steps in
    the window. ``row_of_event``: the row of ``unified_perf_summary`` that each device event is counted in, -1 for none.
    ``energy``: None where energies of the device are unknown. ``power_log``: what it drew, if that was given.
    ``whole_calls``: (why, how many) calls of ops that hold several operations stayed whole. ``merged``: the
    ranks of a file with several. ``step_of``: position of the step of each device event of ``activity``, -1 outside of
    all. ``found_steps``: which annotations give the steps.
    """

    trace: Trace
    options: AnalysisOptions
    recognition: Recognition
    extensions: tuple[Extension, ...]
    frames: Mapping[str, pd.DataFrame]
    families: dict[str, pd.DataFrame]
    coverage: Coverage
    timeline: Timeline
    activity: DeviceActivity
    event_category: Labels
    step_times: StepTimes
    step_of: Codes
    overlaps: StreamOverlaps | None = None
    step_stem: str = ""
    found_steps: FoundSteps = FoundSteps()
    selected_steps: tuple[int, ...] = ()
    excluded: tuple[Excluded, ...] = ()
    failures: tuple[ExtensionFailure, ...] = ()
    executed: ExecutedWork | None = None
    graphs: GraphLinks | None = None
    known_shapes: KnownShapes | None = None
    missing: tuple[Unanswered, ...] = ()
    whole_calls: tuple[tuple[str, int], ...] = ()
    merged: MergedRanks | None = None
    step_idle: StepIdle | None = None
    energy: EventEnergy | None = None
    power_log: PowerLog | None = None
    row_of_event: Codes | None = None
    findings: tuple[Finding, ...] = ()
    together: FixesTogether | None = None
    without_gain: tuple[Notice, ...] = ()
    rule_failures: tuple[RuleFailure, ...] = ()

    @property
    def step_numbers(self) -> Ints:
        """The number of the step of each device event of ``activity``, -1 outside of all."""
        numbers = np.array([step.number for step in self.step_times.steps] + [-1], np.int64)
        return numbers[self.step_of]

    @property
    def complete_steps(self) -> list[int]:
        """Positions of the steps that figures are of."""
        return list(self.selected_steps)

    @property
    def device(self) -> HardwareSpec | None:
        """What estimates are for: the recognized device, else what all candidates agree on, else None."""
        return self.recognition.device or self.recognition.agreed


def analyze(trace: Trace, options: AnalysisOptions, *, on_demand: bool = False) -> Analysis:
    """All frames of one trace, or of one rank of it. NothingToAnalyzeError when it has no device events.

    ``on_demand``: a frame is made when first asked for, and nothing is looked for: no findings, nothing missing.
    """
    with plain_strings():
        return _analyzed(trace, options, on_demand)


def _analyzed(trace: Trace, options: AnalysisOptions, on_demand: bool) -> Analysis:
    recording = Recording.of(trace, options)
    if not recording.trace.table.has_device_events:
        return _cpu_only(recording, options)
    window = Window.of(recording, options)
    attribution = attribute(recording, window, options)
    priced = PricedCalls.of(recording, window, attribution, options)
    end_stage()
    context = SheetContext(
        recording=recording, options=options, step_times=window.times, selected=window.selected, window=window,
        attribution=attribution, priced=priced,
    )  # fmt: skip
    frames: Mapping[str, pd.DataFrame] = context.frames
    found = Found()
    if not on_demand:
        frames = dict(frames)
        context.end_sheets()
        found = findings(context, recording.extensions)
        context.end()
    return Analysis(
        trace=recording.trace,
        options=options,
        recognition=recording.recognition,
        extensions=recording.extensions,
        frames=frames,
        families=priced.families,
        coverage=priced.coverage,
        timeline=priced.timeline,
        activity=attribution.activity,
        event_category=attribution.event_category,
        overlaps=window.overlaps,
        step_stem=window.stem,
        found_steps=window.found,
        step_times=window.times,
        step_of=window.step_of,
        selected_steps=window.selected,
        excluded=tuple(window.excluded()),
        failures=tuple(recording.catalog.failures),
        executed=priced.executed,
        graphs=recording.graphs,
        known_shapes=recording.known_shapes,
        missing=() if on_demand else not_shown(recording.recorded.table, frames),
        whole_calls=recording.whole_calls,
        merged=recording.merged,
        step_idle=context.step_idle,
        energy=context.energy,
        power_log=context.power_log,
        row_of_event=priced.row_of_event,
        findings=found.findings,
        together=found.together,
        without_gain=found.without_gain,
        rule_failures=found.failures,
    )


def _cpu_only(recording: Recording, options: AnalysisOptions) -> Analysis:
    table, tree = recording.trace.table, recording.trace.tree
    activity = device_activity(table, tree, recording.catalog.kernel_patterns)
    found = find_steps(table, tree, activity.rows)
    stem, times, _ = device_steps(table, tree, activity.rows, found)
    selected = chosen_steps(options.steps, times)
    context = HostContext(recording=recording, options=options, step_times=times, selected=selected)
    titles = (
        perf_summary.CPU_OPS_TITLE,
        perf_summary.CPU_OPS_SUMMARY_TITLE,
        *((device_timeline.STEP_TIMES_TITLE,) if len(times) else ()),
    )
    return Analysis(
        trace=recording.trace,
        options=options,
        recognition=recording.recognition,
        extensions=recording.extensions,
        frames={title: context.frames[title] for title in titles},
        families={},
        coverage=Coverage(shapes=table.has_shapes, stacks=table.has_stacks),
        timeline=gpu_timeline(activity),
        activity=activity,
        event_category=activity.category,
        step_stem=stem,
        found_steps=found,
        step_times=times,
        step_of=np.full(len(activity), -1, np.int32),
        selected_steps=selected,
        failures=tuple(recording.catalog.failures),
        merged=recording.merged,
    )
