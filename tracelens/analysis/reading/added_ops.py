"""Ops that a recording lacks: inner ops of composite ones, ops and shapes from another recording of the same program,
and the ops of captured graphs under the launches that replay them.

A replay records one launch and its kernels, no ops; the trace of the capture records the ops. On AMD devices a capture
records every launch with its kernel's name though nothing runs; elsewhere the run before the capture has ops and
kernels. The same graph is recognized by its sequence of kernel names. Graphs with the same sequence are told apart by
the batch size in their annotations, then by the grids and blocks of their kernels; where neither does, nothing is
linked.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

import numpy as np
import numpy.typing as npt

from tracelens.analysis.intervals import Ints
from tracelens.analysis.loaded_trace import Trace
from tracelens.analysis.reading.catalog import Catalog
from tracelens.analysis.reading.engine_steps import annotations_of_steps
from tracelens.perf_models.inference_attention import InferenceStep
from tracelens.perf_models.surroundings import InnerOp, OpCall
from tracelens.trace.table import AddedRows, Kind, RowColumn, TraceTable, with_rows
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
        ops, closes = _rows_named(table, (name,)), _rows_named(table, backwards)
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


def with_inner_ops(trace: Trace, catalog: Catalog, made_from: int | None = None) -> tuple[Trace, Counter[str]]:
    """``trace`` with the inner ops of its calls as rows round their launches; reason -> calls that were left whole.

    ``made_from``: the first row that an extension made; what it put round a launch stays alone there.
    """
    table, tree = trace.table, trace.tree
    calls = _rows_named(table, tuple(catalog.inner_ops))
    left: Counter[str] = Counter()
    if not len(calls):
        return trace, left
    forward = forward_rows(trace, catalog)
    found: dict[OpCall, tuple[InnerOp, ...] | str] = {}
    launches: list[int] = []
    signatures: list[OpSignature] = []
    for row in calls.tolist():
        launched = _launches_below(trace, row)
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


def _rows_named(table: TraceTable, names: tuple[str, ...]) -> Ints:
    wanted = np.array([name in names for name in table.names], bool) if names else np.zeros(0, bool)
    if not wanted.any():
        return np.zeros(0, np.int64)
    rows: Ints = np.flatnonzero(wanted[table.name] & (table.kind == Kind.CPU_OP))
    return rows


def _launches_below(trace: Trace, row: int) -> list[tuple[int, str]]:
    """(launch row, kernel name) below an op, in order of launch; in a graph's capture what the launches say."""
    table, tree = trace.table, trace.tree
    kernels = tree.kernels_below(row).tolist()
    if kernels:
        return [(int(tree.launch[kernel]), table.name_of(kernel)) for kernel in kernels]
    below = tree.subtree(row)
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
    found: npt.NDArray[np.bool_] = (table.kind[ops] == Kind.CPU_OP) & np.array(known, np.bool_)[place]
    return found


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
    start = table.start_ns[launches[first]]
    ops, place = np.unique(calls[first], return_inverse=True)
    signatures = [known.table.signature_of(row) for row in ops.tolist()]
    return AddedRows(
        kind=np.full(len(first), Kind.CPU_OP, np.uint8),
        name=place.astype(np.int64),
        lane=lane[first],
        start_ns=start,
        duration_ns=table.ends_ns(launches[last]) - start,
        correlation=np.full(len(first), -1, np.int64),
        signature=place.astype(np.int64),
        names=[known.table.name_of(row) for row in ops.tolist()],
        signatures=signatures,
        timed=False,
    )


#: The least share of a graph's kernels that must align with a captured graph whose sequence differs in places.
SAME_GRAPH = 0.9
LAUNCHING = (Kind.RUNTIME, Kind.DRIVER)


class _Captured(Record, frozen=True, kw_only=True, eq=False):
    """One capture, or one run of the same kernels before it: launches in order, each with its kernel's name."""

    names: tuple[str, ...]
    launches: tuple[int, ...]
    batch: int | None


class CapturedRequests(Record, frozen=True, kw_only=True):
    """What the annotation around a launch says: requests of the step, and the batch that it was padded to."""

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

    def match(
        self, table: TraceTable, rows: RowColumn, names: tuple[str, ...], requests: CapturedRequests
    ) -> tuple[dict[int, int], str]:
        """(position of a kernel -> launch row of the capture, why there are fewer of them than kernels)."""
        candidates = self._alike(names)
        if not candidates:
            return {}, f"no graph of {self.capture.table.source} has this sequence of kernels"
        candidates = _of_batch(candidates, requests)
        if not candidates:
            return {}, "captured for other batch sizes only"
        if len({self._calls(graph) for graph in candidates}) > 1:
            shapes = _launch_shapes(table, rows.tolist())
            candidates = [graph for graph in candidates if shapes and self._launch_shapes(graph) == shapes]
            if len({self._calls(graph) for graph in candidates}) != 1:
                return {}, "several captured graphs have this sequence of kernels"
        return _aligned(names, candidates[-1]), "not in the captured graph"

    def _alike(self, names: tuple[str, ...]) -> list[_Captured]:
        """Graphs of these kernels: in this order, else in any, else runs before the capture, else nearly the same."""
        return (
            [graph for graph in self.graphs if graph.names == names]
            or [graph for graph in self.graphs if Counter(graph.names) == Counter(names)]
            or list(self._runs_of(names))
            or [graph for graph in self.graphs if _is_nearly(names, graph)]
        )

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
        """What was launched between the begin and the end of a stream's capture, where the launches name kernels."""
        table, tree = self.capture.table, self.capture.tree
        named = np.array([_capture_role(name) for name in table.names] or [""], object)
        calls = np.flatnonzero(table.is_of(LAUNCHING) & (named[table.name] != ""))
        calls = calls[np.lexsort((table.start_ns[calls], table.lane[calls]))]
        names: list[str] | None = None
        launches: list[int] = []
        for row in calls.tolist():
            role = named[table.name[row]]
            if role == "begin":
                names, launches, begun = [], [], row
            elif role == "end" and names is not None:
                yield _Captured(names=tuple(names), launches=tuple(launches), batch=self._batch(begun))
                names = None
            elif role == "launch" and names is not None and not len(tree.launched_by(row)):
                kernel = table.args(row).get("kernel")
                if isinstance(kernel, str):
                    names.append(kernel)
                    launches.append(row)

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
        requests = requests_at(self.capture.table, self.steps, row)
        return requests.padded if requests.padded is not None else requests.requests

    def _calls(self, graph: _Captured) -> tuple[tuple[int, int], ...]:
        """What tells the ops of two graphs apart: name and arguments of every launching op."""
        table, tree = self.capture.table, self.capture.tree
        above = [int(tree.op_parent[row]) for row in graph.launches]
        return tuple((int(table.name[row]), int(table.signature[row])) if row >= 0 else (-1, -1) for row in above)

    def _launch_shapes(self, graph: _Captured) -> tuple[object, ...] | None:
        """Grids and blocks of the launches, or of the kernels that ran."""
        found = [self.capture.tree.launched_by(row) for row in graph.launches]
        rows = [int(ran[0]) if len(ran) else row for ran, row in zip(found, graph.launches, strict=True)]
        return _launch_shapes(self.capture.table, rows)


def graph_launches(table: TraceTable) -> Ints:
    """Rows of ``cudaGraphLaunch``, ``hipGraphLaunch`` and their driver forms."""
    named = np.array(["GraphLaunch" in name for name in table.names] or [False], bool)
    rows: Ints = np.flatnonzero(named[table.name] & table.is_of(LAUNCHING))
    return rows


def _capture_role(name: str) -> str:
    """What a runtime call does for a capture: ``begin``, ``end``, ``launch`` or nothing."""
    if "StreamBeginCapture" in name:
        return "begin"
    if "StreamEndCapture" in name:
        return "end"
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
            both = (step.context_requests, step.generation_requests)
            requests = None if all(n is None for n in both) else sum(n or 0 for n in both)
            return CapturedRequests(requests=requests, padded=step.padded_requests)
    return CapturedRequests()


class GraphLinks(Record, frozen=True, kw_only=True):
    """What became of the kernels that graph launches replayed. Times in ns; ``reasons``: (why, kernels), most first."""

    capture: str
    launches: int
    linked_launches: int
    kernels: int
    linked_kernels: int
    kernel_ns: int
    linked_ns: int
    reasons: tuple[tuple[str, int], ...] = ()


def with_captured_ops(trace: Trace, capture: Trace, catalog: Catalog) -> tuple[Trace, GraphLinks]:
    """``trace`` with the ops of ``capture`` under its graph launches, and how many kernels they were found for.

    The ops are rows of a new table, in the time of the graph launch, which a nanosecond per kernel of it stands for:
    how long an op of a graph kept the host busy is not in either trace. A kernel without a captured op stays with the
    graph launch.
    """
    graphs = CapturedGraphs(capture, catalog)
    blocks: list[tuple[Template, int, int, RowColumn]] = []
    table, tree = trace.table, trace.tree
    reasons: Counter[str] = Counter()
    found: dict[tuple[tuple[str, ...], CapturedRequests], tuple[dict[int, int], str]] = {}
    launches = kernels = kernel_ns = 0
    steps = annotated_steps(table, catalog)
    for launch in graph_launches(table).tolist():
        rows = tree.launched_by(launch)
        if not len(rows):
            continue
        names = tuple(table.names[code] for code in table.name[rows].tolist())
        requests = requests_at(table, steps, launch)
        launches, kernels = launches + 1, kernels + len(rows)
        kernel_ns += int(table.duration_ns[rows].sum())
        if (names, requests) not in found:
            found[names, requests] = graphs.match(table, rows, names, requests)
        pairs, reason = found[names, requests]
        start, room = _free_span(trace, launch)
        if pairs and room <= len(pairs):
            pairs, reason = {}, "the launch is shorter than a nanosecond per kernel"
        if len(pairs) < len(rows):
            reasons[reason] += len(rows) - len(pairs)
        if pairs:
            block = graphs.block(frozenset(pairs.values()))
            order = {captured: k for k, captured in enumerate(block.launches)}
            at = sorted(pairs, key=lambda k: order[pairs[k]])
            blocks.append((block, start, int(table.lane[launch]), rows[at]))
    links = GraphLinks(
        capture=capture.table.source,
        launches=launches,
        linked_launches=len(blocks),
        kernels=kernels,
        linked_kernels=sum(len(linked) for *_, linked in blocks),
        kernel_ns=kernel_ns,
        linked_ns=sum(int(table.duration_ns[linked].sum()) for *_, linked in blocks),
        reasons=tuple(reasons.most_common()),
    )
    return (_opened(trace, capture.table, blocks) if blocks else trace), links


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
