"""What must be known to read a report's figures: damage, ambiguity, and rows that are not what they seem."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from tracelens.analysis.analyze import Analysis
from tracelens.analysis.attribution.stream_order import StreamOverlaps
from tracelens.analysis.findings.transfers.communication_kinds import holds_only_communication
from tracelens.analysis.findings.wording import counted, percent
from tracelens.analysis.grouping import distinct_rows
from tracelens.analysis.reading.captured_graphs import graph_launches
from tracelens.analysis.reading.graph_replays import GraphLinks
from tracelens.analysis.reading.recording import CHOSEN
from tracelens.analysis.sheets.ops import unified_perf_summary
from tracelens.analysis.verdict.summary import Notice
from tracelens.analysis.verdict.timing_notices import timing_notices
from tracelens.analysis.work.impossible_work import MOST_OF_ROOFLINE
from tracelens.analysis.work.limits import TOLERANCE_US
from tracelens.files.safe_text import clipped
from tracelens.lazy.patterns import lazy_pattern
from tracelens.perf_models.base import UnknownWork
from tracelens.perf_models.generated.fused import FusedKernel
from tracelens.trace.extended import has_host_time
from tracelens.trace.lacks import no_shapes
from tracelens.trace.merged import MergedRanks
from tracelens.trace.table import DEVICE_KINDS, Kind

#: A share that is printed as 100 %.
_ALL = 0.995
#: Kernels of algorithms that need fewer multiplications than the convolution's definition.
_FEWER_FLOPS = lazy_pattern(r"(?i)winograd|fft")
#: Columns that the name of an annotation may take in a sentence.
_NAME_WIDTH = 40


def notices(analysis: Analysis) -> Iterator[Notice]:
    """What must be known to read the figures: of the input, the device, and rows that are not what they seem."""
    yield from input_notices(analysis)
    yield from _not_steps(analysis)
    yield from _only_communication(analysis)
    yield from analysis.without_gain
    yield from _unlinked(analysis)
    yield from timing_notices(analysis)
    yield from _device(analysis)
    rows = analysis.frames[unified_perf_summary.TITLE]
    yield from _above_peak(rows)
    yield from _at_most(rows)
    graphs = _graph_share(analysis)
    if graphs is not None:
        yield graphs
    for why, count in analysis.whole_calls:
        yield Notice(id="whole_calls", count=count, text=f"{counted(count, 'call')} not split into operations: {why}")
    yield from _compiled_without_work(analysis)
    yield from _too_much_work(rows)
    if analysis.overlaps is not None and analysis.overlaps.count:
        yield _overlap_notice(analysis, analysis.overlaps)
    yield from _from_cache(rows)
    yield from _extensions(analysis)


def _not_steps(analysis: Analysis) -> Iterator[Notice]:
    """Numbered annotations look like steps: where none are taken, why not these."""
    refused = analysis.found_steps.refused
    if refused is None or len(analysis.step_times):
        return
    whose = "GPU's work" if analysis.trace.table.has_device_events else "time of CPU ops"
    why = "name parts of a step" if refused.is_part else f"hold {percent(refused.held)} of the {whose}"
    first, last = (clipped(name, _NAME_WIDTH) for name in (refused.first, refused.last))
    text = f"annotations '{first}' to '{last}' {why} and are not taken for steps"
    yield Notice(id="not_steps", count=1, text=text)


def _unlinked(analysis: Analysis) -> Iterator[Notice]:
    activity = analysis.activity
    unlinked = int((activity.op < 0).sum())
    if unlinked > (0 if analysis.selected_steps else analysis.step_times.before_events):
        share = percent(analysis.coverage.unlinked or 0.0, 1)
        text = f"{unlinked:,} of {len(activity):,} device events ({share} of GPU time) have no recorded launch"
        yield Notice(id="unlinked", count=unlinked, text=text)


def _only_communication(analysis: Analysis) -> Iterator[Notice]:
    if holds_only_communication(analysis.trace.table, analysis.activity):
        text = "the file holds only communication kernels: what else the GPU did, and why it was idle, is not in it"
        yield Notice(id="only_communication", count=len(analysis.activity), text=text)


def _device(analysis: Analysis) -> Iterator[Notice]:
    found = analysis.recognition
    if analysis.device is None:
        text = found.note or "device not recognized: no roofline; pass --device"
        yield Notice(id="no_device", count=1, text=text)
    elif found.note and (found.device is None or found.how == CHOSEN):
        yield Notice(id="device", count=1, text=found.note)


def _extensions(analysis: Analysis) -> Iterator[Notice]:
    """Extensions whose bindings failed, by reason, rules that failed, and extensions that were not used."""
    failed: dict[tuple[str, str], list[str]] = {}
    for failure in analysis.failures:
        failed.setdefault((failure.loss, f"{failure.origin}: {failure.error}"), []).append(failure.name)
    for (loss, what), names in failed.items():
        yield Notice(id="extension_failed", count=len(names), text=f"extension failed on {names[0]}, {loss}: {what}")
    for rule in analysis.rule_failures:
        text = f"rule {rule.kind!r} left out of what to do next: {rule.origin} raised {rule.error}"
        yield Notice(id="rule_failed", count=1, text=text)
    for extension in analysis.extensions:
        if extension.note:
            yield Notice(id="extension_unused", count=1, text=extension.note)


def input_notices(analysis: Analysis) -> list[Notice]:
    table = analysis.trace.table
    losses = table.losses
    merged = _process_notice(analysis)
    notices = [] if merged is None else [merged]
    notices += [Notice(id="damaged_input", count=max(1, losses.damaged_events), text=note) for note in losses.notes]
    if (known := analysis.known_shapes) is not None:
        share = percent(known.joined_ns / max(1, known.kernel_ns))
        kernels = f"{known.joined:,} of {known.kernels:,} kernels without ({share} of their time)"
        text = f"ops and shapes from {known.source} for {kernels}"
        notices.append(Notice(id="known_shapes", count=known.joined, text=text))
    if not table.has_shapes:
        lack = no_shapes(table)
        advice = f" ({lack.advice})" if lack.advice else ""
        text = f"{lack.what}: no FLOPs or bytes{advice}"
        notices.append(Notice(id="no_shapes", count=1, text=text))
    return notices


def _overlap_notice(analysis: Analysis, overlaps: StreamOverlaps) -> Notice:
    device = analysis.trace.table.is_of(DEVICE_KINDS)
    part = overlaps.time_ns / max(1, int(analysis.trace.table.duration_ns[device].sum()))
    share = "<0.01 %" if part < 0.00005 else percent(part, 2)
    kernels = (
        f"{counted(overlaps.count, 'device event')} overlapped the next one on the same stream ({share} of GPU time)"
    )
    text = f"{kernels}: clipped" if overlaps.clipped else f"{kernels}: kept; use --overlap clip to end them there"
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
    text = f"{len(processes)} processes in one file ({shown}): possibly merged ranks; figures cover all of them"
    if ambiguous:
        text += f"; {ambiguous:,} device events match several processes and stay unlinked"
    return Notice(id="several_processes", count=len(processes), text=text)


def _chosen_rank(ranks: MergedRanks) -> Notice:
    shown = ", ".join(f"{number}: {label}" for number, label in list(zip(ranks.numbers, ranks.labels, strict=True))[:4])
    shown += ", ..." if len(ranks.numbers) > 4 else ""
    order = "" if ranks.is_named else ", numbered in order of their processes"
    text = f"{len(ranks.numbers)} ranks in one file ({shown}{order}): this report is of rank {ranks.chosen}"
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
        (rows[fewer], "Winograd and FFT kernels use fewer FLOPs than the convolution's definition, which is counted"),
        (rows[~fewer], "the recorded times, the perf model or the device file is wrong"),
    )
    for found, reason in reasons:
        if len(found):
            fastest = found.iloc[int(found["percent_of_peak"].argmax())]
            what = f"{fastest['name']} at {fastest['percent_of_peak']:,.0f} % of the peak"
            text = f"{counted(len(found), 'row')} faster than the data sheet allows ({what}): {reason}"
            yield Notice(id="above_peak", count=len(found), text=text)


def _at_most(rows: pd.DataFrame) -> Iterator[Notice]:
    """Matrix rows whose work is an upper bound, by the reason: no single figure is made of them."""
    matrix = rows["compute_spec"].astype(str).str.startswith("matrix_")
    for reason, found in rows[matrix & rows["work_at_most"].notna()].groupby("work_at_most"):
        names = ", ".join(dict.fromkeys(found["name"].astype(str).head(3)))
        text = f"work of {counted(int(found['operation_count'].sum()), 'call')} of {names} is an upper bound ({reason})"
        yield Notice(id="work_at_most", count=len(found), text=f"{text}: left out of the utilization")


def _from_cache(rows: pd.DataFrame) -> Iterator[Notice]:
    """Rows faster than HBM, by the cache that explains it."""
    for name, count in rows["served_from"].dropna().value_counts().sort_index().items():
        beat, whose = ("op beats", "its") if count == 1 else ("ops beat", "their")
        text = f"{int(count):,} {beat} HBM bandwidth: {whose} data was probably in {name} (column Served from)"
        yield Notice(id="from_cache", count=int(count), text=text)


def _graph_share(analysis: Analysis) -> Notice | None:
    """Graph launches: their kernels have no ops, so say what share of device time is behind them."""
    table, activity = analysis.trace.table, analysis.activity
    if analysis.graphs is not None:
        return _captured_graphs(analysis, analysis.graphs)
    behind = np.isin(analysis.trace.tree.launch[activity.rows], graph_launches(table))
    if not behind.any():
        return None
    share = activity.duration[behind].sum() / max(1, activity.duration.sum())
    found = f"{counted(int(behind.sum()), 'kernel')} ({percent(share)} of GPU time) came from graph launches"
    text = f"{found}: reported by kernel; pass --capture TRACE to see their ops"
    return Notice(id="graph_launches", count=int(behind.sum()), text=text)


def _too_much_work(rows: pd.DataFrame) -> Iterator[Notice]:
    """Calls whose work was inferred and could not have been done in their time (``impossible_work``)."""
    rows = rows[rows["model"] == UnknownWork.__name__]
    if len(rows):
        calls, names = int(rows["operation_count"].sum()), ", ".join(dict.fromkeys(rows["name"].astype(str).head(3)))
        text = f"{counted(calls, 'call')} of {names}: the inferred work exceeds {MOST_OF_ROOFLINE} x the roofline"
        yield Notice(id="impossible_work", count=calls, text=f"{text}, so it counts as unknown")


def _compiled_without_work(analysis: Analysis) -> Iterator[Notice]:
    """Triton kernels whose FLOPs or bytes no recorded argument and no name says."""
    rows = analysis.frames[unified_perf_summary.TITLE]
    rows = rows[rows["category"] == FusedKernel.category]
    unknown = rows[rows["gflops"].isna() | rows["hbm_mb"].isna()]
    if len(unknown) and not _is_replayed(analysis, FusedKernel.category):
        share = percent(unknown["kernel_us_sum"].sum() / max(1e-9, rows["kernel_us_sum"].sum()))
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


def _known_share_of_opened(analysis: Analysis) -> float:
    """The share of the opened graphs' kernel time that is in rows of known work."""
    trace, activity, rows = analysis.trace, analysis.activity, analysis.frames[unified_perf_summary.TITLE]
    launch = trace.tree.launch[activity.rows]
    opened = (launch >= 0) & ~has_host_time(trace.table, launch)
    known = np.append(rows[["gflops", "hbm_mb", "wire_mb"]].notna().any(axis=1).to_numpy(bool), False)
    of_event = np.full(len(launch), -1) if analysis.row_of_event is None else analysis.row_of_event
    took = int(activity.duration[opened].sum())
    return float(activity.duration[opened & known[of_event]].sum() / took) if took else 1.0


def _captured_graphs(analysis: Analysis, graphs: GraphLinks) -> Notice:
    """What the trace of the capture gave: ops, and how much of their work is known, without which they say nothing."""
    if not graphs.kernels:
        return Notice(
            id="graph_launches",
            count=0,
            text=f"no graph launches in this trace: --capture {graphs.capture} is not used",
        )
    share = graphs.linked_ns / max(1, int(analysis.activity.duration.sum()))
    found = f"{graphs.linked_kernels:,} of {graphs.kernels:,} kernels ({percent(share)} of GPU time)"
    launches = f"{graphs.linked_launches} of {graphs.launches:,} launches"
    text = f"graph launches: ops from {graphs.capture} for {found} in {launches}"
    if graphs.linked_kernels and (known := _known_share_of_opened(analysis)) < _ALL:
        text += f"; the work of {percent(known)} of their time is known"
        if known == 0:
            text = f"graph launches: {graphs.capture} has ops for {found}, but the work of none of them is known"
    if graphs.reasons:
        text += "; the rest is reported by kernel: " + "; ".join(
            f"{count:,} {reason}" for reason, count in graphs.reasons
        )
    return Notice(id="graph_launches", count=graphs.kernels, text=text)
