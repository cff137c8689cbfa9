"""What a report's page draws: time by module, by category and op, the roofs, and streams and threads of a step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens.analysis.analyze import Analysis
from tracelens.analysis.attribution.activity import Labels, streams_of
from tracelens.analysis.attribution.calls import rate_of
from tracelens.analysis.attribution.host_scopes import Scopes, levels, module_class
from tracelens.analysis.attribution.steps import is_step_annotation, typical_step
from tracelens.analysis.attribution.window import in_steps
from tracelens.analysis.grouping import Codes, distinct_rows, first_of_each, numbered
from tracelens.analysis.intervals import Bools, Ints
from tracelens.analysis.sheets import perf_summary
from tracelens.analysis.sheets.perf_summary import self_ns
from tracelens.analysis.sheets.priced_calls import UNLINKED_NAME
from tracelens.analysis.step_rectangles import HostLanes, ShownEvents, StepIdle, host_lanes, rectangles
from tracelens.analysis.verdict.summary import COMPLETE
from tracelens.trace.table import Kind, RowColumn
from tracelens.trace.tree import MODULE_PREFIX, OpTree
from tracelens.types.records import Record
from tracelens.types.units import NS_PER_MS

MAX_NODES = 3000

ALL, MODULE, ANNOTATION, OP, KERNEL = "all", "module", "annotation", "op", "kernel"


class Node(Record, frozen=True, kw_only=True):
    """``time_ns`` includes what is below. ``parent`` is an index into the nodes, -1 for the first, which is everything.

    Modules of one class below the same node are one node: ``DecoderLayer x24``, so many in each node above.
    ``calls``: host calls of this path, for a kernel how often it ran. ``category``: the one with most of the time, None
    where there is none. ``kind``: all, module, annotation, op or kernel.
    """

    parent: int
    name: str
    kind: str
    time_ns: int
    calls: int
    category: str | None


class Icicle(Record, frozen=True, kw_only=True):
    """Nodes, parents before children, by time. ``left_out``: how many small ones are missing; their parents' time
    includes them. ``is_cpu``: times are CPU self time, for want of kernels."""

    nodes: tuple[Node, ...]
    left_out: int
    is_cpu: bool


def icicle(analysis: Analysis, *, max_nodes: int = MAX_NODES) -> Icicle | None:
    """The tree of the window analyzed: summed durations of device events, unlinked ones included; None without time.

    Backward ops run on a thread without module frames: they stand below the module of their forward op. Step
    annotations are no level, nor are annotations round modules, in which a backward op would look like a forward one.
    """
    is_cpu = not len(analysis.activity)
    tree = analysis.trace.tree
    if not len(tree) and is_cpu:
        return None
    shown, is_module = _shown_positions(analysis)
    scopes = Scopes(tree, shown)
    above = _above(tree, scopes, is_module)
    if is_cpu:
        at = np.flatnonzero(analysis.trace.table.kind[scopes.rows] == Kind.CPU_OP)
        times, selected = analysis.step_times, analysis.selected_steps
        at = at[in_steps(analysis.trace.table, scopes.rows[at], times, selected)]
        builder = _Builder(analysis, scopes.rows, above, at)
        own = self_ns(analysis.trace)[scopes.rows[at]]
        ops = analysis.frames[perf_summary.CPU_OPS_SUMMARY_TITLE]
        category_of = dict(zip(ops["name"], ops["category"], strict=True))
        builder.categories = sorted(set(category_of.values()))
        code_of = {text: code for code, text in enumerate(builder.categories)}
        code = [code_of.get(category_of.get(text, ""), 0) for text in analysis.trace.table.names]
        category = np.array(code)[analysis.trace.table.name[scopes.rows[at]]]
        builder.time.append((builder.node_of[at], own, category))
    else:
        activity, launch = analysis.activity, tree.launch[analysis.activity.rows]
        # The level at or above each event's launch
        owner = scopes.around(launch)
        builder = _Builder(analysis, scopes.rows, above, distinct_rows(owner[owner >= 0], len(scopes)))
        parent = np.zeros(len(owner), np.int32)
        parent[owner >= 0] = builder.node_of[owner[owner >= 0]]
        if not (launch >= 0).all():
            parent[launch < 0] = builder.add_node(UNLINKED_NAME, ANNOTATION, calls=int((launch < 0).sum()))
        node = builder.add_children(parent, activity.name, KERNEL)
        builder.categories = list(analysis.event_category.texts)
        builder.time.append((node, activity.duration, analysis.event_category.code))
    return builder.result(max_nodes, is_cpu=is_cpu)


def _shown_positions(analysis: Analysis) -> tuple[Bools, Bools]:
    """(what is a level of the tree, what is a module), by position in preorder."""
    table, tree = analysis.trace.table, analysis.trace.tree
    kind, name = table.kind[tree.order], table.name[tree.order]
    named_module = np.array([text.startswith(MODULE_PREFIX) for text in table.names] or [False], bool)
    numbered_step = np.array([is_step_annotation(text, analysis.step_stem) for text in table.names] or [False], bool)
    is_module = (kind == Kind.PYTHON_FUNCTION) & named_module[name]
    before = np.concatenate((np.zeros(1, np.int32), np.cumsum(is_module, dtype=np.int32)))
    holds_module = before[tree.last[tree.order]] > before[:-1]
    is_annotation = (kind == Kind.USER_ANNOTATION) & ~numbered_step[name] & ~holds_module
    return (kind == Kind.CPU_OP) | is_module | is_annotation, is_module


def _above(tree: OpTree, scopes: Scopes, is_module: Bools) -> RowColumn:
    """The level above each of ``scopes``, -1 at the top."""
    above, rows, start = scopes.above, scopes.rows, tree.table.start_ns
    top = np.flatnonzero((above < 0) & (tree.forward[rows] >= 0))
    if len(top) and is_module.any():
        modules = Scopes(tree, is_module)
        found = modules.around(tree.parent[tree.forward[rows[top]]])
        module = np.where(found >= 0, modules.rows[found], -1)
        # What starts later cannot be above: the links stay free of circles, whatever a file says
        earlier = (module >= 0) & (start[module] < start[rows[top]])
        above[top[earlier]] = scopes.around(module[earlier])
    return above


class _Builder:
    """Nodes as growing columns: every level's rows are grouped by (node above, name) at once."""

    def __init__(self, analysis: Analysis, rows: RowColumn, above: RowColumn, at: npt.NDArray[np.integer]) -> None:
        """With nodes for ``at`` and what is above them: indices into ``rows``, as ``above`` is."""
        table = self._table = analysis.trace.table
        self.categories: list[str] = []
        self._parent: list[int] = [-1]
        self._name: list[str] = [table.source]
        self._kind: list[str] = [ALL]
        self._calls: list[int] = [1]
        #: Time (ns) at nodes, by index into ``categories``: (nodes, times, categories).
        self.time: list[tuple[Codes, Ints, npt.NDArray[np.integer]]] = []
        self._instances: dict[int, int] = {}
        self.node_of: Codes = np.full(len(rows), -1, np.int32)
        # By code of a name, the code of the first module of its class; other names keep theirs.
        first: dict[str, int] = {}
        codes = [
            first.setdefault(module_class(name), code) if name.startswith(MODULE_PREFIX) else code
            for code, name in enumerate(table.names)
        ]
        merged = np.array(codes or [0], np.int32)
        for places in levels(at, above):
            parent = np.where(above[places] >= 0, self.node_of[above[places]], np.int32(0))
            name = table.name[rows[places]]
            self.node_of[places] = self.add_children(parent, merged[name], table.kind[rows[places]])
            distinct = self.node_of[places][first_of_each(numbered(self.node_of[places], name))]
            nodes, count = np.unique(distinct, return_counts=True)
            self._instances.update(zip(nodes.tolist(), count.tolist(), strict=True))

    def add_children(self, parent: Codes, name: Codes, kind: str | npt.NDArray[np.uint8]) -> Codes:
        """The node of each (parent node, name code), made where it is new."""
        group = numbered(parent, name)
        first, made = first_of_each(group), np.int32(len(self._parent))
        self._parent += parent[first].tolist()
        self._name += [self._table.names[code] for code in name[first].tolist()]
        self._kind += (
            [kind] * len(first) if isinstance(kind, str) else [_KINDS[Kind(code)] for code in kind[first].tolist()]
        )
        self._calls += np.bincount(group).tolist()
        return group + made

    def add_node(self, name: str, kind: str, *, calls: int) -> int:
        """One node at the top."""
        self._parent.append(0)
        self._name.append(name)
        self._kind.append(kind)
        self._calls.append(calls)
        return len(self._parent) - 1

    def _label(self, node: int) -> str:
        if self._kind[node] != MODULE:
            return self._name[node]
        count, above = self._instances.get(node, 1), self._instances.get(self._parent[node], 1)
        if self._kind[self._parent[node]] != MODULE:
            above = 1
        each = count // above if count % above == 0 else count
        name = self._name[node].removeprefix(MODULE_PREFIX) if count == 1 else module_class(self._name[node])
        return name if each == 1 else f"{name} x{each}"

    def result(self, max_nodes: int, *, is_cpu: bool) -> Icicle | None:
        """The nodes with time, at most ``max_nodes``: the largest, and so always with what is above them."""
        count = len(self._parent)
        by_category = np.zeros((count, max(1, len(self.categories))), np.int64)
        for at, time_ns, category in self.time:
            np.add.at(by_category, (at, category), time_ns)
        parent = np.array(self._parent, np.int64)
        for node in range(count - 1, 0, -1):
            by_category[parent[node]] += by_category[node]
        total = by_category.sum(axis=1)
        if not total[0]:
            return None
        positive = int((total > 0).sum())
        kept = np.lexsort((np.arange(count), -total))[: min(max_nodes, positive)]
        place = np.full(count, -1, np.int64)
        place[kept] = np.arange(len(kept))
        largest = by_category.argmax(axis=1)
        nodes = tuple(
            Node(
                parent=int(place[parent[i]]) if i else -1,
                name=self._label(i),
                kind=self._kind[i],
                time_ns=int(total[i]),
                calls=self._calls[i],
                category=self.categories[largest[i]] if self.categories else None,
            )
            for i in kept.tolist()
        )
        return Icicle(nodes=nodes, left_out=positive - len(nodes), is_cpu=is_cpu)


_KINDS = {Kind.CPU_OP: OP, Kind.PYTHON_FUNCTION: MODULE, Kind.USER_ANNOTATION: ANNOTATION}


#: Distinct combinations that are kept, those with most time.
MAX_LEAVES = 4000


class Drilldown(Record, frozen=True, kw_only=True, eq=False):
    """One row per distinct (category, op, kernel, line), the longest first.

    ``category`` and ``kernel``: texts by code; ``row``: of ``unified_perf_summary``, -1 for none; ``line``: None
    without recorded frames. ``time_ns``: summed durations of the ``count`` device events; ``left_out_ns``: of smaller
    leaves.
    """

    category: Labels
    row: Ints
    kernel: Codes
    line: Labels | None
    time_ns: Ints
    count: Ints
    left_out_ns: int


def drilldown(analysis: Analysis, lines: Labels | None, *, max_leaves: int = MAX_LEAVES) -> Drilldown | None:
    """The device events of the window; None without any. ``lines``: the line of each."""
    activity, category = analysis.activity, analysis.event_category
    if not len(activity):
        return None
    row = np.full(len(activity), -1, np.int32) if analysis.row_of_event is None else analysis.row_of_event
    line = np.zeros(len(activity), np.int32) if lines is None else lines.code
    leaf = numbered(category.code, row, activity.name, line)
    first = first_of_each(leaf)
    time = np.zeros(len(first), np.int64)
    np.add.at(time, leaf, activity.duration)
    kept = np.lexsort((np.arange(len(first)), -time))[:max_leaves]
    example = first[kept]
    return Drilldown(
        category=category[example],
        row=row[example].astype(np.int64),
        kernel=activity.name[example],
        line=None if lines is None else lines[example],
        time_ns=time[kept],
        count=np.bincount(leaf, minlength=len(first))[kept].astype(np.int64),
        left_out_ns=int(time.sum() - time[kept].sum()),
    )


class ComputeRoof(Record, frozen=True, kw_only=True):
    """A horizontal line: ``spec`` (``matrix_bf16``), its data-sheet rate and the best measured one where known."""

    spec: str
    peak_tflops_s: float
    achievable_tflops_s: float | None = None


class Roofs(Record, frozen=True, kw_only=True):
    """The rates of one device. ``compute``: of the specs that the trace's ops use, most device time first."""

    compute: tuple[ComputeRoof, ...]
    hbm_peak_tb_s: float | None = None
    hbm_achievable_tb_s: float | None = None


def roofs(analysis: Analysis) -> Roofs | None:
    """None where the device is not known or there was no device work."""
    device, ops = analysis.device, analysis.frames.get(perf_summary.UNIFIED_PERF_SUMMARY_TITLE)
    if device is None or ops is None:
        return None
    used = ops.dropna(subset=["compute_spec"]).groupby("compute_spec")["kernel_us_sum"].sum()
    compute = []
    for spec, _ in sorted(used.items(), key=lambda entry: (-entry[1], str(entry[0]))):
        rate = rate_of(device, str(spec))
        if rate is not None:
            compute.append(
                ComputeRoof(
                    spec=str(spec), peak_tflops_s=rate.peak_tflops_s, achievable_tflops_s=rate.achievable_tflops_s
                )
            )
    return Roofs(
        compute=tuple(compute),
        hbm_peak_tb_s=device.hbm.peak_tb_s if device.hbm is not None else None,
        hbm_achievable_tb_s=device.hbm.achievable_tb_s if device.hbm is not None else None,
    )


MAX_RECTS = 20_000
#: The part of them that the threads, and each other step, have at least.
_HOST_PART, _STEP_PART = 5, 20
#: Steps that are drawn beside the typical one.
MAX_STEPS = 8


class Lane(Record, frozen=True, kw_only=True):
    """A stream of a device; -1 where not recorded."""

    device: int
    stream: int


class StepTimeline(Record, frozen=True, kw_only=True, eq=False):
    """One rectangle per device event, or per run of short ones, lane by lane in order of start.

    ``step`` is the step's number, None when the window is everything analyzed; ``duration_ns`` the window's length,
    ``events`` how many device events lie in it. Of each rectangle: ``lane`` (index into ``lanes``), ``start_ns`` and
    ``end_ns`` from the window's start and within it, ``kernel_ns`` (sum of its events' whole durations), ``count`` of
    events, and ``event`` (index into the analysis' activity): the longest of them. Events shorter than
    ``merged_below_ns`` were merged with their neighbors; 0 when none had to be. ``idle``: when nothing ran in the
    window, and why; None for other steps than the typical one. ``first_ns``: the window's start on the trace's clock.
    ``host``: what the threads did meanwhile;
    ``launch_ns``: when the event was launched, from the window's start, 0 where ``host.launched_in`` is -1.
    """

    step: int | None
    first_ns: int
    duration_ns: int
    events: int
    merged_below_ns: int
    lanes: tuple[Lane, ...]
    lane: Codes
    start_ns: Ints
    end_ns: Ints
    kernel_ns: Ints
    count: Ints
    event: Ints
    launch_ns: Ints
    idle: StepIdle | None = None
    host: HostLanes | None = None

    @property
    def rectangles(self) -> int:
        """How many are drawn, of streams and threads."""
        return len(self.lane) + (0 if self.host is None else len(self.host.row))


def step_timelines(analysis: Analysis, *, max_rects: int = MAX_RECTS) -> list[StepTimeline]:
    """The typical step first, then the other complete ones in order, at most ``MAX_STEPS``; none without device work.

    Of more steps the fastest and the slowest are among those drawn. They share the rectangles that the typical one
    leaves.
    """
    shown = ShownEvents.of(analysis.trace.table)
    typical = step_timeline(analysis, shown=shown, max_rects=max_rects)
    if typical is None or typical.step is None:
        return [] if typical is None else [typical]
    number, time = [each.number for each in analysis.step_times.steps], analysis.step_times.duration_ns
    others = [step for step in analysis.complete_steps if number[step] != typical.step]
    if len(others) > MAX_STEPS:
        by_time = sorted(others, key=lambda step: (int(time[step]), step))
        others = sorted(list(dict.fromkeys((by_time[0], by_time[-1], *others)))[:MAX_STEPS])
    left = (max_rects - typical.rectangles) // max(len(others), 1)
    each_has = max(left, max_rects // _STEP_PART)
    drawn = (step_timeline(analysis, step, shown=shown, max_rects=each_has) for step in others)
    return [typical, *(each for each in drawn if each is not None)]


def step_timeline(
    analysis: Analysis, step: int | None = None, *, shown: ShownEvents | None = None, max_rects: int = MAX_RECTS
) -> StepTimeline | None:
    """The ``step`` at this position; else the complete one whose time is nearest the median of those analyzed (the
    first of equals), or where nothing ran in it, or without steps, everything analyzed.

    None without device work. ``shown``: of the host, made here where it is not handed over.
    """
    activity, table, tree = analysis.activity, analysis.trace.table, analysis.trace.tree
    found_window = _window(analysis) if step is None else _window_of(analysis, step)
    if not len(activity) or found_window is None:
        return None
    number, first, last, inside = found_window
    found, lane = streams_of(table, activity.select(inside))
    order = np.lexsort((activity.end[inside], activity.start[inside], lane))
    events, lane = inside[order], lane[order]
    start = np.maximum(activity.start[events] - first, 0)
    end = np.minimum(activity.end[events], last) - first
    group, below = rectangles(start, end, lane, last - first, max_rects)
    starts = np.flatnonzero(np.concatenate(([True], np.diff(group) != 0)))
    length = activity.duration[events]
    idle = analysis.step_idle
    longest = events[np.lexsort((-length, group))[starts]]
    launch = tree.launch[activity.rows[longest]]
    launch = np.where(table.start_ns[launch] >= first, launch, np.int32(-1))
    shown = ShownEvents.of(table) if shown is None else shown
    host_rects = max(max_rects - len(starts), max_rects // _HOST_PART)
    host = host_lanes(shown, tree, (first, last), launch, max_rects=host_rects)
    launched = np.where(launch >= 0, table.start_ns[launch] - first, 0)
    return StepTimeline(
        step=number,
        first_ns=first,
        duration_ns=last - first,
        events=len(events),
        merged_below_ns=below,
        lanes=tuple(Lane(device=d, stream=s) for d, s in found.tolist()),
        lane=lane[starts],
        start_ns=start[starts],
        end_ns=np.maximum.reduceat(end, starts),
        kernel_ns=np.add.reduceat(length, starts),
        count=np.bincount(group).astype(np.int64),
        event=longest,
        launch_ns=launched if host is None else np.where(host.launched_in >= 0, launched, 0),
        host=host,
        idle=idle if idle is not None and idle.window == (first, last) else None,
    )


#: Points of the modelled line of power; the line of the clock, in MHz.
_POWER_POINTS, CLOCK = 240, "SM clock"


def power_lines(analysis: Analysis) -> dict[str, list[tuple[float, float]]]:
    """W of the device over ms of the window of ``step_timeline``: modelled, where that is known of nearly all time, and
    measured, where samples lie in it; with them its clock, where that was sampled.
    """
    found, lines = _window(analysis), dict[str, list[tuple[float, float]]]()
    if found is None or not len(analysis.activity):
        return lines
    _, first, last, _ = found
    energy, log, base_ns = analysis.energy, analysis.power_log, analysis.trace.table.base_ns
    everything, whole_ns = np.zeros(len(analysis.activity), np.int32), np.array([analysis.timeline.total_ns])
    if energy is not None and energy.known_share(everything, whole_ns, energy.own_ns)[0] >= COMPLETE:
        edges = np.linspace(first, last, min(_POWER_POINTS, last - first) + 1).astype(np.int64)
        watts, middle = energy.watts_over(edges, analysis.activity.start[:]), (edges[1:] + edges[:-1]) / 2 - first
        lines["modelled"] = list(zip((middle / NS_PER_MS).tolist(), watts.tolist(), strict=True))
    if log is not None:
        at = np.flatnonzero((log.time_ns >= first + base_ns) & (log.time_ns <= last + base_ns))
        at = at[:: max(len(at) // _POWER_POINTS, 1)]
        since_ms = (log.time_ns[at] - first - base_ns) / NS_PER_MS
        lines |= {"measured": list(zip(since_ms.tolist(), log.power_w[at].tolist(), strict=True))} if len(at) else {}
        if log.clock_mhz is not None and len(at):
            known = ~np.isnan(log.clock_mhz[at])
            lines[CLOCK] = list(zip(since_ms[known].tolist(), log.clock_mhz[at][known].tolist(), strict=True))
    return lines


def _window(analysis: Analysis) -> tuple[int | None, int, int, Ints] | None:
    """(number of the step, start, end, its events)."""
    if candidates := analysis.complete_steps:
        found = _window_of(analysis, typical_step(analysis.step_times, candidates))
        if found is not None:
            return found
    activity = analysis.activity
    if not len(activity):
        return None
    first, last = int(activity.start.min()), int(activity.end.max())
    return None, first, max(last, first + 1), np.arange(len(activity))


def _window_of(analysis: Analysis, step: int) -> tuple[int | None, int, int, Ints] | None:
    """None where nothing ran in the step."""
    times, activity = analysis.step_times, analysis.activity
    first, last = int(times.start_ns[step]), int(times.end_ns[step])
    inside = np.flatnonzero((activity.start < last) & ((activity.end > first) | (activity.start >= first)))
    return (times.steps[step].number, first, last, inside) if len(inside) else None
