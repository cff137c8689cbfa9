"""The summary of a report: coverage, device time by category, and device time of which the work is unknown."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracelens.analysis.analyze import Analysis
from tracelens.analysis.attribution.activity import at_a_time, devices_of
from tracelens.analysis.attribution.calls import COLLECTIVES, COPY, rate_of
from tracelens.analysis.attribution.window import CHOSEN
from tracelens.analysis.intervals import union_by_group
from tracelens.analysis.reading.added_ops import graph_launches
from tracelens.analysis.reading.catalog import COMMUNICATION, NO_MODEL
from tracelens.analysis.reading.process_groups import EVERY_ROW
from tracelens.analysis.sheets import coll_analysis, device_memory, device_timeline, perf_summary
from tracelens.analysis.sheets.coll_analysis import with_bus_rate
from tracelens.analysis.sheets.device_memory import with_rate
from tracelens.analysis.sheets.priced_calls import UNLINKED_NAME
from tracelens.analysis.verdict.notices import input_notices, notices
from tracelens.analysis.verdict.summary import (
    COMPLETE,
    FILE,
    LEAST_KNOWN,
    NOT_NEEDED,
    STEPS,
    WHOLE_FILE,
    Busy,
    CategoryRow,
    DeviceSummary,
    InputSummary,
    Scope,
    Steps,
    Summary,
    SummaryFigure,
    Throughput,
    Unanswered,
    Unseen,
)
from tracelens.analysis.verdict.utilization import utilization
from tracelens.hardware import HardwareSpec
from tracelens.hardware.recognition import recognize
from tracelens.trace.provenance import no_shapes, no_stacks, steps_advice
from tracelens.units import FLOPS_PER_GFLOP, NS_PER_US, TERA_PER_S_IN_PER_US

Floats = npt.NDArray[np.float64]

_PER_CALL = (
    "roofline_us", "gflops", "wire_mb", "expected_remote_mb", "hbm_mb", "percent_of_peak", "kernel_us_mean",
)  # fmt: skip


def categories(analysis: Analysis, divisor: int) -> tuple[CategoryRow, ...]:
    """Kernels' summed time by category, and the share of the window in which one of them at least ran."""
    unified, activity, category = (
        analysis.frames[perf_summary.UNIFIED_PERF_SUMMARY_TITLE],
        analysis.activity,
        analysis.event_category,
    )
    total_us = analysis.timeline.total_ns / NS_PER_US or 1.0
    rated = {
        str(name): _category_row(str(name), frame, divisor, total_us) for name, frame in unified.groupby("category")
    }
    took = np.bincount(category.code, activity.duration, minlength=len(category.texts)) / NS_PER_US
    start, end = (np.clip(time, *analysis.timeline.window) for time in (activity.start, activity.end))
    busy = union_by_group(category.code, start, end, len(category.texts)) / NS_PER_US
    together = at_a_time(activity, analysis.trace.table, category.code, len(category.texts))
    rows = [
        replace(
            _over_time_taken(rated[category.texts[code]], float(together[code]))
            if category.texts[code] in rated
            else CategoryRow(name=category.texts[code], time_us=0.0, share=0.0),
            time_us=float(took[code]) / divisor,
            share=float(busy[code]) / total_us,
        )
        for code in np.unique(category.code).tolist()
    ]
    if "copies" in analysis.frames:
        rows = [
            with_rate(row, analysis.frames[device_memory.COPIES_TITLE], analysis.device) if row.name == COPY else row
            for row in rows
        ]
    collectives = analysis.frames[coll_analysis.TITLE]
    rows = [with_bus_rate(row, collectives) if row.name == COLLECTIVES else row for row in rows]
    return tuple(sorted(rows, key=lambda r: (-r.time_us, r.name)))


def cpu_categories(analysis: Analysis, divisor: int) -> tuple[CategoryRow, ...]:
    """By the CPU ops' own time; shares are of all of it."""
    unique = analysis.frames[perf_summary.CPU_OPS_TITLE]
    own = unique.groupby("category")["host_self_us_sum"].sum()
    total = float(own.sum()) or 1.0
    rows = [
        CategoryRow(name=str(name), time_us=float(us) / divisor, share=float(us) / total) for name, us in own.items()
    ]
    return tuple(sorted(rows, key=lambda r: (-r.time_us, r.name)))


def _over_time_taken(row: CategoryRow, together: float) -> CategoryRow:
    """Rates of kernels of which so many ran at a time: what they reached together."""
    rates = ("tflops_s", "hbm_tb_s", "wire_tb_s", "of_roofline", "of_peak")
    known = {key: value * together for key in rates if (value := getattr(row, key)) is not None}
    return replace(row, **known)


def _category_row(name: str, frame: pd.DataFrame, divisor: int, total_us: float) -> CategoryRow:
    count, time = (frame[key].to_numpy(np.float64) for key in ("operation_count", "kernel_us_sum"))
    took, per = time > 0, {key: frame[key].to_numpy(np.float64) for key in _PER_CALL}

    def ratio(per_call: Floats) -> float | None:
        known = took & ~np.isnan(per_call)
        measured = time[known].sum()
        return float((per_call * count)[known].sum() / measured) if measured > LEAST_KNOWN * time.sum() else None

    def rate(per_call: Floats) -> float | None:
        per_us = ratio(per_call)
        return None if per_us is None else per_us / TERA_PER_S_IN_PER_US

    is_known = frame["work_at_most"].isna().to_numpy(bool)
    of_roofline = ratio(np.where(is_known, per["roofline_us"], np.nan))
    bound = None
    if of_roofline is not None:
        bounds = (frame["roofline_us"] * count).groupby(frame["roofline_bound"]).sum()
        bound = str(bounds.idxmax()) if len(bounds) else None
    tflops = rate(per["gflops"] * 1e9)
    every_row = frame["remote_from"].eq(EVERY_ROW).to_numpy(bool)
    leaves = np.where(frame["rows_from"].notna() & ~every_row, per["expected_remote_mb"], per["wire_mb"])
    wire = rate(leaves * 1e6)
    backends = sorted({backend for backend in frame["backend"].tolist() if isinstance(backend, str)})
    return CategoryRow(
        name=name,
        time_us=float(time.sum()) / divisor,
        flops_share=float(time[~np.isnan(per["gflops"])].sum() / time.sum()) if time.sum() else None,
        share=float(time.sum()) / total_us,
        tflops_s=tflops or None,
        hbm_tb_s=rate(per["hbm_mb"] * 1e6),
        wire_tb_s=wire,
        wire_at_most=wire is not None and bool((every_row & took).any()),
        bound=bound,
        of_roofline=of_roofline,
        of_peak=ratio(np.where(is_known, per["percent_of_peak"] / 100 * per["kernel_us_mean"], np.nan)),
        work_at_most=not is_known[took].all(),
        backend=", ".join(backends) or None,
    )


#: Share of the device time from which it is said first.
_MUCH_UNSEEN = 0.1
#: Names that are shown.
_MOST_NAMES = 3


def unseen(analysis: Analysis) -> Unseen | None:
    """None where little is unknown. ``analysis``: the part that figures are made of."""
    rows, activity = analysis.frames[perf_summary.UNIFIED_PERF_SUMMARY_TITLE], analysis.activity
    known = rows[["gflops", "hbm_mb", "wire_mb"]].notna().any(axis=1)
    moves = set(analysis.event_category[activity.communication | activity.memcpy].tolist())
    unknown = rows[~known & ~rows["category"].isin({*COMMUNICATION, *moves})]
    device_us = float(activity.duration.sum()) / NS_PER_US
    share = float(unknown["kernel_us_sum"].sum()) / max(device_us, 1e-9)
    if share <= _MUCH_UNSEEN:
        return None
    by_name = unknown["kernel_us_sum"].groupby(unknown["name"].astype(str).str.partition("->")[0]).sum()
    names = [str(name) for name in by_name.sort_values(ascending=False, kind="stable").index if name != UNLINKED_NAME]
    is_op = unknown["input_dims"].astype(str).str.contains(r"\d") & ~unknown["name"].astype(str).str.contains("->")
    notes = dict(zip(unknown["name"][is_op], unknown["note"][is_op], strict=True))
    because, command = _opened_by(analysis, {name: notes[name] for name in names if name in notes})
    return Unseen(share=share, ops=tuple(names[:_MOST_NAMES]), because=because, command=command)


def _opened_by(analysis: Analysis, ops: Mapping[str, object]) -> tuple[str, str | None]:
    """(why the work is not known, what to type); ``ops``: those with recorded shapes, the longest first, each with what
    its perf model misses, if it has one.
    """
    table, source = analysis.trace.table, shlex.quote(analysis.trace.table.source)
    behind = np.isin(analysis.trace.tree.launch[analysis.activity.rows], graph_launches(table))
    replayed = float(analysis.activity.duration[behind].sum())
    if analysis.graphs is None and 2 * replayed > analysis.activity.duration.sum():
        return "kernels of replayed graphs", f"tracelens report {source} --capture CAPTURE_TRACE"
    if not table.has_shapes:
        return str(no_shapes(table)), None
    if not ops:
        return "no arguments of these were recorded", None
    name, note = next(iter(ops.items()))
    if isinstance(note, str) and note not in ("", NO_MODEL):
        # An extension would miss the same
        return note.removeprefix(f"{name}: "), None
    return NO_MODEL, f"tracelens extensions new {shlex.quote(name)} --from {source} -o my_ops.py"


#: Launches in the queue of a stream from which it may be full: CUDA and HIP hold 1,024 before a launch waits.
_FULL_QUEUE = 1_000
#: Share of the FLOPs from which one type stands for all.
ONE_TYPE = 0.99


def summarize(analysis: Analysis) -> Summary:
    """The summary of one analysis; everything per step where there are steps."""
    steps = step_summary(analysis)
    divisor = max(1, step_count(analysis))
    used, used_notices = utilization(analysis)
    if not _has_gpu(analysis):
        return Summary(
            input=_input(analysis),
            device=_device(analysis),
            scope=_scope(analysis),
            coverage=analysis.coverage,
            steps=steps,
            categories=cpu_categories(analysis, divisor),
            notices=(*used_notices, *input_notices(analysis)),
            cannot_answer=_cannot_answer(analysis),
            extensions=tuple(extension.name for extension in analysis.extensions),
            late_host_events=analysis.trace.tree.overlaps,
        )
    return Summary(
        input=_input(analysis),
        device=_device(analysis),
        scope=_scope(analysis),
        coverage=analysis.coverage,
        busy=_busy(analysis),
        steps=steps,
        throughput=_throughput(analysis),
        utilization=used,
        categories=categories(analysis, divisor),
        findings=analysis.findings,
        together=analysis.together,
        unseen=unseen(analysis),
        notices=(*used_notices, *notices(analysis)),
        cannot_answer=_cannot_answer(analysis),
        extensions=tuple(extension.name for extension in analysis.extensions),
        late_host_events=analysis.trace.tree.overlaps,
    )


def _has_gpu(analysis: Analysis) -> bool:
    """Whether device events were analyzed, and not CPU ops alone."""
    return "gpu_timeline" in analysis.frames


def step_count(analysis: Analysis) -> int:
    """Complete steps among those analyzed, which all figures per step are the mean of; 0 without step annotations."""
    return len(analysis.complete_steps)


def step_summary(analysis: Analysis) -> Steps | None:
    """The mean of the complete selected steps, and how far they lie apart."""
    times, chosen = analysis.step_times, analysis.complete_steps
    if not chosen:
        return None
    duration = times.duration_ns[chosen] / NS_PER_US
    mean = float(duration.mean())
    host_us = np.append(times.host_period_ns[:-1], times.steps[-1].end_ns - times.steps[-1].start_ns) / NS_PER_US
    host_us[0] -= times.waited_ns / NS_PER_US
    numbers = [s.number for s in times.steps]
    complete = set(chosen)
    left_out = [n for i, n in enumerate(numbers) if i not in complete]
    return Steps(
        count=len(chosen),
        time_us=mean,
        spread=float(duration.std() / mean) if len(chosen) > 1 and mean else None,
        shortest_us=float(duration.min()),
        longest_us=float(duration.max()),
        on_device=int(times.on_device[chosen].sum()),
        host_us=float(host_us[chosen].mean()),
        host_work_us=None if _queue_was_full(analysis) else float(times.host_work_ns[chosen].mean()) / NS_PER_US,
        before_events=times.before_events,
        before_us=times.before_ns / NS_PER_US,
        unseen_us=times.unseen_ns / NS_PER_US,
        name=analysis.found_steps.name,
        skipped_us=sum(end - start for start, end in analysis.timeline.left_out) / NS_PER_US,
        window=_range([numbers[i] for i in chosen]),
        left_out=f"steps {_range(left_out)}" if left_out else "",
    )


def _queue_was_full(analysis: Analysis) -> bool:
    """Whether launches may have waited for room: then their time is no work of the host."""
    launches = analysis.frames.get(device_timeline.DEVICE_TIMELINE_TITLE)
    return launches is not None and bool((launches["queue_depth_max"] >= _FULL_QUEUE).any())


def _scope(analysis: Analysis) -> Scope:
    activity, chosen = analysis.activity, analysis.complete_steps
    numbers = [analysis.step_times.steps[at].number for at in chosen]
    return Scope(
        kind=STEPS if chosen else FILE,
        count=len(chosen),
        named=analysis.found_steps.name if chosen else "",
        numbers=_range(numbers),
        events=len(activity),
        time_us=int(activity.duration.sum()) / NS_PER_US,
        excluded=analysis.excluded,
    )


def _range(numbers: list[int]) -> str:
    if len(numbers) < 2:
        return "".join(map(str, numbers))
    whole = numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]}-{numbers[-1]}" if whole else ", ".join(map(str, numbers))


def _input(analysis: Analysis) -> InputSummary:
    table = analysis.trace.table
    steps = step_summary(analysis)
    version = table.metadata.get("pytorch_version") or table.metadata.get("torch_version")
    return InputSummary(
        file=table.source,
        events=table.events_total,
        ranks=() if table.rank is None else (table.rank,),
        world_size=table.world_size,
        window=f"steps {steps.window}" if steps else WHOLE_FILE,
        left_out=steps.left_out if steps else "",
        torch_version=version if isinstance(version, str) else None,
    )


def _device(analysis: Analysis) -> DeviceSummary:
    found, device = analysis.recognition, analysis.device
    if device is None and not _has_gpu(analysis):
        return DeviceSummary(id=None, label="CPU ops alone", matched_by=NOT_NEEDED, note="times of ops need no device")
    if device is None:
        recorded = analysis.trace.table.used_device()
        label = (recorded.name if recorded else None) or "unknown device"
        return DeviceSummary(id=None, label=label, matched_by="none", note=found.note)
    return DeviceSummary(
        id=found.device.name if found.device is not None else None,
        label=device.label if found.device is not None else " or ".join(found.candidates),
        matched_by=found.how,
        recorded=_recorded_device(analysis),
        note=found.note,
        doubtful=device.doubtful(),
        figures=tuple(_roofline_figures(device)),
    )


def _recorded_device(analysis: Analysis) -> str:
    """What the trace was recorded on, where the caller chose a device that it cannot be; else empty."""
    if analysis.recognition.how != CHOSEN or not analysis.recognition.note:
        return ""
    properties = analysis.trace.table.used_device()
    found = recognize(properties).device
    return found.label if found is not None else (properties.name if properties else None) or "another device"


_UNITS = {"tflops_s": "TFLOPS/s", "tb_s": "TB/s", "gb_s": "GB/s"}


def _roofline_figures(device: HardwareSpec) -> Iterator[SummaryFigure]:
    """The figures that a roofline of this device rests on, each with its source."""
    for figure in device.figures():
        what, _, key = figure.key.rpartition(".")
        kind, _, unit = key.partition("_")
        if what.split(".")[0] in ("matrix", "vector", "hbm", "link") and (unit in _UNITS or key in _UNITS):
            name = f"{what.replace('.', ' ')} {kind}" if unit in _UNITS else f"{what} peak, one direction"
            yield SummaryFigure(
                what=name, value=figure.value, unit=_UNITS[unit if unit in _UNITS else key], source=figure.source
            )


def _busy(analysis: Analysis) -> Busy:
    timeline, causes = analysis.timeline, analysis.frames[device_timeline.IDLE_CAUSES_TITLE]
    total = timeline.total_ns or 1
    return Busy(
        compute=timeline.computation_ns / total,
        exposed_comm=timeline.exposed_comm_ns / total,
        memcpy=timeline.exposed_memcpy_ns / total,
        # Nothing runs in a window without length, a step of 0 ns
        idle=timeline.idle_ns / total if timeline.total_ns else 1.0,
        total_us=timeline.total_ns / NS_PER_US,
        idle_causes=tuple(
            (str(cause), float(percent) / 100)
            for cause, percent in zip(causes["cause"], causes["percent_of_window"], strict=True)
        ),
    )


def _throughput(analysis: Analysis) -> Throughput | None:
    """Known matrix FLOPs over the time in which one of the calls that they belong to at least ran, and over the window;
    both of one device, where several are in the file. FLOPs that are an upper bound are left out.
    """
    unified = analysis.frames[perf_summary.UNIFIED_PERF_SUMMARY_TITLE]
    matrix = unified[unified["compute_spec"].astype(str).str.startswith("matrix_") & (unified["gflops"] > 0)]
    matrix = matrix[(matrix["kernel_us_sum"] > 0) & matrix["work_at_most"].isna()]
    device_us = analysis.activity.duration.sum() / NS_PER_US
    row = analysis.row_of_event
    if matrix.empty or row is None or not analysis.timeline.total_ns:
        return None
    mflop = matrix["gflops"] * matrix["operation_count"] * FLOPS_PER_GFLOP / TERA_PER_S_IN_PER_US
    time_us, table = matrix["kernel_us_sum"], analysis.trace.table
    together = float(at_a_time(analysis.activity, table, np.where(np.isin(row, matrix.index), 0, -1), 1)[0])
    by_spec = mflop.groupby(matrix["compute_spec"]).sum()
    rates = {spec: rate_of(analysis.device, str(spec)) for spec in by_spec.index}
    peak, best = (
        matrix["compute_spec"].map({spec: getattr(rate, key, None) for spec, rate in rates.items()}).astype(float)
        for key in ("peak_tflops_s", "achievable_tflops_s")
    )

    def share(rate: pd.Series, of_us: float) -> float | None:
        known = rate.notna()
        stands_for_all = known.any() and time_us[known].sum() > COMPLETE * of_us
        return together * float((mflop / rate)[known].sum() / time_us[known].sum()) if stands_for_all else None

    of_peak = share(peak, time_us.sum())
    at_peak_us = (mflop / peak).sum() / len(devices_of(analysis.activity, table)[1])
    return Throughput(
        tflops_s=together * float(mflop.sum() / time_us.sum()),
        dtype=str(by_spec.idxmax()).removeprefix("matrix_"),
        several=bool(by_spec.max() < ONE_TYPE * by_spec.sum()),
        device_share=float(time_us.sum() / device_us),
        known_share=analysis.coverage.flops or 0.0,
        of_peak=of_peak,
        of_achievable=share(best, time_us[peak.notna()].sum()),
        window_of_peak=None if of_peak is None else float(at_peak_us / (analysis.timeline.total_ns / NS_PER_US)),
    )


def _cannot_answer(analysis: Analysis) -> tuple[Unanswered, ...]:
    table = analysis.trace.table
    missing = []
    if not table.has_stacks:
        missing.append(Unanswered(question="which line of Python launched this", because=no_stacks(table).because))
    if not table.has_shapes:
        missing.append(Unanswered(question="FLOPs, bytes and roofline", because=no_shapes(table).because))
    if not len(analysis.step_times):
        missing.append(
            Unanswered(
                question="time per step", because=f"no ProfilerStep or iteration annotations: {steps_advice(table)}"
            )
        )
    if analysis.device is None:
        missing.append(
            Unanswered(
                question="distance from the roofline",
                because="the device was not recognized" if _has_gpu(analysis) else "no device events were recorded",
            )
        )
    return (*missing, *analysis.missing)
