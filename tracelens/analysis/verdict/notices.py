"""What must be known to read a report's figures: wrong times, lost launches, damage, ambiguity, odd rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from tracelens.analysis.analyze import Analysis
from tracelens.analysis.attribution.activity import devices_of
from tracelens.analysis.attribution.calls import MOST_OF_ROOFLINE, TOLERANCE_US
from tracelens.analysis.attribution.host_time import HOST_CAUSES, kernel_launches, named
from tracelens.analysis.attribution.window import CHOSEN
from tracelens.analysis.findings.idle_rules import LEAST_SHARE
from tracelens.analysis.findings.transfers import holds_only_communication
from tracelens.analysis.grouping import distinct_rows
from tracelens.analysis.idle.dependencies import COMPUTATION
from tracelens.analysis.idle.idle_time import BEFORE_RECORDING
from tracelens.analysis.intervals import Ints
from tracelens.analysis.reading.added_ops import GraphLinks, graph_launches
from tracelens.analysis.reading.engine_steps import STEM
from tracelens.analysis.sheets import device_timeline, module_time, perf_summary
from tracelens.analysis.sheets.device_memory import KERNEL_COUNTERS_TITLE
from tracelens.analysis.verdict.summary import Notice
from tracelens.files.safe_text import clipped
from tracelens.hardware.power import BY_CLOCK
from tracelens.perf_models.base import UnknownWork
from tracelens.perf_models.triton_kernels import FusedKernel
from tracelens.trace.provenance import MergedRanks, no_shapes
from tracelens.trace.table import DEVICE_KINDS, Kind, TraceTable, has_host_time
from tracelens.trace.tree import OpTree
from tracelens.types.units import NS_PER_S, NS_PER_US, counted, duration, percent, shown_percent, takes

#: Clocks are read to a microsecond.
_CLOCK_NS = 1_000
#: What a launch takes to reach the device, by which no cause of idle time is told from another.
_LAUNCH_NS = 20_000
_DEVICE_WAITS = re.compile(r"^(?:cuda|hip)DeviceSynchronize|^cuCtxSynchronize")
#: Share of the window, and length, from which one stretch without any event is said.
_MOST_SILENT, _LONG_SILENCE_NS = 0.5, 1_000_000_000
#: How many times as long as others a step is that a mean should not hide.
_LONG_STEP = 2.0
#: Share of launches without a device event from which figures suffer; what was under way at the end is less.
_MANY_LOST = 0.05


def timing_notices(analysis: Analysis) -> Iterator[Notice]:
    """Clocks that disagree, lost launches or kernels, several devices, silent stretches, long steps."""
    table = analysis.trace.table
    yield from _long_steps(analysis)
    yield from _before_launch(analysis)
    yield from _after_wait(analysis)
    yield from _without_work(table, analysis.trace.tree)
    yield from _before_recording(analysis)
    if (
        not table.is_of((Kind.RUNTIME, Kind.DRIVER)).any()
        and (analysis.trace.tree.launch[analysis.activity.rows] >= 0).any()
    ):
        text = "no launch calls were recorded, so idle causes rest on the ops that launched the work"
        yield Notice(id="no_launch_calls", count=1, text=text)
    yield from _devices(analysis)
    yield from _silence(analysis)


def _before_launch(analysis: Analysis) -> Iterator[Notice]:
    """An effect before its cause: the host's and the device's clocks disagree, by this at the least."""
    table, rows = analysis.trace.table, analysis.activity.rows
    launch = analysis.trace.tree.launch[rows]
    linked = launch >= 0
    early_ns = table.start_ns[launch[linked]] - table.start_ns[rows[linked]]
    early = int((early_ns > _CLOCK_NS).sum())
    if early:
        what = f"{early:,} of {counted(int(linked.sum()), 'device event')} begin before their launch"
        yield _clocks(early, what, int(early_ns.max()))


def _after_wait(analysis: Analysis) -> Iterator[Notice]:
    """The other way round: a wait for the whole device ended before work did that was launched before it."""
    table = analysis.trace.table
    rows = table.rows_of(DEVICE_KINDS)
    waits = np.flatnonzero(named(table, _DEVICE_WAITS, table.is_of((Kind.RUNTIME, Kind.DRIVER))))
    launch = analysis.trace.tree.launch[rows]
    rows, launch = rows[launch >= 0], launch[launch >= 0]
    if not len(waits) or not len(rows) or len(np.unique(table.device[rows])) > 1:
        return
    launched = table.ends_ns(launch)
    order = np.argsort(launched, kind="stable")
    ended = np.maximum.accumulate(table.ends_ns(rows[order]))
    before = np.searchsorted(launched[order], table.start_ns[waits], side="right")
    late_ns = (np.concatenate((ended[:1], ended))[before] - table.ends_ns(waits))[before > 0]
    late = int((late_ns > _LAUNCH_NS).sum())
    if late:
        what = f"{counted(late, 'wait')} for the device ended before the work did that was launched earlier"
        yield _clocks(late, what, int(late_ns.max()))


def _clocks(count: int, what: str, by_ns: int) -> Notice:
    text = (
        f"{what}, by up to {duration(by_ns / NS_PER_US)}: host and GPU clocks differ by at least as much; idle causes "
        "and step boundaries are no more accurate"
    )
    return Notice(id="clocks_disagree", count=count, text=text)


def _without_work(table: TraceTable, tree: OpTree) -> Iterator[Notice]:
    launches, done = kernel_launches(table, tree)
    lost = int((~done).sum())
    if lost > _MANY_LOST * len(launches):
        share = percent(lost / len(launches))
        text = (
            f"{lost:,} of {counted(len(launches), 'kernel launch', 'kernel launches')} ({share}) have no kernel: "
            "the recording ended before they ran, or lost them, and shows the GPU as idle instead"
        )
        yield Notice(id="lost_kernels", count=lost, text=text)


def _before_recording(analysis: Analysis) -> Iterator[Notice]:
    """Idle time that is none: no rule makes a gain of it."""
    causes = analysis.frames[device_timeline.IDLE_CAUSES_TITLE]
    waits = causes[causes["cause"] == BEFORE_RECORDING]
    idle_us, share = float(waits["idle_us"].sum()), float(waits["percent_of_window"].sum()) / 100
    if share > LEAST_SHARE:
        text = (
            f"the GPU looks idle for {duration(idle_us)} ({percent(share)} of the window), but its first kernels "
            "waited for work from before recording; call torch.cuda.synchronize() before recording begins"
        )
        yield Notice(id="work_before_recording", count=int(waits["gaps"].sum()), text=text)


def _devices(analysis: Analysis) -> Iterator[Notice]:
    _, devices = devices_of(analysis.activity, analysis.trace.table)
    if len(devices) > 1:
        text = (
            f"the file holds {len(devices)} devices ({_first(devices)}): the GPU counts as busy while any device is; "
            "times, findings and gains add up all devices, shares of the peak are their mean"
        )
        yield Notice(id="several_devices", count=len(devices), text=text)


def _first(texts: Sequence[str], most: int = 4) -> str:
    return ", ".join(texts[:most]) + (", ..." if len(texts) > most else "")


def _silence(analysis: Analysis) -> Iterator[Notice]:
    """A stretch that is most of the window, in which neither the device nor the host has an event."""
    table, window = analysis.trace.table, analysis.timeline.window
    gap = _longest_gap(analysis.activity.start, analysis.activity.end, *window)
    least = max(_LONG_SILENCE_NS, _MOST_SILENT * (window[1] - window[0]))
    if gap[1] - gap[0] <= least:
        return
    host = table.rows_of((Kind.CPU_OP, Kind.RUNTIME, Kind.DRIVER, Kind.PYTHON_FUNCTION))
    start, end = table.start_ns[host], table.ends_ns(host)
    inside = (start < gap[1]) & (end > gap[0])
    first, last = _longest_gap(start[inside], end[inside], *gap)
    if last - first > least and len(host):
        share = (last - first) / (window[1] - window[0])
        text = (
            f"nothing was recorded for {duration((last - first) / NS_PER_US)} ({percent(share)} of the window): the "
            "program slept, or the time of an event is wrong; the report counts it as host idle time"
        )
        yield Notice(id="silence", count=1, text=text)


def _long_steps(analysis: Analysis) -> Iterator[Notice]:
    """Steps of which a mean says nothing: as the first one, which compiles, or one that writes a checkpoint.

    An engine's steps are of several phases, which the sheet inference_phases tells apart.
    """
    times, chosen = analysis.step_times, np.array(analysis.complete_steps, np.int64)
    if len(chosen) < 2 or analysis.step_stem == STEM:
        return
    length = times.duration_ns[chosen]
    usual = float(np.median(np.sort(length)[:-1]))
    is_long = length > _LONG_STEP * usual
    if not is_long.any():
        return
    numbers = [times.steps[at].number for at in chosen.tolist()]
    at = np.flatnonzero(is_long).tolist()
    which = f"step {numbers[at[0]]} takes" if len(at) == 1 else f"{len(at)} of {len(numbers)} steps take up to"
    longest, ratio = duration(float(length.max()) / NS_PER_US), float(length.max()) / max(1.0, usual)
    text = f"{which} {longest}, {ratio:.1f} times the median of the others; figures per step are the mean of all"
    if len(at) == 1:
        rest = max(numbers[: at[0]], numbers[at[0] + 1 :], key=len)
        text += f"; --steps {'-'.join(map(str, dict.fromkeys((rest[0], rest[-1]))))} leaves it out"
    yield Notice(id="long_steps", count=len(at), text=text)


def _longest_gap(start: Ints, end: Ints, first: int, last: int) -> tuple[int, int]:
    """(start, end) of the longest stretch between ``first`` and ``last`` that no interval touches."""
    order = np.argsort(start, kind="stable")
    opens = np.concatenate(([first], np.maximum.accumulate(np.maximum(end[order], first))))
    closes = np.concatenate((np.minimum(start[order], last), [last]))
    at = int((closes - opens).argmax())
    return int(opens[at]), int(closes[at])


#: A share that is printed as 100 %.
_ALL = 0.995
#: Kernels of algorithms that need fewer multiplications than the convolution's definition.
_FEWER_FLOPS = re.compile(r"(?i)winograd|fft")
#: Columns that the name of an annotation may take in a sentence.
_NAME_WIDTH = 40


#: A lower clock; from which share of the window on that the GPU waits for the host, up to which share of kernels on the
#: critical path, and from which share of the joules on it is worth a line.
_LOWER_CLOCK, _HOST_BOUND, _MOST_ON_PATH, _WORTH = 0.8, 0.5, 0.05, 0.05


def _lower_clock(analysis: Analysis) -> Iterator[Notice]:
    """Less energy at a lower clock, where idle causes and the critical path both say that the host bounds the step."""
    energy, total_ns = analysis.energy, analysis.timeline.total_ns
    causes = analysis.frames.get(device_timeline.IDLE_CAUSES_TITLE)
    path = analysis.frames.get(device_timeline.CRITICAL_PATH_TITLE)
    if energy is None or causes is None or path is None or not total_ns:
        return
    waits = float(causes["percent_of_window"][causes["cause"].isin(HOST_CAUSES)].sum()) / 100
    computes = float(path["percent_of_step"][path["kind"] == COMPUTATION].sum()) / 100
    whole_j = float(energy.of_spans(np.zeros(len(analysis.activity), np.int32), np.array([total_ns])).power_w[0])
    over_j = whole_j - energy.constants.idle_w * total_ns / NS_PER_S
    saved = over_j * (1 - _LOWER_CLOCK**BY_CLOCK) / whole_j
    if waits >= _HOST_BOUND and computes <= _MOST_ON_PATH and saved >= _WORTH:
        longer, clock = computes / _LOWER_CLOCK - computes, f"{_LOWER_CLOCK:g}"
        text = (
            f"at {clock} of the GPU's clock the step takes {percent(saved, 1)} less energy and at most "
            f"{shown_percent(longer)} longer (modelled; `tracelens whatif --clock {clock}`): idle time that the host "
            f"causes is {percent(waits)} of it, and kernels are {shown_percent(computes)} of the critical path"
        )
        yield Notice(id="lower_clock", count=1, text=text)


def notices(analysis: Analysis) -> Iterator[Notice]:
    """What must be known to read the figures: of the input, the device, and rows that are not what they seem."""
    yield from input_notices(analysis)
    yield from _not_steps(analysis)
    if holds_only_communication(analysis.trace.table, analysis.activity):
        text = "the file holds only communication kernels, so it does not show computation or idle causes"
        yield Notice(id="only_communication", count=len(analysis.activity), text=text)
    yield from analysis.without_gain
    yield from _lower_clock(analysis)
    activity = analysis.activity
    unlinked = int((activity.op < 0).sum())
    if unlinked > (0 if analysis.selected_steps else analysis.step_times.before_events):
        share = percent(analysis.coverage.unlinked or 0.0, 1)
        text = f"{unlinked:,} of {len(activity):,} device events ({share} of GPU time) have no recorded launch"
        yield Notice(id="unlinked", count=unlinked, text=text)
    yield from timing_notices(analysis)
    yield from _device(analysis)
    rows = analysis.frames[perf_summary.UNIFIED_PERF_SUMMARY_TITLE]
    yield from _above_peak(rows)
    yield from _at_most(rows)
    yield from _graph_share(analysis)
    for why, count in analysis.whole_calls:
        yield Notice(
            id="whole_calls", count=count, text=f"{counted(count, 'call')} could not be split into operations: {why}"
        )
    yield from _compiled_code(analysis)
    yield from _compiled_without_work(analysis)
    yield from _too_much_work(rows)
    if analysis.overlaps is not None and analysis.overlaps.count:
        overlaps = analysis.overlaps
        device = analysis.trace.table.is_of(DEVICE_KINDS)
        part = overlaps.time_ns / max(1, int(analysis.trace.table.duration_ns[device].sum()))
        share = "<0.01 %" if part < 0.00005 else percent(part, 2)
        kernels = f"{counted(overlaps.count, 'device event')} overlapped the next one on the same stream"
        end = "are clipped" if overlaps.clipped else "are kept; --overlap clip ends them there"
        text = f"{kernels} ({share} of GPU time) and {end}"
        yield Notice(id="same_stream_overlap", count=overlaps.count, text=text)
    for name, count in rows["served_from"].dropna().value_counts().sort_index().items():
        beat, whose = ("op beats", "its") if count == 1 else ("ops beat", "their")
        text = f"{int(count):,} {beat} HBM bandwidth: {whose} data was probably in {name} (column Served from)"
        yield Notice(id="from_cache", count=int(count), text=text)
    yield from _extensions(analysis)


def _not_steps(analysis: Analysis) -> Iterator[Notice]:
    """Numbered annotations look like steps: where none are taken, why not these."""
    refused = analysis.found_steps.refused
    if refused is None or len(analysis.step_times):
        return
    whose = "GPU's work" if analysis.trace.table.has_device_events else "time of CPU ops"
    why = "name parts of a step" if refused.is_part else f"hold {percent(refused.held)} of the {whose}"
    first, last = (clipped(name, _NAME_WIDTH) for name in (refused.first, refused.last))
    text = f"annotations '{first}' to '{last}' {why} and are not used as steps"
    yield Notice(id="not_steps", count=1, text=text)


def _device(analysis: Analysis) -> Iterator[Notice]:
    found = analysis.recognition
    if analysis.device is None:
        text = found.note or "the device is not recognized, so there is no roofline; pass --device"
        yield Notice(id="no_device", count=1, text=text)
    elif found.note and (found.device is None or found.how == CHOSEN):
        yield Notice(id="device", count=1, text=found.note)


def _extensions(analysis: Analysis) -> Iterator[Notice]:
    """Bindings that failed, by reason, rules that failed, and extensions that were not used."""
    failed: dict[tuple[str, str], list[str]] = {}
    for failure in analysis.failures:
        what = f"{failure.loss}: {failure.origin}: {failure.error}"
        failed.setdefault(("a perf model of tracelens" if failure.is_own else "an extension", what), []).append(
            failure.name
        )
    for (whose, what), names in failed.items():
        text = f"{whose} failed on {clipped(names[0], _NAME_WIDTH)}, {what}"
        yield Notice(id="extension_failed", count=len(names), text=text)
    for rule in analysis.rule_failures:
        text = f"the findings lack the rule {rule.kind!r}: {rule.origin} raised {rule.error}"
        yield Notice(id="rule_failed", count=1, text=text)
    for extension in analysis.extensions:
        if extension.note:
            yield Notice(id="extension_unused", count=1, text=extension.note)


def input_notices(analysis: Analysis) -> Iterator[Notice]:
    table = analysis.trace.table
    losses = table.losses
    yield from _processes(analysis)
    for note in losses.notes:
        yield Notice(id="damaged_input", count=max(1, losses.damaged_events), text=note)
    if (known := analysis.known_shapes) is not None:
        share = percent(known.joined_ns / max(1, known.kernel_ns))
        kernels = f"{known.joined:,} of {known.kernels:,} kernels that lack them ({share} of their time)"
        text = f"{known.source} gives ops and shapes of {kernels}"
        yield Notice(id="known_shapes", count=known.joined, text=text)
    yield from _counters(analysis)
    if not table.has_shapes:
        lack = no_shapes(table)
        advice = f" ({lack.advice})" if lack.advice else ""
        text = f"{lack.what}, so FLOPs and bytes are unknown{advice}"
        yield Notice(id="no_shapes", count=1, text=text)


def _counters(analysis: Analysis) -> Iterator[Notice]:
    """How many counted launches are those of recorded kernels, why others are not, and counted bytes over modelled."""
    for file in analysis.options.counters:
        yield from (Notice(id="counter_units", count=1, text=note) for note in file.notes)
    frame = analysis.frames.get(KERNEL_COUNTERS_TITLE)
    if frame is None:
        return
    known, total = frame["not_joined"].isna(), int(frame["counted"].sum())
    text = f"--counters: {int(frame['counted'][known].sum()):,} of {counted(total, 'launch', 'launches')} joined"
    if not known.all():
        why = frame[~known].groupby("not_joined")["counted"].sum()
        text += f"; not joined: {'; '.join(f'{number:,}, as {reason}' for reason, number in why.items())}"
    calls = frame[frame["measured_over_model"].notna()].drop_duplicates("_row")
    if len(calls):
        bytes_mb = calls["model_mb"] * calls["recorded"]
        measured = (bytes_mb * calls["measured_over_model"]).groupby(calls["category"]).sum()
        over = measured / bytes_mb.groupby(calls["category"]).sum()
        text += f"; counted HBM bytes over the model's: {', '.join(f'{name} {x:.2f}' for name, x in over.items())}"
    yield Notice(id="counters", count=total, text=text)


def _processes(analysis: Analysis) -> Iterator[Notice]:
    """Ranks whose traces were merged: which one this is, or that figures are of several together."""
    if analysis.merged is not None:
        yield _chosen_rank(analysis.merged)
        return
    table, ambiguous = analysis.trace.table, analysis.trace.tree.ambiguous
    lanes = distinct_rows(table.lane[table.is_of((Kind.CPU_OP, Kind.RUNTIME, Kind.DRIVER))], len(table.lanes)).tolist()
    processes = list(dict.fromkeys(table.lanes[lane][0] for lane in lanes))
    if len(processes) < 2:
        return
    names = [f"{table.process_names.get(pid, 'process')} {pid}" for pid in processes]
    text = (
        f"the file holds {len(processes)} processes ({_first(names)}), possibly merged ranks; figures cover all of them"
    )
    if ambiguous:
        text += f"; {ambiguous:,} device events match several processes and stay unlinked"
    yield Notice(id="several_processes", count=len(processes), text=text)


def _chosen_rank(ranks: MergedRanks) -> Notice:
    shown = _first([f"{number}: {label}" for number, label in zip(ranks.numbers, ranks.labels, strict=True)])
    order = "" if ranks.is_named else ", numbered in the order of their processes"
    text = f"the file holds {len(ranks.numbers)} ranks ({shown}{order}); this report covers rank {ranks.chosen}"
    text += "; choose another with --rank N"
    if ranks.ambiguous:
        text += f"; {ranks.ambiguous:,} device events match several ranks and are left out"
    return Notice(id="several_processes", count=len(ranks.numbers), text=text)


def _above_peak(rows: pd.DataFrame) -> Iterator[Notice]:
    """Rows faster than the data sheet allows, by more than the clock's resolution and than the cache explains."""
    at_peak_us = rows["percent_of_peak"] / 100 * rows["kernel_us_mean"]
    beyond = at_peak_us - rows["kernel_us_mean"] > TOLERANCE_US * rows["kernels_per_call"]
    rows = rows[beyond & rows["served_from"].isna()]
    fewer = rows["kernel_details"].astype(str).str.contains(_FEWER_FLOPS.pattern)
    reasons = (
        (
            rows[fewer],
            "Winograd and FFT kernels need fewer FLOPs than the definition of a convolution, which tracelens counts",
        ),
        (rows[~fewer], "the recorded times, the perf model or the peak rate is wrong"),
    )
    for found, reason in reasons:
        if len(found):
            fastest = found.iloc[int(found["percent_of_peak"].argmax())]
            what = f"{fastest['name']} at {fastest['percent_of_peak']:,.0f} % of the peak"
            text = f"{counted(len(found), 'op')} {takes(len(found), 'exceed')} the data sheet's rate ({what}): {reason}"
            yield Notice(id="above_peak", count=len(found), text=text)


def _at_most(rows: pd.DataFrame) -> Iterator[Notice]:
    """Matrix rows whose work is an upper bound, by the reason: no single figure is made of them."""
    matrix = rows["compute_spec"].astype(str).str.startswith("matrix_")
    for reason, found in rows[matrix & rows["work_at_most"].notna()].groupby("work_at_most"):
        names = ", ".join(dict.fromkeys(found["name"].astype(str).head(3)))
        text = f"work of {counted(int(found['operation_count'].sum()), 'call')} of {names} is an upper bound ({reason})"
        yield Notice(id="work_at_most", count=len(found), text=f"{text} and not part of the utilization")


def _graph_share(analysis: Analysis) -> Iterator[Notice]:
    """Graph launches: their kernels have no ops, so say what share of device time is behind them."""
    table, activity = analysis.trace.table, analysis.activity
    if analysis.graphs is not None:
        yield _captured_graphs(analysis, analysis.graphs)
        return
    behind = np.isin(analysis.trace.tree.launch[activity.rows], graph_launches(table))
    if not behind.any():
        return
    share = activity.duration[behind].sum() / max(1, activity.duration.sum())
    found = f"{counted(int(behind.sum()), 'kernel')} ({percent(share)} of GPU time) came from graph launches"
    text = f"{found} and {'is' if behind.sum() == 1 else 'are'} listed by kernel; pass --capture TRACE to see their ops"
    yield Notice(id="graph_launches", count=int(behind.sum()), text=text)


def _too_much_work(rows: pd.DataFrame) -> Iterator[Notice]:
    """Calls whose work was inferred and could not have been done in their time (``impossible_work``)."""
    rows = rows[rows["model"] == UnknownWork.__name__]
    if len(rows):
        calls, names = int(rows["operation_count"].sum()), ", ".join(dict.fromkeys(rows["name"].astype(str).head(3)))
        text = f"{counted(calls, 'call')} of {names}: the inferred work would exceed {MOST_OF_ROOFLINE} x the roofline"
        yield Notice(id="impossible_work", count=calls, text=f"{text}, so it counts as unknown")


def _compiled_without_work(analysis: Analysis) -> Iterator[Notice]:
    """Triton kernels whose FLOPs or bytes no recorded argument and no name says."""
    rows = analysis.frames[perf_summary.UNIFIED_PERF_SUMMARY_TITLE]
    rows = rows[rows["category"] == FusedKernel.category]
    unknown = rows[rows["gflops"].isna() | rows["hbm_mb"].isna()]
    if len(unknown) and not _is_replayed(analysis, FusedKernel.category):
        share = percent(unknown["kernel_us_sum"].sum() / max(1e-9, rows["kernel_us_sum"].sum()))
        shown = _first(list(dict.fromkeys(unknown["name"].astype(str))), most=3)
        calls = int(unknown["operation_count"].sum())
        text = f"the FLOPs or bytes of {counted(calls, 'Triton kernel')} ({share} of Triton time) are unknown: {shown}"
        yield Notice(id="compiled_kernels", count=calls, text=text)


def _compiled_code(analysis: Analysis) -> Iterator[Notice]:
    """What --inductor has of the kernels, and what it says broke graphs."""
    if analysis.options.inductor is None:
        return
    kernels = analysis.frames.get(module_time.COMPILED_KERNELS_TITLE)
    text = "--inductor: the trace has no kernel of torch.compile"
    joined = 0
    if kernels is not None:
        there = kernels["joined_by"] != module_time.NOT_JOINED
        share = kernels["duration_us_sum"][there].sum() / max(1e-9, kernels["duration_us_sum"].sum())
        joined, left_out = int(kernels["kernels"][there].sum()), kernels["kernel_name"][~there].tolist()
        text = f"--inductor says the ops of {counted(joined, 'compiled kernel')} ({percent(share)} of their time)"
        text += f", not of {_first(list(dict.fromkeys(left_out)), most=3)}" if left_out else ""
    for what, each in (
        ("graph break", analysis.options.inductor.breaks),
        ("recompilation", analysis.options.inductor.recompilations),
    ):
        if each:
            where = clipped(each[0].line or f"graph {each[0].graph}", 80)
            text += f"; {counted(len(each), what)}, first {where}: {clipped(each[0].reason, 80)}"
    yield Notice(id="compiled_code", count=joined, text=text)


def _is_replayed(analysis: Analysis, category: str) -> bool:
    """Whether most of a category's time came from graph launches without a capture, which has a notice of its own."""
    activity = analysis.activity
    mine = analysis.event_category.are(category)
    behind = np.isin(analysis.trace.tree.launch[activity.rows], graph_launches(analysis.trace.table))
    replayed, whole = (int(activity.duration[of].sum()) for of in (mine & behind, mine))
    return analysis.graphs is None and replayed > whole / 2


def _known_share_of_opened(analysis: Analysis) -> float:
    """The share of the opened graphs' kernel time that is in rows of known work."""
    trace, activity, rows = analysis.trace, analysis.activity, analysis.frames[perf_summary.UNIFIED_PERF_SUMMARY_TITLE]
    launch = trace.tree.launch[activity.rows]
    opened = (launch >= 0) & ~has_host_time(trace.table, launch)
    known = np.append(rows[["gflops", "hbm_mb", "wire_mb"]].notna().any(axis=1).to_numpy(bool), False)
    of_event = np.full(len(launch), -1) if analysis.row_of_event is None else analysis.row_of_event
    took = int(activity.duration[opened].sum())
    return float(activity.duration[opened & known[of_event]].sum() / took) if took else 1.0


def _how_matched(graphs: GraphLinks) -> str:
    by_sequence = graphs.linked_kernels - graphs.by_node
    if not by_sequence:
        return "matched by graph node id"
    if graphs.by_node:
        return f"{graphs.by_node:,} matched by graph node id, {by_sequence:,} by the sequence of kernels"
    unless = "" if graphs.wrong_ids else ", as no graph node ids were recorded"
    return f"matched by the sequence of kernels{unless}"


def _captured_graphs(analysis: Analysis, graphs: GraphLinks) -> Notice:
    """What the trace of the capture gave: ops, and how much of their work is known, without which they say nothing."""
    if not graphs.kernels:
        text = f"this trace has no graph launches, so --capture {graphs.capture} is not used"
        return Notice(id="graph_launches", count=0, text=text)
    share = graphs.linked_ns / max(1, int(analysis.activity.duration.sum()))
    found = f"{graphs.linked_kernels:,} of {graphs.kernels:,} kernels ({percent(share)} of GPU time)"
    launches = f"{graphs.linked_launches} of {graphs.launches:,} graph launches"
    text = f"{graphs.capture} names the ops of {found} in {launches}"
    if graphs.linked_kernels and (known := _known_share_of_opened(analysis)) < _ALL:
        text += f"; the work of {percent(known)} of their time is known"
        if known == 0:
            text = f"{graphs.capture} names the ops of {found}, but the work of none of them is known"
    if graphs.linked_kernels:
        text += f"; {_how_matched(graphs)}"
    if graphs.wrong_ids:
        wrong = counted(sum(count for _, count in graphs.wrong_ids), "launch", "launches")
        text += f"; the graph node ids of {wrong} are not believed ({graphs.wrong_ids[0][0]})"
    if graphs.reasons:
        reasons = "; ".join(f"{count:,} {reason}" for reason, count in graphs.reasons)
        text += f"; the rest is listed by kernel: {reasons}"
    return Notice(id="graph_launches", count=graphs.kernels, text=text)
