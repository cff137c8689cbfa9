"""What is analyzed, decided once: one rank of the file with its device and its ops made complete, the complete steps or
all of the file, the call, category and pass of every device event in it, and the share of its device time that a report
covers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from tracelens.analysis.attribution import calls
from tracelens.analysis.attribution.activity import (
    DeviceActivity,
    Labels,
    StreamOverlaps,
    Timeline,
    device_activity,
    gpu_timeline,
    stream_overlaps,
    timeline_of,
    with_clipped,
)
from tracelens.analysis.attribution.host_scopes import RECOMPUTE, Phases, all_in, phases
from tracelens.analysis.attribution.steps import (
    FoundSteps,
    StepTimes,
    complete_steps,
    device_steps,
    find_steps,
    holds_most_work,
    select_steps,
    step_of_events,
)
from tracelens.analysis.grouping import Codes
from tracelens.analysis.intervals import Bools
from tracelens.analysis.loaded_trace import CLIP, FILE, AnalysisOptions, Trace, active_extensions
from tracelens.analysis.reading import added_ops, process_groups
from tracelens.analysis.reading.catalog import OTHER, Catalog
from tracelens.analysis.reading.engine_steps import STEM, InferenceSteps, inference_steps, steady_steps
from tracelens.analysis.reading.op_readings import OpReadings, read_ops
from tracelens.analysis.verdict import summary
from tracelens.backends.base import System
from tracelens.errors import NothingToAnalyzeError, UsageError
from tracelens.extensions import Extension
from tracelens.hardware import HardwareSpec, Recognition, contradiction, recognize
from tracelens.trace.provenance import MergedRanks, merged_ranks
from tracelens.trace.table import Kind, Recorder, RowColumn, TraceTable
from tracelens.trace.tree import OpTree
from tracelens.types.records import Record
from tracelens.types.units import NS_PER_US

#: ``Recognition.how`` of a device that the caller named.
CHOSEN = "chosen"
# As categories of libkineto's activity types begin for devices other than CUDA's and HIP's (ActivityType.h).
_UNREAD_DEVICES = ("mtia_", "hpu_", "xpu_", "privateuse1_", "npu_", "tpu_")


class Recording(Record, frozen=True, kw_only=True, eq=False):
    """One rank's trace, and what reads its ops.

    ``recorded``: as the file has it. ``trace``: with the ops inside composite ops and those of captured graphs as rows
    of their own. ``whole_calls``: (why, how many) calls of composite ops stayed whole. ``graphs``: None without a
    capture. ``merged``: the ranks of a file with several.
    """

    recorded: Trace
    trace: Trace
    extensions: tuple[Extension, ...]
    catalog: Catalog
    recognition: Recognition
    whole_calls: tuple[tuple[str, int], ...] = ()
    graphs: added_ops.GraphLinks | None = None
    known_shapes: added_ops.KnownShapes | None = None
    merged: MergedRanks | None = None

    @classmethod
    def of(cls, trace: Trace, options: AnalysisOptions) -> Recording:
        """NothingToAnalyzeError for a trace without device work, unless its CPU ops are asked for."""
        trace, merged = of_one_rank(trace, options.rank)
        table = trace.table
        if not table.has_device_events and not (options.cpu and _cpu_ops(table)):
            raise no_device_events(table)
        beside = [
            names for other in (options.capture, options.shapes) if other is not None for names in other.table.names
        ]
        extensions = active_extensions((*table.names, *beside), options)
        recording = cls(
            recorded=trace,
            trace=trace,
            extensions=extensions,
            catalog=Catalog(extensions),
            recognition=recognized(table, options.device),
            merged=merged,
        )
        return recording._completed(options) if table.has_device_events else recording

    @property
    def is_another_device(self) -> bool:
        """Whether the caller chose a device that the trace cannot be of."""
        return self.recognition.how == CHOSEN and bool(self.recognition.note)

    def _completed(self, options: AnalysisOptions) -> Recording:
        trace, known_shapes, capture = self.trace, None, options.capture
        if options.shapes is not None:
            trace, known_shapes = added_ops.with_known_shapes(trace, options.shapes)
        recorded = len(trace.table)
        left_by_hooks: Counter[str] = Counter()
        if self.catalog.tree_hooks:
            from tracelens.laboratory.amd_tracelens_tree import with_hooks

            trace, left_by_hooks = with_hooks(trace, self.catalog)
        trace, whole_calls = added_ops.with_inner_ops(trace, self.catalog, made_from=recorded)
        whole_calls += left_by_hooks
        graphs: added_ops.GraphLinks | None
        if capture is not None:
            trace, graphs = added_ops.with_captured_ops(
                trace, added_ops.with_inner_ops(capture, self.catalog)[0], self.catalog
            )
        else:
            trace, graphs = added_ops.with_own_graphs(trace, self.catalog)
        return replace(
            self, trace=trace, whole_calls=tuple(whole_calls.most_common()), graphs=graphs, known_shapes=known_shapes
        )

    @property
    def device(self) -> HardwareSpec | None:
        """What estimates are for: the recognized device, else what all candidates agree on, else None."""
        return self.recognition.device or self.recognition.agreed


def of_one_rank(trace: Trace, number: int | None) -> tuple[Trace, MergedRanks | None]:
    """The rank asked for, else the first, of merged ranks, and which they are; UsageError for one that is not there."""
    ranks = merged_ranks(trace.table, trace.tree)
    if ranks is None:
        if number is not None and number != trace.table.rank:
            source = trace.table.source
            raise UsageError(f"{source} has one rank, or its ranks cannot be separated: omit --rank")
        return trace, None
    number = ranks.numbers[0] if number is None else number
    return type(trace).of(ranks.table(trace.table, number)), replace(ranks, chosen=number)


def recognized(table: TraceTable, device: HardwareSpec | None) -> Recognition:
    """The ``device`` that the caller named, else the one that the trace's properties say."""
    properties = table.used_device()
    if device is not None:
        note = contradiction(device, properties) or ""
        return Recognition(device=device, candidates=(device.name,), how=CHOSEN, note=note)
    kernels = np.unique(table.name[table.kind == Kind.KERNEL]).tolist()
    return recognize(properties, kernel_names=(table.names[code] for code in kernels))


def no_device_events(table: TraceTable) -> NothingToAnalyzeError:
    """What to say of a trace without GPU work: none recorded, not asked for, or lost to damage, which is said."""
    lost = f" The file is damaged: {'; '.join(table.losses.notes)}." if table.losses.notes else ""
    ops = _cpu_ops(table)
    if not ops and table.losses.damaged_events:
        return NothingToAnalyzeError(
            f"{table.source} has neither CPU ops nor kernels that can be used: record it again.{lost}"
        )
    if not ops:
        return NothingToAnalyzeError(
            f"{table.source} has neither CPU ops nor kernels: no work ran in the profiled process while the profiler "
            f"was active. Record again, with the profiler around the work and in its process.{lost}"
        )
    other = np.bincount(table.category[table.kind == Kind.OTHER], minlength=len(table.categories))
    unread = {
        category: int(count)
        for category, count in zip(table.categories, other.tolist(), strict=True)
        if count and category.lower().startswith(_UNREAD_DEVICES)
    }
    if unread:
        kinds = ", ".join(f"{count:,} {category}" for category, count in unread.items())
        return NothingToAnalyzeError(
            f"{table.source} has {ops:,} CPU ops but no CUDA or HIP kernels, and tracelens does not read its "
            f"{sum(unread.values()):,} events of another accelerator ({kinds}); "
            f"pass --cpu to `tracelens report` for a CPU-only report.{lost}"
        )
    if lost:
        return NothingToAnalyzeError(
            f"{table.source} has {ops:,} CPU ops but no GPU kernels.{lost} Copy or record it again, or pass --cpu for "
            "a CPU-only report of what is left."
        )
    if table.recorder != Recorder():
        return NothingToAnalyzeError(
            f"{table.source}, {table.recorder.file}, has {ops:,} CPU ops but nothing that ran on a device: pass --cpu "
            "to `tracelens report` for a CPU-only report, or record where the program runs on one."
        )
    return NothingToAnalyzeError(
        f"{table.source} has {ops:,} CPU ops but no GPU kernels. Was it recorded with activities=[CPU]? "
        "Add ProfilerActivity.CUDA, or pass --cpu to `tracelens report` for a CPU-only report."
    )


def _cpu_ops(table: TraceTable) -> int:
    return int((table.kind == Kind.CPU_OP).sum())


class EngineSteps(Record, frozen=True, kw_only=True, eq=False):
    """The steps of a serving engine, their times, and the step of each analyzed device event (-1: in none)."""

    steps: InferenceSteps
    times: StepTimes
    step_of: Codes


def chosen_steps(wanted: str | None, times: StepTimes, steady: Sequence[int] = ()) -> tuple[int, ...]:
    """Positions of the complete steps that ``wanted`` names (None: all; ``file``: none); errors as ``select_steps``."""
    if wanted == FILE:
        return ()
    return tuple(complete_steps(times, select_steps(wanted, times, steady) if wanted is not None else ()))


def in_steps(table: TraceTable, rows: RowColumn, times: StepTimes, selected: Sequence[int]) -> Bools:
    """Which of these rows of the host began in the ``selected`` steps; all for none."""
    if not selected:
        return np.ones(len(rows), bool)
    return np.isin(step_of_events(list(times.steps), table.start_ns[rows]), selected)


class Window(Record, frozen=True, kw_only=True, eq=False):
    """What a report speaks of, in all its parts: the steps at ``selected``; where there is none, all of the file.

    ``times``, ``stem``: all steps of the trace, and what they are called. ``activity``: the device events launched in
    the selected steps; ``step_of``: the step of each, -1 outside of all. ``everything``: the device events of the file,
    ``everything_step_of`` their steps.
    """

    everything: DeviceActivity
    everything_step_of: Codes
    overlaps: StreamOverlaps
    found: FoundSteps
    stem: str
    times: StepTimes
    engine: EngineSteps
    selected: tuple[int, ...]
    activity: DeviceActivity
    step_of: Codes

    @classmethod
    def of(cls, recording: Recording, options: AnalysisOptions) -> Window:
        """The complete ones of the steps that ``options.steps`` names (None: of all), of which one at least did device
        work; all of the file where there is none, or where it is asked for.

        NothingToAnalyzeError where the steps asked for launched no device work.
        """
        window = cls.of_file(recording, options)
        found = window.within(chosen_steps(options.steps, window.times, window.steady))
        if len(found.activity):
            return found
        if options.steps is None:
            return window
        source = recording.trace.table.source
        raise NothingToAnalyzeError(f"{source}: steps {options.steps} launched no GPU work; choose other --steps")

    @classmethod
    def of_file(cls, recording: Recording, options: AnalysisOptions) -> Window:
        """All of the file, whose steps are known."""
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
        return cls(
            everything=everything,
            everything_step_of=step_of,
            overlaps=overlaps,
            found=found,
            stem=stem,
            times=times,
            engine=engine,
            selected=(),
            activity=everything,
            step_of=step_of,
        )

    def within(self, selected: tuple[int, ...]) -> Window:
        """These steps of the file; all of it for none."""
        if not selected:
            return self
        inside = np.isin(self.everything_step_of, selected)
        return replace(
            self,
            selected=selected,
            engine=replace(self.engine, step_of=self.engine.step_of[inside]),
            activity=self.everything.select(inside),
            step_of=self.everything_step_of[inside],
        )

    @property
    def steady(self) -> list[int]:
        """Positions of the steady steps of a serving engine; none where the steps are not an engine's."""
        return steady_steps(self.engine.steps, self.times) if self.stem == STEM else []

    @property
    def complete_steps(self) -> list[int]:
        """Positions of the steps that figures are of."""
        return list(self.selected)

    @property
    def inside(self) -> Bools:
        """Which events of ``activity`` are of the selected steps; all without steps."""
        return np.isin(self.step_of, self.selected) if self.selected else np.ones(len(self.step_of), bool)

    def timeline(self, activity: DeviceActivity) -> Timeline:
        """Where the time of the selected steps went (without steps: of the file), by the events of ``activity``."""
        if not self.selected:
            return gpu_timeline(activity)
        span_ns = int(self.times.start_ns[self.selected[0]]), int(self.times.end_ns[self.selected[-1]])
        return timeline_of(activity, span_ns, self.times.left_out)

    def excluded(self) -> Iterator[summary.Excluded]:
        """The device events of the file that are in no selected step, by why; with those inside they are the file's."""
        if not self.selected:
            return
        step, before = self.everything_step_of, self.times.was_before
        outside, complete = ~np.isin(step, self.selected), np.append(self.times.complete, False)[step]
        for why, mask in (
            (summary.BEFORE_PROFILING, before),
            (summary.OUTSIDE_STEPS, (step < 0) & ~before),
            (summary.IN_INCOMPLETE_STEPS, outside & (step >= 0) & ~complete),
            (summary.IN_OTHER_STEPS, outside & complete),
        ):
            if mask.any():
                time_us = int(self.everything.duration[mask].sum()) / NS_PER_US
                yield summary.Excluded(why=why, events=int(mask.sum()), time_us=time_us)


class Attribution(Record, frozen=True, kw_only=True, eq=False, dict=True):
    """``activity``: the window's events with what their ops say of them, ``everything``: so those of the whole file.

    ``event_category``: of each event of ``activity`` the category of the row that it is counted in. ``exchanges``: by
    reading. ``unified``: every event in exactly one call.
    """

    tree: OpTree
    activity: DeviceActivity
    everything: DeviceActivity
    event_category: Labels
    readings: OpReadings
    exchanges: Mapping[int, process_groups.ExpertExchange]
    unified: calls.Calls

    @cached_property
    def phases(self) -> Phases:
        """The phase of each event of ``activity``."""
        return phases(self.tree.table, self.tree, self.activity)

    @cached_property
    def repeated(self) -> Bools:
        """Which trace rows are ops that only a recomputation launched."""
        return all_in(RECOMPUTE, self.phases, self.tree, self.activity)


def attribute(recording: Recording, window: Window, options: AnalysisOptions) -> Attribution:
    """The readings are final: what their calls cannot have done in the time measured is not in them."""
    table, tree, device = recording.trace.table, recording.trace.tree, recording.device
    model = options.work.model if options.work is not None else None
    callers, readings = read_ops(recording.trace, recording.catalog, window.activity, model)
    activity = calls.with_communicating_ops(window.activity, callers, readings)
    system = None if device is None else System.of_device(device)
    readings, exchanges = process_groups.exchanges_of(recording.trace, readings, options.ep_size, system)
    unified, category = calls.unified_calls(table, activity, readings, callers)
    told = readings
    readings = calls.without_impossible_work(told, lambda: calls.modelled_calls(activity, told, callers), device)
    everything = activity
    if len(activity) < len(window.everything):
        communication = window.everything.communication.copy()
        communication[np.searchsorted(window.everything.rows, activity.rows)] = activity.communication
        everything = replace(window.everything, communication=communication)
    return Attribution(
        tree=tree,
        activity=activity,
        everything=everything,
        event_category=category,
        readings=readings,
        exchanges=exchanges,
        unified=unified,
    )


def coverage(
    table: TraceTable, activity: DeviceActivity, unified: calls.Calls, readings: OpReadings, categories: Labels
) -> summary.Coverage:
    """Shares of the summed duration of all device events, communication included in the denominator.

    perf_model: in rows whose perf model says FLOPs or bytes, or copies of known size; flops: in rows of known FLOPs,
    those of pure data movement and communication being none; categorised: of a category that is not ``other``
    (``categories``: of every event); unlinked: no recorded launch; communication: by kernel name, or because the op
    communicates.
    """
    duration = activity.duration
    total = int(duration.sum())

    def share(mask: Bools) -> float | None:
        return float(duration[mask].sum() / total) if total else None

    code = np.where(unified.kernel_name < 0, readings.code_of(unified.row), np.int32(-1))
    models = [reading.model for reading in readings.readings]
    has_work = np.append(readings.with_work, False)
    says_flops = np.array([m is not None and m.flops() is not None for m in models] + [False], bool)
    modelled = ~np.isnan(calls.copied_bytes(table, activity))
    unlinked = activity.op < 0
    modelled[unified.events] |= has_work[code][unified.call_of_event]
    computed = activity.communication | activity.memcpy
    computed[unified.events] |= says_flops[code][unified.call_of_event]
    return summary.Coverage(
        perf_model=share(modelled),
        flops=share(computed),
        categorised=share(~categories.are(OTHER)),
        unlinked=share(unlinked),
        communication=share(activity.communication),
        shapes=table.has_shapes,
        stacks=table.has_stacks,
    )
