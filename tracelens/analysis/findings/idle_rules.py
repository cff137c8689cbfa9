"""Findings about idle time: by cause, scattered gaps, a device that waits for the host (before the first launch,
after a drained queue, for launches, for other host work), and the device memory (allocator retries,
fragmentation, recomputation).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.attribution import host_time
from tracelens.analysis.attribution.host_scopes import PHASES, RECOMPUTE
from tracelens.analysis.findings.rule import Candidate, Observed, built_in, built_in_advice, otherwise
from tracelens.analysis.grouping import numbered
from tracelens.analysis.idle.idle_time import CAUSES, LATENCY, UNKNOWN, UNRECORDED
from tracelens.analysis.intervals import Bools, Floats, Ints, covered_ns
from tracelens.analysis.reading.added_ops import graph_launches
from tracelens.analysis.sheets import device_timeline, module_time
from tracelens.analysis.verdict.summary import Evidence, Said
from tracelens.trace.provenance import lacks_sync_events, no_stacks
from tracelens.trace.table import Kind, Recorder
from tracelens.types.units import BYTES_PER_GIB, BYTES_PER_MB, NS_PER_US, counted, duration, percent, shortened, size

if TYPE_CHECKING:
    from tracelens.trace.reading.compiled_code import Compilation

#: Share of the window from which idle time of a cause is a finding.
LEAST_SHARE = 0.02
#: Share of the window below which a cause among others is not named.
_LEAST_NAMED = 0.005
#: How a sentence on idle time begins, and how where the host causes most of it.
IDLES, _WAITS_FOR_HOST = "the GPU idles", "the GPU waits for the host"
#: Share of idle time that its remedy spares for sure where nothing prices it.
OPEN_ENDED = 0.0


def idle_of_cause(seen: Observed, cause: str, parts: Bools | None = None) -> Iterator[Candidate]:
    """All idle time of a cause (or these ``parts``) where it is long enough; named as in the sheet of causes."""
    parts = seen.idle_of(cause) if parts is None else parts
    share = float(seen.idle_ns[parts].sum() / max(1, seen.window_ns))
    if share <= LEAST_SHARE:
        return
    # Parts of a gap touch, gaps have work between them
    length = np.bincount(numbered(np.cumsum(_begin_gaps(seen))[parts]), seen.idle_ns[parts])
    gaps, longest = len(length), float(length.max() / NS_PER_US)
    # Cause -> share of the window, the largest first, of the causes of these parts that are worth a name.
    length = np.where(parts, seen.idle_ns, 0)
    shares = np.bincount(seen.idle.cause, length, len(CAUSES)) / max(1, seen.window_ns)
    order = np.argsort(-shares, kind="stable")
    worth = [code for code in order.tolist() if shares[code] > _LEAST_NAMED] or order[:1].tolist()
    causes = {CAUSES[code]: float(shares[code]) for code in worth}
    names = ["cause unknown" if cause == UNKNOWN else cause for cause in causes]
    if len(names) > 1:
        names = [f"{name} {percent(part)}" for name, part in zip(names, causes.values(), strict=True)]
    yield Candidate(
        why=f"{IDLES} {percent(share)} of the time ({', '.join(names)}), in {counted(gaps, 'gap')} of "
        f"{'up to ' if gaps > 1 else ''}{duration(longest)}",
        claimed=seen.idle_time(parts, low=OPEN_ENDED),
        computed="all idle time of this cause; at least none of it",
        certainty="low",
        figures=(
            idle_share(share),
            Said(what="gaps", value=gaps, unit="count"),
            Said(what="longest", value=longest, unit="us"),
            *(Said(what=f"idle: {each}", value=part, unit="share") for each, part in causes.items() if len(causes) > 1),
        ),
        evidence=idle_evidence(seen, parts),
        row=longest_row(seen, parts),
        is_priced=cause not in (UNKNOWN, UNRECORDED),
    )


def longest_row(seen: Observed, parts: Bools) -> int | None:
    """Table row of the launch, or of the device event, that the longest of these parts waited for."""
    at = np.flatnonzero(parts)
    row = int(seen.idle.row[at[seen.idle_ns[at].argmax()]]) if len(at) else -1
    return row if row >= 0 else None


def idle_evidence(seen: Observed, parts: Bools) -> tuple[Evidence, ...]:
    """The causes of these parts in the sheet of causes."""
    causes = [CAUSES[code] for code in np.unique(seen.idle.cause[parts]).tolist()]
    return tuple(Evidence(sheet=device_timeline.IDLE_CAUSES_TITLE, row={"cause": cause}) for cause in causes)


def idle_share(share: float) -> Said:
    """Of the window."""
    return Said(what="idle share of the time", value=float(share), unit="share")


def rules_of_causes(but: Collection[str]) -> list[Callable[[Observed], Iterator[Candidate]]]:
    """A rule per cause of idle time that is in ``advice.toml``, ``but`` of kinds that have a function of their own."""
    kinds = (kind for kind in built_in_advice() if kind not in but)
    return [built_in(kind)(partial(idle_of_cause, cause=kind.removeprefix("idle: "))) for kind in kinds]


@built_in("idle")
def scattered_idle(seen: Observed) -> Iterator[Candidate]:
    """All idle time, where no cause of it is long enough alone."""
    causes = seen.context.frames[device_timeline.IDLE_CAUSES_TITLE]
    share = float(causes["percent_of_window"].sum()) / 100
    if share <= LEAST_SHARE or (causes["percent_of_window"] > 100 * LEAST_SHARE).any():
        return
    longest = float(causes["idle_us_max"].max())
    yield Candidate(
        why=f"{IDLES} {percent(share)} of the time for several causes, in gaps of up to {duration(longest)}",
        claimed=seen.idle_time(np.ones(len(seen.idle.start), bool), low=OPEN_ENDED),
        figures=(idle_share(share), Said(what="longest gap", value=longest, unit="us")),
        evidence=tuple(
            Evidence(sheet=device_timeline.IDLE_CAUSES_TITLE, row={"cause": str(cause)}) for cause in causes["cause"]
        ),
    )


@built_in("idle: device wait, cause not recorded")
def unrecorded_wait(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause."""
    case = "not recorded" if lacks_sync_events(seen.table) else None
    for candidate in idle_of_cause(seen, UNRECORDED, seen.idle_of(UNRECORDED)):
        yield replace(candidate, remedy=otherwise("idle: device wait, cause not recorded", case))


#: Share of the longest wait that a function or an op must have lasted for to be named.
_MOST_OF_WAIT = 0.6
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*")


@built_in("host_before_first_launch")
def host_before_first_launch(seen: Observed) -> Iterator[Candidate]:
    """Gain: what the rest of a step can hide, at most all of the wait."""
    parts = seen.once(before_first_launch)
    times, chosen = seen.context.window.times, list(seen.context.selected)
    step = np.searchsorted(times.start_ns[chosen], seen.idle.start[parts], side="right") - 1
    # How long these parts are together in each complete step, and how long that is
    wait_ns = np.bincount(step, seen.idle_ns[parts], len(chosen)).astype(np.float64)
    step_ns = times.duration_ns[chosen].astype(np.float64)
    share = wait_ns.sum() / max(1, seen.window_ns)
    if share <= LEAST_SHARE:
        return
    waiting = wait_ns > LEAST_SHARE * step_ns
    each_us = float(wait_ns[waiting].mean()) / NS_PER_US
    hidden = float(np.clip(step_ns - wait_ns, 0, wait_ns).sum() / wait_ns.sum())
    row = _function(seen, parts)
    name = "" if row is None else seen.table.name_of(row).rpartition(": ")[2]
    runs = f"runs `{name}`" if _PLAIN_NAME.fullmatch(name) else "launches nothing"
    which = "each step" if waiting.all() else f"{waiting.sum()} of {len(waiting)} steps"
    yield Candidate(
        why=f"the GPU idles for the first {duration(each_us)} of {which} ({percent(share)} of the time) while "
        f"the host {runs}",
        claimed=replace(seen.idle_time(parts, hidden, low=OPEN_ENDED), is_beside=True),
        figures=(
            Said(what="wait of these steps", value=each_us, unit="us"),
            Said(what="steps that wait", value=int(waiting.sum()), unit="count"),
            Said(what="steps", value=len(waiting), unit="count"),
            Said(what="share of the time", value=float(share), unit="share"),
        ),
        evidence=idle_evidence(seen, parts),
        remedy=otherwise("host_before_first_launch", "in the model") if name == "forward" else None,
        row=longest_row(seen, parts) if row is None else row,
    )


def before_first_launch(seen: Observed) -> Bools:
    """Which parts of idle time are host work between the start of a step and its first device event."""
    times, chosen = seen.context.window.times, list(seen.context.selected)
    mine = seen.idle_of(host_time.HOST_WORK)
    if not chosen or not len(seen.activity):
        return np.zeros(len(mine), bool)
    begin = times.start_ns[chosen]
    started = np.sort(seen.activity.start)
    first = np.append(started, np.iinfo(np.int64).max)[np.searchsorted(started, begin)]
    step = np.searchsorted(begin, seen.idle.start, side="right") - 1
    return mine & (step >= 0) & (seen.idle.end <= first[np.maximum(step, 0)])


def _function(seen: Observed, parts: Bools) -> int | None:
    """The innermost Python function of the launching thread that lasted for most of the longest of these parts."""
    row, table = longest_row(seen, parts), seen.table
    if row is None or not table.has_stacks:
        return None
    frames = _lasting(seen, parts, (Kind.PYTHON_FUNCTION,))
    frames = frames[table.lane[frames] == table.lane[row]]
    return int(frames[seen.tree.depth[frames].argmax()]) if len(frames) else None


def _lasting(seen: Observed, parts: Bools, kinds: Collection[Kind]) -> Ints:
    """Table rows of some kinds that lasted for most of the longest of these parts."""
    table, longest = seen.table, int(np.where(parts, seen.idle_ns, 0).argmax())
    start, end = int(seen.idle.start[longest]), int(seen.idle.end[longest])
    # Nearly all are too short, which costs least to see
    rows = np.flatnonzero(table.duration_ns >= _MOST_OF_WAIT * (end - start))
    rows = rows[np.isin(table.kind[rows], list(kinds))]
    shared = np.minimum(table.ends_ns(rows), end) - np.maximum(table.start_ns[rows], start)
    return rows[shared >= _MOST_OF_WAIT * (end - start)]


#: Calls that wait return as soon as this where there is nothing to wait for.
_NO_WAIT_NS = 20_000
#: Dispatch takes some ten microseconds: an op that takes this long and launches nothing computes on the host.
_LONG_OP_NS = 1_000_000
#: What item() and tolist() of one number call.
_OF_ITEM = "aten::_local_scalar_dense"
#: Share of idle time that a wait could hide from which it is the cause.
_NEARLY_ALL = 0.8


@built_in("queue_drained_by_waits")
def drained_queue(seen: Observed) -> Iterator[Candidate]:
    """Gain: the idle time after each wait, as far as the host could have worked during that wait."""
    parts = seen.once(drained)
    share, waited_ns = _hidden(seen, parts)
    idle_ns = seen.idle_ns[parts].sum()
    waits = len(np.unique(seen.idle.row[parts]))
    idle_share_of_window = float(idle_ns / max(1, seen.window_ns))
    for candidate in idle_of_cause(seen, host_time.SYNCHRONIZATION, parts):
        waited_us = waited_ns / NS_PER_US / seen.steps
        yield replace(
            candidate,
            why=f"the host waits {duration(waited_us)} for the GPU{_where(seen)}; the GPU then idles until the next "
            f"launch, {counted(waits, 'time')} and {percent(idle_share_of_window)} of the time",
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
    parts = seen.idle_of(host_time.SYNCHRONIZATION, host_time.HOST_WORK, host_time.LAUNCH_BOUND, LATENCY)
    begins = _begin_gaps(seen)
    start, end = _waits(seen)
    if not len(start) or not begins.any():
        return np.zeros(len(idle.start), bool)
    at = idle.start[begins]
    last = np.searchsorted(start, at, side="right") - 1
    inside = (last >= 0) & (at <= np.maximum.accumulate(end)[np.maximum(last, 0)])
    until = idle.end[np.append(np.flatnonzero(begins)[1:], len(begins)) - 1]
    # In which of these gaps long ops and annotations, that begin and end in it, take most of the time.
    table = seen.table
    is_named = (table.kind == Kind.CPU_OP) | (table.kind == Kind.USER_ANNOTATION)
    rows = np.flatnonzero(is_named & (table.duration_ns > _LONG_OP_NS))
    gap = np.searchsorted(at, table.start_ns[rows], side="right") - 1
    rows = rows[(gap >= 0) & (table.ends_ns(rows) <= until[np.maximum(gap, 0)])]
    inside &= ~(2 * covered_ns(table.start_ns[rows], table.ends_ns(rows), at, until) > until - at)
    found: Bools = parts & inside[np.cumsum(begins) - 1]
    lost_ns = seen.idle_ns[found].sum()
    worth_it = lost_ns > 0 and seen.once(_waited_ns).sum() > 0.5 * lost_ns
    return found if worth_it else np.zeros(len(found), bool)


def _hidden(seen: Observed, parts: Bools) -> tuple[Floats, float]:
    """(what share of each of these parts a wait before it could hide, how long (ns) those waits are together)."""
    if not parts.any():
        return np.zeros(0), 0.0
    began, gap = np.unique(np.cumsum(_begin_gaps(seen))[parts], return_inverse=True)
    idle_ns = np.bincount(gap, seen.idle_ns[parts], len(began))
    # How long the device worked while the host waited, between each of these moments and the one before it.
    start = seen.idle.start[parts][np.searchsorted(gap, np.arange(len(began)))]
    waited = seen.once(_waited_ns)
    following = np.searchsorted(start, seen.time.own_from, side="left")
    within = following < len(start)
    waited_ns = np.bincount(following[within], waited[within], len(start)).astype(np.int64)
    share = np.minimum(1.0, waited_ns / np.maximum(1.0, idle_ns))
    return share[gap], float(waited_ns.sum())


def _begin_gaps(seen: Observed) -> Bools:
    """Which parts of idle time begin a gap: parts of one gap touch."""
    return np.concatenate(([True], seen.idle.start[1:] != seen.idle.end[:-1]))[: len(seen.idle.start)]


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


#: Python between two launches, with the profiler on; what takes longer is work of its own.
_BETWEEN_LAUNCHES_NS = 100_000
#: Share that launches must have of it: else the Python is the cause, not the launches.
_LEAST_LAUNCHES = 0.1
#: Share of the window from which the GPU is said to wait for the host.
_CPU_BOUND = 0.25


@built_in("idle: launch-bound")
def launch_bound(seen: Observed) -> Iterator[Candidate]:
    """Idle time in launches, in the Python between them, and until what was launched begins."""
    length = seen.idle_ns
    others = seen.once(drained) | seen.once(before_first_launch)
    launches, between = (
        seen.idle_of(host_time.LAUNCH_BOUND),
        seen.idle_of(host_time.HOST_WORK) & (length < _BETWEEN_LAUNCHES_NS),
    )
    parts = (launches | between | seen.idle_of(LATENCY)) & ~others
    if length[launches & ~others].sum() < _LEAST_LAUNCHES * length[parts].sum():
        parts &= ~between
    for candidate in idle_of_cause(seen, host_time.LAUNCH_BOUND, parts):
        why = candidate.why
        if float(candidate.figures[0].value) >= _CPU_BOUND:
            slowed = "; recording stacks slows the host" if seen.table.has_stacks else ""
            why = f"{why.replace(IDLES, _WAITS_FOR_HOST, 1)}{slowed}"
        # Where most of this time is before launches of graphs, and else without PyTorch, there is another remedy
        before_graphs = parts & np.isin(seen.idle.row, graph_launches(seen.table))
        most_graphs = 2 * length[before_graphs].sum() > length[parts].sum()
        case = "graphs" if most_graphs else None if seen.is_torch else "without PyTorch"
        yield replace(candidate, why=why, remedy=otherwise("idle: launch-bound", case))


@built_in("idle: Python or other host work")
def host_work(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause, but for that at the start of steps and what the host would do while it waits."""
    waits = seen.once(drained)
    # Parts whose wait lasted for nearly as long: the host would have done all of this meanwhile
    hidden = np.zeros(len(waits), bool)
    hidden[waits] = _hidden(seen, waits)[0] > _NEARLY_ALL
    parts = seen.idle_of(host_time.HOST_WORK) & ~seen.once(before_first_launch) & ~hidden & ~_of_compiled_code(seen)
    for candidate in idle_of_cause(seen, host_time.HOST_WORK, parts):
        # Whether torch.profiler was told not to record Python frames
        without = not seen.table.has_stacks and seen.table.recorder.no_stacks == Recorder().no_stacks
        case = "no stacks" if without and no_stacks(seen.table).option else None
        remedy = otherwise("idle: Python or other host work", case)
        yield replace(candidate, why=candidate.why + _ran(seen, parts), remedy=remedy)


def _ran(seen: Observed, parts: Bools) -> str:
    """The shortest op or annotation without a launch in it that most of the longest of these parts passed in."""
    table, rows = seen.table, _lasting(seen, parts, (Kind.CPU_OP, Kind.USER_ANNOTATION))
    if not len(rows):
        return ""
    launches = np.sort(table.start_ns[seen.tree.launch[seen.tree.launch >= 0]])
    within = np.searchsorted(launches, table.ends_ns(rows)) - np.searchsorted(launches, table.start_ns[rows])
    rows = rows[within == 0]
    if not len(rows):
        return ""
    return f"; most of the longest is in {shortened(table.name_of(int(rows[table.duration_ns[rows].argmin()])))}"


# What c10/cuda/CUDACachingAllocator.cpp calls, with and without expandable segments.
_FREES = re.compile(r"^(?:cuda|hip)Free$|^(?:cu|hip)Mem(?:Free|Unmap|Release)(?:_v2)?$")
_ALLOCATES = re.compile(r"^(?:cuda|hip)(?:Ext)?Malloc(?:WithFlags)?$|^(?:cu|hip)Mem(?:Alloc|Create|Map)(?:_v2)?$")
#: Longest time between giving back and asking again: the thread does nothing else in between.
_AT_ONCE_NS = 1_000_000


@built_in("allocator_retries")
def allocator_retries(seen: Observed) -> Iterator[Candidate]:
    """All idle time in calls of the allocator, where it gives back and asks again."""
    table = seen.context.recorded.table
    calls = (table.kind == Kind.RUNTIME) | (table.kind == Kind.DRIVER)
    frees = host_time.named(table, _FREES, calls)
    rows = np.flatnonzero(frees | host_time.named(table, _ALLOCATES, calls))
    rows = rows[np.lexsort((table.start_ns[rows], table.lane[rows]))]
    before, after = rows[:-1], rows[1:]
    waited = table.start_ns[after] - table.ends_ns(before)
    first, last = seen.context.timeline.window
    inside = (table.start_ns[after] >= first) & (table.start_ns[after] < last)
    again = frees[before] & ~frees[after] & (table.lane[before] == table.lane[after]) & (waited <= _AT_ONCE_NS)
    if retries := int((again & inside).sum()):
        for candidate in idle_of_cause(seen, host_time.ALLOCATOR):
            yield replace(
                candidate,
                why=f"{candidate.why}; memory is freed and allocated again {counted(retries, 'time')}",
                figures=(*candidate.figures, Said(what="retries", value=retries, unit="count")),
            )


#: How many times what is in use the allocator must hold, both at their peak.
_TIMES_IN_USE = 1.25
#: What the allocator holds beyond what is in use without being fragmented: blocks are cut from segments of 20 MB.
_SEGMENTS_MB = 100.0


@built_in("memory_fragmentation")
def memory_fragmentation(seen: Observed) -> Iterator[Candidate]:
    """All idle time in calls of the allocator, where what it holds peaks far above what is in use."""
    memory = seen.context.frames.get("memory") if seen.idle_of(host_time.ALLOCATOR).any() else None
    if memory is None:
        return
    held, used = (memory.loc[memory["device"] != "cpu", key].max() for key in ("peak_reserved_mb", "peak_mb"))
    if not held > max(_TIMES_IN_USE * used, used + _SEGMENTS_MB):
        return
    for candidate in idle_of_cause(seen, host_time.ALLOCATOR):
        yield replace(
            candidate,
            why=f"{candidate.why}; the allocator holds {size(held)}, of which at most {size(used)} is in use",
            figures=(
                *candidate.figures,
                Said(what="held by the allocator", value=float(held), unit="MB"),
                Said(what="in use at the peak", value=float(used), unit="MB"),
            ),
        )


#: Share of the device's memory that must be free at the peak.
_FREE_SHARE = 0.25


@built_in("recomputation")
def recomputation(seen: Observed) -> Iterator[Candidate]:
    """Gain: the repeated ops whose results fit into the free memory: at most half of the bytes that they move."""
    phases, memory, device = seen.context.attribution.phases, seen.context.frames.get("memory"), seen.device
    if not phases.has_recompute or memory is None or device is None or device.hbm is None:
        return
    peaks = memory.loc[memory["device"] != "cpu", ["peak_mb", "peak_reserved_mb"]].max(axis=1)
    if device.hbm.nominal_gib is None or peaks.empty:
        return
    capacity_mb, peak_mb = device.hbm.nominal_gib * BYTES_PER_GIB / BYTES_PER_MB, float(peaks.max())
    free_mb = capacity_mb - peak_mb
    repeated = seen.context.activity.rows[phases.phase == PHASES.index(RECOMPUTE)]
    events = np.flatnonzero(np.isin(seen.activity.rows, repeated))
    if free_mb < _FREE_SHARE * capacity_mb or not len(events):
        return
    moved = np.append(np.nan_to_num(seen.column("hbm_mb") / seen.column("kernels_per_call")), 0.0)
    rows = seen.row_of_event[events]
    kept_mb = float(moved[rows].sum()) / 2 / seen.steps
    time_us = float(seen.activity.duration[events].sum()) / NS_PER_US
    ranked = np.argsort(-np.bincount(rows[rows >= 0]), kind="stable")[:5]
    yield Candidate(
        why=f"recomputed forward ops take {seen.share_text(time_us)} while {size(free_mb)} of {size(capacity_mb)} is "
        "free at the peak",
        claimed=seen.kernels(events, min(1.0, free_mb / kept_mb) if kept_mb else 1.0, low=0.0, spares_launches=True),
        figures=(
            seen.gpu_share(time_us),
            Said(what="free at the peak", value=free_mb, unit="MB"),
            Said(what="memory of the device", value=capacity_mb, unit="MB"),
        ),
        evidence=seen.evidence(ranked),
        row=seen.example_of(ranked[0]) if len(ranked) else None,
    )


#: Rule -> the cause of the idle time that it is about, and the words round a line of the program: one at which a graph
#: ends, where the device idles until the code behind it launches, or one that is compiled again while it idles.
_COMPILED = {
    "graph_break": (
        host_time.HOST_WORK, "torch.compile ends a graph at", "", "until the code behind it launches",
    ),
    "recompilation": (host_time.COMPILATION, "torch.compile compiles", " again", "meanwhile"),
}  # fmt: skip


def _compiled_idle(seen: Observed) -> dict[tuple[str, str], tuple[Bools, str]]:
    """(rule, line of the program) -> parts of idle time that end with the first launch of the code behind a graph
    break, or of code compiled again, of the cause that fits; PyTorch's reason.
    """
    code, table, tree = seen.context.options.inductor, seen.table, seen.tree
    if code is None:
        return {}
    scopes, texts = module_time.compiled_regions(table, tree, module_time.REGION)
    launches = tree.launch[seen.activity.rows]
    around = scopes.around(launches)
    first = np.full(len(scopes) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, around[around >= 0], tree.position[launches[around >= 0]])
    row = seen.idle.row
    launch = np.where(row >= 0, np.where(tree.position[row] >= 0, row, tree.launch[row]), -1)
    of_part = scopes.around(launch)
    is_first = (of_part >= 0) & (tree.position[launch] <= first[of_part])
    found: dict[tuple[str, str], tuple[Bools, str]] = {}
    each: Compilation
    for rule, each, graphs in (
        *(("graph_break", each, each.resumed) for each in code.breaks if each.line is not None),
        *(("recompilation", each, (each.graph,)) for each in code.recompilations),
    ):
        runs = np.array([*(text in graphs for text in texts), False], bool)
        parts = is_first & runs[of_part] & seen.idle_of(_COMPILED[rule][0])
        key = rule, each.line or f"graph {each.graph}"
        before, reason = found.get(key, (np.zeros(len(parts), bool), each.reason))
        found[key] = before | parts, reason
    return found


def _of_compiled_code(seen: Observed) -> Bools:
    """Parts of idle time that a line of compiled code explains."""
    parts = np.zeros(len(seen.idle.start), bool)
    for each, _ in seen.once(_compiled_idle).values():
        parts |= each
    return parts


def _by_line(seen: Observed, rule: str) -> Iterator[Candidate]:
    """A candidate per line; its sentence is put together of the rule's words, the line and PyTorch's reason."""
    _, before, after, when = _COMPILED[rule]
    for (of, line), (parts, reason) in seen.once(_compiled_idle).items():
        if of != rule or not parts.any():
            continue
        share = float(seen.idle_ns[parts].sum() / max(1, seen.window_ns))
        place = "/".join(line.replace("\\", "/").split("/")[-2:])
        yield Candidate(
            why=f"{before} {shortened(place, 80)}{after} ({shortened(reason, 100)}): {IDLES} {percent(share)} of the "
            f"time {when}",
            claimed=seen.idle_time(parts, low=OPEN_ENDED),
            computed="idle time before the first launch of that code; at least none of it",
            figures=(idle_share(share), Said(what="gaps", value=int(parts.sum()), unit="count")),
            evidence=(
                *idle_evidence(seen, parts),
                Evidence(sheet=module_time.GRAPH_BREAKS_TITLE, row={"event": rule.replace("_", " ")}),
            ),
            row=longest_row(seen, parts),
        )


BY_LINE = tuple(built_in(rule)(partial(_by_line, rule=rule)) for rule in _COMPILED)


@built_in("idle: compilation")
def compilation(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause, but for what is compiled again at a known line."""
    return idle_of_cause(seen, host_time.COMPILATION, seen.idle_of(host_time.COMPILATION) & ~_of_compiled_code(seen))
