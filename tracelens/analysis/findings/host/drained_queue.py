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
from tracelens.units import NS_PER_US

#: Calls that wait return as soon as this where there is nothing to wait for.
_NO_WAIT_NS = 20_000


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
    """Gain: the idle time after waits, as far as the host could have worked during them."""
    parts = drained(seen)
    idle_ns, waited_ns = _lost_ns(seen, parts), _waited_ns(seen)
    share = min(1.0, waited_ns / idle_ns) if idle_ns else 0.0
    waits = int(parts.sum() and len(np.unique(seen.idle.row[parts])))
    for candidate in idle_of_cause(seen, SYNCHRONIZATION, parts):
        waited_us = waited_ns / NS_PER_US / seen.steps
        yield replace(
            candidate,
            why=f"the host waits {duration(waited_us)} for the GPU, which then idles until the next launch, "
            f"{counted(waits, 'time')}, {percent(idle_ns / seen.window_ns)} of the time",
            claimed=seen.idle_time(parts, share, low=0.0),
            computed="idle time after the waits, at most as long as the host waited; at least none of it",
            figures=(
                Said(what="the host waits", value=waited_us, unit="us"),
                Said(what="idle afterwards", value=waits, unit="count"),
                idle_share(idle_ns / seen.window_ns),
            ),
            certainty="medium",
        )


def drained(seen: Observed) -> Bools:
    """Parts of idle time in gaps at whose start the host sat in a call that waits for the device.

    None where the host waited for less than half as long as the device was idle then: such a host is late anyhow.
    """
    idle = seen.idle
    parts = seen.idle_of(SYNCHRONIZATION, HOST_WORK, LAUNCH_BOUND, LATENCY)
    begins = np.concatenate(([True], idle.start[1:] != idle.end[:-1]))[: len(idle.start)]
    gap = np.cumsum(begins) - 1
    start, end = _waits(seen)
    if not len(start) or not len(gap):
        return np.zeros(len(idle.start), bool)
    at = idle.start[begins]
    last = np.searchsorted(start, at, side="right") - 1
    inside = (last >= 0) & (at <= np.maximum.accumulate(end)[np.maximum(last, 0)])
    found: Bools = parts & inside[gap]
    return found if _waited_ns(seen) > 0.5 * _lost_ns(seen, found) else np.zeros(len(found), bool)


def _lost_ns(seen: Observed, parts: Bools) -> int:
    return int((seen.idle.end - seen.idle.start)[parts].sum())


def _waits(seen: Observed) -> tuple[Ints, Ints]:
    """(start, end) of the calls that waited, by start."""
    table = seen.context.recorded.table
    calls = np.flatnonzero(seen.context.host.blocking & (table.duration_ns > _NO_WAIT_NS))
    order = np.argsort(table.start_ns[calls], kind="stable")
    return table.start_ns[calls][order], table.ends_ns(calls)[order]


def _waited_ns(seen: Observed) -> int:
    """How long the device worked while the host waited for it."""
    begins = seen.time.own_from
    return int(covered_ns(*_waits(seen), begins, begins + seen.own_ns).sum())
