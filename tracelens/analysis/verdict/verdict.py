"""The summary of a report: what must be known to read its figures (wrong times, lost launches, damage, ambiguity, odd
rows), coverage, time by category, time of unknown work, and utilization (MFU, HFU).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracelens.analysis.analyze import Analysis
from tracelens.analysis.attribution.activity import at_a_time, devices_of
from tracelens.analysis.attribution.calls import COLLECTIVES, COPY, MOST_OF_ROOFLINE, TOLERANCE_US, rate_of
from tracelens.analysis.attribution.host_time import HOST_CAUSES, kernel_launches, named
from tracelens.analysis.attribution.window import CHOSEN
from tracelens.analysis.findings.idle_rules import LEAST_SHARE
from tracelens.analysis.findings.transfers import holds_only_communication
from tracelens.analysis.grouping import distinct_rows
from tracelens.analysis.idle.dependencies import COMPUTATION
from tracelens.analysis.idle.idle_time import BEFORE_RECORDING
from tracelens.analysis.intervals import Floats, Ints, union_by_group
from tracelens.analysis.loaded_trace import StepWork
from tracelens.analysis.reading.added_ops import GraphLinks, graph_launches
from tracelens.analysis.reading.catalog import COMMUNICATION, NO_MODEL
from tracelens.analysis.reading.engine_steps import STEM
from tracelens.analysis.reading.process_groups import EVERY_ROW
from tracelens.analysis.sheets import coll_analysis, device_memory, device_timeline, module_time, perf_summary
from tracelens.analysis.sheets.coll_analysis import with_bus_rate
from tracelens.analysis.sheets.device_memory import KERNEL_COUNTERS_TITLE, with_rate
from tracelens.analysis.sheets.priced_calls import UNLINKED_NAME
from tracelens.analysis.verdict import summary
from tracelens.analysis.verdict.summary import Notice
from tracelens.errors import SignatureError
from tracelens.files.safe_text import clipped
from tracelens.hardware import HardwareSpec
from tracelens.hardware.power import BY_CLOCK
from tracelens.hardware.recognition import recognize
from tracelens.perf_models.base import UnknownWork
from tracelens.perf_models.triton_kernels import FusedKernel
from tracelens.trace.provenance import MergedRanks, no_shapes, no_stacks, steps_advice
from tracelens.trace.table import DEVICE_KINDS, Kind, TraceTable, has_host_time
from tracelens.trace.tree import OpTree
from tracelens.types.records import Record
from tracelens.types.units import (
    FLOPS_PER_GFLOP,
    NS_PER_S,
    NS_PER_US,
    TERA_PER_S_IN_PER_US,
    counted,
    duration,
    percent,
    shown_percent,
    takes,
)

if TYPE_CHECKING:
    from tracelens.predict.workload import ModelConfig
    from tracelens.types.dtypes import DType


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
    yield from _device_notices(analysis)
    rows = analysis.frames[perf_summary.UNIFIED_PERF_SUMMARY_TITLE]
    yield from _above_peak(rows)
    # Matrix rows whose work is an upper bound, by the reason: no single figure is made of them
    matrix = rows["compute_spec"].astype(str).str.startswith("matrix_")
    for reason, found in rows[matrix & rows["work_at_most"].notna()].groupby("work_at_most"):
        calls, names = int(found["operation_count"].sum()), ", ".join(dict.fromkeys(found["name"].astype(str).head(3)))
        text = (
            f"work of {counted(calls, 'call')} of {names} is an upper bound ({reason}) and not part of the utilization"
        )
        yield Notice(id="work_at_most", count=len(found), text=text)
    yield from _graph_share(analysis)
    for why, count in analysis.whole_calls:
        yield Notice(
            id="whole_calls", count=count, text=f"{counted(count, 'call')} could not be split into operations: {why}"
        )
    yield from _compiled_code(analysis)
    yield from _compiled_without_work(analysis)
    # Calls whose work was inferred and could not have been done in their time
    impossible = rows[rows["model"] == UnknownWork.__name__]
    if len(impossible):
        calls = int(impossible["operation_count"].sum())
        names = ", ".join(dict.fromkeys(impossible["name"].astype(str).head(3)))
        what = f"{counted(calls, 'call')} of {names}"
        text = f"{what}: the inferred work would exceed {MOST_OF_ROOFLINE} x the roofline, so it counts as unknown"
        yield Notice(id="impossible_work", count=calls, text=text)
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


def _device_notices(analysis: Analysis) -> Iterator[Notice]:
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


def _compiled_without_work(analysis: Analysis) -> Iterator[Notice]:
    """Triton kernels whose FLOPs or bytes no recorded argument and no name says."""
    rows = analysis.frames[perf_summary.UNIFIED_PERF_SUMMARY_TITLE]
    rows = rows[rows["category"] == FusedKernel.category]
    unknown = rows[rows["gflops"].isna() | rows["hbm_mb"].isna()]
    if not len(unknown):
        return
    # Time that mostly came from graph launches without a capture has a notice of its own
    activity, mine = analysis.activity, analysis.event_category.are(FusedKernel.category)
    behind = np.isin(analysis.trace.tree.launch[activity.rows], graph_launches(analysis.trace.table))
    replayed, whole = (int(activity.duration[of].sum()) for of in (mine & behind, mine))
    if analysis.graphs is not None or replayed <= whole / 2:
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


_BACKWARD = re.compile(r"backward", re.IGNORECASE)
# How Megatron-Core and torchtitan describe groups whose ranks share the work on one batch of tokens.
_SHARED_WORK = re.compile(
    r"(?:tensor(?:_and_context)?(?:_model)?_parallel|pipeline(?:_model)?_parallel|context_parallel|mesh_(?:tp|pp|cp)|tp|pp|cp)"
    r"(?:_group)?",
    re.IGNORECASE,
)


#: The op whose indices are a step's tokens.
_LOOKUP = "aten::embedding"
_Pairs = list[tuple[int, int]]


class _Tokens(Record, frozen=True, kw_only=True):
    """Tokens of one step, the length of a sequence, and where both are from."""

    count: int
    sequence: int
    source: str


def utilization(analysis: Analysis) -> tuple[summary.Utilization | None, tuple[Notice, ...]]:
    """MFU and HFU of the analyzed steps (without steps: of the whole window); None, with the reason, where unknown."""
    work = analysis.options.work
    if work is None:
        return None, ()
    notices = [_notice("model_note", note) for note in work.model.notes]
    if analysis.executed is None:
        return None, (_notice("no_utilization", f"no MFU for {work.model.name}: no GPU work was recorded"), *notices)
    windows = _windows(analysis)
    found = _given(work)
    if found is None:
        try:
            found = _recorded(analysis, work, windows)
        except SignatureError as error:
            text = f"no MFU for {work.model.name}: {error}; give --batch and --sequence"
            return None, (_notice("no_utilization", text), *notices)
    shared, ranks_source = _ranks(analysis, work)
    if shared is None:
        return None, (_notice("no_utilization", f"no MFU for {work.model.name}: {ranks_source}"), *notices)
    if work.ranks is None and (analysis.trace.table.world_size or 1) > 1:
        notices.insert(0, _notice("utilization_assumes", f"MFU {ranks_source}; else pass --ranks"))
    made = _made(analysis, work, found, shared, ranks_source)
    return made, (*_doubts(made), *notices)


def _doubts(made: summary.Utilization) -> Iterator[Notice]:
    """What is wrong with an MFU that cannot be."""
    if made.mfu is not None and made.mfu > 1:
        text = f"MFU is {100 * made.mfu:.0f} %: the model, --ranks or the tokens per step do not match this trace"
        yield _notice("utilization_above_peak", text)
    elif made.mfu is not None and made.mfu > (made.hfu or 0):
        covered = f"{100 * (made.hardware_coverage or 0):.0f} % of the device time is in ops with known FLOPs"
        yield _notice(
            "utilization_uncovered", f"MFU is above HFU: {covered}, and the rest may contain the missing matrix FLOPs"
        )


def _notice(identifier: str, text: str) -> Notice:
    return Notice(id=identifier, count=1, text=text)


def _made(analysis: Analysis, work: StepWork, tokens: _Tokens, ranks: int, ranks_source: str) -> summary.Utilization:
    training = _has_backward(analysis)
    per_token = work.model.flops_per_token(tokens.sequence)
    model_flops = (per_token.training if training else per_token.forward) * tokens.count / ranks
    dtype = (analysis.executed.dtype if analysis.executed is not None else None) or work.model.dtype
    peak, achievable = _rates(analysis.device, dtype)
    steps = _timed_steps(analysis)
    time_us = float(np.mean([time for _, time, _ in steps]))
    done = [flops for _, _, flops in steps if flops]
    hardware_flops = float(np.mean(done)) if done else None
    return summary.Utilization(
        model=work.model.name,
        work="training" if training else "inference",
        tokens=tokens.count,
        sequence=tokens.sequence,
        tokens_source=tokens.source,
        ranks=ranks,
        ranks_source=ranks_source,
        dtype=dtype.label if dtype is not None else None,
        time_us=time_us,
        model_flops=model_flops,
        hardware_flops=hardware_flops,
        hardware_coverage=analysis.coverage.flops,
        mfu=_share(model_flops, time_us, peak),
        mfu_of_achievable=_share(model_flops, time_us, achievable),
        hfu=_share(hardware_flops, time_us, peak),
        hfu_of_achievable=_share(hardware_flops, time_us, achievable),
        steps=tuple(
            summary.StepUtilization(
                step=number, time_us=time, mfu=_share(model_flops, time, peak), hfu=_share(flops or None, time, peak)
            )
            for number, time, flops in steps
            if number is not None
        ),
    )


def _rates(device: HardwareSpec | None, dtype: DType | None) -> tuple[float | None, float | None]:
    """(peak, achievable) TFLOPS/s of the matrix units."""
    rate = device.rate("matrix", dtype) if device is not None and dtype is not None else None
    return (None, None) if rate is None else (rate.peak_tflops_s, rate.achievable_tflops_s)


def _share(flops: float | None, time_us: float, tflops_s: float | None) -> float | None:
    if flops is None or tflops_s is None or not time_us:
        return None
    return flops / time_us / TERA_PER_S_IN_PER_US / tflops_s


def _timed_steps(analysis: Analysis) -> list[tuple[int | None, float, float]]:
    """(number, µs, executed FLOPs) of the complete analyzed steps; one without a number for a trace without steps."""
    times, executed = analysis.step_times, analysis.executed
    flops = executed.flops_by_step if executed is not None else np.zeros(max(1, len(times)))
    if not analysis.selected_steps:
        return [(None, analysis.timeline.total_ns / NS_PER_US, float(flops.sum()))]
    duration = times.duration_ns / NS_PER_US
    return [(times.steps[i].number, float(duration[i]), float(flops[i])) for i in analysis.complete_steps]


def _windows(analysis: Analysis) -> _Pairs:
    """Host windows (ns) of the complete analyzed steps; one over everything without steps."""
    times = analysis.step_times
    if not analysis.selected_steps:
        return [(0, int(np.iinfo(np.int64).max))]
    return [(times.steps[i].start_ns, times.steps[i].end_ns) for i in analysis.complete_steps]


def _given(work: StepWork) -> _Tokens | None:
    if work.sequence is None:
        return None
    if work.batch is not None:
        return _Tokens(count=work.batch * work.sequence, sequence=work.sequence, source="--batch x --sequence")
    if work.tokens is not None:
        return _Tokens(count=work.tokens, sequence=work.sequence, source="--tokens-per-step, --sequence")
    return None


def _recorded(analysis: Analysis, work: StepWork, windows: _Pairs) -> _Tokens:
    """Tokens of a step as the trace records them. SignatureError says why they are not determined."""
    lookups = [_looked_up(analysis.trace.table, work.model, window) for window in windows]
    attended = [_attended(analysis, window) for window in windows]
    if all(lookups):
        found = _of_lookups(lookups, attended, work)
    elif all(attended):
        shapes = {shape for calls in attended for shape in calls}
        if len(shapes) != 1:
            raise SignatureError("attention calls have different shapes")
        rows, sequence = shapes.pop()
        calls, layers = len(attended[0]), work.model.attention_blocks
        if calls != layers and work.tokens is None:
            raise SignatureError(
                f"{calls} attention calls in a step for {layers} layers do not determine the tokens per step"
            )
        source = f"attention over {rows} x {sequence}, once per layer"
        found = _Tokens(count=rows * sequence, sequence=sequence, source=source)
    else:
        raise SignatureError("the trace records neither a lookup of token embeddings nor attention with lengths")
    if work.tokens is not None:
        return replace(found, count=work.tokens, source=f"--tokens-per-step; sequence: {found.source}")
    given = "; --sequence" if work.sequence is not None else ""
    return replace(found, sequence=work.sequence or found.sequence, source=found.source + given)


def _of_lookups(lookups: list[_Pairs], attended: list[_Pairs], work: StepWork) -> _Tokens:
    counts = {sum(a * b for a, b in calls) for calls in lookups}
    if len(counts) != 1:
        raise SignatureError("steps look up different numbers of tokens")
    first = lookups[0][0]
    sequence = work.sequence or _sequence(first, {s for calls in attended for _, s in calls})
    times = f" x {len(lookups[0])}" if len(lookups[0]) > 1 else ""
    return _Tokens(count=counts.pop(), sequence=sequence, source=f"{_LOOKUP} indices {list(first)}{times}")


def _sequence(indices: tuple[int, int], attended: set[int]) -> int:
    """Which dim of the looked-up indices is the sequence: the one that attention is over; the last without attention.

    Megatron keeps ``[sequence, batch]``, others ``[batch, sequence]``.
    """
    if not attended:
        return indices[1]
    if len(attended) == 1 and (length := next(iter(attended))) in indices:
        return length
    raise SignatureError(f"token indices {list(indices)} and attention over {sorted(attended)} do not agree")


def _looked_up(table: TraceTable, model: ModelConfig, window: tuple[int, int]) -> _Pairs:
    """Shapes of indices looked up in the largest embedding; SignatureError unless it is as wide as the model."""
    found: dict[tuple[int, ...], _Pairs] = {}
    code = table.names.index(_LOOKUP) if _LOOKUP in table.names else -1
    rows = np.flatnonzero((table.kind == Kind.CPU_OP) & (table.name == code)).tolist()
    for row in (row for row in rows if _is_within(table, row, window)):
        signature = table.signature_of(row)
        weights, indices = signature.shape(0, rank=2), signature.shape_or_scalar(1)
        if len(indices) == 2:
            found.setdefault(weights, []).append((indices[0], indices[1]))
    if not found:
        return []
    largest = max(found)
    if largest[1] != model.hidden:
        raise SignatureError(f"the trace's embedding is {list(largest)}, the model's [{model.vocab}, {model.hidden}]")
    return found[largest]


def _attended(analysis: Analysis, window: tuple[int, int]) -> _Pairs:
    """(sequences, tokens in each) of every forward attention; SignatureError when one is not over whole sequences."""
    found = []
    for row, model in analysis.executed.attention if analysis.executed is not None else ():
        if _is_within(analysis.trace.table, row, window):
            if model.s_q is None or model.s_q != model.s_kv:
                raise SignatureError("attention of a step is not over whole sequences of recorded length")
            found.append((model.b, model.s_q))
    return found


def _is_within(table: TraceTable, row: int, window: tuple[int, int]) -> bool:
    return bool(window[0] <= table.start_ns[row] < window[1])


def _has_backward(analysis: Analysis) -> bool:
    """Whether an op of the analyzed steps is named after a gradient: then the steps are training."""
    table = analysis.trace.table
    named = np.array([_BACKWARD.search(name) is not None for name in table.names] or [False], bool)
    rows = np.flatnonzero((table.kind == Kind.CPU_OP) & named[table.name])
    start = table.start_ns[rows]
    return any(bool(((start >= first) & (start < end)).any()) for first, end in _windows(analysis))


def _ranks(analysis: Analysis, work: StepWork) -> tuple[int | None, str]:
    """Devices that share the work on the tokens, and where that is from; None, with the reason, when it is open."""
    table = analysis.trace.table
    if work.ranks is not None:
        return work.ranks, "--ranks"
    world = table.world_size or 1
    if world == 1:
        return 1, "one rank"
    for group in table.process_groups():
        mine = table.rank is None or table.rank in group.ranks
        if mine and len(group.ranks) > 1 and _SHARED_WORK.fullmatch(group.description):
            return None, (
                f"the trace records a {group.description} group of {len(group.ranks)} ranks; "
                "pass --ranks, the number of ranks that share the work on these tokens"
            )
    return 1, f"assumes that each of the {world} ranks does all the work on its own tokens (data or expert parallel)"


_PER_CALL = (
    "roofline_us", "gflops", "wire_mb", "expected_remote_mb", "hbm_mb", "percent_of_peak", "kernel_us_mean",
)  # fmt: skip


_RATES = ("tflops_s", "hbm_tb_s", "wire_tb_s", "of_roofline", "of_peak")


def categories(analysis: Analysis, divisor: int) -> tuple[summary.CategoryRow, ...]:
    """Kernels' summed time by category, and the share of the window in which one of them at least ran."""
    unified = analysis.frames[perf_summary.UNIFIED_PERF_SUMMARY_TITLE]
    activity, category = analysis.activity, analysis.event_category
    total_us = analysis.timeline.total_ns / NS_PER_US or 1.0
    rated = {
        str(name): _category_row(str(name), frame, divisor, total_us) for name, frame in unified.groupby("category")
    }
    took = np.bincount(category.code, activity.duration, minlength=len(category.texts)) / NS_PER_US
    start, end = (np.clip(time, *analysis.timeline.window) for time in (activity.start, activity.end))
    busy = union_by_group(category.code, start, end, len(category.texts)) / NS_PER_US
    together = at_a_time(activity, analysis.trace.table, category.code, len(category.texts))
    rows = []
    for code in np.unique(category.code).tolist():
        name = category.texts[code]
        row = rated.get(name) or summary.CategoryRow(name=name, time_us=0.0, share=0.0)
        # Of kernels of which so many ran at a time, what they reached together
        reached = {key: rate * float(together[code]) for key in _RATES if (rate := getattr(row, key)) is not None}
        row = replace(row, time_us=float(took[code]) / divisor, share=float(busy[code]) / total_us, **reached)
        if name == COPY and "copies" in analysis.frames:
            row = with_rate(row, analysis.frames[device_memory.COPIES_TITLE], analysis.device)
        rows.append(row)
    collectives = analysis.frames[coll_analysis.TITLE]
    rows = [with_bus_rate(row, collectives) if row.name == COLLECTIVES else row for row in rows]
    return tuple(sorted(rows, key=lambda r: (-r.time_us, r.name)))


def cpu_categories(analysis: Analysis, divisor: int) -> tuple[summary.CategoryRow, ...]:
    """By the CPU ops' own time; shares are of all of it."""
    unique = analysis.frames[perf_summary.CPU_OPS_TITLE]
    own = unique.groupby("category")["host_self_us_sum"].sum()
    total = float(own.sum()) or 1.0
    rows = [
        summary.CategoryRow(name=str(name), time_us=float(us) / divisor, share=float(us) / total)
        for name, us in own.items()
    ]
    return tuple(sorted(rows, key=lambda r: (-r.time_us, r.name)))


def _category_row(name: str, frame: pd.DataFrame, divisor: int, total_us: float) -> summary.CategoryRow:
    count, time = (frame[key].to_numpy(np.float64) for key in ("operation_count", "kernel_us_sum"))
    took, per = time > 0, {key: frame[key].to_numpy(np.float64) for key in _PER_CALL}

    def ratio(per_call: Floats) -> float | None:
        known = took & ~np.isnan(per_call)
        measured = time[known].sum()
        return (
            float((per_call * count)[known].sum() / measured) if measured > summary.LEAST_KNOWN * time.sum() else None
        )

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
    return summary.CategoryRow(
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


def unseen(analysis: Analysis) -> summary.Unseen | None:
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
    return summary.Unseen(share=share, ops=tuple(names[:_MOST_NAMES]), because=because, command=command)


def _opened_by(analysis: Analysis, ops: Mapping[str, object]) -> tuple[str, str | None]:
    """(why the work is unknown, what to type); ``ops``: with recorded shapes, longest first, and what models miss."""
    table, source = analysis.trace.table, shlex.quote(analysis.trace.table.source)
    behind = np.isin(analysis.trace.tree.launch[analysis.activity.rows], graph_launches(table))
    replayed = float(analysis.activity.duration[behind].sum())
    if analysis.graphs is None and 2 * replayed > analysis.activity.duration.sum():
        return "kernels of replayed graphs", f"tracelens report {source} --capture CAPTURE_TRACE"
    if not table.has_shapes:
        return str(no_shapes(table)), None
    if not ops:
        return "their arguments were not recorded", None
    name, note = next(iter(ops.items()))
    if isinstance(note, str) and note not in ("", NO_MODEL):
        # An extension would miss the same
        return note.removeprefix(f"{name}: "), None
    return NO_MODEL, f"tracelens extensions new {shlex.quote(name)} --from {source} -o my_ops.py"


#: Launches in the queue of a stream from which it may be full: CUDA and HIP hold 1,024 before a launch waits.
_FULL_QUEUE = 1_000
#: Share of the FLOPs from which one type stands for all.
ONE_TYPE = 0.99


def summarize(analysis: Analysis) -> summary.Summary:
    """The summary of one analysis; everything per step where there are steps."""
    steps = step_summary(analysis)
    divisor = max(1, step_count(analysis))
    used, used_notices = utilization(analysis)
    table = analysis.trace.table
    no_device = "the device was not recognized" if _has_gpu(analysis) else "no device events were recorded"
    no_steps = f"no ProfilerStep or iteration annotations: {steps_advice(table)}"
    questions = (
        (table.has_stacks, "which line of Python launched this", no_stacks(table).because),
        (table.has_shapes, "FLOPs, bytes and roofline", no_shapes(table).because),
        (len(analysis.step_times) > 0, "time per step", no_steps),
        (analysis.device is not None, "distance from the roofline", no_device),
    )
    missing = (
        summary.Unanswered(question=what, because=because) for is_known, what, because in questions if not is_known
    )
    found = summary.Summary(
        input=_input(analysis),
        device=_device(analysis),
        scope=_scope(analysis),
        coverage=analysis.coverage,
        steps=steps,
        cannot_answer=(*missing, *analysis.missing),
        extensions=tuple(extension.name for extension in analysis.extensions),
        late_host_events=analysis.trace.tree.overlaps,
    )
    if not _has_gpu(analysis):
        of_host = cpu_categories(analysis, divisor)
        return replace(found, categories=of_host, notices=(*used_notices, *input_notices(analysis)))
    return replace(
        found,
        busy=_busy(analysis),
        throughput=_throughput(analysis),
        utilization=used,
        energy=_energy(analysis, divisor, used),
        measured_power=_measured_power(analysis, divisor),
        categories=categories(analysis, divisor),
        findings=analysis.findings,
        together=analysis.together,
        unseen=unseen(analysis),
        notices=(*used_notices, *notices(analysis)),
    )


def _has_gpu(analysis: Analysis) -> bool:
    """Whether device events were analyzed, and not CPU ops alone."""
    return "gpu_timeline" in analysis.frames


def step_count(analysis: Analysis) -> int:
    """Complete steps among those analyzed, which all figures per step are the mean of; 0 without step annotations."""
    return len(analysis.complete_steps)


def step_summary(analysis: Analysis) -> summary.Steps | None:
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
    # Launches may then have waited for room: their time is no work of the host
    launches = analysis.frames.get(device_timeline.DEVICE_TIMELINE_TITLE)
    queue_was_full = launches is not None and bool((launches["queue_depth_max"] >= _FULL_QUEUE).any())
    left_out = [n for i, n in enumerate(numbers) if i not in complete]
    found = summary.Steps(
        count=len(chosen),
        time_us=mean,
        spread=float(duration.std() / mean) if len(chosen) > 1 and mean else None,
        shortest_us=float(duration.min()),
        longest_us=float(duration.max()),
        on_device=int(times.on_device[chosen].sum()),
        host_us=float(host_us[chosen].mean()),
        host_work_us=None if queue_was_full else float(times.host_work_ns[chosen].mean()) / NS_PER_US,
        before_events=times.before_events,
        before_us=times.before_ns / NS_PER_US,
        unseen_us=times.unseen_ns / NS_PER_US,
        name=analysis.found_steps.name,
        skipped_us=sum(end - start for start, end in analysis.timeline.left_out) / NS_PER_US,
        window=_range([numbers[i] for i in chosen]),
        left_out=f"steps {_range(left_out)}" if left_out else "",
    )
    if not times.of_device:
        return found
    return replace(found, host_us=None, host_work_us=None, recorded_us=float(times.recorded_us[chosen].mean()))


def _scope(analysis: Analysis) -> summary.Scope:
    activity, chosen = analysis.activity, analysis.complete_steps
    numbers = [analysis.step_times.steps[at].number for at in chosen]
    return summary.Scope(
        kind=summary.STEPS if chosen else summary.FILE,
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


def _input(analysis: Analysis) -> summary.InputSummary:
    table = analysis.trace.table
    steps = step_summary(analysis)
    version = table.metadata.get("pytorch_version") or table.metadata.get("torch_version")
    return summary.InputSummary(
        file=table.source,
        events=table.events_total,
        ranks=() if table.rank is None else (table.rank,),
        world_size=table.world_size,
        window=f"steps {steps.window}" if steps else summary.WHOLE_FILE,
        left_out=steps.left_out if steps else "",
        torch_version=version if isinstance(version, str) else None,
    )


def _device(analysis: Analysis) -> summary.DeviceSummary:
    found, device = analysis.recognition, analysis.device
    if device is None and not _has_gpu(analysis):
        return summary.DeviceSummary(
            id=None, label="CPU ops alone", matched_by=summary.NOT_NEEDED, note="times of ops need no device"
        )
    if device is None:
        recorded = analysis.trace.table.used_device()
        label = (recorded.name if recorded else None) or "unknown device"
        return summary.DeviceSummary(id=None, label=label, matched_by="none", note=found.note)
    recorded_on = ""
    if found.how == CHOSEN and found.note:
        # The caller chose a device that the trace cannot be of
        properties = analysis.trace.table.used_device()
        other = recognize(properties).device
        name = properties.name if properties else None
        recorded_on = other.label if other is not None else name or "another device"
    return summary.DeviceSummary(
        id=found.device.name if found.device is not None else None,
        label=device.label if found.device is not None else " or ".join(found.candidates),
        matched_by=found.how,
        recorded=recorded_on,
        note=found.note,
        doubtful=device.doubtful(),
        figures=tuple(_roofline_figures(device)),
    )


_UNITS = {"tflops_s": "TFLOPS/s", "tb_s": "TB/s", "gb_s": "GB/s"}


def _roofline_figures(device: HardwareSpec) -> Iterator[summary.SummaryFigure]:
    """The figures that a roofline of this device rests on, each with its source."""
    for figure in device.figures():
        what, _, key = figure.key.rpartition(".")
        kind, _, unit = key.partition("_")
        if what.split(".")[0] in ("matrix", "vector", "hbm", "link") and (unit in _UNITS or key in _UNITS):
            name = f"{what.replace('.', ' ')} {kind}" if unit in _UNITS else f"{what} peak, one direction"
            yield summary.SummaryFigure(
                what=name, value=figure.value, unit=_UNITS[unit if unit in _UNITS else key], source=figure.source
            )


def _busy(analysis: Analysis) -> summary.Busy:
    timeline, causes = analysis.timeline, analysis.frames[device_timeline.IDLE_CAUSES_TITLE]
    total = timeline.total_ns or 1
    return summary.Busy(
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


def _energy(analysis: Analysis, divisor: int, used: summary.Utilization | None) -> summary.EnergyUse | None:
    """None where energies of the device are unknown."""
    energy, total_ns = analysis.energy, analysis.timeline.total_ns
    if energy is None or not total_ns:
        return None
    everything, category = np.zeros(len(analysis.activity), np.int32), analysis.event_category
    whole = energy.of_spans(everything, np.array([total_ns]))
    total_j, low_j, high_j = (_known(each[0] / divisor) for each in whole)
    known_j = float(np.nansum(energy.joules.power_w)) / divisor
    idle_j = energy.constants.idle_w * analysis.timeline.idle_ns / NS_PER_S / divisor
    power_w, limit_w = _known(whole.power_w[0] / (total_ns / NS_PER_S)), energy.constants.limit_w
    joules = energy.sums(category.code, len(category.texts)).power_w / divisor
    tokens = _engine_tokens(analysis, divisor) if used is None else float(used.tokens)
    names = distinct_rows(category.code, len(category.texts)).tolist()
    return summary.EnergyUse(
        energy_j=total_j, low_j=low_j, high_j=high_j, kernels_j=known_j, idle_j=idle_j, power_w=power_w,
        unknown_work_j=None if total_j is None else max(total_j - known_j - idle_j, 0.0),
        limit_w=limit_w, of_limit=None if power_w is None else power_w / limit_w,
        known_share=float(energy.known_share(everything, np.array([total_ns]), energy.own_ns)[0]),
        constants_of=energy.constants.carried_from or analysis.recognition.candidates[0],
        tokens=tokens, per_token_j=total_j / tokens if total_j is not None and tokens else None,
        categories=tuple(summary.CategoryEnergy(name=category.texts[at], energy_j=_known(joules[at])) for at in names),
    )  # fmt: skip


def _measured_power(analysis: Analysis, divisor: int) -> summary.MeasuredPower | None:
    """None where no log was given."""
    log, base_ns = analysis.power_log, analysis.trace.table.base_ns
    if log is None:
        return None
    start, end = analysis.timeline.window[0] + base_ns, analysis.timeline.window[1] + base_ns
    joules, clocks = _known(log.joules(np.array([start]), np.array([end]))[0]), log.clocks(start, end)
    return summary.MeasuredPower(
        source=log.source,
        samples=int(((log.time_ns >= start) & (log.time_ns <= end)).sum()),
        energy_j=None if joules is None else joules / divisor,
        power_w=None if joules is None else joules / ((end - start) / NS_PER_S),
        clock_mhz=float(clocks.mean()) if len(clocks) else None,
        least_clock_mhz=float(clocks.min()) if len(clocks) else None,
    )


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _engine_tokens(analysis: Analysis, divisor: int) -> float | None:
    """New tokens per step of a serving engine; None where the steps are not an engine's, or do not say."""
    rows = analysis.frames.get(device_timeline.INFERENCE_ITERATIONS_TITLE)
    if rows is None or not analysis.found_steps.of_engine:
        return None
    mine = rows["step"].isin([analysis.step_times.steps[at].number for at in analysis.complete_steps])
    counts = rows.loc[mine, ["context_tokens", "generation_tokens"]].to_numpy(float)
    return None if np.isnan(counts).all(axis=1).any() else float(np.nansum(counts)) / divisor or None


def _throughput(analysis: Analysis) -> summary.Throughput | None:
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
        stands_for_all = known.any() and time_us[known].sum() > summary.COMPLETE * of_us
        return together * float((mflop / rate)[known].sum() / time_us[known].sum()) if stands_for_all else None

    of_peak = share(peak, time_us.sum())
    at_peak_us = (mflop / peak).sum() / len(devices_of(analysis.activity, table)[1])
    return summary.Throughput(
        tflops_s=together * float(mflop.sum() / time_us.sum()),
        dtype=str(by_spec.idxmax()).removeprefix("matrix_"),
        several=bool(by_spec.max() < ONE_TYPE * by_spec.sum()),
        device_share=float(time_us.sum() / device_us),
        known_share=analysis.coverage.flops or 0.0,
        of_peak=of_peak,
        of_achievable=share(best, time_us[peak.notna()].sum()),
        window_of_peak=None if of_peak is None else float(at_peak_us / (analysis.timeline.total_ns / NS_PER_US)),
    )
