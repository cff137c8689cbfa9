"""The analyzed window: a trace's steps, and the device events of those that are analyzed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracelens.analysis.attribution.activity import DeviceActivity, device_activity
from tracelens.analysis.attribution.device_time import Timeline, gpu_timeline, timeline_of
from tracelens.analysis.attribution.per_step import counted_events
from tracelens.analysis.attribution.steps import (
    FoundSteps,
    StepTimes,
    complete_steps,
    device_steps,
    find_steps,
    holds_most_work,
    select_steps,
)
from tracelens.analysis.attribution.stream_order import StreamOverlaps, stream_overlaps, with_clipped
from tracelens.analysis.factorize import Codes
from tracelens.analysis.options import CLIP, Options
from tracelens.analysis.reading.engine_steps import STEM, InferenceSteps, inference_steps, steady_steps
from tracelens.analysis.reading.recording import Recording
from tracelens.errors import NothingToAnalyzeError
from tracelens.lazy.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EngineSteps:
    """The steps of a serving engine, their times, and the step of each analyzed device event (-1: in none)."""

    steps: InferenceSteps
    times: StepTimes
    step_of: Codes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """The steps of a trace, named ``stem``, of which those at ``selected`` (none: the whole file) are analyzed.

    ``activity``: the analyzed device events; ``step_of``: the step of each, -1 outside of all. ``everything``: the
    device events of the whole file.
    """

    everything: DeviceActivity
    overlaps: StreamOverlaps
    found: FoundSteps
    stem: str
    times: StepTimes
    engine: EngineSteps
    selected: tuple[int, ...]
    activity: DeviceActivity
    step_of: Codes

    @classmethod
    def of(cls, recording: Recording, options: Options) -> Window:
        """NothingToAnalyzeError where the steps asked for launched no device work."""
        table, tree = recording.trace.table, recording.trace.tree
        recorded = device_activity(table, tree, recording.catalog.kernel_patterns)
        overlaps = stream_overlaps(table, recorded, clip=options.overlap == CLIP)
        everything = with_clipped(recorded, overlaps)
        served, found = inference_steps(table, recording.catalog), find_steps(table, tree, everything.rows)
        of_engine = FoundSteps(stem=STEM, steps=served.steps, name=served.name, of_engine=True)
        engine_only = not found.steps and holds_most_work(served.steps, table, tree, everything.rows)
        found = of_engine if engine_only else found
        stem, times, step_of = device_steps(table, tree, everything.rows, found)
        engine = EngineSteps(steps=served, times=times, step_of=step_of)
        if not engine_only and len(served):
            _, engine_times, engine_step_of = device_steps(table, tree, everything.rows, of_engine)
            engine = EngineSteps(steps=served, times=engine_times, step_of=engine_step_of)
        window = cls(
            everything=everything,
            overlaps=overlaps,
            found=found,
            stem=stem,
            times=times,
            engine=engine,
            selected=(),
            activity=everything,
            step_of=step_of,
        )
        if options.steps is not None:
            selected = select_steps(options.steps, times, steady_steps(served, times) if engine_only else ())
            window = window._within(selected)
            if not len(window.activity):
                raise NothingToAnalyzeError(f"{table.source}: no GPU work was launched in steps {options.steps}")
        counted = counted_events(window.step_of, window.complete_steps)
        return replace(window, activity=replace(window.activity, counted=counted))

    def _within(self, selected: list[int]) -> Window:
        inside = np.isin(self.step_of, selected)
        return replace(
            self,
            selected=tuple(selected),
            engine=replace(self.engine, step_of=self.engine.step_of[inside]),
            activity=self.everything.select(inside),
            step_of=self.step_of[inside],
        )

    @property
    def complete_steps(self) -> list[int]:
        """Positions of the analyzed steps that were recorded whole; all analyzed ones where none was."""
        return complete_steps(self.times, self.selected)

    def timeline(self, activity: DeviceActivity) -> Timeline:
        """Where the time of the analyzed steps went (without steps: of the file), by the events of ``activity``."""
        if not self.selected:
            return gpu_timeline(activity)
        span_ns = int(self.times.start_ns[self.selected[0]]), int(self.times.end_ns[self.selected[-1]])
        return timeline_of(activity, span_ns, self.times.left_out)
