"""Links across lanes: which host event launched a device event, which forward op a backward op belongs to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from tracelens.trace.table import DEVICE_KINDS, Flows, Kind, RowColumn, TraceTable
from tracelens.types.records import Record

Ints = npt.NDArray[np.integer]
Bools = npt.NDArray[np.bool_]
Lanes = npt.NDArray[np.int32]

#: Flow categories from a launch to its device event: Kineto's, as older files spell it, and Ascend's two.
LAUNCH_FLOWS = frozenset({"ac2g", "async_cpu_to_gpu", "HostToDevice", "async_npu"})
FORWARD_BACKWARD_FLOWS = frozenset({"fwdbwd"})
#: The autograd engine wraps each node it runs in an op of this name.
ENGINE_PREFIX = "autograd::engine::evaluate_function"

# Of a device event without a launch so far, and of one whose launch may be one of several.
_FREE, _AMBIGUOUS = -1, -2


class HostRows(Record, frozen=True, kw_only=True, eq=False):
    """Host rows in preorder: all of them (``order``, of which ``is_op`` are ops), ops, and runtime and driver calls."""

    order: RowColumn
    is_op: Bools
    ops: RowColumn
    is_launch: Bools
    launches: RowColumn

    @classmethod
    def of(cls, table: TraceTable, order: RowColumn) -> HostRows:
        kind = table.kind[order]
        is_op, is_launch = kind == Kind.CPU_OP, (kind == Kind.RUNTIME) | (kind == Kind.DRIVER)
        return cls(order=order, is_op=is_op, ops=order[is_op], is_launch=is_launch, launches=order[is_launch])


class LinkedBy(IntEnum):
    """How a device event found its launch."""

    NOTHING = 0
    CORRELATION = 1
    FLOW = 2
    EXTERNAL_ID = 3


def launch_links(table: TraceTable, host: HostRows) -> tuple[RowColumn, npt.NDArray[np.uint8], int]:
    """(launching host row, ``LinkedBy``) per table row; -1 for host rows and for what was launched before the window.

    Third: how many device events have no launch because several processes of the file could have made it.

    Correlation comes first: a trace holds flow ends without a start, while every launch and kernel carry a correlation.
    Then flows, then an op with the same External id; the latter two only serve device events whose launch was not
    recorded as a runtime or driver event with that correlation.
    """
    launch: RowColumn = np.full(len(table), -1, np.int32)
    linked_by = np.full(len(table), LinkedBy.NOTHING, np.uint8)
    device = table.rows_of(DEVICE_KINDS)
    steps: tuple[tuple[LinkedBy, Callable[[TraceTable, HostRows, RowColumn], Ints]], ...] = (
        (LinkedBy.CORRELATION, _by_correlation),
        (LinkedBy.FLOW, _by_flow),
        (LinkedBy.EXTERNAL_ID, _by_external_id),
    )
    for how, link in steps:
        free = device[launch[device] == _FREE]
        if len(free):
            found = link(table, host, free)
            launch[free] = found
            linked_by[free[found >= 0]] = how
    ambiguous = launch == _AMBIGUOUS
    launch[ambiguous] = _FREE
    return launch, linked_by, int(ambiguous.sum())


def needed_flows(flows: Flows, categories: Sequence[str], linked_by: npt.NDArray[np.uint8], ambiguous: int) -> Flows:
    """The arrows that a tree over the same events could need again: not those of launches where none made a link.

    Kineto draws an arrow for every launch, though its correlation says the same: two thirds of a trace's arrows.
    """
    if ambiguous or (linked_by == LinkedBy.FLOW).any():
        return flows
    return flows.where(~_are_of(flows, categories, LAUNCH_FLOWS))


def forward_links(table: TraceTable, ops: RowColumn, op_parent: RowColumn) -> RowColumn:
    """Forward op row per backward op row, -1 elsewhere; ``ops`` in preorder.

    A ``fwdbwd`` flow starts and ends exactly where an op does. Without one the Sequence number decides: the forward is
    the op of that number and process which started last before the backward did, because of nested ops with one number
    the innermost made the autograd node. The engine's wrapper, the node in it and the op below, as long as that is the
    only one, share the forward. A forward may have several backwards. Numbers on two threads alone make no link:
    replicas on threads of their own count through the same numbers.
    """
    forward: RowColumn = np.full(len(table), -1, np.int32)
    is_wrapper = _named(table, lambda name: name.startswith(ENGINE_PREFIX))
    backward, found = _by_forward_flow(table, ops)
    forward[backward] = found
    # A flow may end at the node instead of the engine's wrapper round it
    wrapper = op_parent[backward]
    number = table.sequence_number
    ends_below = (wrapper >= 0) & is_wrapper[table.name[wrapper]] & (forward[wrapper] < 0)
    ends_below &= number[wrapper] == number[backward]
    forward[wrapper[ends_below]] = found[ends_below]
    above = op_parent[ops]
    below, above = ops[above >= 0], above[above >= 0]
    numbers = number[below]
    _inherit(forward, below, above, (numbers >= 0) & (numbers == number[above]))
    _by_sequence_number(table, ops, forward)
    children = np.bincount(above, minlength=len(table))
    _inherit(forward, below, above, (children[above] == 1) & ~is_wrapper[table.name[below]])
    return forward


def _by_correlation(table: TraceTable, host: HostRows, device: RowColumn) -> Ints:
    correlation, wanted = table.correlation[host.launches], table.correlation[device]
    launches, correlation = host.launches[correlation > 0], correlation[correlation > 0]
    position = _latest_of_key(correlation, table.start_ns[launches], wanted, table.start_ns[device])
    # Correlation 0 is what Kineto writes where there is none
    position = np.where(wanted > 0, position, -1)
    process = _processes(table)
    shared = _shared_by_processes(correlation, process[table.lane[launches]])
    doubtful = np.flatnonzero((position >= 0) & np.isin(wanted, shared)) if len(shared) else shared
    found = _taken(launches, position)
    if len(doubtful):
        found[doubtful] = _of_own_process(table, process, launches, device, found, doubtful)
    return found


def _processes(table: TraceTable) -> Ints:
    """Code of the process per lane."""
    codes = {pid: code for code, pid in enumerate(dict.fromkeys(pid for pid, _ in table.lanes))}
    return np.array([codes[pid] for pid, _ in table.lanes], np.int64)


def _shared_by_processes(correlation: Ints, process: Ints) -> Ints:
    """The correlations that launches of more than one process have: ranks in one file count alike."""
    if not len(process) or (process == process[0]).all():
        return correlation[:0]
    distinct: Ints = np.unique(np.stack((correlation, process)), axis=1)[0]
    return distinct[1:][distinct[1:] == distinct[:-1]]


def _of_own_process(
    table: TraceTable, process: Ints, launches: Ints, device: Ints, found: Ints, doubtful: Ints
) -> Ints:
    """The launch of each doubtful event, in the process that launched most of what its device process ran otherwise.

    ``_AMBIGUOUS`` where nothing else says which process that is: a guess would mix ranks.
    """
    sure = np.ones(len(device), np.bool_)
    sure[doubtful] = False
    sure &= found >= 0
    votes: dict[int, dict[int, int]] = {}
    pairs = zip(process[table.lane[device[sure]]].tolist(), process[table.lane[found[sure]]].tolist(), strict=True)
    for own, host in pairs:
        votes.setdefault(own, {})[host] = votes.get(own, {}).get(host, 0) + 1
    home = {own: max(hosts, key=lambda host: (hosts[host], -host)) for own, hosts in votes.items()}
    events = device[doubtful]
    host = np.array([home.get(code, -1) for code in process[table.lane[events]].tolist()], np.int64)
    count = int(process.max()) + 2
    position = _latest_of_key(
        table.correlation[launches] * count + process[table.lane[launches]],
        table.start_ns[launches],
        np.where(host >= 0, table.correlation[events] * count + host, -1),
        table.start_ns[events],
    )
    return np.where(position >= 0, _taken(launches, position), _AMBIGUOUS)


def _by_flow(table: TraceTable, host: HostRows, device: RowColumn) -> Ints:
    starts, ends = _flows(table, LAUNCH_FLOWS)
    flows = table.flows
    # An end lies where its device event starts; without an end the event's correlation is the flow's id
    at = _first_equal(flows.lane[ends], flows.time_ns[ends], table.lane[device], table.start_ns[device])
    flow_id = np.where(at >= 0, _taken(flows.id[ends], at), table.correlation[device])
    known = (at >= 0) | (table.correlation[device] > 0)
    starts = starts[np.isin(flows.id[starts], flow_id[known])]
    if not len(starts):
        return np.full(len(device), -1, np.int64)
    # Launches after all others: the last row that starts at a place is the launch there
    rows = np.concatenate((host.order[~host.is_launch], host.launches))
    launch = _starting_at(table, rows, flows.lane[starts], flows.time_ns[starts], outermost=False)
    starts, launch = starts[launch >= 0], launch[launch >= 0]
    position = _latest_of_key(flows.id[starts], flows.time_ns[starts], flow_id, table.start_ns[device])
    return _taken(launch, np.where(known, position, -1))


def _by_external_id(table: TraceTable, host: HostRows, device: RowColumn) -> Ints:
    ops = host.ops[table.external_id[host.ops] > 0]
    position = _latest_of_key(
        table.external_id[ops], table.start_ns[ops], table.external_id[device], table.start_ns[device]
    )
    found = (position >= 0) & (table.external_id[device] > 0)
    op = _taken(ops, np.where(found, position, -1))
    # Ids are reused across profiler sessions: an op that began after its kernel is not the one
    return np.where((op >= 0) & (table.start_ns[op] <= table.start_ns[device]), op, -1)


def _by_forward_flow(table: TraceTable, ops: Ints) -> tuple[Ints, Ints]:
    starts, ends = _flows(table, FORWARD_BACKWARD_FLOWS)
    flows = table.flows
    numbered = ops[table.sequence_number[ops] >= 0]
    forward = _op_at(table, numbered, ops, flows.lane[starts], flows.time_ns[starts], outermost=False)
    backward = _op_at(table, numbered, ops, flows.lane[ends], flows.time_ns[ends], outermost=True)
    starts, forward = starts[forward >= 0], forward[forward >= 0]
    ends, backward = ends[backward >= 0], backward[backward >= 0]
    found = _taken(
        forward, _latest_of_key(flows.id[starts], flows.time_ns[starts], flows.id[ends], flows.time_ns[ends])
    )
    keep = (found >= 0) & (table.start_ns[found] < table.start_ns[backward])
    return backward[keep], found[keep]


def _op_at(table: TraceTable, numbered: Ints, ops: Ints, lane: Lanes, time: Ints, *, outermost: bool) -> Ints:
    found = _starting_at(table, numbered, lane, time, outermost=outermost)
    if (found >= 0).all():
        return found
    return np.where(found >= 0, found, _starting_at(table, ops, lane, time, outermost=outermost))


def _by_sequence_number(table: TraceTable, ops: Ints, forward: RowColumn) -> None:
    numbered = ops[table.sequence_number[ops] >= 0]
    if not len(numbered):
        return
    marked = _named(table, lambda x: x.startswith(ENGINE_PREFIX) or x.rstrip("0123456789").endswith("Backward"))
    is_node = marked[table.name[numbered]]
    makers, nodes = numbered[~is_node], numbered[is_node]
    nodes = nodes[forward[nodes] < 0]
    process = _processes(table)
    count = int(process.max()) + 1

    def key(rows: Ints) -> Ints:
        # One integer per (Sequence number, process): the numbers count up per process and are far from 2^63 / processes
        return table.sequence_number[rows] * count + process[table.lane[rows]]

    found = _taken(makers, _latest_of_key(key(makers), table.start_ns[makers], key(nodes), table.start_ns[nodes]))
    keep = (found >= 0) & (table.start_ns[found] < table.start_ns[nodes])
    forward[nodes[keep]] = found[keep]


def _named(table: TraceTable, fits: Callable[[str], bool]) -> Bools:
    return np.array([fits(name) for name in table.names], np.bool_)


def _inherit(forward: RowColumn, below: Ints, above: Ints, allowed: Bools) -> None:
    """Gives the forward of the ops ``above`` to those right below them where ``allowed``, as far down as it goes."""
    free = allowed & (forward[below] < 0)
    below, above = below[free], above[free]
    source = np.arange(len(forward), dtype=np.int32)
    source[below] = above
    # Twice as far up each time
    while len(above) and not np.array_equal(further := source[above], above):
        source[below] = above = further
    forward[below] = forward[above]


def _flows(table: TraceTable, categories: frozenset[str]) -> tuple[Ints, Ints]:
    """Indices of the flows' starts and of their ends."""
    flows = table.flows
    here = _are_of(flows, table.categories, categories)
    return np.flatnonzero(here & flows.is_start), np.flatnonzero(here & ~flows.is_start)


def _are_of(flows: Flows, categories: Sequence[str], wanted: frozenset[str]) -> Bools:
    is_wanted = np.array([category in wanted for category in categories] or [False], np.bool_)
    return is_wanted[flows.category] & (flows.category >= 0)


def _latest_of_key(key: Ints, time: Ints, wanted: Ints, not_after: Ints) -> Ints:
    """For each query the entry of the wanted key that is the latest with ``time <= not_after``.

    When all entries of the key are later, the earliest of them (clocks of host and device differ); -1 for an unknown
    key. Of entries with the same time the last one.
    """
    order = np.lexsort((time, key))
    key, time = key[order], time[order]
    low, high = np.searchsorted(key, wanted, "left"), np.searchsorted(key, wanted, "right")
    found = low < high
    # Bisection inside each run of equal keys; keys of real traces are unique, so it ends at once
    while len(wide := np.flatnonzero(high - low > 1)):
        middle = (low[wide] + high[wide]) // 2
        early = time[middle] <= not_after[wide]
        low[wide] = np.where(early, middle, low[wide])
        high[wide] = np.where(early, high[wide], middle)
    return _taken(order, np.where(found, low, -1))


def _starting_at(table: TraceTable, rows: Ints, lane: Lanes, time: Ints, *, outermost: bool) -> Ints:
    """The row that starts at each (lane, time), -1 where none does; of several the first of ``rows``, or the last."""
    if not outermost:
        rows = rows[::-1]
    return _taken(rows, _first_equal(table.lane[rows], table.start_ns[rows], lane, time))


def _first_equal(lane: Lanes, time: Ints, wanted_lane: Lanes, wanted_time: Ints) -> Ints:
    """For each query the index of the first entry with its (lane, time), -1 without one."""
    found = np.full(len(wanted_time), -1, np.int64)
    times = np.sort(wanted_time)
    if not len(times) or not len(time):
        return found
    # One integer per (lane, time) of those entries whose time anybody asks for
    code = np.searchsorted(times, time)
    entries = np.flatnonzero(times[np.minimum(code, len(times) - 1)] == time)
    key = lane[entries].astype(np.int64) * len(times) + code[entries]
    order = np.argsort(key, kind="stable")
    entries, key = entries[order], key[order]
    wanted = wanted_lane.astype(np.int64) * len(times) + np.searchsorted(times, wanted_time)
    at = np.searchsorted(key, wanted)
    same = np.flatnonzero(at < len(key))
    same = same[key[at[same]] == wanted[same]]
    found[same] = entries[at[same]]
    return found


def _taken(values: Ints, at: Ints) -> Ints:
    """``values[at]``, -1 where ``at`` is."""
    if not len(values):
        return np.full(len(at), -1, np.int64)
    return np.where(at >= 0, values[at], -1).astype(np.int64)
