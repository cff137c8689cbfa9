"""The figures and sentences on top of a report: coverage first, then where time goes, then what to look at."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracelens.analysis.analyze import Analysis
from tracelens.analysis.attribution.event_category import COLLECTIVES, COPY
from tracelens.analysis.attribution.stream_order import StreamOverlaps
from tracelens.analysis.factorize import distinct_rows
from tracelens.analysis.intervals import union_by_group
from tracelens.analysis.reading.catalog import COMMUNICATION
from tracelens.analysis.reading.graph_replays import GraphLinks, graph_launches
from tracelens.analysis.reading.recording import CHOSEN
from tracelens.analysis.sheets.ops import coll_analysis, copies, cpu_ops_unique_args, unified_perf_summary
from tracelens.analysis.sheets.ops.coll_analysis import with_bus_rate
from tracelens.analysis.sheets.ops.copies import exposed_copies, with_rate
from tracelens.analysis.sheets.timeline import idle_causes
from tracelens.analysis.verdict.advice import advice, slow_communication, unmodelled_categories
from tracelens.analysis.verdict.idle_findings import counted, duration, idle_findings
from tracelens.analysis.verdict.summary import (
    COMPLETE,
    LEAST_KNOWN,
    Busy,
    CategoryRow,
    DeviceSummary,
    Figure,
    Finding,
    InputSummary,
    Notice,
    Said,
    Steps,
    Summary,
    Throughput,
    Unanswered,
)
from tracelens.analysis.verdict.utilization import utilization
from tracelens.analysis.work.impossible_work import MOST_OF_ROOFLINE
from tracelens.analysis.work.limits import LAUNCH, SHORT_KERNEL_US, TOLERANCE_US, rate_of
from tracelens.hardware import HardwareSpec
from tracelens.perf_models.base import UnknownWork
from tracelens.perf_models.generated.fused import FusedKernel
from tracelens.trace.merged import MergedRanks
from tracelens.trace.table import DEVICE_KINDS, Kind
from tracelens.units import FLOPS_PER_GFLOP, NS_PER_US, TERA_PER_S_IN_PER_US

Floats = npt.NDArray[np.float64]

#: Share of the FLOPs from which one type stands for all.
ONE_TYPE = 0.99
#: Share of the window below which a possible gain is not worth a line.
MIN_GAIN = 0.005
#: Kernels of algorithms that need fewer multiplications than the convolution's definition.
_FEWER_FLOPS = re.compile(r"(?i)winograd|fft")
_PER_CALL = (
    "roofline_us", "gflops", "wire_mb", "expected_remote_mb", "hbm_mb", "percent_of_peak", "kernel_us_mean",
)  # fmt: skip


def summarize(analysis: Analysis) -> Summary:
    """The summary of one analysis; everything per step where there are steps."""
    steps, seen = step_summary(analysis), analysis.headline
    divisor = max(1, step_count(analysis))
    used, used_notices = utilization(analysis)
    if "gpu_timeline" not in analysis.frames:
        return Summary(
            input=_input(analysis),
            device=_device(analysis),
            coverage=analysis.coverage,
            steps=steps,
            categories=_cpu_categories(analysis, divisor),
            notices=(*used_notices, *_input_notices(analysis)),
            cannot_answer=_cannot_answer(analysis),
            extensions=tuple(extension.name for extension in analysis.extensions),
            late_host_events=analysis.trace.tree.overlaps,
        )
    return Summary(
        input=_input(analysis),
        device=_device(analysis),
        coverage=seen.coverage,
        busy=_busy(seen),
        steps=steps,
        throughput=_throughput(seen),
        utilization=used,
        categories=_categories(seen, divisor),
        findings=_findings(seen, divisor),
        notices=(*used_notices, *_notices(analysis)),
        cannot_answer=_cannot_answer(analysis),
        extensions=tuple(extension.name for extension in analysis.extensions),
        late_host_events=analysis.trace.tree.overlaps,
    )


def step_count(analysis: Analysis) -> int:
    """Complete steps among those analyzed, which all figures per step are the mean of; 0 without step annotations."""
    return len(analysis.complete_steps)


def step_summary(analysis: Analysis) -> Steps | None:
    """The mean of the complete selected steps, and how far they lie apart."""
    times = analysis.step_times
    if not len(times):
        return None
    chosen = analysis.complete_steps
    duration = times.duration_ns[chosen] / NS_PER_US
    mean = float(duration.mean())
    host_us = np.append(times.host_period_ns[:-1], times.steps[-1].end_ns - times.steps[-1].start_ns) / NS_PER_US
    host_us[0] -= times.waited_ns / NS_PER_US
    numbers = [s.number for s in times.steps]
    left_out = [n for i, n in enumerate(numbers) if i not in chosen]
    return Steps(
        count=len(chosen),
        time_us=mean,
        spread=float(duration.std() / mean) if len(chosen) > 1 and mean else None,
        shortest_us=float(duration.min()),
        longest_us=float(duration.max()),
        on_device=int(times.on_device[chosen].sum()),
        host_us=float(host_us[chosen].mean()),
        before_events=times.before_events,
        before_us=times.before_ns / NS_PER_US,
        skipped_us=sum(end - start for start, end in analysis.headline.timeline.left_out) / NS_PER_US,
        window=_range([numbers[i] for i in chosen]),
        left_out=f"steps {_range(left_out)}" if left_out else "",
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
        window=f"steps {steps.window}" if steps and analysis.selected_steps else "whole file",
        left_out=steps.left_out if steps and analysis.selected_steps else "",
        torch_version=version if isinstance(version, str) else None,
    )


def _device(analysis: Analysis) -> DeviceSummary:
    found, device = analysis.recognition, analysis.device
    if device is None:
        recorded = analysis.trace.table.used_device()
        label = (recorded.name if recorded else None) or "unknown device"
        return DeviceSummary(id=None, label=label, matched_by="none", note=found.note)
    return DeviceSummary(
        id=found.device.name if found.device is not None else None,
        label=device.label if found.device is not None else " or ".join(found.candidates),
        matched_by=found.how,
        note=found.note,
        doubtful=device.doubtful(),
        figures=tuple(_roofline_figures(device)),
    )


_UNITS = {"tflops_s": "TFLOPS/s", "tb_s": "TB/s", "gb_s": "GB/s"}


def _roofline_figures(device: HardwareSpec) -> Iterator[Figure]:
    """The figures that a roofline of this device rests on, each with its source."""
    for figure in device.figures():
        what, _, key = figure.key.rpartition(".")
        kind, _, unit = key.partition("_")
        if what.split(".")[0] in ("matrix", "vector", "hbm", "link") and (unit in _UNITS or key in _UNITS):
            name = f"{what.replace('.', ' ')} {kind}" if unit in _UNITS else f"{what} peak, one direction"
            yield Figure(
                what=name, value=figure.value, unit=_UNITS[unit if unit in _UNITS else key], source=figure.source
            )


def _busy(analysis: Analysis) -> Busy:
    timeline, causes = analysis.timeline, analysis.frames[idle_causes.TITLE]
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
    """Known matrix FLOPs over the time of the calls that they belong to, and over the window."""
    unified = analysis.frames[unified_perf_summary.TITLE]
    matrix = unified[unified["compute_spec"].astype(str).str.startswith("matrix_") & (unified["gflops"] > 0)]
    matrix = matrix[matrix["kernel_us_sum"] > 0]
    device_us = analysis.activity.duration.sum() / NS_PER_US
    if matrix.empty or not analysis.timeline.total_ns:
        return None
    mflop = matrix["gflops"] * matrix["operation_count"] * FLOPS_PER_GFLOP / TERA_PER_S_IN_PER_US
    time_us = matrix["kernel_us_sum"]
    by_spec = mflop.groupby(matrix["compute_spec"]).sum()
    rates = {spec: rate_of(analysis.device, str(spec)) for spec in by_spec.index}
    peak, best = (
        matrix["compute_spec"].map({spec: getattr(rate, key, None) for spec, rate in rates.items()}).astype(float)
        for key in ("peak_tflops_s", "achievable_tflops_s")
    )

    def share(rate: pd.Series) -> float | None:
        known = rate.notna()
        return float((mflop / rate)[known].sum() / time_us[known].sum()) if known.any() else None

    at_peak_us = (mflop / peak).sum()
    return Throughput(
        tflops_s=float(mflop.sum() / time_us.sum()),
        dtype=str(by_spec.idxmax()).removeprefix("matrix_"),
        several=bool(by_spec.max() < ONE_TYPE * by_spec.sum()),
        device_share=float(time_us.sum() / device_us),
        known_share=analysis.coverage.flops or 0.0,
        of_peak=share(peak),
        of_achievable=share(best) if time_us[best.notna()].sum() > COMPLETE * time_us[peak.notna()].sum() else None,
        window_of_peak=float(at_peak_us / (analysis.timeline.total_ns / NS_PER_US)) if peak.notna().any() else None,
    )


def _categories(analysis: Analysis, divisor: int) -> tuple[CategoryRow, ...]:
    """Kernels' summed time by category, and the share of the window in which one of them at least ran."""
    unified, activity, category = (
        analysis.frames[unified_perf_summary.TITLE],
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
    rows = [
        replace(
            rated.get(category.texts[code]) or CategoryRow(name=category.texts[code], time_us=0.0, share=0.0),
            time_us=float(took[code]) / divisor,
            share=float(busy[code]) / total_us,
        )
        for code in np.unique(category.code).tolist()
    ]
    if "copies" in analysis.frames:
        rows = [
            with_rate(row, analysis.frames[copies.TITLE], analysis.device) if row.name == COPY else row for row in rows
        ]
    collectives = analysis.frames[coll_analysis.TITLE]
    rows = [with_bus_rate(row, collectives) if row.name == COLLECTIVES else row for row in rows]
    return tuple(sorted(rows, key=lambda r: (-r.time_us, r.name)))


def _cpu_categories(analysis: Analysis, divisor: int) -> tuple[CategoryRow, ...]:
    """By the CPU ops' own time; shares are of all of it."""
    unique = analysis.frames[cpu_ops_unique_args.TITLE]
    own = unique.groupby("category")["self_us_sum"].sum()
    total = float(own.sum()) or 1.0
    rows = [
        CategoryRow(name=str(name), time_us=float(us) / divisor, share=float(us) / total) for name, us in own.items()
    ]
    return tuple(sorted(rows, key=lambda r: (-r.time_us, r.name)))


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

    of_roofline = ratio(per["roofline_us"])
    bound = None
    if of_roofline is not None:
        bounds = (frame["roofline_us"] * count).groupby(frame["roofline_bound"]).sum()
        bound = str(bounds.idxmax()) if len(bounds) else None
    tflops = rate(per["gflops"] * 1e9)
    leaves = np.where(frame["rows_from"].notna(), per["expected_remote_mb"], per["wire_mb"])
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
        bound=bound,
        of_roofline=of_roofline,
        of_peak=ratio(per["percent_of_peak"] / 100 * per["kernel_us_mean"]),
        backend=", ".join(backends) or None,
    )


def _findings(analysis: Analysis, divisor: int) -> tuple[Finding, ...]:
    """At most ten, largest gain first. A gain is what the estimate would save, an upper bound."""
    unified = analysis.frames[unified_perf_summary.TITLE]
    patterns = advice(analysis, divisor)
    findings = list(patterns.findings)
    gain = _possible_gains(unified) / divisor
    spoken_of = _at_launch_floor(unified) | patterns.rows
    worthwhile = gain[(gain * divisor > MIN_GAIN * analysis.timeline.total_ns / NS_PER_US) & ~spoken_of]
    for index in worthwhile.sort_values(ascending=False, kind="stable").index[:6]:
        row = unified.loc[index]
        calls = counted(int(row["operation_count"]), "call")
        findings.append(
            Finding(
                id="op_below_roofline",
                op=str(row["name"]),
                gain_us=float(gain[index]),
                certainty="medium",
                why=f"{row['name']} {_dims(analysis, row)}, {calls}: {_distance(row)}",
                time_us=float(row["kernel_us_sum"]) / divisor,
                figures=(Said(what="calls", value=int(row["operation_count"]), unit="count"), *_distance_figures(row)),
            )
        )
    timeline = analysis.timeline
    if timeline.exposed_comm_ns:
        findings.append(_exposed_communication(analysis, divisor))
    activity = analysis.activity
    if "copies" in analysis.frames:
        findings += exposed_copies(activity, analysis.frames[copies.TITLE], timeline.total_ns, divisor)
    findings += idle_findings(analysis.frames[idle_causes.TITLE], divisor)
    short = (activity.duration < SHORT_KERNEL_US * NS_PER_US) & ~activity.communication & ~activity.between_memories
    short &= ~patterns.events
    if short.sum() > 100 and activity.duration[short].sum() > 0.02 * timeline.total_ns:
        findings.append(
            Finding(
                id="short_kernels",
                op=None,
                gain_us=float(activity.duration[short].sum()) / NS_PER_US / divisor,
                certainty="low",
                why=f"{int(short.sum()):,} kernels under {SHORT_KERNEL_US:.0f} µs, mostly launch: fuse them",
                time_us=float(activity.duration[short].sum()) / NS_PER_US / divisor,
                figures=(
                    Said(what="short kernels", value=int(short.sum()), unit="count"),
                    Said(what="short: below", value=SHORT_KERNEL_US, unit="us"),
                ),
            )
        )
    most = _longest_gain_us(analysis, divisor)
    findings = [f if f.gain_us is None else replace(f, gain_us=min(f.gain_us, most)) for f in findings]
    findings.sort(key=lambda f: (-(f.gain_us or 0.0), f.id, f.op or "", f.why))
    return tuple(findings[:10])


def _exposed_communication(analysis: Analysis, divisor: int) -> Finding:
    share = analysis.timeline.exposed_comm_ns / analysis.timeline.total_ns
    reasons = slow_communication(analysis, divisor)
    exposed_us = analysis.timeline.exposed_comm_ns / NS_PER_US / divisor
    return Finding(
        id="exposed_communication",
        op=None,
        gain_us=exposed_us,
        certainty="low",
        why="; ".join([f"exposed communication: {_percent(share)}", *(text for text, _ in reasons)]),
        time_us=exposed_us,
        figures=(
            Said(what="share of the time", value=share, unit="share"),
            *(said for _, figures in reasons for said in figures),
        ),
    )


def _possible_gains(unified: pd.DataFrame) -> pd.Series:
    """Measured less estimated time (µs) of every row; NaN for communication and copies, whose exposed part counts."""
    gains = unified["kernel_us_sum"] - unified["roofline_us"] * unified["operation_count"]
    return gains.where(unified["wire_mb"].isna() & ~unified["category"].isin((*COMMUNICATION, COPY)))


def _longest_gain_us(analysis: Analysis, divisor: int) -> float:
    """The window, or the step: kernels that ran beside each other add up to more than can be gained."""
    window_us = analysis.timeline.total_ns / NS_PER_US / divisor
    steps = step_summary(analysis)
    return window_us if steps is None else min(window_us, steps.time_us)


def _at_launch_floor(rows: pd.DataFrame) -> pd.Series:
    """Calls of short kernels whose work takes less than their launches: no faster kernel helps, only fewer of them."""
    per_kernel = rows["kernel_us_mean"] / rows["kernels_per_call"]
    return (rows["roofline_bound"] == LAUNCH) & (per_kernel <= SHORT_KERNEL_US)


def _distance(row: pd.Series) -> str:
    """How far a row is from its roofline."""
    if row["roofline_bound"] == LAUNCH:
        return f"{duration(row['kernel_us_mean'])} each, {row['roofline_us']:.1f} µs is the launch floor"
    return f"{100 * row['roofline_us'] / row['kernel_us_mean']:.0f} % of the {row['roofline_bound']} roofline"


def _distance_figures(row: pd.Series) -> tuple[Said, ...]:
    roofline_us, kernel_us = float(row["roofline_us"]), float(row["kernel_us_mean"])
    if row["roofline_bound"] == LAUNCH:
        each, floor = ("kernel time of a call", kernel_us), ("launch floor", roofline_us)
        return tuple(Said(what=what, value=value, unit="us") for what, value in (each, floor))
    return (Said(what="of the roofline", value=roofline_us / kernel_us, unit="share"),)


def _percent(share: float, decimals: int = 0) -> str:
    return f"{100 * share:.{decimals}f} %"


def _dims(analysis: Analysis, row: pd.Series) -> str:
    """The shapes of the tensors of a call, as far as they fit."""
    shapes = analysis.trace.table.signature_of(int(row["example_row"])).shapes or ()
    text = ", ".join(str(shape) for shape in shapes if shape)
    return text if len(text) <= 40 else text[:39] + "…"


def _notices(analysis: Analysis) -> tuple[Notice, ...]:
    activity = analysis.activity
    notices = _input_notices(analysis)
    unlinked = int((activity.op < 0).sum())
    if unlinked > analysis.step_times.before_events:
        share = _percent(analysis.coverage.unlinked or 0.0, 1)
        text = f"{unlinked:,} of {len(activity):,} device events ({share} of GPU time) have no recorded launch"
        notices.append(Notice(id="unlinked", count=unlinked, text=text))
    if analysis.device is None:
        notices.append(
            Notice(
                id="no_device",
                count=1,
                text=analysis.recognition.note or "device not recognized: no roofline; pass --device",
            )
        )
    elif analysis.recognition.note and (analysis.recognition.device is None or analysis.recognition.how == CHOSEN):
        notices.append(Notice(id="device", count=1, text=analysis.recognition.note))
    notices += _above_peak(analysis.frames[unified_perf_summary.TITLE])
    graphs = _graph_share(analysis)
    if graphs is not None:
        notices.append(graphs)
    if graphs is None or analysis.graphs is not None:
        notices += unmodelled_categories(analysis)
    notices += [*_whole_calls(analysis), *_compiled_without_work(analysis), *_too_much_work(analysis)]
    if analysis.overlaps is not None and analysis.overlaps.count:
        notices.append(_overlap_notice(analysis, analysis.overlaps))
    notices += _from_cache(analysis.frames[unified_perf_summary.TITLE])
    failed: dict[str, list[str]] = {}
    for failure in analysis.failures:
        failed.setdefault(f"{failure.origin}: {failure.error}", []).append(failure.name)
    for what, names in failed.items():
        notices.append(Notice(id="extension_failed", count=len(names), text=f"{names[0]} lost its model: {what}"))
    notices += [Notice(id="extension_unused", count=1, text=e.note) for e in analysis.extensions if e.note]
    return tuple(notices)


def _input_notices(analysis: Analysis) -> list[Notice]:
    table = analysis.trace.table
    losses = table.losses
    merged = _process_notice(analysis)
    notices = [] if merged is None else [merged]
    notices += [Notice(id="damaged_input", count=max(1, losses.damaged_events), text=note) for note in losses.notes]
    if not table.has_shapes:
        text = "no shapes were recorded: no FLOPs or bytes (use record_shapes=True)"
        notices.append(Notice(id="no_shapes", count=1, text=text))
    return notices


def _overlap_notice(analysis: Analysis, overlaps: StreamOverlaps) -> Notice:
    device = analysis.trace.table.is_of(DEVICE_KINDS)
    part = overlaps.time_ns / max(1, int(analysis.trace.table.duration_ns[device].sum()))
    share = "<0.01 %" if part < 0.00005 else _percent(part, 2)
    kernels = f"{counted(overlaps.count, 'device event')} ran into the next on the same stream ({share} of GPU time)"
    text = f"{kernels}: clipped there" if overlaps.clipped else f"{kernels}: kept; --overlap clip ends them there"
    return Notice(id="same_stream_overlap", count=overlaps.count, text=text)


def _process_notice(analysis: Analysis) -> Notice | None:
    """Ranks whose traces were merged: which one this is, or that figures are of several together."""
    if analysis.merged is not None:
        return _chosen_rank(analysis.merged)
    table, ambiguous = analysis.trace.table, analysis.trace.tree.ambiguous
    lanes = distinct_rows(table.lane[table.is_of((Kind.CPU_OP, Kind.RUNTIME, Kind.DRIVER))], len(table.lanes)).tolist()
    processes = list(dict.fromkeys(table.lanes[lane][0] for lane in lanes))
    if len(processes) < 2:
        return None
    names = [f"{table.process_names.get(pid, 'process')} {pid}" for pid in processes[:4]]
    shown = ", ".join(names) + (", ..." if len(processes) > 4 else "")
    text = f"{len(processes)} processes in one file ({shown}): ranks merged? Figures are of all of them together"
    if ambiguous:
        text += f"; {ambiguous:,} device events could be of several of them and are left unlinked"
    return Notice(id="several_processes", count=len(processes), text=text)


def _chosen_rank(ranks: MergedRanks) -> Notice:
    shown = ", ".join(f"{number}: {label}" for number, label in list(zip(ranks.numbers, ranks.labels, strict=True))[:4])
    shown += ", ..." if len(ranks.numbers) > 4 else ""
    order = "" if ranks.is_named else ", numbered in order of their processes"
    text = (
        f"{len(ranks.numbers)} ranks in one file ({shown}{order}): this is rank {ranks.chosen} alone, --rank N another"
    )
    if ranks.ambiguous:
        text += f"; {ranks.ambiguous:,} device events could be of several of them and are left out"
    return Notice(id="several_processes", count=len(ranks.numbers), text=text)


def _above_peak(rows: pd.DataFrame) -> Iterator[Notice]:
    """Rows faster than the data sheet allows, by more than the clock's resolution and than the cache explains."""
    at_peak_us = rows["percent_of_peak"] / 100 * rows["kernel_us_mean"]
    beyond = at_peak_us - rows["kernel_us_mean"] > TOLERANCE_US * rows["kernels_per_call"]
    rows = rows[beyond & rows["served_from"].isna()]
    fewer = rows["kernel_details"].astype(str).str.contains(_FEWER_FLOPS)
    reasons = (
        (rows[fewer], "Winograd and FFT kernels compute a convolution with fewer FLOPs than are counted"),
        (rows[~fewer], "recorded times, perf model or device file are wrong there"),
    )
    for found, reason in reasons:
        if len(found):
            fastest = found.iloc[int(found["percent_of_peak"].argmax())]
            what = f"{fastest['name']} at {fastest['percent_of_peak']:,.0f} % of the peak"
            text = f"{counted(len(found), 'row')} faster than the data sheet allows ({what}): {reason}"
            yield Notice(id="above_peak", count=len(found), text=text)


def _from_cache(rows: pd.DataFrame) -> Iterator[Notice]:
    """Rows faster than HBM, by the cache that explains it."""
    for name, count in rows["served_from"].dropna().value_counts().sort_index().items():
        text = f"{counted(int(count), 'row')} faster than HBM: bytes from {name} (column Served From)"
        yield Notice(id="from_cache", count=int(count), text=text)


def _graph_share(analysis: Analysis) -> Notice | None:
    """Graph launches: their kernels have no ops, so say what share of device time is behind them."""
    table, activity = analysis.trace.table, analysis.activity
    if analysis.graphs is not None:
        return _captured_graphs(analysis.graphs, int(activity.duration.sum()))
    behind = np.isin(analysis.trace.tree.launch[activity.rows], graph_launches(table))
    if not behind.any():
        return None
    share = activity.duration[behind].sum() / max(1, activity.duration.sum())
    found = f"{counted(int(behind.sum()), 'kernel')} ({_percent(share)} of GPU time) came from graph launches"
    text = f"{found}: by kernel, no ops; --capture TRACE gives them"
    return Notice(id="graph_launches", count=int(behind.sum()), text=text)


def _whole_calls(analysis: Analysis) -> Iterator[Notice]:
    """Calls of ops that hold several operations which could not be told apart, by reason."""
    for why, count in analysis.whole_calls:
        yield Notice(id="whole_calls", count=count, text=f"{counted(count, 'call')} left whole: {why}")


def _too_much_work(analysis: Analysis) -> Iterator[Notice]:
    """Calls whose work was inferred and could not have been done in their time (``impossible_work``)."""
    rows = analysis.frames[unified_perf_summary.TITLE]
    rows = rows[rows["model"] == UnknownWork.__name__]
    if len(rows):
        calls, names = int(rows["operation_count"].sum()), ", ".join(dict.fromkeys(rows["name"].astype(str).head(3)))
        text = f"{counted(calls, 'call')} of {names}: their inferred work is above {MOST_OF_ROOFLINE} x the roofline"
        yield Notice(id="impossible_work", count=calls, text=f"{text}, so it counts as unknown")


def _compiled_without_work(analysis: Analysis) -> Iterator[Notice]:
    """Triton kernels whose FLOPs or bytes no recorded argument and no name says."""
    rows = analysis.frames[unified_perf_summary.TITLE]
    rows = rows[rows["category"] == FusedKernel.category]
    unknown = rows[rows["gflops"].isna() | rows["hbm_mb"].isna()]
    if len(unknown) and not _is_replayed(analysis, FusedKernel.category):
        share = _percent(unknown["kernel_us_sum"].sum() / max(1e-9, rows["kernel_us_sum"].sum()))
        names = list(dict.fromkeys(unknown["name"].astype(str)))
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        calls = int(unknown["operation_count"].sum())
        text = f"{counted(calls, 'Triton kernel')} without FLOPs or bytes ({share} of Triton time): {shown}"
        yield Notice(id="compiled_kernels", count=calls, text=text)


def _is_replayed(analysis: Analysis, category: str) -> bool:
    """Whether most of a category's time came from graph launches without a capture, which has a notice of its own."""
    activity = analysis.activity
    mine = analysis.event_category.are(category)
    behind = np.isin(analysis.trace.tree.launch[activity.rows], graph_launches(analysis.trace.table))
    replayed, whole = (int(activity.duration[of].sum()) for of in (mine & behind, mine))
    return analysis.graphs is None and replayed > whole / 2


def _captured_graphs(graphs: GraphLinks, device_ns: int) -> Notice:
    """What the trace of the capture gave."""
    if not graphs.kernels:
        return Notice(id="graph_launches", count=0, text=f"no graph launches: {graphs.capture} has nothing to give")
    share = graphs.linked_ns / max(1, device_ns)
    found = f"{graphs.linked_kernels:,} of {graphs.kernels:,} kernels ({_percent(share)} of GPU time)"
    launches = f"{graphs.linked_launches} of {graphs.launches:,} launches"
    text = f"graph launches: ops from {graphs.capture} for {found} in {launches}"
    if graphs.reasons:
        text += "; by kernel the rest: " + "; ".join(f"{count:,} {reason}" for reason, count in graphs.reasons)
    return Notice(id="graph_launches", count=graphs.kernels, text=text)


def _cannot_answer(analysis: Analysis) -> tuple[Unanswered, ...]:
    table = analysis.trace.table
    missing = []
    if not table.has_stacks:
        missing.append(Unanswered(question="which line of Python launched this", because="with_stack was off"))
    if not table.has_shapes:
        missing.append(Unanswered(question="FLOPs, bytes and roofline", because="record_shapes was off"))
    if not len(analysis.step_times):
        missing.append(Unanswered(question="time per step", because="no ProfilerStep or iteration annotations"))
    if analysis.device is None:
        missing.append(Unanswered(question="distance from the roofline", because="the device was not recognized"))
    return (*missing, *analysis.missing)
