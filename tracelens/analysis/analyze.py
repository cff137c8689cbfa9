"""A trace measured beside what it could be: every frame and figure of a report, from one pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity, Labels, device_activity
from tracelens.analysis.attribution.calls import direct_calls, launchers, modelled_calls, read_ops, unified_calls
from tracelens.analysis.attribution.device_time import Timeline, gpu_timeline, timeline_of
from tracelens.analysis.attribution.event_category import with_communicating_ops
from tracelens.analysis.attribution.op_places import all_in, with_places
from tracelens.analysis.attribution.per_step import Counted, counted_events, counted_steps
from tracelens.analysis.attribution.steps import StepTimes, complete_steps, device_steps, find_steps, select_steps
from tracelens.analysis.attribution.stream_order import StreamOverlaps, stream_overlaps, with_clipped
from tracelens.analysis.options import CLIP, Options, active_extensions
from tracelens.analysis.page.step_idle import StepIdle
from tracelens.analysis.reading.catalog import Catalog, ExtensionFailure
from tracelens.analysis.reading.composite_ops import with_inner_ops
from tracelens.analysis.reading.engine_steps import (
    STEM,
    InferenceSteps,
    by_phase,
    inference_steps,
    iterations,
    steady_steps,
)
from tracelens.analysis.reading.graph_replays import GraphLinks, with_captured_ops
from tracelens.analysis.reading.recorded_groups import ep_size_of, expert_groups
from tracelens.analysis.sheets import op_tables
from tracelens.analysis.sheets.assembly import views
from tracelens.analysis.sheets.coll_analysis import collective_rows, with_estimates
from tracelens.analysis.sheets.copies import copies
from tracelens.analysis.sheets.cpu_ops import cpu_ops_summary, cpu_ops_unique_args
from tracelens.analysis.sheets.families import families
from tracelens.analysis.sheets.recompute import BACKWARD, RECOMPUTE, phases
from tracelens.analysis.verdict.coverage import coverage
from tracelens.analysis.verdict.summary import Coverage, Unanswered
from tracelens.analysis.work.executed_work import ExecutedWork, executed_work
from tracelens.analysis.work.expert_exchange import ExpertGroup, exchanges_of
from tracelens.analysis.work.impossible_work import forget_impossible_work
from tracelens.analysis.work.limits import Limits
from tracelens.backends.chain import chain
from tracelens.backends.system import System
from tracelens.errors import NothingToAnalyzeError, UsageError
from tracelens.extensions import Extension
from tracelens.hardware import HardwareSpec, Recognition, contradiction, recognize
from tracelens.trace.merged import MergedRanks, merged_ranks
from tracelens.trace.reading.memory_limit import give_back_freed
from tracelens.trace.table import Kind, TraceTable

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.loaded_trace import Trace

#: ``Recognition.how`` of a device that the caller named.
CHOSEN = "chosen"


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
    trace, merged = of_one_rank(trace, options.rank)
    recorded_trace, table = trace, trace.table
    if not table.has_device_events and not (options.cpu and _cpu_ops(trace)):
        raise no_device_events(trace)
    captured = () if options.capture is None else options.capture.table.names
    extensions = active_extensions((*table.names, *captured), options)
    catalog = Catalog(extensions)
    if not table.has_device_events:
        return replace(_cpu_only(trace, options, extensions, catalog), merged=merged)
    graphs = None
    trace, whole_calls = with_inner_ops(trace, catalog)
    if options.capture is not None:
        trace, graphs = with_captured_ops(trace, with_inner_ops(options.capture, catalog)[0], catalog)
    table, tree = trace.table, trace.tree
    recorded = device_activity(table, tree, catalog.kernel_patterns)
    overlaps = stream_overlaps(table, recorded, clip=options.overlap == CLIP)
    everything = with_clipped(recorded, overlaps)
    served = inference_steps(table, catalog)
    steps = find_steps(table)
    stem, times, step_of = device_steps(
        table, tree, everything.rows, (STEM, served.steps) if not steps[0] and len(served) > 1 else steps
    )
    served_times, served_of = times, step_of
    if stem != STEM and len(served):
        _, served_times, served_of = device_steps(table, tree, everything.rows, (STEM, served.steps))
    selected: list[int] = []
    activity, span_ns = everything, None
    if options.steps is not None:
        selected = select_steps(options.steps, times, steady_steps(served, times) if stem == STEM else ())
        in_steps = np.isin(step_of, selected)
        activity, step_of, served_of = everything.select(in_steps), step_of[in_steps], served_of[in_steps]
        span_ns = (int(times.start_ns[selected[0]]), int(times.end_ns[selected[-1]]))
        if not len(activity):
            raise NothingToAnalyzeError(f"{table.source}: no GPU work was launched in steps {options.steps}")
    whole_steps = complete_steps(times, selected)
    activity = replace(activity, counted=counted_events(step_of, whole_steps))
    recognition = recognized(trace, options)
    device = recognition.device or recognition.agreed
    estimate = _estimator(device, "roofline", options.clock_mhz)
    chosen = _estimator(device, options.backend, options.clock_mhz) if options.backend != "roofline" else None

    events, ops, readings = read_ops(trace, catalog, activity, options.work.model if options.work is not None else None)
    activity = with_communicating_ops(activity, tree, readings)
    everything = _with_selected(everything, activity)
    system = None if device is None else System.of_device(device)
    readings, exchanges = exchanges_of(trace, readings, _expert_group(table, options), system)
    launching = launchers(table, activity, events, ops)
    modelled = modelled_calls(activity, readings, events, ops)
    # What has a row per kernel and op above it, and nothing below needs
    del events, ops
    unified_set, event_category = unified_calls(table, tree, activity, readings)
    phase = phases(table, tree, activity)
    repeated = all_in(RECOMPUTE, phase, tree, activity).astype(np.int32)
    direct = direct_calls(activity, event_category)
    unique = op_tables.ops_unique_args(table, activity, launching, direct, repeated[direct.row])
    del direct, launching
    forget_impossible_work(readings, modelled, device)
    work = op_tables.Work(readings, estimate, chosen, None if device is None else Limits.of(device))
    apart = 2 * repeated[modelled.row] + ~np.isin(modelled.row, unified_set.row)
    nested = op_tables.modelled_table(table, activity, readings, modelled, work, exchanges, apart)
    del modelled, apart
    apart = repeated[unified_set.row]
    unified = op_tables.modelled_table(table, activity, readings, unified_set, work, exchanges, apart)
    unified = with_places(unified, tree, phase, repeated)
    unlinked = op_tables.unlinked_rows(table, activity)
    timeline = gpu_timeline(activity) if span_ns is None else timeline_of(activity, span_ns, times.left_out)
    whole = Counted(
        activity=activity,
        event_category=event_category,
        rows=_with_rows(unified, unlinked),
        coverage=coverage(table, activity, unified_set, readings, event_category),
        timeline=timeline,
    )

    def count(part: DeviceActivity, of: Timeline) -> Counted:
        calls, category = unified_calls(table, tree, part, readings)
        rows = op_tables.modelled_table(table, part, readings, calls, work, exchanges, repeated[calls.row])
        return Counted(
            activity=part,
            event_category=category,
            rows=_with_rows(rows, op_tables.unlinked_rows(table, part)),
            coverage=coverage(table, part, calls, readings, category),
            timeline=of,
        )

    per_step = counted_steps(whole, times, whole_steps, count)
    give_back_freed()
    seen = views(recorded_trace, trace, activity, everything, per_step, times, selected, stem, phase)
    frames = {
        "gpu_timeline": timeline.frame(),
        "ops_summary_by_category": op_tables.with_estimated_totals(
            op_tables.ops_summary_by_category(_with_unlinked(unique, unlinked), activity, event_category),
            unified,
            "category",
        ),
        "ops_summary": op_tables.with_estimated_totals(
            op_tables.ops_summary(_with_unlinked(unique, unlinked)), unified, "name"
        ),
        "ops_unique_args": with_places(unique, tree, phase, repeated),
        "kernel_summary": op_tables.kernel_summary(table, activity, event_category, timeline.total_ns),
        "coll_analysis": with_estimates(collective_rows(table, tree, activity), chosen),
        "unified_perf_summary": whole.rows,
        "short_kernel_histogram": op_tables.short_kernel_histogram(activity),
        "short_kernels_summary": op_tables.short_kernels_summary(table, activity, timeline.total_ns),
        "steps": times.sheet(int(table.start_ns.min())),
        **(_inference_frames(served, served_times, served_of, activity, event_category) if len(served) else {}),
        **seen.frames,
        **_copy_frames(table, activity, device),
        **(_cpu_frames(recorded_trace, catalog) if options.cpu else {}),
    }
    return Analysis(
        trace=trace,
        options=options,
        recognition=recognition,
        extensions=extensions,
        frames=frames,
        families=families(table, nested, readings, unified_set.row, all_in(BACKWARD, phase, tree, activity)),
        coverage=whole.coverage,
        timeline=timeline,
        activity=activity,
        event_category=event_category,
        overlaps=overlaps,
        step_stem=stem,
        step_times=times,
        selected_steps=tuple(selected),
        failures=tuple(catalog.failures),
        executed=executed_work(unified_set, readings, step_of, len(times)) if options.work is not None else None,
        graphs=graphs,
        missing=seen.missing,
        whole_calls=tuple(whole_calls.most_common()),
        merged=merged,
        per_step=per_step,
        step_idle=seen.idle,
    )


def of_one_rank(trace: Trace, number: int | None) -> tuple[Trace, MergedRanks | None]:
    """The rank asked for, or the first, of a file in which several were merged; else the trace as it is, and None.

    UsageError for a number that the file does not hold, or that its events do not tell.
    """
    ranks = merged_ranks(trace.table, trace.tree)
    if ranks is None:
        if number is not None and number != trace.table.rank:
            source = trace.table.source
            raise UsageError(f"{source} holds one rank, or nothing in it tells its ranks apart: leave --rank out")
        return trace, None
    number = ranks.numbers[0] if number is None else number
    return type(trace).of(ranks.table(trace.table, number)), replace(ranks, chosen=number)


def recognized(trace: Trace, options: Options) -> Recognition:
    """The device that the caller named, else the one that the trace's properties say."""
    properties = trace.table.used_device()
    if options.device is not None:
        note = contradiction(options.device, properties) or ""
        return Recognition(device=options.device, candidates=(options.device.name,), how=CHOSEN, note=note)
    kernels = np.unique(trace.table.name[trace.table.kind == Kind.KERNEL]).tolist()
    return recognize(properties, kernel_names=(trace.table.names[code] for code in kernels))


def _expert_group(table: TraceTable, options: Options) -> ExpertGroup:
    groups, size = expert_groups(table), ep_size_of(table, options.ep_size)
    return ExpertGroup(rank=table.rank, members=groups[0].ranks if len(groups) == 1 else (), size=size)


# As categories of libkineto's activity types begin for devices other than CUDA's and HIP's (ActivityType.h).
_UNREAD_DEVICES = ("mtia_", "hpu_", "xpu_", "privateuse1_", "npu_", "tpu_")


def no_device_events(trace: Trace) -> NothingToAnalyzeError:
    """What to say of a trace without GPU work: which of "none recorded" and "not asked for" it is."""
    ops = _cpu_ops(trace)
    if not ops:
        return NothingToAnalyzeError(
            f"{trace.table.source} has {len(trace.table):,} events, none of them a CPU op or a kernel: nothing to do"
        )
    unread = _unread_device_events(trace.table)
    if unread:
        kinds = ", ".join(f"{count:,} {category}" for category, count in unread.items())
        return NothingToAnalyzeError(
            f"{trace.table.source} has {ops:,} CPU ops and {sum(unread.values()):,} events of an accelerator that "
            f"tracelens does not read ({kinds}), but no CUDA or HIP kernels; pass --cpu for a CPU-only report."
        )
    return NothingToAnalyzeError(
        f"{trace.table.source} has {ops:,} CPU ops but no GPU kernels. Was it recorded with activities=[CPU]? "
        "Add ProfilerActivity.CUDA, or pass --cpu for a CPU-only report."
    )


def _unread_device_events(table: TraceTable) -> dict[str, int]:
    """How many events each category holds that only an accelerator other than CUDA and HIP records."""
    other = np.bincount(table.category[table.kind == Kind.OTHER], minlength=len(table.categories))
    return {
        category: int(count)
        for category, count in zip(table.categories, other.tolist(), strict=True)
        if count and category.lower().startswith(_UNREAD_DEVICES)
    }


def _cpu_ops(trace: Trace) -> int:
    return int((trace.table.kind == Kind.CPU_OP).sum())


def _inference_frames(
    served: InferenceSteps,
    times: StepTimes,
    step_of: npt.NDArray[np.int64],
    activity: DeviceActivity,
    category: Labels,
) -> dict[str, pd.DataFrame]:
    frame = iterations(served, times, step_of, activity, category)
    frame = frame[np.isin(np.arange(len(served)), step_of)]
    return {"inference_iterations": frame, "inference_phases": by_phase(frame)}


def _copy_frames(table: TraceTable, activity: DeviceActivity, device: HardwareSpec | None) -> dict[str, pd.DataFrame]:
    frame = copies(table, activity, device)
    return {"copies": frame} if len(frame) else {}


def _cpu_frames(trace: Trace, catalog: Catalog) -> dict[str, pd.DataFrame]:
    unique = cpu_ops_unique_args(trace, catalog)
    return {"cpu_ops_summary": cpu_ops_summary(unique), "cpu_ops_unique_args": unique}


def _cpu_only(trace: Trace, options: Options, extensions: tuple[Extension, ...], catalog: Catalog) -> Analysis:
    activity = device_activity(trace.table, trace.tree, catalog.kernel_patterns)
    stem, times, _ = device_steps(trace.table, trace.tree, activity.rows)
    frames = _cpu_frames(trace, catalog)
    if len(times):
        frames["steps"] = times.sheet(int(trace.table.start_ns.min()))
    return Analysis(
        trace=trace,
        options=options,
        recognition=recognized(trace, options),
        extensions=extensions,
        frames=frames,
        families={},
        coverage=Coverage(shapes=trace.table.has_shapes, stacks=trace.table.has_stacks),
        timeline=gpu_timeline(activity),
        activity=activity,
        event_category=activity.category,
        step_stem=stem,
        step_times=times,
        failures=tuple(catalog.failures),
    )


def _estimator(device: HardwareSpec | None, backend: str, clock_mhz: float | None) -> Callable[[Any], Any] | None:
    if device is None:
        return None
    answers, system = chain(backend), System.of_device(device).at_clock(clock_mhz)
    return lambda columns: answers.estimate_many(columns, system)


def _with_selected(everything: DeviceActivity, selected: DeviceActivity) -> DeviceActivity:
    """``everything``, of which ``selected`` are the analyzed events, with what their ops say of them."""
    if len(selected) == len(everything):
        return selected
    communication = everything.communication.copy()
    communication[np.searchsorted(everything.rows, selected.rows)] = selected.communication
    return replace(everything, communication=communication)


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
