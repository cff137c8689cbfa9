"""Findings about a device that waits for the host: before the first launch, after a drained queue, for launches, and
for other host work.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.host_time import HOST_WORK, LAUNCH_BOUND, SYNCHRONIZATION
from tracelens.analysis.findings.idle_rules import (
    LEAST_SHARE,
    OPEN_ENDED,
    idle_evidence,
    idle_of_cause,
    idle_share,
    longest_row,
)
from tracelens.analysis.findings.rule import Advice, Bools, Candidate, Floats, Integers, Observed, finding
from tracelens.analysis.idle.idle_time import LATENCY
from tracelens.analysis.intervals import Ints, covered_ns
from tracelens.analysis.reading.added_ops import graph_launches
from tracelens.analysis.verdict.summary import Said, counted, duration, percent, shortened
from tracelens.trace.provenance import no_stacks
from tracelens.trace.table import Kind, Recorder, TraceTable
from tracelens.units import NS_PER_US

#: Share of the wait that a function must have lasted for to be named.
_MOST_OF_WAIT = 0.6
#: Where it is the model that runs, and not what prepares its input.
_IN_MODEL = (
    "less Python before the model's first kernel: masks and positions made once, a CUDA or HIP graph, torch.compile"
)
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*")


@finding(
    "host_before_first_launch",
    Advice(
        sees="A step begins with Python or other host work, and launches nothing before that is done.",
        costs="The device waits for input that could have been prepared while it worked on the step before.",
        remedy="prepare the next step's input in another thread or process while this step runs (DataLoader workers)",
        wrong_when="One request's latency is what matters: its own preparation then has to become faster.",
        references=("https://pytorch.org/docs/stable/data.html#multi-process-data-loading",),
    ),
)
def host_before_first_launch(seen: Observed) -> Iterator[Candidate]:
    """Gain: what the rest of a step can hide, at most all of the wait."""
    parts = seen.once(before_first_launch)
    wait_ns, step_ns = _waits_by_step(seen, parts)
    share = wait_ns.sum() / max(1, seen.window_ns)
    if share <= LEAST_SHARE:
        return
    waiting = wait_ns > LEAST_SHARE * step_ns
    each_us = float(wait_ns[waiting].mean()) / NS_PER_US
    hidden = float(np.clip(step_ns - wait_ns, 0, wait_ns).sum() / wait_ns.sum())
    row = _function(seen, parts)
    name = "" if row is None else seen.table.name_of(row).rpartition(": ")[2]
    runs = f"runs {name}" if _PLAIN_NAME.fullmatch(name) else "launches nothing"
    which = "each step" if waiting.all() else f"{waiting.sum()} of {len(waiting)} steps"
    yield Candidate(
        why=f"the GPU idles for the first {duration(each_us)} of {which} ({percent(share)} of the time) while "
        f"the host {runs}",
        claimed=seen.idle_time(parts, hidden, low=OPEN_ENDED),
        computed="the shorter of this wait and the rest of the step, beside which it can be done; at least none of it",
        certainty="low",
        figures=(
            Said(what="wait of these steps", value=each_us, unit="us"),
            Said(what="steps that wait", value=int(waiting.sum()), unit="count"),
            Said(what="steps", value=len(waiting), unit="count"),
            Said(what="share of the time", value=float(share), unit="share"),
        ),
        evidence=idle_evidence(seen, parts),
        remedy=_IN_MODEL if name == "forward" else None,
        row=longest_row(seen, parts) if row is None else row,
    )


def _waits_by_step(seen: Observed, parts: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """(how long these parts are together, length) of each complete step (ns)."""
    times, chosen = seen.context.window.times, list(seen.context.selected)
    step = np.searchsorted(times.start_ns[chosen], seen.idle.start[parts], side="right") - 1
    wait = np.bincount(step, seen.idle_ns[parts], len(chosen))
    return wait.astype(np.float64), times.duration_ns[chosen].astype(np.float64)


def before_first_launch(seen: Observed) -> npt.NDArray[np.bool_]:
    """Which parts of idle time are host work between the start of a step and its first device event."""
    times, chosen = seen.context.window.times, list(seen.context.selected)
    mine = seen.idle_of(HOST_WORK)
    if not chosen or not len(seen.activity):
        return np.zeros(len(mine), bool)
    begin = times.start_ns[chosen]
    started = np.sort(seen.activity.start)
    first = np.append(started, np.iinfo(np.int64).max)[np.searchsorted(started, begin)]
    step = np.searchsorted(begin, seen.idle.start, side="right") - 1
    return mine & (step >= 0) & (seen.idle.end <= first[np.maximum(step, 0)])


def _function(seen: Observed, parts: npt.NDArray[np.bool_]) -> int | None:
    """The innermost Python function of the launching thread that lasted for most of the longest of these parts."""
    row, table = longest_row(seen, parts), seen.table
    at = np.flatnonzero(parts)
    if row is None or not table.has_stacks:
        return None
    longest = at[seen.idle_ns[at].argmax()]
    start, end = int(seen.idle.start[longest]), int(seen.idle.end[longest])
    frames = np.flatnonzero((table.kind == Kind.PYTHON_FUNCTION) & (table.lane == table.lane[row]))
    shared = np.minimum(table.ends_ns(frames), end) - np.maximum(table.start_ns[frames], start)
    frames = frames[shared >= _MOST_OF_WAIT * (end - start)]
    return int(frames[seen.tree.depth[frames].argmax()]) if len(frames) else None


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


_LARGER_GRAPHS = "fewer and larger graphs (fewer graph breaks, less copying of inputs before a replay), a larger batch"
_WITHOUT_TORCH = "CUDA or HIP graphs (in XLA: command buffers), fused kernels, a larger batch"
#: Python between two launches, with the profiler on; what takes longer is work of its own.
_BETWEEN_LAUNCHES_NS = 100_000
#: Share that launches must have of it: else the Python is the cause, not the launches.
_LEAST_LAUNCHES = 0.1
#: Share of the window from which a trace is called CPU-bound.
_CPU_BOUND = 0.25


@finding(
    "idle: launch-bound",
    Advice(
        sees="The GPU's queue is empty while the host launches: kernels are shorter than their launches.",
        costs="Every launch costs the host some microseconds, in eager mode tens with dispatch and Python.",
        remedy="CUDA or HIP graphs, torch.compile(mode='reduce-overhead'), fused kernels, a larger batch",
        wrong_when="The profiler itself slows the host down: compare the step time without it.",
        references=("https://pytorch.org/blog/accelerating-pytorch-with-cuda-graphs/",),
    ),
)
def launch_bound(seen: Observed) -> Iterator[Candidate]:
    """Idle time in launches, in the Python between them, and until what was launched begins."""
    length = seen.idle_ns
    others = seen.once(drained) | seen.once(before_first_launch)
    launches, between = seen.idle_of(LAUNCH_BOUND), seen.idle_of(HOST_WORK) & (length < _BETWEEN_LAUNCHES_NS)
    parts = (launches | between | seen.idle_of(LATENCY)) & ~others
    if length[launches & ~others].sum() < _LEAST_LAUNCHES * length[parts].sum():
        parts &= ~between
    for candidate in idle_of_cause(seen, LAUNCH_BOUND, parts):
        why = candidate.why
        if float(candidate.figures[0].value) >= _CPU_BOUND:
            slowed = "; recording stacks slows the host" if seen.table.has_stacks else ""
            why = f"CPU-bound: {why}{slowed}"
        yield replace(candidate, why=why, remedy=_remedy(seen, np.where(parts, length, 0)))


def _remedy(seen: Observed, idle_ns: Integers) -> str | None:
    """Instead of the rule's: where most of this time of each part is before launches of graphs, or without PyTorch."""
    before_graphs = np.isin(seen.idle.row, graph_launches(seen.table))
    if 2 * idle_ns[before_graphs].sum() > idle_ns.sum():
        return _LARGER_GRAPHS
    return None if seen.is_torch else _WITHOUT_TORCH


#: Share of the longest part that an op must have lasted for to be named.
_MOST_OF_PART = 0.6
_RECORD_STACKS = "see the longest gaps in idle_gaps, record with_stack=True; move this work ahead or to another thread"


@finding(
    "idle: Python or other host work",
    Advice(
        sees="The GPU is idle while the launching thread runs Python or other code that launches nothing.",
        costs="One thread both prepares and launches: while it prepares, the device runs out of work.",
        remedy="see the longest gaps in idle_gaps and what the host ran in them; move it ahead or to another thread",
        wrong_when="The trace holds no step loop: what lies before the first launch is set-up.",
    ),
)
def host_work(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause, but for that at the start of steps and what the host would do while it waits."""
    parts = seen.idle_of(HOST_WORK) & ~seen.once(before_first_launch) & ~hidden_without_waits(seen)
    for candidate in idle_of_cause(seen, HOST_WORK, parts):
        remedy = _RECORD_STACKS if _could_have_stacks(seen.table) else None
        yield replace(candidate, why=candidate.why + _ran(seen, parts), remedy=remedy)


def _ran(seen: Observed, parts: Bools) -> str:
    """The shortest op or annotation without a launch in it that most of the longest of these parts passed in."""
    table, length = seen.table, np.where(parts, seen.idle_ns, 0)
    longest = int(length.argmax())
    start, end = int(seen.idle.start[longest]), int(seen.idle.end[longest])
    least = _MOST_OF_PART * (end - start)
    # Nearly all are too short, which costs least to see
    rows = np.flatnonzero(table.duration_ns >= least)
    rows = rows[(table.kind[rows] == Kind.CPU_OP) | (table.kind[rows] == Kind.USER_ANNOTATION)]
    shared = np.minimum(table.ends_ns(rows), end) - np.maximum(table.start_ns[rows], start)
    rows = rows[shared >= least]
    if not len(rows):
        return ""
    launches = np.sort(table.start_ns[seen.tree.launch[seen.tree.launch >= 0]])
    within = np.searchsorted(launches, table.ends_ns(rows)) - np.searchsorted(launches, table.start_ns[rows])
    rows = rows[within == 0]
    if not len(rows):
        return ""
    return f", most of it in {shortened(table.name_of(int(rows[table.duration_ns[rows].argmin()])))}"


def _could_have_stacks(table: TraceTable) -> bool:
    """Whether torch.profiler was told not to record Python frames."""
    is_option = table.recorder.no_stacks == Recorder().no_stacks
    return is_option and not table.has_stacks and no_stacks(table).option != ""
