"""A trace measured beside what it could be: every frame and figure of a report, from one pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.analysis.attribution.activity import DeviceActivity, Labels, device_activity
from tracelens.analysis.attribution.attributed import Attribution, attribute
from tracelens.analysis.attribution.calls import Calls, direct_calls, unified_calls
from tracelens.analysis.attribution.device_time import Timeline, gpu_timeline
from tracelens.analysis.attribution.op_places import all_in, with_places
from tracelens.analysis.attribution.per_step import Counted, counted_steps
from tracelens.analysis.attribution.steps import StepTimes, complete_steps, device_steps
from tracelens.analysis.attribution.stream_order import StreamOverlaps
from tracelens.analysis.attribution.window import EngineSteps, Window
from tracelens.analysis.factorize import Codes
from tracelens.analysis.options import Options
from tracelens.analysis.page.step_idle import StepIdle
from tracelens.analysis.reading.catalog import Catalog, ExtensionFailure
from tracelens.analysis.reading.engine_steps import by_phase, iterations
from tracelens.analysis.reading.graph_replays import GraphLinks
from tracelens.analysis.reading.recording import Recording
from tracelens.analysis.sheets import op_tables
from tracelens.analysis.sheets.assembly import views
from tracelens.analysis.sheets.coll_analysis import collective_rows, with_estimates
from tracelens.analysis.sheets.copies import copies
from tracelens.analysis.sheets.cpu_ops import cpu_ops_summary, cpu_ops_unique_args
from tracelens.analysis.sheets.families import families
from tracelens.analysis.sheets.recompute import BACKWARD
from tracelens.analysis.verdict.coverage import coverage
from tracelens.analysis.verdict.summary import Coverage, Unanswered
from tracelens.analysis.work.executed_work import ExecutedWork, executed_work
from tracelens.analysis.work.limits import Limits
from tracelens.backends.chain import chain
from tracelens.backends.system import System
from tracelens.extensions import Extension
from tracelens.hardware import HardwareSpec, Recognition
from tracelens.trace.merged import MergedRanks
from tracelens.trace.reading.memory_limit import give_back_freed
from tracelens.trace.table import TraceTable

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.loaded_trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Analysis:
    """Frames by sheet name, per-family frames, and the figures that a summary is made of.

    ``event_category``: of each device event of ``activity``, the category of the row that it is counted in.
    ``executed``: None where no model's utilization was asked for. ``graphs``: None without a trace of the capture; with
    one, ``trace`` has the captured ops as rows of its own. ``missing``: what a view was not recorded for.
    ``step_idle``: when and why the device was idle in the typical step, whose critical path is shown; without steps in
    the window. ``whole_calls``: (why, how many) calls of ops that hold several operations stayed whole. ``merged``: the
    ranks of a file with several. ``per_step``: what figures per step are made of; None without device work.
    """

    trace: Trace
    options: Options
    recognition: Recognition
    extensions: tuple[Extension, ...]
    frames: dict[str, pd.DataFrame]
    families: dict[str, pd.DataFrame]
    coverage: Coverage
    timeline: Timeline
    activity: DeviceActivity
    event_category: Labels
    step_times: StepTimes
    overlaps: StreamOverlaps | None = None
    step_stem: str = ""
    selected_steps: tuple[int, ...] = ()
    failures: tuple[ExtensionFailure, ...] = ()
    executed: ExecutedWork | None = None
    graphs: GraphLinks | None = None
    missing: tuple[Unanswered, ...] = ()
    whole_calls: tuple[tuple[str, int], ...] = ()
    merged: MergedRanks | None = None
    per_step: Counted | None = None
    step_idle: StepIdle | None = None

    @property
    def headline(self) -> Analysis:
        """This analysis with the events, rows and times of the complete analyzed steps alone, if there are steps."""
        part = self.per_step
        if part is None:
            return self
        return replace(
            self,
            activity=part.activity,
            event_category=part.event_category,
            frames={**self.frames, "unified_perf_summary": part.rows},
            coverage=part.coverage,
            timeline=part.timeline,
        )

    @property
    def complete_steps(self) -> list[int]:
        """Positions of the analyzed steps that were recorded whole; all analyzed ones where none was."""
        return complete_steps(self.step_times, self.selected_steps)

    @property
    def device(self) -> HardwareSpec | None:
        """What estimates are for: the recognized device, else what all candidates agree on, else None."""
        return self.recognition.device or self.recognition.agreed


def analyze(trace: Trace, options: Options) -> Analysis:
    """All frames of one trace, or of one rank of it. NothingToAnalyzeError when it has no device events."""
    recording = Recording.of(trace, options)
    if not recording.trace.table.has_device_events:
        return _cpu_only(recording, options)
    window = Window.of(recording, options)
    attribution = attribute(recording, window, options)
    priced = PricedCalls.of(recording, window, attribution, options)
    give_back_freed()
    seen = views(
        recording.recorded,
        recording.trace,
        attribution.activity,
        attribution.everything,
        priced.per_step,
        window.times,
        window.selected,
        window.stem,
        attribution.phases,
    )
    return Analysis(
        trace=recording.trace,
        options=options,
        recognition=recording.recognition,
        extensions=recording.extensions,
        frames=_frames(recording, window, attribution, priced, seen.frames, options),
        families=priced.families,
        coverage=priced.whole.coverage,
        timeline=priced.whole.timeline,
        activity=attribution.activity,
        event_category=attribution.event_category,
        overlaps=window.overlaps,
        step_stem=window.stem,
        step_times=window.times,
        selected_steps=window.selected,
        failures=tuple(recording.catalog.failures),
        executed=priced.executed,
        graphs=recording.graphs,
        missing=seen.missing,
        whole_calls=recording.whole_calls,
        merged=recording.merged,
        per_step=priced.per_step,
        step_idle=seen.idle,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PricedCalls:
    """Every distinct call beside its work and its estimates.

    ``launchers``: by launching op; ``modelled``: every event in exactly one row, but for the ``unlinked`` ones, which
    no recorded op launched; ``whole``: both, of the whole window. ``executed``: None where no model's utilization was
    asked for. ``chosen``: what the backend that the caller chose says is achievable.
    """

    launchers: pd.DataFrame
    modelled: pd.DataFrame
    unlinked: pd.DataFrame
    families: dict[str, pd.DataFrame]
    whole: Counted
    per_step: Counted
    executed: ExecutedWork | None
    chosen: Callable[[Any], Any] | None

    @classmethod
    def of(cls, recording: Recording, window: Window, attribution: Attribution, options: Options) -> PricedCalls:
        """Estimates are at the clock that the caller chose."""
        table, tree, device = recording.trace.table, recording.trace.tree, recording.device
        activity, readings, repeated = attribution.activity, attribution.readings, attribution.repeated
        chosen = _estimator(device, options.backend, options.clock_mhz) if options.backend != "roofline" else None
        work = op_tables.Work(
            readings,
            _estimator(device, "roofline", options.clock_mhz),
            chosen,
            None if device is None else Limits.of(device),
        )

        def rows(part: DeviceActivity, calls: Calls, apart: Codes) -> pd.DataFrame:
            return op_tables.modelled_table(table, part, readings, calls, work, attribution.exchanges, apart)

        def count(part: DeviceActivity, timeline: Timeline) -> Counted:
            calls, category = unified_calls(table, tree, part, readings)
            return Counted(
                activity=part,
                event_category=category,
                rows=_with_rows(rows(part, calls, repeated[calls.row]), op_tables.unlinked_rows(table, part)),
                coverage=coverage(table, part, calls, readings, category),
                timeline=timeline,
            )

        direct = direct_calls(activity, attribution.event_category)
        unique = op_tables.ops_unique_args(table, activity, attribution.launchers, direct, repeated[direct.row])
        calls, unified = attribution.modelled, attribution.unified
        nested = rows(activity, calls, 2 * repeated[calls.row] + ~np.isin(calls.row, unified.row))
        modelled = with_places(rows(activity, unified, repeated[unified.row]), tree, attribution.phases, repeated)
        unlinked = op_tables.unlinked_rows(table, activity)
        whole = Counted(
            activity=activity,
            event_category=attribution.event_category,
            rows=_with_rows(modelled, unlinked),
            coverage=coverage(table, activity, unified, readings, attribution.event_category),
            timeline=window.timeline(activity),
        )
        in_backward = all_in(BACKWARD, attribution.phases, tree, activity)
        steps = len(window.times)
        return cls(
            launchers=unique,
            modelled=modelled,
            unlinked=unlinked,
            families=families(table, nested, readings, unified.row, in_backward),
            whole=whole,
            per_step=counted_steps(whole, window.times, window.complete_steps, count),
            executed=executed_work(unified, readings, window.step_of, steps) if options.work is not None else None,
            chosen=chosen,
        )


def _frames(
    recording: Recording,
    window: Window,
    attribution: Attribution,
    priced: PricedCalls,
    seen: dict[str, pd.DataFrame],
    options: Options,
) -> dict[str, pd.DataFrame]:
    table, tree, activity = recording.trace.table, recording.trace.tree, attribution.activity
    category, total_ns = attribution.event_category, priced.whole.timeline.total_ns
    by_call = _with_unlinked(priced.launchers, priced.unlinked)
    by_category = op_tables.ops_summary_by_category(by_call, activity, category)
    return {
        "gpu_timeline": priced.whole.timeline.frame(),
        "ops_summary_by_category": op_tables.with_estimated_totals(by_category, priced.modelled, "category"),
        "ops_summary": op_tables.with_estimated_totals(op_tables.ops_summary(by_call), priced.modelled, "name"),
        "ops_unique_args": with_places(priced.launchers, tree, attribution.phases, attribution.repeated),
        "kernel_summary": op_tables.kernel_summary(table, activity, category, total_ns),
        "coll_analysis": with_estimates(collective_rows(table, tree, activity), priced.chosen),
        "unified_perf_summary": priced.whole.rows,
        "short_kernel_histogram": op_tables.short_kernel_histogram(activity),
        "short_kernels_summary": op_tables.short_kernels_summary(table, activity, total_ns),
        "steps": window.times.sheet(int(table.start_ns.min())),
        **_inference_frames(window.engine, activity, category),
        **seen,
        **_copy_frames(table, activity, recording.device),
        **(_cpu_frames(recording.recorded, recording.catalog) if options.cpu else {}),
    }


def _inference_frames(engine: EngineSteps, activity: DeviceActivity, category: Labels) -> dict[str, pd.DataFrame]:
    if not len(engine.steps):
        return {}
    frame = iterations(engine.steps, engine.times, engine.step_of, activity, category)
    frame = frame[np.isin(np.arange(len(engine.steps)), engine.step_of)]
    return {"inference_iterations": frame, "inference_phases": by_phase(frame)}


def _copy_frames(table: TraceTable, activity: DeviceActivity, device: HardwareSpec | None) -> dict[str, pd.DataFrame]:
    frame = copies(table, activity, device)
    return {"copies": frame} if len(frame) else {}


def _cpu_frames(trace: Trace, catalog: Catalog) -> dict[str, pd.DataFrame]:
    unique = cpu_ops_unique_args(trace, catalog)
    return {"cpu_ops_summary": cpu_ops_summary(unique), "cpu_ops_unique_args": unique}


def _cpu_only(recording: Recording, options: Options) -> Analysis:
    table, tree = recording.trace.table, recording.trace.tree
    activity = device_activity(table, tree, recording.catalog.kernel_patterns)
    stem, times, _ = device_steps(table, tree, activity.rows)
    frames = _cpu_frames(recording.recorded, recording.catalog)
    if len(times):
        frames["steps"] = times.sheet(int(table.start_ns.min()))
    return Analysis(
        trace=recording.trace,
        options=options,
        recognition=recording.recognition,
        extensions=recording.extensions,
        frames=frames,
        families={},
        coverage=Coverage(shapes=table.has_shapes, stacks=table.has_stacks),
        timeline=gpu_timeline(activity),
        activity=activity,
        event_category=activity.category,
        step_stem=stem,
        step_times=times,
        failures=tuple(recording.catalog.failures),
        merged=recording.merged,
    )


def _estimator(device: HardwareSpec | None, backend: str, clock_mhz: float | None) -> Callable[[Any], Any] | None:
    if device is None:
        return None
    answers, system = chain(backend), System.of_device(device).at_clock(clock_mhz)
    return lambda columns: answers.estimate_many(columns, system)


def _with_unlinked(unique: pd.DataFrame, unlinked: pd.DataFrame) -> pd.DataFrame:
    if unlinked.empty:
        return unique
    import pandas as pd

    rows = unlinked[["name", "category", "operation_count"]].copy()
    rows["calls"] = rows["operation_count"]
    rows["direct_us_sum"] = rows["subtree_us_sum"] = unlinked["kernel_us_sum"]
    return pd.concat([unique[rows.columns], rows], ignore_index=True)


def _with_rows(unified: pd.DataFrame, unlinked: pd.DataFrame) -> pd.DataFrame:
    if unlinked.empty:
        return unified
    import pandas as pd

    absent: dict[str, Any] = {
        str(column): np.nan if pd.api.types.is_numeric_dtype(values) else None
        for column, values in unified.items()
        if column not in unlinked
    }
    rows = unlinked.assign(**absent)[list(unified.columns)]
    joined = pd.concat([unified, rows], ignore_index=True) if len(unified) else rows
    joined = op_tables.sorted_by(joined.drop(columns=["percent", "cumulative_percent"]), "kernel_us_sum")
    return op_tables.with_percent(joined, "kernel_us_sum")
