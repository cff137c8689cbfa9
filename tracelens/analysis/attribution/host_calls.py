"""The calls of the host: which of them contain the others, and which wait for the device."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tracelens.analysis.intervals import Covered
from tracelens.lazy.patterns import lazy_pattern
from tracelens.lazy.records import dataclass
from tracelens.trace.table import DEVICE_KINDS, Kind, Recorder, RowColumn, TraceTable
from tracelens.trace.tree import OpTree

Bools = npt.NDArray[np.bool_]

# Calls that by their documentation return when work on the device is done: CUDA and HIP runtime and driver, Level Zero.
_BLOCKING = lazy_pattern(
    r"Synchronize(?:_v\d+|_ptsz)?$|^(?:cuda|hip|cu)Memcpy(?:2D|3D|Peer|DtoH|HtoD|DtoD|DtoA|AtoD|ToSymbol|FromSymbol"
    r"|WithStream)?(?:_v\d+|_ptds)?$|^urQueueFinish$"
)
# Calls of which each puts work on the device. A graph launch puts many, and a copy within the host none.
_LAUNCHES = lazy_pattern(r"^(?:cuda|hip|cu)(?:Ext)?(?:Module)?Launch(?:Cooperative)?Kernel")
_DEVICE_SYNC = lazy_pattern(r"^(?:cuda|hip)DeviceSynchronize")
_CAPTURES = lazy_pattern(r"StreamBeginCapture")
#: So many rows are looked up in the time of one search in a name.
_ROWS_PER_SEARCH = 200


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostCalls:
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
    waits[_outlasting(table, tree)] = True
    return waits


def kernel_launches(table: TraceTable, tree: OpTree) -> tuple[RowColumn, Bools]:
    """(rows of launches of one kernel each, whether that kernel was recorded).

    A call inside another is the same launch, and none is while a graph is captured.
    """
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
    """PyTorch's profiler synchronizes the device when it stops: the last call of a recording that waits, with no launch
    after it. What the program itself waits for comes before that.
    """
    waits, launches = np.flatnonzero(blocking).astype(np.int32), tree.launch[tree.launch >= 0]
    if not len(waits) or not len(launches) or table.recorder.file != Recorder().file:
        return waits[:0]
    last = waits[table.start_ns[waits].argmax()]
    is_stop = _DEVICE_SYNC.search(table.name_of(int(last))) is not None
    return np.full(int(is_stop and table.start_ns[last] > table.start_ns[launches].max()), last, np.int32)


def named(table: TraceTable, pattern: re.Pattern[str], among: Bools) -> Bools:
    """The rows of ``among`` whose name the pattern finds."""
    codes = [code for code in _looked_at(table, among) if pattern.search(table.names[code])]
    return table.is_named(codes) & among if codes else np.zeros(len(table), bool)


def _looked_at(table: TraceTable, among: Bools) -> Sequence[int]:
    """Codes of names to hold against a pattern: all, where finding those that occur in ``among`` would cost more."""
    if len(table) > _ROWS_PER_SEARCH * len(table.names):
        return range(len(table.names))
    occurs = np.zeros(len(table.names), bool)
    occurs[table.name[among]] = True
    found: list[int] = np.flatnonzero(occurs).tolist()
    return found


def _outlasting(table: TraceTable, tree: OpTree) -> RowColumn:
    """Copy calls that were still running when their copy was done: copies to and from pageable memory wait for it."""
    copies = np.flatnonzero(table.kind == Kind.MEMCPY)
    copies = copies[tree.launch[copies] >= 0]
    call = tree.launch[copies]
    ended = table.ends_ns(copies)
    is_launch = (table.kind[call] == Kind.RUNTIME) | (table.kind[call] == Kind.DRIVER)
    waited: RowColumn = call[is_launch & (ended <= table.ends_ns(call)) & (ended > table.start_ns[call])]
    return waited
