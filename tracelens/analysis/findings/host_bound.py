"""The host waits for the device, whose queue is then empty until the host has launched again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tracelens.analysis.attribution.host_time import HOST_WORK, LAUNCH_BOUND, SYNCHRONIZATION
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.idle_of_cause import idle_of_cause, idle_share
from tracelens.analysis.findings.observed import Bools, Floats, Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.findings.wording import counted, duration, percent, shortened
from tracelens.analysis.idle.idle_time import LATENCY
from tracelens.analysis.intervals import Ints, covered_ns
from tracelens.analysis.verdict.summary import Said
from tracelens.trace.table import Kind
from tracelens.units import NS_PER_US

#: Calls that wait return as soon as this where there is nothing to wait for.
_NO_WAIT_NS = 20_000
#: Dispatch takes some ten microseconds: an op that takes this long and launches nothing computes on the host.
_LONG_OP_NS = 1_000_000
#: What item() and tolist() of one number call.
_OF_ITEM = "aten::_local_scalar_dense"
#: Share of idle time that a wait could hide from which it is the cause.
_NEARLY_ALL = 0.8


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
    parts = seen.once(drained)
    share, waited_ns = _hidden(seen, parts)
    idle_ns = seen.idle_ns[parts].sum()
    waits = len(np.unique(seen.idle.row[parts]))
    idle_share_of_window = float(idle_ns / max(1, seen.window_ns))
    for candidate in idle_of_cause(seen, SYNCHRONIZATION, parts):
        waited_us = waited_ns / NS_PER_US / seen.steps
        yield replace(
            candidate,
            why=f"the host waits {duration(waited_us)} for the GPU{_where(seen)}; then the GPU idles until the next "
            f"launch, {counted(waits, 'time')} and for {percent(idle_share_of_window)} of the time",
            claimed=seen.idle_time(parts, share, low=0.0),
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
    lost_ns = seen.idle_ns[found].sum()
    worth_it = lost_ns > 0 and seen.once(_waited_ns).sum() > 0.5 * lost_ns
    return found if worth_it else np.zeros(len(found), bool)


def hidden_without_waits(seen: Observed) -> Bools:
    """Those of ``drained`` whose wait lasted for nearly as long: the host would have done all of this meanwhile."""
    parts = seen.once(drained)
    share, _ = _hidden(seen, parts)
    found = parts.copy()
    found[parts] = share > _NEARLY_ALL
    return found


def _hidden(seen: Observed, parts: Bools) -> tuple[Floats, float]:
    """(what share of each of these parts a wait before it could hide, how long (ns) those waits are together)."""
    if not parts.any():
        return np.zeros(0), 0.0
    began, gap = np.unique(np.cumsum(_begin_gaps(seen))[parts], return_inverse=True)
    idle_ns = np.bincount(gap, seen.idle_ns[parts], len(began))
    waited_ns = _waited_before_ns(seen, seen.idle.start[parts][np.searchsorted(gap, np.arange(len(began)))])
    share = np.minimum(1.0, waited_ns / np.maximum(1.0, idle_ns))
    return share[gap], float(waited_ns.sum())


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
    table, calls = seen.context.recorded.table, _waiting_calls(seen)
    order = np.argsort(table.start_ns[calls], kind="stable")
    return table.start_ns[calls][order], table.ends_ns(calls)[order]


def _waiting_calls(seen: Observed) -> Ints:
    """Calls of the program that waited."""
    table, host = seen.context.recorded.table, seen.context.host
    calls = np.flatnonzero(host.blocking & (table.duration_ns > _NO_WAIT_NS))
    return calls[~np.isin(calls, host.stop)]


def _where(seen: Observed) -> str:
    """The op, or else the call, that most of the waiting is in."""
    took: dict[str, int] = defaultdict(int)
    calls, table = _waiting_calls(seen), seen.context.recorded.table
    op = seen.tree.op_parent[calls]
    for call, above, ns in zip(calls.tolist(), op.tolist(), table.duration_ns[calls].tolist(), strict=True):
        name = table.name_of(above if above >= 0 else call)
        took["aten::item" if name == _OF_ITEM else name] += ns
    most = max(took, key=lambda name: took[name], default="")
    return f" in {shortened(most)}" if 2 * took[most] > sum(took.values()) else ""


def _waited_ns(seen: Observed) -> Ints:
    """How long each device event worked while the host waited for it."""
    begins = seen.time.own_from
    return covered_ns(*_waits(seen), begins, begins + seen.own_ns)


def _waited_before_ns(seen: Observed, start: Ints) -> Ints:
    """How long the device worked while the host waited, between each of these moments and the one before it."""
    waited = seen.once(_waited_ns)
    following = np.searchsorted(start, seen.time.own_from, side="left")
    within = following < len(start)
    return np.bincount(following[within], waited[within], len(start)).astype(np.int64)
