"""The host waits for the device, whose queue is then empty until the host has launched again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.idle_of_cause import idle_of_cause, idle_share
from tracelens.analysis.findings.observed import Bools, Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.findings.wording import counted, duration, percent
from tracelens.analysis.idle.host_time import HOST_WORK, LAUNCH_BOUND, SYNCHRONIZATION
from tracelens.analysis.idle.idle_time import LATENCY
from tracelens.analysis.intervals import Ints, covered_ns
from tracelens.analysis.verdict.summary import Said
from tracelens.trace.table import Kind
from tracelens.units import NS_PER_US

#: Calls that wait return as soon as this where there is nothing to wait for.
_NO_WAIT_NS = 20_000
#: Dispatch takes some ten microseconds: an op that takes this long and launches nothing computes on the host.
_LONG_OP_NS = 1_000_000


@finding(
    "queue_drained_by_waits",
    Advice(
        sees="The host waits until the device has finished, and the device is idle until the host has launched again.",
        costs="A queue that is emptied each time hides neither launches nor Python. Without the wait the host would do "
        "that work while the device computes.",
        remedy="read values back later (every N steps, non_blocking=True into pinned memory), keep decisions on the "
        "device",
        wrong_when="The host cannot go on without the value; or it is no faster than the device, so that nothing is "
        "hidden without the wait either.",
        references=("https://pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution",),
    ),
)
def drained_queue(seen: Observed) -> Iterator[Candidate]:
    """Gain: the idle time after each wait, as far as the host could have worked during that wait."""
    parts = drained(seen)
    began, gap = np.unique(np.cumsum(_begin_gaps(seen))[parts], return_inverse=True)
    idle_ns = np.bincount(gap, (seen.idle.end - seen.idle.start)[parts], len(began))
    waited_ns = _waited_before_ns(seen, seen.idle.start[parts][np.searchsorted(gap, np.arange(len(began)))])
    share = np.minimum(1.0, waited_ns / np.maximum(1.0, idle_ns))
    waits = len(np.unique(seen.idle.row[parts]))
    idle_share_of_window = float(idle_ns.sum() / max(1, seen.window_ns))
    for candidate in idle_of_cause(seen, SYNCHRONIZATION, parts):
        waited_us = float(waited_ns.sum()) / NS_PER_US / seen.steps
        yield replace(
            candidate,
            why=f"the host waits {duration(waited_us)} for the GPU, which then idles until the next launch, "
            f"{counted(waits, 'time')}, {percent(idle_share_of_window)} of the time",
            claimed=seen.idle_time(parts, share[gap], low=0.0),
            computed="idle time after each wait, at most as long as the host waited; at least none of it",
            figures=(
                Said(what="the host waits", value=waited_us, unit="us"),
                Said(what="idle afterwards", value=waits, unit="count"),
                idle_share(idle_share_of_window),
            ),
            certainty="medium",
        )


def drained(seen: Observed) -> Bools:
    """Parts of idle time in gaps at whose start the host sat in a call that waits for the device.

    None where the host then computes on its own for most of the gap, as an optimizer on the host does: that work is the
    cause, wait or not. And none where the host waited for less than half as long as the device was idle then: such a
    host is late anyhow.
    """
    idle = seen.idle
    parts = seen.idle_of(SYNCHRONIZATION, HOST_WORK, LAUNCH_BOUND, LATENCY)
    begins = _begin_gaps(seen)
    start, end = _waits(seen)
    if not len(start) or not begins.any():
        return np.zeros(len(idle.start), bool)
    at = idle.start[begins]
    last = np.searchsorted(start, at, side="right") - 1
    inside = (last >= 0) & (at <= np.maximum.accumulate(end)[np.maximum(last, 0)])
    until = idle.end[np.append(np.flatnonzero(begins)[1:], len(begins)) - 1]
    inside &= ~_host_computes(seen, at, until)
    found: Bools = parts & inside[np.cumsum(begins) - 1]
    lost_ns = (idle.end - idle.start)[found].sum()
    return found if _waited_ns(seen).sum() > 0.5 * lost_ns else np.zeros(len(found), bool)


def _begin_gaps(seen: Observed) -> Bools:
    """Which parts of idle time begin a gap: parts of one gap touch."""
    begins: Bools = np.concatenate(([True], seen.idle.start[1:] != seen.idle.end[:-1]))[: len(seen.idle.start)]
    return begins


def _host_computes(seen: Observed, start: Ints, end: Ints) -> Bools:
    """In which of these gaps long ops and annotations, that begin and end in it, take most of the time."""
    table = seen.table
    is_named = (table.kind == Kind.CPU_OP) | (table.kind == Kind.USER_ANNOTATION)
    rows = np.flatnonzero(is_named & (table.duration_ns > _LONG_OP_NS))
    gap = np.searchsorted(start, table.start_ns[rows], side="right") - 1
    rows = rows[(gap >= 0) & (table.ends_ns(rows) <= end[np.maximum(gap, 0)])]
    found: Bools = 2 * covered_ns(table.start_ns[rows], table.ends_ns(rows), start, end) > end - start
    return found


def _waits(seen: Observed) -> tuple[Ints, Ints]:
    """(start, end) of the calls that waited, by start."""
    table = seen.context.recorded.table
    calls = np.flatnonzero(seen.context.host.blocking & (table.duration_ns > _NO_WAIT_NS))
    order = np.argsort(table.start_ns[calls], kind="stable")
    return table.start_ns[calls][order], table.ends_ns(calls)[order]


def _waited_ns(seen: Observed) -> Ints:
    """How long each device event worked while the host waited for it."""
    begins = seen.time.own_from
    return covered_ns(*_waits(seen), begins, begins + seen.own_ns)


def _waited_before_ns(seen: Observed, start: Ints) -> Ints:
    """How long the device worked while the host waited, between each of these moments and the one before it."""
    waited = _waited_ns(seen)
    following = np.searchsorted(start, seen.time.own_from, side="left")
    within = following < len(start)
    return np.bincount(following[within], waited[within], len(start)).astype(np.int64)
