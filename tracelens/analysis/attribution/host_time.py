"""Host calls, nested and blocking, and what a host thread did in a span: every nanosecond has one answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tracelens.analysis.grouping import by_number
from tracelens.analysis.intervals import Bools, Covered, Ints
from tracelens.trace.table import DEVICE_KINDS, HOST_KINDS, Kind, Recorder, RowColumn, TraceTable
from tracelens.trace.tree import OpTree
from tracelens.types.records import Record

# Calls that by their documentation return when work on the device is done: CUDA and HIP runtime and driver, Level Zero.
_BLOCKING = re.compile(
    r"Synchronize(?:_v\d+|_ptsz)?$|^(?:cuda|hip|cu)Memcpy(?:2D|3D|Peer|DtoH|HtoD|DtoD|DtoA|AtoD|ToSymbol|FromSymbol"
    r"|WithStream)?(?:_v\d+|_ptds)?$|^urQueueFinish$"
)
# Calls of which each puts work on the device. A graph launch puts many, and a copy within the host none.
_LAUNCHES = re.compile(r"^(?:cuda|hip|cu)(?:Ext)?(?:Module)?Launch(?:Cooperative)?Kernel")
_DEVICE_SYNC = re.compile(r"^(?:cuda|hip)DeviceSynchronize")
_CAPTURES = re.compile(r"StreamBeginCapture")
#: So many rows are looked up in the time of one search in a name.
_ROWS_PER_SEARCH = 200


class HostCalls(Record, frozen=True, kw_only=True, eq=False):
    """Recorded ops, runtime and driver calls.

    ``calls``: their union in each process, over all its threads, by code of the process (``process[lane]``).
    ``blocking`` says of each table row whether it is a call that waits for the device, as do copies that return when
    the copy is done; ``outermost`` are the rows of calls that lie in no other. ``stop``: the row of the profiler's own
    synchronization as it stops, if there is one.
    """

    process: npt.NDArray[np.int32]
    calls: Covered
    blocking: Bools
    outermost: RowColumn
    stop: RowColumn


def blocking_calls(table: TraceTable) -> Bools:
    """Which rows are calls that wait for the device."""
    return named(table, _BLOCKING, (table.kind == Kind.RUNTIME) | (table.kind == Kind.DRIVER))


def waiting_calls(table: TraceTable, tree: OpTree) -> Bools:
    """Which rows are calls that wait for the device, by their name or because they outlast the copy that they start."""
    waits = blocking_calls(table)
    # Copy calls that were still running when their copy was done: copies to and from pageable memory wait for it.
    copies = np.flatnonzero(table.kind == Kind.MEMCPY)
    copies = copies[tree.launch[copies] >= 0]
    call = tree.launch[copies]
    ended = table.ends_ns(copies)
    is_launch = (table.kind[call] == Kind.RUNTIME) | (table.kind[call] == Kind.DRIVER)
    waited: RowColumn = call[is_launch & (ended <= table.ends_ns(call)) & (ended > table.start_ns[call])]
    waits[waited] = True
    return waits


def kernel_launches(table: TraceTable, tree: OpTree) -> tuple[RowColumn, Bools]:
    """(rows of launches of one kernel each, whether it was recorded); nested calls count once, none in captures."""
    is_call: Bools = ((table.kind == Kind.RUNTIME) | (table.kind == Kind.DRIVER)) & (table.correlation > 0)
    found = named(table, _LAUNCHES, is_call)
    if named(table, _CAPTURES, is_call).any():
        found[:] = False
    rows = np.flatnonzero(found)
    above = tree.parent[rows]
    single: RowColumn = rows[(above < 0) | ~found[above]].astype(np.int32)
    return single, np.isin(table.correlation[single], table.correlation[table.is_of(DEVICE_KINDS)])


def host_calls(table: TraceTable, tree: OpTree) -> HostCalls:
    """The host's side of a trace. Names are looked at once each."""
    codes = {pid: code for code, pid in enumerate(dict.fromkeys(pid for pid, _ in table.lanes))}
    process = np.array([codes[pid] for pid, _ in table.lanes], np.int32)
    kind = table.kind
    is_launch = (kind == Kind.RUNTIME) | (kind == Kind.DRIVER)
    blocking = waiting_calls(table, tree)
    outermost = ((kind == Kind.CPU_OP) | is_launch) & (tree.op_parent < 0)

    def covered(rows: Bools) -> Covered:
        at = np.flatnonzero(rows).astype(np.int32)
        return Covered(process[table.lane[at]], table.start_ns[at], table.ends_ns(at))

    return HostCalls(
        process=process,
        calls=covered(outermost),
        blocking=blocking,
        outermost=np.flatnonzero(outermost).astype(np.int32),
        stop=_profiler_stop(table, tree, blocking),
    )


def _profiler_stop(table: TraceTable, tree: OpTree, blocking: Bools) -> RowColumn:
    """The profiler's own synchronization as it stops: the last blocking call, with no launch after it."""
    waits, launches = np.flatnonzero(blocking).astype(np.int32), tree.launch[tree.launch >= 0]
    if not len(waits) or not len(launches) or table.recorder.file != Recorder().file:
        return waits[:0]
    last = waits[table.start_ns[waits].argmax()]
    is_stop = _DEVICE_SYNC.search(table.name_of(int(last))) is not None
    return np.full(int(is_stop and table.start_ns[last] > table.start_ns[launches].max()), last, np.int32)


def named(table: TraceTable, pattern: re.Pattern[str], among: Bools) -> Bools:
    """The rows of ``among`` whose name the pattern finds."""
    looked_at: Sequence[int] = range(len(table.names))
    if len(table) <= _ROWS_PER_SEARCH * len(table.names):
        # Fewer searches: of the names that occur, which take longer to find in a long table
        occurs = np.zeros(len(table.names), bool)
        occurs[table.name[among]] = True
        looked_at = np.flatnonzero(occurs).tolist()
    codes = [code for code in looked_at if pattern.search(table.names[code])]
    return table.is_named(codes) & among if codes else np.zeros(len(table), bool)


FIRST_LOAD = "first-time loading"
PROFILER = "profiler overhead"
ALLOCATOR = "allocator"
GARBAGE = "Python garbage collection"
COMPILATION = "compilation"
SYNCHRONIZATION = "blocking copy or synchronization"
DATA_LOADING = "data loading"
COMMUNICATION = "communication on the host"
REQUESTS = "waiting for requests or the scheduler"
CAPTURE = "graph capture"
LAUNCH_BOUND = "launch-bound"
HOST_WORK = "Python or other host work"
#: What a host thread can be at. Of events that lie in one another the first of these counts.
HOST_CAUSES = (
    FIRST_LOAD, PROFILER, ALLOCATOR, GARBAGE, COMPILATION, SYNCHRONIZATION, DATA_LOADING, COMMUNICATION, REQUESTS,
    CAPTURE, LAUNCH_BOUND, HOST_WORK,
)  # fmt: skip

#: A launch takes about 5 us and the dispatch of an op about 10 (profiler on: a few times that). What takes a hundred
#: times as long without a call in it, or is ten times as long as most of its name, is something else.
_LONG_NS, _TIMES_ITS_KIND = 1_000_000, 10
# Times that are looked at in one go.
_BLOCK = 1 << 18
#: A cudaMalloc or cudaFree of some GB takes milliseconds; one that creates the context, a second.
_LONG_ALLOCATION_NS = 100_000_000
#: Calls of a name from which their median says what is usual.
_ENOUGH_CALLS = 5

_LOADS = re.compile(
    r"^(?:cu|hip)Module(?:Load|Get)|^(?:cu|cuda)Library(?:Load|Get)|FatBinary|^cuLink"
    r"|^(?:cuInit|hipInit|(?:cu|hip)CtxCreate|(?:cu|hip)DevicePrimaryCtxRetain)"
)
# What is launched between these two goes into a graph, not to the device; then the graph is made ready to run.
_BEGINS_CAPTURE = re.compile(r"StreamBeginCapture")
_ENDS_CAPTURE = re.compile(r"StreamEndCapture")
_INSTANTIATES = re.compile(r"^(?:cuda|hip|cu)GraphInstantiate")
_GRAPH_LAUNCH = re.compile(r"Graph(?:Launch|Exec)")
# Calls that load a kernel when first asked for (CUDA lazy loading, HIP's code objects), and quick else.
_LOADS_AT_FIRST = re.compile(r"Launch(?!HostFunc)|Func(?:Get|Set)|Occupancy|Memset|FuncBySymbol|(?:Event|Stream)Create")
_ALLOCATES = re.compile(
    r"^(?:cuda|hip)(?:Ext)?(?:Malloc|Free|HostAlloc|HostMalloc|HostFree|Host(?:Unr|R)egister)"
    r"|^cuMem(?:Alloc|Free|HostAlloc|HostRegister|Create|Map|Unmap|SetAccess|Address|Release)|^hipMem(?:Create|Map|Unmap)"
)
_COPIES = re.compile(r"^(?:cuda|hip|cu)Memcpy")
_CONTEXT = re.compile(r"^(?:cuda|hip)(?:Malloc|Free)$")
# What CUPTI records of its own and of the driver's work (CUpti_ActivityOverheadKind).
_OVERHEAD_OF = {
    FIRST_LOAD: re.compile(r"Module Loading|Function Loading"),
    COMPILATION: re.compile(r"Driver Compiler"),
    PROFILER: re.compile(r"Buffer|Instrumentation|Resource"),
}
# "Python GC": PyTorch's own record; the frames of gc.collect().
_GARBAGE = re.compile(r"^Python GC|^gc\.collect|^<built-in (?:function|method) collect\b")
# Annotations of Dynamo and Inductor (dynamo_timed) and their Python frames; not what compiled code does when it runs.
_COMPILES = re.compile(
    r"(?:_compile\.)?compile_inner|entire_frame_compile|backend_compile|call_user_compiler|compile_fx(?:_inner|\.<locals>)"
    r"|inductor_compile|GraphLowering\.|CachingAutotuner\.(?:benchmark|precompile)|async_compile\.|pad_mm_benchmark"
    r"|^(?:torch\.compile|dynamo|inductor|triton)[ _.:]*(?:compil|autotun)"
    r"|torch/_dynamo/convert_frame\.py|torch/_inductor/(?:scheduler|graph|lowering|async_compile|select_algorithm)\.py"
    r"|triton/compiler/(?:code_generator|compiler)\.py\(\d+\): (?:compile|make_ir|ast_to_ttir)$|: _do_compile$",
    re.IGNORECASE,
)
# torch/utils/data/dataloader.py: "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"; what people call a
# range of their own; and of Python frames the loader's functions, not any file that has its name.
_LOADS_DATA = re.compile(r"data[ _]?(?:load|pipe)|(?:^|\.)__next__$", re.IGNORECASE)
_LOADS_DATA_FRAME = re.compile(
    r"torch/utils/data/[^:]*: (?:__next__|_next_data|fetch)$|: \w*data_?load\w*$", re.IGNORECASE
)
# Collectives that the host itself carries out or waits for; those of NCCL only launch.
_COMMUNICATES = re.compile(
    r"^(?:gloo|mpi|ucc):|^(?:_?c10d(?:_functional)?::(?:\w*barrier\w*|wait_tensor|monitored_barrier_|recv_any\w*))"
)
# Where vLLM's engine waits while it has no request, and its workers for what to run; what a thread calls to wait for a
# message or a socket.
_AWAITS_REQUESTS = re.compile(
    r"vllm/v1/engine/core\.py\(\d+\): _process_input_queue$"
    r"|vllm/distributed/device_communicators/shm_broadcast\.py\(\d+\): (?:dequeue|acquire_read)$"
    r"|zmq/sugar/(?:poll|socket)\.py\(\d+\): (?:poll|recv\w*)$|(?:^|/)selectors\.py\(\d+\): select$"
    r"|^<built-in (?:method (?:poll|select) of select\.|function select>)"
)
# What SGLang's event loop calls where it has nothing to run.
_HAS_NOTHING_TO_RUN = re.compile(
    r"sglang/srt/managers/\w+\.py\(\d+\): (?:on_idle|self_check_during_idle|maybe_sleep_on_idle)$"
)
# An op that copies a value to the host; what it does before and after belongs to that.
_READS_BACK = re.compile(r"^aten::(?:item|_local_scalar_dense|is_nonzero)$")


def telling_part(name: str) -> str:
    """The part of a range's name that says a cause of idle time; empty where it says none.

    >>> telling_part("acme.load_data_loader_3"), telling_part("acme step")
    ('data_load', '')
    """
    found = next((found for pattern in (_GARBAGE, _COMPILES, _LOADS_DATA) if (found := pattern.search(name))), None)
    return found[0] if found else ""


class _Layer(Record, frozen=True, eq=False):
    """Intervals of one cause, by the lane that they are of."""

    cause: str
    lane: npt.NDArray[np.integer]
    start: Ints
    end: Ints


class HostTime:
    """What the threads that launch device work did, by lane of the table."""

    def __init__(self, table: TraceTable, tree: OpTree, host: HostCalls) -> None:
        self._process = host.process
        self._lanes = np.zeros(len(table.lanes), np.bool_)
        launch = tree.launch[tree.launch >= 0]
        self._lanes[table.lane[launch]] = True
        # From each call that begins the capture of a graph to the call of its thread that ends it.
        is_call = (table.kind == Kind.RUNTIME) | (table.kind == Kind.DRIVER)
        begins = named(table, _BEGINS_CAPTURE, is_call)
        rows = np.flatnonzero(begins | named(table, _ENDS_CAPTURE, is_call))
        rows = rows[np.lexsort((table.start_ns[rows], table.lane[rows]))]
        first, last = rows[:-1], rows[1:]
        pairs = begins[first] & ~begins[last] & (table.lane[first] == table.lane[last])
        first, last = first[pairs], last[pairs]
        layers = [
            *_layers(table, host, self._lanes),
            *_overhead(table, self._lanes),
            _Layer(CAPTURE, table.lane[first], table.start_ns[first], table.ends_ns(last)),
            _Layer(PROFILER, table.lane[host.stop], table.start_ns[host.stop], table.ends_ns(host.stop)),
            _idle_rounds(table),
        ]
        layers.sort(key=lambda layer: HOST_CAUSES.index(layer.cause))
        layers = [layer for layer in (*layers, _long_stretches(table, tree, self._lanes)) if len(layer.start)]
        calls = host.outermost[self._lanes[table.lane[host.outermost]]]
        layers += [_Layer(LAUNCH_BOUND, table.lane[calls], table.start_ns[calls], table.ends_ns(calls))]
        self._causes = [HOST_CAUSES.index(layer.cause) for layer in layers]
        self._own = _stacked(layers, np.arange(len(table.lanes)))
        several = len(np.unique(self._process[self._lanes])) < self._lanes.sum()
        self._any = _stacked(layers, self._process) if several else None

    def shares(self, lane: Ints, start: Ints, end: Ints) -> Ints:
        """(spans, ``HOST_CAUSES``): how long (ns) the thread was at what in each span; a row adds up to its span.

        While the thread itself was in nothing recorded, what the other launching threads of its process were in
        counts: backward launches wait for the thread that runs forward. The rest is ``HOST_WORK``.
        """
        result = np.zeros((len(start), len(HOST_CAUSES)), np.int64)
        free = self._add(result, self._own, np.arange(len(start)), (lane, start, end))
        if self._any is not None and len(lane):
            at, first, last = _uncovered(self._own[-1], lane, start, end)
            free = self._add(result, self._any, at, (self._process[lane[at]].astype(np.int64), first, last))
        result[:, HOST_CAUSES.index(HOST_WORK)] += free
        return result

    def _add(self, result: Ints, unions: list[Covered], at: Ints, spans: tuple[Ints, Ints, Ints]) -> Ints:
        """Adds to rows ``at`` what each layer covers of the spans beyond earlier ones; returns what is left per row."""
        key, start, end = spans
        before = np.zeros(len(start), np.int64)
        for cause, union in zip(self._causes, unions, strict=True):
            within = union.within(key, start, end)
            np.add.at(result[:, cause], at, within - before)
            before = within
        free = np.zeros(len(result), np.int64)
        np.add.at(free, at, end - start - before)
        return free


def telling_calls(table: TraceTable, host: HostCalls) -> list[tuple[str, RowColumn]]:
    """(cause of idle time, rows) of calls that say it by their names alone; the profiler's own left out."""
    is_call = (table.kind == Kind.RUNTIME) | (table.kind == Kind.DRIVER)
    ranges = (table.kind == Kind.CPU_OP) | (table.kind == Kind.USER_ANNOTATION)
    waits = host.blocking & is_call
    waits[host.stop] = False
    found = {
        ALLOCATOR: named(table, _ALLOCATES, is_call),
        GARBAGE: named(table, _GARBAGE, ranges),
        COMPILATION: named(table, _COMPILES, ranges),
        SYNCHRONIZATION: waits,
        DATA_LOADING: named(table, _LOADS_DATA, ranges),
    }
    return [(cause, np.flatnonzero(mask).astype(np.int32)) for cause, mask in found.items()]


def _layers(table: TraceTable, host: HostCalls, lanes: Bools) -> list[_Layer]:
    """Recorded events by what their names and lengths say of them, the calls that only launch left out."""
    kind = table.kind
    is_call = (kind == Kind.RUNTIME) | (kind == Kind.DRIVER)
    long = is_call & (table.duration_ns >= _LONG_NS)
    allocates = named(table, _ALLOCATES, is_call)
    graph = named(table, _GRAPH_LAUNCH, is_call)

    def in_ranges(pattern: re.Pattern[str]) -> Bools:
        return named(table, pattern, (kind == Kind.CPU_OP) | (kind == Kind.USER_ANNOTATION))

    def in_frames(pattern: re.Pattern[str]) -> Bools:
        return named(table, pattern, kind == Kind.PYTHON_FUNCTION)

    def first() -> Bools:
        unusual = _beyond_its_kind(table, long, _LONG_NS)
        # The ``long`` calls whose name occurs often enough to say what is usual.
        count = np.bincount(
            table.name[(table.kind == Kind.RUNTIME) | (table.kind == Kind.DRIVER)], minlength=len(table.names)
        )
        rows = np.flatnonzero(long)
        found = np.zeros(len(long), bool)
        found[rows[count[table.name[rows]] >= _ENOUGH_CALLS]] = True
        at_first = named(table, _LOADS_AT_FIRST, long & unusual) & (~graph | found) & ~host.blocking
        context = named(table, _CONTEXT, allocates) & _beyond_its_kind(table, long, _LONG_ALLOCATION_NS)
        return at_first | context | named(table, _LOADS, is_call)

    def waits() -> Bools:
        return host.blocking | named(table, _COPIES, long) | named(table, _READS_BACK, kind == Kind.CPU_OP)

    # One mask of all rows at a time
    found: dict[str, Callable[[], Bools]] = {
        FIRST_LOAD: first,
        ALLOCATOR: lambda: allocates,
        GARBAGE: lambda: in_ranges(_GARBAGE) | in_frames(_GARBAGE),
        COMPILATION: lambda: in_ranges(_COMPILES) | in_frames(_COMPILES),
        SYNCHRONIZATION: waits,
        DATA_LOADING: lambda: in_ranges(_LOADS_DATA) | in_frames(_LOADS_DATA_FRAME),
        COMMUNICATION: lambda: in_ranges(_COMMUNICATES),
        REQUESTS: lambda: in_frames(_AWAITS_REQUESTS) | in_frames(_HAS_NOTHING_TO_RUN),
        CAPTURE: lambda: named(table, _INSTANTIATES, is_call),
        LAUNCH_BOUND: lambda: long & graph,
    }
    is_host = np.isin(np.arange(256), list(HOST_KINDS))
    layers = []
    for cause, mask in found.items():
        rows = np.flatnonzero(mask())
        rows = rows[lanes[table.lane[rows]] & is_host[kind[rows]]]
        layers.append(_Layer(cause, table.lane[rows], table.start_ns[rows], table.ends_ns(rows)))
    return layers


def _idle_rounds(table: TraceTable) -> _Layer:
    """From one call of an event loop that has nothing to run to its next, where its thread launched nothing between."""
    rows = np.flatnonzero(named(table, _HAS_NOTHING_TO_RUN, table.kind == Kind.PYTHON_FUNCTION))
    rows = rows[np.lexsort((table.start_ns[rows], table.lane[rows]))]
    first, last = rows[:-1], rows[1:]
    rounds = table.lane[first] == table.lane[last]
    calls = np.flatnonzero((table.kind == Kind.RUNTIME) | (table.kind == Kind.DRIVER))
    launches_of = {lane: calls[at] for lane, at in by_number(table.lane[calls])}
    for lane, at in by_number(table.lane[first]):
        launches = np.sort(table.start_ns[launches_of.get(lane, calls[:0])])
        before, upto = (np.searchsorted(launches, table.start_ns[each[at]]) for each in (first, last))
        rounds[at] &= before == upto
    first, last = first[rounds], last[rounds]
    return _Layer(REQUESTS, table.lane[first], table.start_ns[first], table.ends_ns(last))


def _beyond_its_kind(table: TraceTable, long: Bools, floor_ns: int) -> Bools:
    """Which of the ``long`` calls are longer than ``floor_ns`` and than most calls of their name by far."""
    found: Bools = long & (table.duration_ns >= floor_ns)
    is_call = (table.kind == Kind.RUNTIME) | (table.kind == Kind.DRIVER)
    for code in np.unique(table.name[found]).tolist():
        length = table.duration_ns[is_call & (table.name == code)]
        if len(length) >= _ENOUGH_CALLS:
            usual = _TIMES_ITS_KIND * int(np.median(length))
            found &= (table.name != code) | (table.duration_ns >= usual)
    return found


def _overhead(table: TraceTable, lanes: Bools) -> list[_Layer]:
    """Overhead that the profiler recorded: on a lane of its own, so it counts for each thread that launches."""
    overhead = table.kind == Kind.OVERHEAD
    threads = np.flatnonzero(lanes)
    layers = []
    for cause, pattern in _OVERHEAD_OF.items() if overhead.any() else ():
        at = np.flatnonzero(named(table, pattern, overhead))
        start, end = table.start_ns[at], table.ends_ns(at)
        repeated = (np.repeat(threads, len(at)), np.tile(start, len(threads)), np.tile(end, len(threads)))
        layers.append(_Layer(cause, *repeated))
    return layers


def _long_stretches(table: TraceTable, tree: OpTree, lanes: Bools) -> _Layer:
    """Stretches in which a thread began and ended no call for longer than any dispatch takes: host work in an op."""
    calls = table.is_of((Kind.CPU_OP, Kind.RUNTIME, Kind.DRIVER))
    if len(table):
        calls &= lanes[table.lane]
    rows = tree.order[calls[tree.order]]
    parts: list[tuple[Ints, Ints, Ints]] = [(np.zeros(0, np.int64),) * 3]
    for own in np.split(rows, np.flatnonzero(np.diff(table.lane[rows])) + 1) if len(rows) else ():
        for begin, end in _stretches(table, own):
            parts.append((np.full(len(begin), table.lane[own[0]]), begin, end))
    return _Layer(HOST_WORK, *(np.concatenate(part) for part in zip(*parts, strict=True)))


def _stretches(table: TraceTable, calls: RowColumn) -> Iterator[tuple[Ints, Ints]]:
    """(begins, ends) of what is long between the times at which calls of one thread begin and end.

    Block by block of the calls, as there are twice as many times: an end behind the block is looked at with a later.
    """
    blocks = range(0, len(calls), _BLOCK)
    if any((np.diff(table.start_ns[calls[low : low + _BLOCK + 1]]) < 0).any() for low in blocks):
        calls = calls[np.argsort(table.start_ns[calls], kind="stable")]
    before = later = np.zeros(0, np.int64)
    for low in blocks:
        block, following = calls[low : low + _BLOCK], calls[low + _BLOCK : low + _BLOCK + 1]
        ends = np.concatenate((later, table.ends_ns(block)))
        is_later = ends >= table.start_ns[following] if len(following) else np.zeros(len(ends), bool)
        later = ends[is_later]
        times = np.concatenate((before, table.start_ns[block], ends[~is_later]))
        times.sort()
        before = times[-1:]
        at = np.flatnonzero(np.diff(times) >= _LONG_NS)
        yield times[at], times[at + 1]


def _stacked(layers: list[_Layer], key: npt.NDArray[np.integer]) -> list[Covered]:
    """The union of each layer with all before it, by ``key[lane]``."""
    return [
        Covered(*(np.concatenate(part) for part in zip(*upto, strict=True)))
        for number in range(len(layers))
        for upto in [[(key[layer.lane], layer.start, layer.end) for layer in layers[: number + 1]]]
    ]


def _uncovered(union: Covered, lane: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """(which span, start, end) of each part of the spans that their lane's union leaves free."""
    parts: list[tuple[Ints, Ints, Ints]] = []
    for one, at in by_number(lane):
        opens, closes = union.spans(one)
        # What is free lies before the first part, between two, and after the last
        first = np.searchsorted(closes, start[at], side="right")
        count = np.searchsorted(opens, end[at], side="left") - first + 1
        span = np.repeat(at, count)
        number = np.arange(len(span)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
        begins = np.maximum(np.append(np.iinfo(np.int64).min, closes)[number], start[span])
        ends = np.minimum(np.append(opens, np.iinfo(np.int64).max)[number], end[span])
        kept = ends > begins
        parts.append((span[kept], begins[kept], ends[kept]))
    span, begins, ends = (np.concatenate(part) for part in zip(*parts, strict=True))
    return span, begins, ends
