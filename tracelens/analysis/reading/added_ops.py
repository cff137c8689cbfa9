"""Ops that a recording lacks: inner ops of composite ones, ops and shapes from another recording of the same program,
and the ops of captured graphs under the launches that replay them.

A replay records one launch and its kernels, no ops; the trace of the capture records the ops. A kernel's graph node id
(``graph node id`` of Kineto: the graph in the upper 32 bits, the node in the lower ones) leads to the call that made
the node: by the id where the capture has it too, else nodes have numbers in the order of the calls. Ids are believed
where nothing contradicts them (``ReplayedNodes``, ``CapturedGraphs``); else, and without ids, the same graph is
recognized by its sequence of kernel names: on AMD devices a capture records every launch with its kernel's name though
nothing runs; elsewhere the run before the capture has ops and kernels. Graphs that fit alike are told apart by the
batch size in their annotations, then by the grids and blocks of their kernels; where neither does, nothing is linked.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.analysis.intervals import Ints
from tracelens.analysis.loaded_trace import Trace
from tracelens.analysis.reading.catalog import Catalog
from tracelens.analysis.reading.engine_steps import annotations_of_steps
from tracelens.perf_models.inference_attention import InferenceStep
from tracelens.perf_models.surroundings import InnerOp, OpCall
from tracelens.trace.table import GRAPH_BITS, AddedRows, Kind, RowColumn, TraceTable, with_rows
from tracelens.trace.tree import MODULE_PREFIX
from tracelens.types.records import Record
from tracelens.types.signature import OpSignature


def forward_rows(trace: Trace, catalog: Catalog) -> RowColumn:
    """Forward op row per backward op row, -1 elsewhere: the trace's own links, but for names marked ``BackwardOf``.

    For those the recorded link counts where it leads to a forward of the given name. Else calls pair up last in, first
    out, as autograd and the recomputation of a checkpoint run them.
    """
    table, tree = trace.table, trace.tree
    forward = tree.forward[:]
    for name, backwards in catalog.backward_partners().items():
        ops, closes = rows_named(table, (name,)), rows_named(table, backwards)
        if not len(closes):
            continue
        is_forward = np.zeros(len(table), bool)
        is_forward[ops] = True
        rows = np.concatenate((ops, closes))
        waiting: dict[object, list[int]] = {}
        for row in rows[np.lexsort((rows, table.start_ns[rows]))].tolist():
            calls = waiting.setdefault(table.pid_of(row), [])
            if is_forward[row]:
                calls.append(row)
                continue
            recorded = tree.forward_of(row)
            if recorded >= 0 and is_forward[recorded]:
                forward[row] = recorded
                if recorded in calls:
                    calls.remove(recorded)
            else:
                forward[row] = calls.pop() if calls else -1
    return forward


def with_inner_ops(
    trace: Trace, catalog: Catalog, made_from: int | None = None, *, replayed: Mapping[int, str] | None = None
) -> tuple[Trace, Counter[str]]:
    """``trace`` with the inner ops of its calls as rows round their launches; reason -> calls that were left whole.

    ``made_from``: the first row that an extension made; what it put round a launch stays alone there. ``replayed``:
    the launches of a capture to do this for, with the kernel that each became.
    """
    table, tree = trace.table, trace.tree
    calls = rows_named(table, catalog.inner_ops)
    left: Counter[str] = Counter()
    if not len(calls):
        return trace, left
    forward = forward_rows(trace, catalog)
    found: dict[OpCall, tuple[InnerOp, ...] | str] = {}
    launches: list[int] = []
    signatures: list[OpSignature] = []
    for row in calls.tolist():
        launched = _launches_below(trace, row, replayed)
        if not launched:
            continue
        below = tree.subtree(row)[1:]
        call = OpCall(
            signature=table.signature_of(row),
            kernels=tuple(kernel for _, kernel in launched),
            below=tuple(table.signature_of(op) for op in below[table.kind[below] == Kind.CPU_OP].tolist()),
            forward=table.signature_of(int(forward[row])) if forward[row] >= 0 else None,
        )
        if call not in found:
            found[call] = catalog.inner_ops_of(call)
        inner = found[call]
        if isinstance(inner, str):
            left[inner] += 1
            continue
        kept = [op for op in inner if made_from is None or tree.op_parent[launched[op.kernel][0]] < made_from]
        launches += [launched[op.kernel][0] for op in kept]
        signatures += [op.signature for op in kept]
    if not launches:
        return trace, left
    at = np.array(launches, np.int64)
    return Trace.of(with_rows(table, rows_of_ops(table, signatures, at, at))), left


def rows_of_ops(table: TraceTable, signatures: Sequence[OpSignature], first: Ints, last: Ints) -> AddedRows:
    """A row for each of these calls, from the start of its ``first`` launch to the end of its ``last`` one."""
    codes = {signature: code for code, signature in enumerate(dict.fromkeys(signatures))}
    number = np.array([codes[signature] for signature in signatures], np.int64)
    return AddedRows(
        kind=np.full(len(number), Kind.CPU_OP, np.uint8),
        name=number,
        lane=table.lane[first].astype(np.int64),
        start_ns=table.start_ns[first],
        duration_ns=table.ends_ns(last) - table.start_ns[first],
        correlation=np.full(len(number), -1, np.int64),
        signature=number,
        names=[signature.name for signature in codes],
        signatures=list(codes),
    )


def rows_named(table: TraceTable, names: Iterable[str]) -> Ints:
    """Rows of the host's ops with these names."""
    codes = [table.names.index(name) for name in names if name in table.names]
    return np.flatnonzero(table.is_named(codes) & (table.kind == Kind.CPU_OP))


def _launches_below(trace: Trace, row: int, replayed: Mapping[int, str] | None = None) -> list[tuple[int, str]]:
    """(launch row, kernel) below an op in launch order; in a capture as launches say, or the ``replayed`` ones."""
    table, tree = trace.table, trace.tree
    below = tree.subtree(row)
    if replayed is not None:
        return [(launch, replayed[launch]) for launch in below.tolist() if launch in replayed]
    kernels = tree.kernels_below(row).tolist()
    if kernels:
        return [(int(tree.launch[kernel]), table.name_of(kernel)) for kernel in kernels]
    named = (
        (launch, table.args(launch).get("kernel"))
        for launch in below[table.kind[below] == Kind.RUNTIME].tolist()
        if "Launch" in table.name_of(launch)
    )
    return [(launch, kernel) for launch, kernel in named if isinstance(kernel, str)]


class KnownShapes(Record, frozen=True, kw_only=True):
    """``source``: the file with the shapes. ``joined``: for how many of ``kernels`` without shapes it has them."""

    source: str
    kernels: int
    joined: int
    kernel_ns: int
    joined_ns: int


def with_known_shapes(trace: Trace, known: Trace) -> tuple[Trace, KnownShapes]:
    """``trace`` with an op of ``known`` round the launch of each kernel that it is known for.

    Kernels are joined by name, in the order of their launches: the k-th of a name with the k-th of the sequence that
    repeats in ``known``, where the trace holds that sequence a whole number of times; else no kernel of the name is
    joined. Launches next to each other that one call made stay one call.
    """
    table, tree = trace.table, trace.tree
    kernels = _launched(trace)
    wanted = kernels[~_has_shapes(table, tree.op[kernels].astype(np.int64))]
    # A launch of several kernels (a graph) has a sequence of its own: --capture opens it
    alone = np.bincount(tree.launch[wanted], minlength=len(table))[tree.launch[wanted]] == 1
    sequences = _sequences(known)
    calls = np.full(len(wanted), -1, np.int64)
    turn = np.zeros(len(wanted), np.int64)
    names = table.name[wanted]
    for code in np.unique(names).tolist():
        found = sequences.get(table.names[code])
        here = np.flatnonzero((names == code) & alone)
        if found is not None and len(here) and len(here) % len(found) == 0:
            calls[here] = np.tile(found, len(here) // len(found))
            turn[here] = np.repeat(np.arange(len(here) // len(found)), len(found))
    joined = calls >= 0
    said = KnownShapes(
        source=known.table.source,
        kernels=len(wanted),
        joined=int(joined.sum()),
        kernel_ns=int(table.duration_ns[wanted].sum()),
        joined_ns=int(table.duration_ns[wanted[joined]].sum()),
    )
    if not joined.any():
        return trace, said
    added = _added(trace, known, tree.launch[wanted[joined]].astype(np.int64), calls[joined], turn[joined])
    return Trace.of(with_rows(table, added)), said


def _launched(trace: Trace) -> Ints:
    """Kernels with a launch, in the order of their launches."""
    table, tree = trace.table, trace.tree
    rows = np.flatnonzero((table.kind == Kind.KERNEL) & (tree.launch >= 0))
    return rows[np.lexsort((table.start_ns[rows], table.start_ns[tree.launch[rows]]))]


def _has_shapes(table: TraceTable, ops: Ints) -> npt.NDArray[np.bool_]:
    codes, place = np.unique(table.signature[ops], return_inverse=True)
    known = [table.signatures.signature("", code).shapes is not None for code in codes.tolist()]
    return (table.kind[ops] == Kind.CPU_OP) & np.array(known, np.bool_)[place]


def _sequences(known: Trace) -> dict[str, Ints]:
    """By name of a kernel: the ops that launched it, in order, the shortest sequence that repeats to all of them."""
    table, tree = known.table, known.tree
    kernels = _launched(known)
    kernels = kernels[_has_shapes(table, tree.op[kernels].astype(np.int64))]
    by_name: defaultdict[int, list[int]] = defaultdict(list)
    for name, op in zip(table.name[kernels].tolist(), tree.op[kernels].tolist(), strict=True):
        by_name[name].append(op)
    return {table.names[name]: _shortest(table, np.array(ops, np.int64)) for name, ops in by_name.items()}


def _shortest(table: TraceTable, ops: Ints) -> Ints:
    alike = np.stack((table.name[ops], table.signature[ops]), axis=1)
    for length in range(1, len(ops) // 2 + 1):
        if len(ops) % length == 0 and (alike[length:] == alike[:-length]).all():
            return ops[:length]
    return ops


def _added(trace: Trace, known: Trace, launches: Ints, calls: Ints, turn: Ints) -> AddedRows:
    table = trace.table
    order = np.lexsort((table.start_ns[launches], table.lane[launches]))
    launches, calls, turn = launches[order], calls[order], turn[order]
    lane = table.lane[launches].astype(np.int64)
    first = np.flatnonzero(np.diff(np.stack((calls, turn, lane)), prepend=-1).any(axis=0))
    last = np.append(first[1:], len(launches)) - 1
    ops, place = np.unique(calls[first], return_inverse=True)
    signatures = [known.table.signature_of(row) for row in ops.tolist()]
    added = rows_of_ops(table, [signatures[at] for at in place.tolist()], launches[first], launches[last])
    return replace(added, timed=False)


#: The least share of a graph's kernels that must align with a captured graph whose sequence differs in places.
SAME_GRAPH = 0.9
LAUNCHING = (Kind.RUNTIME, Kind.DRIVER)
#: The part of a node's id without its graph's number.
_NODE = (1 << GRAPH_BITS) - 1
#: Kernels of a launch whose grids and blocks are compared with those of the same nodes in other launches.
_COMPARED = 4
_NODE_KIND = {"launch": Kind.KERNEL, "copy": Kind.MEMCPY, "fill": Kind.MEMSET}
#: How the kernels begin that HIP runs for copies and fills.
_AMD_COPY = "__amd_rocclr_"
#: sgl-project/sglang#24370.
_SGLANG_FILE = re.compile(r"bs_(\d{1,9})_rank\d+\.")
#: Characters of a kernel's name in a sentence.
_SHORT = 40
_CLASH = "graph {} has the same ids on different kernels"
NOT_CAPTURED = "not in the captured graph"


class _Captured(Record, frozen=True, kw_only=True, eq=False):
    """One capture, or one run of the same kernels before it: launches in order, each with its kernel's name.

    ``nodes``: all calls of a capture that made a node with work for the device; ``kernels``: the names that these
    recorded; ``ids``: their graph node ids, where all recorded one. ``in_order``: on one stream, so that the nodes run
    in the order of the calls.
    """

    names: tuple[str, ...]
    launches: tuple[int, ...]
    batch: int | None
    nodes: tuple[int, ...] = ()
    kernels: tuple[str | None, ...] = ()
    ids: tuple[int, ...] = ()
    in_order: bool = False


class CapturedRequests(Record, frozen=True, kw_only=True):
    """What the annotation around a launch says: tokens of the step (else requests), and what it was padded to."""

    requests: int | None = None
    padded: int | None = None


class Template(Record, frozen=True, kw_only=True, eq=False):
    """Rows of the capture to copy, outer ones first: each spans the k-th to the l-th of ``launches``."""

    rows: Ints
    first: Ints
    last: Ints
    launches: tuple[int, ...]


class CapturedGraphs:
    """The captured graphs of one trace, and the runs before them."""

    def __init__(self, capture: Trace, catalog: Catalog) -> None:
        self.capture = capture
        self.steps = annotated_steps(capture.table, catalog)
        self.graphs = list(self._captured())
        self.eager = list(self._eager())
        self._templates: dict[frozenset[int], Template] = {}
        self._usual: dict[tuple[int, int], set[str]] | None = None
        self._compared_shapes = False
        ids = Counter(node for graph in self.graphs for node in graph.ids if node > _NODE)
        self._shared_ids = {node for node, count in ids.items() if count > 1}

    def match(
        self, table: TraceTable, rows: RowColumn, requests: CapturedRequests, nodes: ReplayedNodes | None
    ) -> _Match:
        """The calls of the capture that launched these kernels: by their nodes, else, in another trace, by sequence."""
        names = tuple(table.names[code] for code in table.name[rows].tolist())
        self._compared_shapes = False
        match = _Match() if nodes is None else self._by_node(table, rows, requests, nodes)
        if not match.pairs and table is not self.capture.table:
            pairs, reason = self._by_sequence(table, rows, names, requests)
            match = _Match(pairs=pairs, reason=reason, wrong=match.wrong)
        return replace(match, by_shapes=self._compared_shapes)

    def _by_sequence(
        self, table: TraceTable, rows: RowColumn, names: tuple[str, ...], requests: CapturedRequests
    ) -> tuple[dict[int, int], str]:
        """(position of a kernel -> launch row of the capture, why there are fewer of them than kernels)."""
        # Graphs of these kernels: in this order, else in any, else runs before the capture, else nearly the same.
        candidates = (
            [graph for graph in self.graphs if graph.names == names]
            or [graph for graph in self.graphs if Counter(graph.names) == Counter(names)]
            or list(self._runs_of(names))
            or [graph for graph in self.graphs if _is_nearly(names, graph)]
        )
        if not candidates:
            return {}, f"no graph of {self.capture.table.source} has this sequence of kernels"
        candidates = _of_batch(candidates, requests)
        if not candidates:
            return {}, "captured for other batch sizes only"
        candidates = self._of_launch_shapes(table, rows, candidates)
        if len({self._calls(graph.launches) for graph in candidates}) != 1:
            return {}, "several captured graphs have this sequence of kernels"
        return _aligned(names, candidates[-1]), NOT_CAPTURED

    def _by_node(self, table: TraceTable, rows: RowColumn, requests: CapturedRequests, nodes: ReplayedNodes) -> _Match:
        """By the graph whose nodes these can be and whose calls agree with the kernels; ``wrong`` where none does."""
        if nodes.wrong:
            return _Match(wrong=nodes.wrong)
        wrong, fitting = "", []
        for graph in _of_batch(self.graphs, requests):
            place = nodes.places(graph)
            if place is None or self._is_other(table, rows, graph):
                continue
            contradiction = self._contradiction(table, rows, nodes, graph, place)
            wrong = wrong or contradiction
            if not contradiction:
                fitting.append(graph)
        fitting = self._of_launch_shapes(table, rows, fitting) or fitting
        if len(fitting) == nodes.peers:
            # As many graphs alike as there are captures: both are numbered in the order in which they were made
            fitting = [fitting[nodes.turn]]
        if len({self._calls(graph.nodes) for graph in fitting}) != 1:
            return _Match(wrong="" if fitting else wrong)
        place = nodes.places(fitting[-1])
        pairs = {} if place is None else {k: fitting[-1].nodes[at] for k, at in enumerate(place.tolist())}
        return _Match(pairs=pairs, by_node=True)

    def _is_other(self, table: TraceTable, rows: RowColumn, graph: _Captured) -> bool:
        """Whether these cannot be a captured graph's kernels, whatever their ids."""
        ran = Counter(
            table.name_of(row)
            for row in rows[table.kind[rows] == Kind.KERNEL].tolist()
            if not table.name_of(row).startswith(_AMD_COPY)
        )
        launched = [
            kernel
            for kernel, call in zip(graph.kernels, graph.nodes, strict=True)
            if _capture_role(self.capture.table.name_of(call)) == "launch"
        ]
        return ran.total() > len(launched) if None in launched else not ran <= Counter(launched)

    def _contradiction(
        self, table: TraceTable, rows: RowColumn, nodes: ReplayedNodes, graph: _Captured, place: Ints
    ) -> str:
        """What a captured graph's calls have against these kernels being their nodes; empty where nothing does."""
        if not self._shared_ids.isdisjoint(graph.ids):
            return "several captured graphs have the same ids"
        known = strange = 0
        for k, (row, at) in enumerate(zip(rows.tolist(), place.tolist(), strict=True)):
            ran, kernel, call = table.name_of(row), graph.kernels[at], graph.nodes[at]
            if kernel is None:
                of_call = self.capture.table.name_of(call)
                if table.kind[row] != _NODE_KIND[_capture_role(of_call)] and not ran.startswith(_AMD_COPY):
                    return f"node {nodes.ids[k] & _NODE} was captured by {of_call} and is {ran}"
                usual = self._usual_kernels().get(self._calls((call,))[0])
                known += usual is not None
                strange += usual is not None and ran not in usual
            elif kernel != ran:
                return f"node {nodes.ids[k] & _NODE} is {_short(ran)}, captured as {_short(kernel)}"
        ran_at = place[table.kind[rows] == Kind.KERNEL]
        if graph.in_order and (np.diff(ran_at) < 0).any():
            return "their order is not that in which the kernels of the one captured stream ran"
        if strange > (1 - SAME_GRAPH) * known:
            return f"{strange:,} of {known:,} kernels are none of those that their ops run outside the graph"
        return ""

    def _usual_kernels(self) -> dict[tuple[int, int], set[str]]:
        """By name and arguments of an op: the kernels that it ran where it was not captured."""
        if self._usual is None:
            self._usual = {}
            table, tree = self.capture.table, self.capture.tree
            for code, launch, _ in self.eager:
                op = tree.op_parent[launch]
                calls = np.stack((table.name[op], table.signature[op], code))[:, op >= 0]
                for name, signature, kernel in np.unique(calls, axis=1).T.tolist():
                    self._usual.setdefault((name, signature), set()).add(table.names[kernel])
        return self._usual

    def _of_launch_shapes(self, table: TraceTable, rows: RowColumn, graphs: list[_Captured]) -> list[_Captured]:
        """Of graphs with different calls those whose launches have the grids and blocks of these kernels."""
        if len({self._calls(graph.launches or graph.nodes) for graph in graphs}) < 2:
            return graphs
        self._compared_shapes = True
        shapes = _launch_shapes(table, rows.tolist())
        return [graph for graph in graphs if shapes and self._launch_shapes(graph) == shapes]

    def name_kernels(self, table: TraceTable, opened: list[_Replay], catalog: Catalog) -> None:
        """The inner ops of calls whose launches named no kernel: their nodes' replays do."""
        named = {row for graph in self.graphs for row in graph.launches}
        replayed = {
            call: table.name_of(int(replay.rows[k]))
            for replay in {id(replay.match): replay for replay in opened if replay.match.by_node}.values()
            for k, call in replay.match.pairs.items()
            if call not in named
        }
        if replayed:
            self.capture, _ = with_inner_ops(self.capture, catalog, replayed=replayed)

    def block_of(self, table: TraceTable, replay: _Replay) -> tuple[Template, int, int, RowColumn]:
        """(rows of the capture, where they start, lane, the kernels that they launched)."""
        pairs = replay.match.pairs
        block = self.block(frozenset(pairs.values()))
        order = {captured: k for k, captured in enumerate(block.launches)}
        rows = replay.rows[sorted(pairs, key=lambda k: order[pairs[k]])]
        return block, replay.start, int(table.lane[replay.launch]), rows

    def block(self, launches: frozenset[int]) -> Template:
        """The rows above these launches, as spans over them."""
        if launches not in self._templates:
            self._templates[launches] = self._template(launches)
        return self._templates[launches]

    def _template(self, launches: frozenset[int]) -> Template:
        tree, table = self.capture.tree, self.capture.table
        ordered = sorted(launches, key=lambda row: int(tree.position[row]))
        spans: dict[int, tuple[int, int]] = {}
        for k, launch in enumerate(ordered):
            for above in (launch, *tree.ancestors(launch).tolist()):
                is_module = table.kind[above] == Kind.PYTHON_FUNCTION and table.name_of(above).startswith(MODULE_PREFIX)
                if above == launch or table.kind[above] == Kind.CPU_OP or is_module:
                    spans[above] = (spans.get(above, (k, k))[0], k)
        rows = sorted(spans, key=lambda row: int(tree.position[row]))
        return Template(
            rows=np.array(rows, np.int64),
            first=np.array([spans[row][0] for row in rows], np.int64),
            last=np.array([spans[row][1] for row in rows], np.int64),
            launches=tuple(ordered),
        )

    def _captured(self) -> Iterator[_Captured]:
        """What each capture put on streams, by its thread, and by others of its process while none else captures."""
        table = self.capture.table
        role = np.array([_capture_role(name) for name in table.names] or [""], object)[table.name]
        calls = np.flatnonzero(table.is_of(LAUNCHING) & (role != ""))
        borders = calls[(role[calls] == "begin") | (role[calls] == "end")]
        borders = borders[np.lexsort((table.start_ns[borders], table.lane[borders]))]
        first, last = borders[:-1], borders[1:]
        whole = (role[first] == "begin") & (role[last] == "end") & (table.lane[first] == table.lane[last])
        first, last = first[whole], last[whole]
        process = np.unique([str(table.pid_of(row)) for row in first.tolist()], return_inverse=True)[1]
        calls = calls[np.argsort(table.start_ns[calls], kind="stable")]
        begins, start, end = table.start_ns[calls], table.start_ns[first], table.start_ns[last]
        for k in np.argsort(start, kind="stable").tolist():
            inside = calls[np.searchsorted(begins, start[k]) : np.searchsorted(begins, end[k])]
            at_once = (start < end[k]) & (end > start[k]) & (process == process[k])
            if at_once.sum() > 1:
                inside = inside[table.lane[inside] == table.lane[first[k]]]
            pid = table.pid_of(int(first[k]))
            inside = inside[[table.pid_of(row) == pid for row in inside.tolist()]]
            yield self._of_calls(int(first[k]), inside, in_order="wait" not in role[inside])

    def _of_calls(self, begun: int, calls: Ints, *, in_order: bool) -> _Captured:
        table, tree = self.capture.table, self.capture.tree
        made = {row for row in calls.tolist() if _capture_role(table.name_of(row)) in _NODE_KIND}
        # A driver's call within one of the runtime made the same node; what ran was not captured
        nodes = [row for row in made if int(tree.parent[row]) not in made and not len(tree.launched_by(row))]
        nodes.sort(key=lambda row: int(table.start_ns[row]))
        recorded = (table.args(row).get("kernel") for row in nodes)
        kernels = [kernel if isinstance(kernel, str) else None for kernel in recorded]
        named = {row: kernel for row, kernel in zip(nodes, kernels, strict=True) if kernel is not None}
        ids = table.graph_node[np.array(nodes, np.int64)].tolist()
        return _Captured(
            names=tuple(named.values()),
            launches=tuple(named),
            batch=self._batch(begun),
            nodes=tuple(nodes),
            kernels=tuple(kernels),
            ids=tuple(ids) if len({*ids} - {-1}) == len(nodes) else (),
            in_order=in_order,
        )

    def _eager(self) -> Iterator[tuple[Ints, Ints, dict[str, int]]]:
        """(name code per kernel, launch row per kernel, codes) of each host thread, in order of launch.

        A graph launch in the trace of the capture is a replay itself: whatever op is around it launched none of these.
        """
        table, tree = self.capture.table, self.capture.tree
        launched = np.flatnonzero((tree.launch >= 0) & (tree.op >= 0))
        launched = launched[table.kind[tree.op[launched]] == Kind.CPU_OP]
        launched = launched[~np.isin(tree.launch[launched], graph_launches(table))]
        launch = tree.launch[launched]
        order = np.lexsort((table.start_ns[launched], table.start_ns[launch], table.lane[launch]))
        launched, launch = launched[order], launch[order]
        codes = {name: code for code, name in enumerate(table.names)}
        lane = table.lane[launch]
        for part in np.split(np.arange(len(launched)), np.flatnonzero(np.diff(lane)) + 1):
            if len(part):
                yield table.name[launched[part]].astype(np.int64), launch[part].astype(np.int64), codes

    def _runs_of(self, names: tuple[str, ...]) -> Iterator[_Captured]:
        for code, launch, codes in self.eager:
            if not all(name in codes for name in names):
                continue
            wanted = np.array([codes[name] for name in names], np.int64)
            for at in _occurrences(code, wanted):
                rows = tuple(launch[at : at + len(names)].tolist())
                yield _Captured(names=names, launches=rows, batch=self._batch(rows[0]))

    def _batch(self, row: int) -> int | None:
        """What the annotation around a capture says, else its file's name: SGLang writes one per batch size."""
        requests = requests_at(self.capture.table, self.steps, row)
        named = _SGLANG_FILE.match(self.capture.table.source)
        said = requests.padded if requests.padded is not None else requests.requests
        return int(named[1]) if said is None and named else said

    def _calls(self, launches: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        """What tells the ops of two graphs apart: name and arguments of every launching op."""
        table, tree = self.capture.table, self.capture.tree
        above = [int(tree.op_parent[row]) for row in launches]
        return tuple((int(table.name[row]), int(table.signature[row])) if row >= 0 else (-1, -1) for row in above)

    def _launch_shapes(self, graph: _Captured) -> tuple[object, ...] | None:
        """Grids and blocks of the launches, or of the kernels that ran."""
        found = [self.capture.tree.launched_by(row) for row in graph.launches]
        rows = [int(ran[0]) if len(ran) else row for ran, row in zip(found, graph.launches, strict=True)]
        return _launch_shapes(self.capture.table, rows)


class _Match(Record, frozen=True, kw_only=True):
    """``pairs``: position of a kernel -> row of the capture that launched it; ``reason``: why there are fewer of them
    than kernels. ``wrong``: why graph node ids were not believed. ``by_shapes``: grids and blocks had a say.
    """

    pairs: dict[int, int] = msgspec.field(default_factory=dict)
    reason: str = ""
    by_node: bool = False
    wrong: str = ""
    by_shapes: bool = False


class _Replay(Record, frozen=True, kw_only=True, eq=False):
    """A graph launch, where free time within it starts, and its kernels by start."""

    launch: int
    start: int
    rows: RowColumn
    match: _Match


class ReplayedNodes(Record, frozen=True, kw_only=True, eq=False):
    """Graph node ids of the kernels of one graph launch, by their start.

    ``graph``: its process and number. ``known``: the ids of all its launches in the trace, rising. ``turn``: its place
    among the ``peers`` graphs of the trace with as many nodes, by their numbers. ``wrong``: what the trace itself has
    against the ids.
    """

    graph: tuple[object, int]
    ids: Ints
    known: Ints
    turn: int
    peers: int
    wrong: str = ""

    def places(self, graph: _Captured) -> Ints | None:
        """Which of a captured graph's nodes each kernel is; None where these cannot be its nodes.

        Where the capture has ids, the node of the same one; the instantiated graph has another number than the captured
        one, and its nodes have theirs. Else nodes are numbered as they were made, and some have no work for a device.
        """
        if graph.ids:
            exact = min(graph.ids) > _NODE and np.isin(self.ids, graph.ids).all()
            captured = graph.ids if exact else tuple(node & _NODE for node in graph.ids)
            if not exact and set((self.known & _NODE).tolist()) != set(captured):
                return None
            place = {node: k for k, node in enumerate(captured)}
            return np.array([place[node] for node in (self.ids if exact else self.ids & _NODE).tolist()], np.int64)
        if len(self.known) != len(graph.nodes):
            return None
        if len(self.ids) < len(self.known) and None in graph.kernels:
            return None  # whose nodes are lost cannot be told from another graph's
        return np.searchsorted(self.known, self.ids).astype(np.int64)


def replayed_nodes(trace: Trace, launches: list[int]) -> dict[int, ReplayedNodes]:
    """By graph launch the nodes of its kernels, where all have one recorded."""
    table, tree = trace.table, trace.tree
    found: dict[int, Ints] = {}
    of_graph: defaultdict[tuple[object, int], list[int]] = defaultdict(list)
    for launch in launches:
        ids = _recorded_ids(table, tree.launched_by(launch))
        if len(ids):
            found[launch] = ids
            # Without a graph's number each launch stands for itself
            graph = int(ids[0]) >> GRAPH_BITS
            of_graph[table.pid_of(launch), graph if graph > 0 else -1 - launch].append(launch)
    known = {key: np.unique(np.concatenate([found[launch] for launch in mine])) for key, mine in of_graph.items()}
    result: dict[int, ReplayedNodes] = {}
    for key, mine in of_graph.items():
        alike = sorted(graph for pid, graph in known if pid == key[0] and len(known[pid, graph]) == len(known[key]))
        clash = "" if _is_one_graph(trace, {launch: found[launch] for launch in mine}) else _CLASH.format(key[1])
        for launch in mine:
            ids = found[launch]
            wrong = "two kernels of one launch have the same id" if len(np.unique(ids)) < len(ids) else clash
            result[launch] = ReplayedNodes(
                graph=key, ids=ids, known=known[key], turn=alike.index(key[1]), peers=len(alike), wrong=wrong
            )
    return result


def _recorded_ids(table: TraceTable, rows: RowColumn) -> Ints:
    """Nodes of the kernels of a launch; empty where one has none."""
    ids = table.graph_node[rows].astype(np.int64)
    if len(ids) > 1 and (ids < 0).sum() == 1 and ids.max() <= _NODE:
        ids = np.maximum(ids, 0)  # node 0 of graph 0 reads like none
    return ids if (ids >= 0).all() else ids[:0]


def _is_one_graph(trace: Trace, nodes: Mapping[int, Ints]) -> bool:
    """Whether each node runs the same kernel in all of these launches; grids and blocks are compared of a few."""
    table, tree = trace.table, trace.tree
    ids = np.concatenate(list(nodes.values()))
    names = np.concatenate([table.name[tree.launched_by(launch)] for launch in nodes])
    if np.unique(np.stack((ids, names)), axis=1).shape[1] > len(np.unique(ids)):
        return False
    shapes: dict[int, tuple[str, str]] = {}
    for launch, mine in nodes.items():
        rows, order = tree.launched_by(launch), np.argsort(mine)
        for k in order[np.linspace(0, len(mine) - 1, _COMPARED).astype(int)].tolist() if len(nodes) > 1 else []:
            args = table.args(int(rows[k]))
            shape = (str(args.get("grid")), str(args.get("block")))
            if shapes.setdefault(int(mine[k]), shape) != shape:
                return False
    return True


def _short(name: str) -> str:
    """A name's begin and end."""
    return name if len(name) <= _SHORT else f"{name[: _SHORT // 2]}...{name[3 - _SHORT // 2 :]}"


def graph_launches(table: TraceTable) -> Ints:
    """Rows of ``cudaGraphLaunch``, ``hipGraphLaunch`` and their driver forms."""
    named = np.array(["GraphLaunch" in name for name in table.names] or [False], bool)
    return np.flatnonzero(named[table.name] & table.is_of(LAUNCHING))


def _capture_role(name: str) -> str:
    """What a runtime call does for a capture: ``begin``, ``end``, ``wait``, a node of ``_NODE_KIND`` or nothing."""
    if "StreamBeginCapture" in name:
        return "begin"
    if "StreamEndCapture" in name:
        return "end"
    if "StreamWaitEvent" in name:
        return "wait"
    if "Graph" not in name and ("Memcpy" in name or "Memset" in name):
        return "copy" if "Memcpy" in name else "fill"
    return "launch" if "LaunchKernel" in name or "LaunchCooperative" in name else ""


def _aligned(names: tuple[str, ...], graph: _Captured) -> dict[int, int]:
    """Position of a kernel -> launch row of the graph.

    The same kernels in another order (streams side by side) pair up by how often their name occurred before; else the
    two sequences are aligned: what they begin and end with, and the longest common runs between.
    """
    if graph.names == names:
        return dict(enumerate(graph.launches))
    if Counter(graph.names) == Counter(names):
        captured = dict(zip(_numbered(graph.names), graph.launches, strict=True))
        return {position: captured[key] for position, key in enumerate(_numbered(names))}
    begin = _common_length(names, graph.names)
    end = _common_length(names[begin:][::-1], graph.names[begin:][::-1])
    middle, middle_of_graph = names[begin : len(names) - end], graph.names[begin : len(graph.names) - end]
    blocks = SequenceMatcher(None, middle, middle_of_graph, autojunk=False).get_matching_blocks()
    pairs = [(begin + block.a + k, begin + block.b + k) for block in blocks for k in range(block.size)]
    pairs += [(k, k) for k in range(begin)] + [(len(names) - k, len(graph.names) - k) for k in range(1, end + 1)]
    return {position: graph.launches[k] for position, k in pairs}


def _common_length(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """How many of the first names are the same."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((k for k, (a, b) in pairs if a != b), min(len(one), len(other)))


def _is_nearly(names: tuple[str, ...], graph: _Captured) -> bool:
    wanted = SAME_GRAPH * len(names)
    shared = sum((Counter(graph.names) & Counter(names)).values())
    return shared >= wanted and len(_aligned(names, graph)) >= wanted


def _numbered(names: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    seen: Counter[str] = Counter()
    for name in names:
        yield name, seen[name]
        seen[name] += 1


def _of_batch(candidates: list[_Captured], requests: CapturedRequests) -> list[_Captured]:
    """Those of the batch size that this step ran padded to: the recorded one, else the least that holds it."""
    if requests.padded is None and requests.requests is None:
        return candidates
    sizes = {graph.batch for graph in candidates if graph.batch is not None}
    if not sizes:
        return candidates
    if requests.padded is not None:
        wanted = requests.padded
    else:
        wanted = min((size for size in sizes if size >= (requests.requests or 0)), default=-1)
    return [graph for graph in candidates if graph.batch == wanted]


def _launch_shapes(table: TraceTable, rows: list[int]) -> tuple[object, ...] | None:
    """Grid and block of every launch or kernel; None unless all have them."""
    found: list[object] = []
    for row in rows:
        args = table.args(row)
        if "grid" not in args or "block" not in args:
            return None
        found.append((str(args["grid"]), str(args["block"])))
    return tuple(found)


def _occurrences(values: Ints, wanted: Ints) -> Iterator[int]:
    """Where the run ``wanted`` begins in ``values``."""
    text, piece = np.ascontiguousarray(values).tobytes(), wanted.tobytes()
    at = text.find(piece)
    while at >= 0:
        if at % values.itemsize == 0:
            yield at // values.itemsize
        at = text.find(piece, at + 1)


def annotated_steps(table: TraceTable, catalog: Catalog) -> list[tuple[int, int, object, InferenceStep]]:
    """(start, end, process, what it says) of every annotation of an inference step, the innermost last."""
    windows = [
        (start := int(table.start_ns[row]), start + int(table.duration_ns[row]), table.pid_of(row), step)
        for row, step in annotations_of_steps(table, catalog)
    ]
    return sorted(windows, key=lambda window: (window[0], -window[1]))


def requests_at(table: TraceTable, steps: list[tuple[int, int, object, InferenceStep]], row: int) -> CapturedRequests:
    at, process = int(table.start_ns[row]), table.pid_of(row)
    for start, end, pid, step in reversed(steps):
        if start <= at < end and pid == process:
            tokens = (step.context_tokens, step.generation_tokens)
            both = (step.context_requests, step.generation_requests) if None in tokens else tokens
            requests = None if all(n is None for n in both) else sum(n or 0 for n in both)
            return CapturedRequests(requests=requests, padded=step.padded_requests)
    return CapturedRequests()


class GraphLinks(Record, frozen=True, kw_only=True):
    """What became of the kernels that graph launches replayed. Times in ns; ``reasons``: (why, kernels), most first.

    ``by_node``: how many of ``linked_kernels`` by their graph node id, not by their sequence. ``wrong_ids``: (why ids
    were not believed, graph launches).
    """

    capture: str
    launches: int
    linked_launches: int
    kernels: int
    linked_kernels: int
    kernel_ns: int
    linked_ns: int
    reasons: tuple[tuple[str, int], ...] = ()
    by_node: int = 0
    wrong_ids: tuple[tuple[str, int], ...] = ()


def with_captured_ops(trace: Trace, capture: Trace, catalog: Catalog) -> tuple[Trace, GraphLinks]:
    """``trace`` with the ops of ``capture`` under its graph launches, and how many kernels they were found for.

    The ops are rows of a new table, in the time of the graph launch, which a nanosecond per kernel of it stands for:
    how long an op of a graph kept the host busy is not in either trace. A kernel without a captured op stays with the
    graph launch. A trace may be its own capture: there graph node ids alone lead from one to the other.
    """
    graphs = CapturedGraphs(capture, catalog)
    table = trace.table
    replays = list(_replays(trace, graphs, catalog))
    opened = [replay for replay in replays if replay.match.pairs]
    graphs.name_kernels(table, opened, catalog)
    blocks = [graphs.block_of(table, replay) for replay in opened]
    wrong = Counter(replay.match.wrong for replay in replays if replay.match.wrong)
    links = GraphLinks(
        capture="the capture in this trace" if capture is trace else capture.table.source,
        launches=len(replays),
        linked_launches=len(opened),
        kernels=sum(len(replay.rows) for replay in replays),
        linked_kernels=sum(len(replay.match.pairs) for replay in opened),
        kernel_ns=sum(int(table.duration_ns[replay.rows].sum()) for replay in replays),
        linked_ns=sum(int(table.duration_ns[linked].sum()) for *_, linked in blocks),
        reasons=_reasons(replays),
        by_node=sum(len(replay.match.pairs) for replay in opened if replay.match.by_node),
        wrong_ids=tuple(wrong.most_common()),
    )
    return (_opened(trace, graphs.capture.table, blocks) if blocks else trace), links


def with_own_graphs(trace: Trace, catalog: Catalog) -> tuple[Trace, GraphLinks | None]:
    """The same with ``trace`` as its own capture; None where it holds none whose graph node ids lead to a launch."""
    table, tree = trace.table, trace.tree
    first = -1
    if any("StreamBeginCapture" in name for name in table.names):
        first = next((int(rows[0]) for call in graph_launches(table) if len(rows := tree.launched_by(call))), -1)
    if first < 0 or table.graph_node[first] < 0:
        return trace, None
    opened, links = with_captured_ops(trace, trace, catalog)
    return (opened, links) if links.linked_kernels else (trace, None)


def _reasons(replays: list[_Replay]) -> tuple[tuple[str, int], ...]:
    """(why, kernels) without an op, most first."""
    reasons: Counter[str] = Counter()
    for replay in replays:
        reasons[replay.match.reason] += len(replay.rows) - len(replay.match.pairs)
    return tuple((reason, kernels) for reason, kernels in reasons.most_common() if kernels)


def _replays(trace: Trace, graphs: CapturedGraphs, catalog: Catalog) -> Iterator[_Replay]:
    """Every graph launch with kernels."""
    table, tree = trace.table, trace.tree
    launches = [launch for launch in graph_launches(table).tolist() if len(tree.launched_by(launch))]
    nodes, steps = replayed_nodes(trace, launches), annotated_steps(table, catalog)
    found: dict[tuple[bytes, object, bytes, CapturedRequests], _Match] = {}
    for launch in launches:
        rows, mine = tree.launched_by(launch), nodes.get(launch)
        requests = requests_at(table, steps, launch)
        of_nodes = (None, b"") if mine is None else (mine.graph, mine.ids.tobytes())
        key = (table.name[rows].tobytes(), *of_nodes, requests)
        if key not in found or found[key].by_shapes:
            found[key] = graphs.match(table, rows, requests, mine)
        match = found[key]
        start, room = _free_span(trace, launch)
        if match.pairs and room <= len(match.pairs):
            match = _Match(reason="the launch is shorter than a nanosecond per kernel", wrong=match.wrong)
        yield _Replay(launch=launch, start=start, rows=rows, match=match)


def _free_span(trace: Trace, launch: int) -> tuple[int, int]:
    """(start, length) of the longest time within a launch in which it made no other recorded call."""
    table = trace.table
    start, end = int(table.start_ns[launch]), int(table.start_ns[launch] + table.duration_ns[launch])
    best, free_from = (start, 0), start
    for child in trace.tree.children(launch).tolist():
        best = max(best, (free_from, int(table.start_ns[child]) - free_from), key=lambda span: span[1])
        free_from = int(table.start_ns[child] + table.duration_ns[child])
    return max(best, (free_from, end - free_from), key=lambda span: span[1])


def _opened(trace: Trace, capture: TraceTable, blocks: list[tuple[Template, int, int, RowColumn]]) -> Trace:
    """``trace`` with these (rows of ``capture``, where they start, lane, kernels that they launched)."""
    table = trace.table
    correlation = table.correlation.copy()
    free = int(correlation.max(initial=0)) + 1
    parts: list[tuple[npt.NDArray[np.int64], ...]] = []
    for template, begin, thread, kernels in blocks:
        n = len(kernels)
        correlation[kernels] = np.arange(free, free + n)
        number = {row: k for k, row in enumerate(template.launches)}
        own = np.array([free + number[row] if row in number else -1 for row in template.rows.tolist()], np.int64)
        free += n
        lane = np.full(len(own), thread, np.int64)
        span = template.last - template.first + 1
        parts.append((template.rows, begin + template.first, span, lane, own))
    rows, start, duration, lane, own = (np.concatenate(column) for column in zip(*parts, strict=True))
    codes, name = np.unique(capture.name[rows], return_inverse=True)
    calls = np.stack((capture.name[rows].astype(np.int64), capture.signature[rows].astype(np.int64)))
    distinct, signature = np.unique(calls, axis=1, return_inverse=True)
    added = AddedRows(
        kind=np.where(own >= 0, Kind.RUNTIME, capture.kind[rows]).astype(np.uint8),
        name=name.reshape(-1).astype(np.int64),
        lane=lane,
        start_ns=start,
        duration_ns=duration,
        correlation=own,
        signature=np.where(capture.signature[rows] >= 0, signature.reshape(-1), -1),
        names=[capture.names[code] for code in codes.tolist()],
        signatures=[capture.op_signature(n, s) for n, s in distinct.T.tolist()],
        timed=False,
    )
    return Trace.of(with_rows(table, added, correlation))
