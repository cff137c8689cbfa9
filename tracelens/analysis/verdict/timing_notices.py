"""What is wrong with a recording's times and launches as a whole: no figure of idle time is better than they are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracelens.analysis.analyze import Analysis
from tracelens.analysis.attribution.host_calls import kernel_launches, named
from tracelens.analysis.attribution.side_by_side import devices_of
from tracelens.analysis.findings.idle_of_cause import LEAST_SHARE
from tracelens.analysis.findings.wording import counted, duration, percent
from tracelens.analysis.idle.idle_time import BEFORE_RECORDING
from tracelens.analysis.intervals import Ints
from tracelens.analysis.reading.engine_steps import STEM
from tracelens.analysis.sheets.timeline import idle_causes
from tracelens.analysis.verdict.summary import Notice
from tracelens.lazy.patterns import lazy_pattern
from tracelens.trace.table import DEVICE_KINDS, Kind, TraceTable
from tracelens.trace.tree import OpTree
from tracelens.units import NS_PER_US

#: Clocks are read to a microsecond.
_CLOCK_NS = 1_000
#: What a launch takes to reach the device, by which no cause of idle time is told from another.
_LAUNCH_NS = 20_000
_DEVICE_WAITS = lazy_pattern(r"^(?:cuda|hip)DeviceSynchronize|^cuCtxSynchronize")
#: Share of the window, and length, from which one stretch without any event is said.
_MOST_SILENT, _LONG_SILENCE_NS = 0.5, 1_000_000_000
#: How many times as long as others a step is that a mean should not hide.
_LONG_STEP = 2.0
#: Share of launches without a device event from which figures suffer; what was under way at the end is less.
_MANY_LOST = 0.05


def timing_notices(analysis: Analysis) -> Iterator[Notice]:
    """Work that began before it was launched, or never did, or whose launch was not recorded; several devices; long
    stretches without any event; steps that take far longer than others.
    """
    table = analysis.trace.table
    yield from _long_steps(analysis)
    yield from _before_launch(analysis)
    yield from _after_wait(analysis)
    yield from _without_work(table, analysis.trace.tree)
    yield from _before_recording(analysis)
    is_call = (table.kind == Kind.RUNTIME) | (table.kind == Kind.DRIVER)
    if not is_call.any() and (analysis.activity.op >= 0).any():
        text = "no launch calls were recorded: why the GPU was idle is judged by the ops that launched its work"
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
    is_call = (table.kind == Kind.RUNTIME) | (table.kind == Kind.DRIVER)
    waits = np.flatnonzero(named(table, _DEVICE_WAITS, is_call))
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
        f"{what}, by up to {duration(by_ns / NS_PER_US)}: the clocks of host and GPU differ by at least that; idle "
        "causes and the bounds of steps are no more accurate"
    )
    return Notice(id="clocks_disagree", count=count, text=text)


def _without_work(table: TraceTable, tree: OpTree) -> Iterator[Notice]:
    launches, done = kernel_launches(table, tree)
    lost = int((~done).sum())
    if lost > _MANY_LOST * len(launches):
        share = percent(lost / len(launches))
        text = (
            f"{lost:,} of {counted(len(launches), 'kernel launch', 'kernel launches')} ({share}) have no kernel: "
            "recording ended before these ran, or lost them, and the GPU looks idle instead"
        )
        yield Notice(id="lost_kernels", count=lost, text=text)


def _before_recording(analysis: Analysis) -> Iterator[Notice]:
    """Idle time that is none: no rule makes a gain of it."""
    causes = analysis.frames[idle_causes.TITLE]
    waits = causes[causes["cause"] == BEFORE_RECORDING]
    idle_us, share = float(waits["idle_us"].sum()), float(waits["percent_of_window"].sum()) / 100
    if share > LEAST_SHARE:
        text = (
            f"for {duration(idle_us)}, {percent(share)} of the window, the GPU looks idle, but first kernels waited "
            "for work from before recording: call torch.cuda.synchronize() before recording begins"
        )
        yield Notice(id="work_before_recording", count=int(waits["gaps"].sum()), text=text)


def _devices(analysis: Analysis) -> Iterator[Notice]:
    _, devices = devices_of(analysis.activity, analysis.trace.table)
    if len(devices) > 1:
        shown = ", ".join(devices[:4]) + (", ..." if len(devices) > 4 else "")
        text = (
            f"{len(devices)} devices in one file ({shown}): the GPU counts as busy while any of them is; "
            "times, findings and gains are of all of them together, shares of the peak are their mean"
        )
        yield Notice(id="several_devices", count=len(devices), text=text)


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
            f"nothing at all was recorded for {duration((last - first) / NS_PER_US)}, {percent(share)} of the window: "
            "the program slept, or the time of an event is wrong; it counts as idle time of the host"
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
    text = f"{which} {longest}, {ratio:.1f} times the median of the others: what is said per step is the mean of all"
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
