"""The tree of calls that files written for TraceLens (AMD-AGI/TraceLens) change, and what of it a report takes over.

``tree_postprocess_extension(tree)`` gets a copy of the calls in that package's form: a dict per event, joined by
``UID``, and the tree's look-ups. A report takes over ops that the hook puts round launches, and names and arguments
that it changes or adds; calls that it moves or removes stay where they were recorded.
"""

from __future__ import annotations

import contextlib
import io
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import numpy as np

from tracelens.analysis.intervals import Ints
from tracelens.analysis.loaded_trace import Trace
from tracelens.analysis.reading.added_ops import forward_rows, rows_of_ops
from tracelens.analysis.reading.catalog import Catalog
from tracelens.extensions import TREE_HOOK, TimeLimitError, time_limit
from tracelens.laboratory.amd_tracelens import as_lists
from tracelens.registry import Claim
from tracelens.trace.links import ENGINE_PREFIX
from tracelens.trace.narrow_columns import Column
from tracelens.trace.table import (
    ARGUMENT_KEYS,
    DEVICE_KINDS,
    AddedRows,
    Kind,
    RowColumn,
    TraceTable,
    made_event,
    with_rows,
)
from tracelens.types.signature import OpSignature, freeze

#: Processor time for one hook: on a trace of a million events the one of TraceLens' own example takes a tenth of it.
HOOK_LIMIT_S = 60.0
_CALLS = (Kind.CPU_OP, Kind.RUNTIME, Kind.DRIVER)


class ForeignTree:
    """The calls, launches and device events of a trace as TraceLens' tree has them.

    Each is a dict of the Kineto event with ``UID``, ``t_end``, ``parent`` and ``children`` (UIDs), ``gpu_events``
    (those below it) and, of a forward op, ``bwd_events``; of a backward op, ``fwd_event``. ``rows``: the table row of
    each UID.
    """

    linking_key = "correlation"

    def __init__(self, trace: Trace, forward: RowColumn) -> None:
        table, self.trace = trace.table, trace
        self.rows: list[int] = np.flatnonzero(table.is_of(_CALLS) | table.is_of(DEVICE_KINDS)).tolist()
        uid_of = {row: uid for uid, row in enumerate(self.rows)}
        self.events: list[dict[str, Any]] = []
        self.events_by_uid: dict[int, dict[str, Any]] = {}
        self.name2event_uids: defaultdict[str, list[int]] = defaultdict(list)
        self.seq_num2event_uids_map: defaultdict[int, list[int]] = defaultdict(list)
        self.cpu_root_nodes: list[int] = []
        for uid, row in enumerate(self.rows):
            event = made_event(table, row)
            event["args"] = {key: as_lists(value) for key, value in event["args"].items()}
            event |= {"UID": uid, "t_end": event["ts"] + event["dur"], "tree": True}
            self.events.append(event)
            self.events_by_uid[uid] = event
            self.name2event_uids[event["name"]].append(uid)
            if (number := event["args"].get("Sequence number")) is not None:
                self.seq_num2event_uids_map[number].append(uid)
        self._join(trace, uid_of)
        for row in np.flatnonzero(forward[np.array(self.rows, np.int64)] >= 0).tolist():
            back, ahead = self.events[row], uid_of[int(forward[self.rows[row]])]
            if not back["name"].startswith(ENGINE_PREFIX):
                back["fwd_event"] = ahead
                self.events[ahead].setdefault("bwd_events", []).append(row)
        self.label_non_gpu_paths()

    def _join(self, trace: Trace, uid_of: dict[int, int]) -> None:
        tree = trace.tree
        by_start = sorted(uid_of.items(), key=lambda row_uid: int(tree.position[row_uid[0]]))
        for row, uid in by_start:
            above = next((uid_of[a] for a in map(int, tree.ancestors(row)) if a in uid_of), None)
            if above is not None:
                self.events[uid]["parent"] = above
                self.events[above].setdefault("children", []).append(uid)
            elif self.events[uid]["cat"] == "cpu_op":
                self.events[uid]["cpu_op_root"] = True
                self.cpu_root_nodes.append(uid)
        launched = tree.launch[np.array(self.rows, np.int64)] >= 0
        for uid in np.flatnonzero(launched).tolist():
            above = self.events[uid].get("parent")
            while above is not None:
                self.events[above].setdefault("gpu_events", []).append(uid)
                above = self.events[above].get("parent")

    @staticmethod
    def event_to_category(event: dict[str, Any]) -> Any:
        return event.get("cat")

    def get_UID2event(self, uid: int) -> dict[str, Any]:  # noqa: N802 - their name
        return self.events_by_uid[uid]

    def get_parent_event(self, event: dict[str, Any]) -> dict[str, Any] | None:
        above = event.get("parent")
        return None if above is None else self.events_by_uid[above]

    def get_children_events(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        return [self.events_by_uid[uid] for uid in event.get("children", ())]

    def get_gpu_events(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        return [self.events_by_uid[uid] for uid in event.get("gpu_events", ())]

    def get_subtree_bwd_events(self, uid: int) -> list[int]:
        """The backward ops of an op and of all ops below it."""
        found: dict[int, None] = {}
        waiting = [uid]
        while waiting:
            event = self.events_by_uid[waiting.pop()]
            found |= dict.fromkeys(event.get("bwd_events", ()))
            waiting += event.get("children", ())
        return list(found)

    def link_bwd_events(self, uid: int) -> None:
        self.events_by_uid[uid]["bwd_events"] = self.get_subtree_bwd_events(uid)

    def get_node_by_ext_id_pid_tid(self, ext_id: Any, pid: Any, tid: Any) -> dict[str, Any] | None:
        wanted = (ext_id, pid, tid)
        keys = ((event["args"].get("External id"), event["pid"], event["tid"]) for event in self.events)
        return next((event for event, key in zip(self.events, keys, strict=True) if key == wanted), None)

    def label_non_gpu_paths(self) -> None:
        for event in self.events:
            if "gpu_events" not in event and event["cat"] not in ("kernel", "gpu_memset", "gpu_memcpy"):
                event["non_gpu_path"] = True


def with_hooks(trace: Trace, catalog: Catalog) -> tuple[Trace, Counter[str]]:
    """The trace with what each extension's ``tree_postprocess_extension`` changed; one that fails is noted.

    Also why, and how many, ops that the hooks made have no place in it.
    """
    left: Counter[str] = Counter()
    for claim in catalog.tree_hooks.values():
        tree = ForeignTree(trace, forward_rows(trace, catalog))
        if not _ran(claim, tree, catalog):
            continue
        table, signatures = trace.table, _changed_calls(trace.table, tree, catalog)
        added = _added(trace, tree, catalog, left)
        if signatures:
            table = _renamed(table, signatures)
        if len(added):
            table = with_rows(table, added)
        trace = trace if table is trace.table else Trace.of(table)
    return trace, left


def _ran(claim: Claim, tree: ForeignTree, catalog: Catalog) -> bool:
    try:
        with time_limit(HOOK_LIMIT_S), contextlib.redirect_stdout(io.StringIO()):
            claim.target(tree)
    except (Exception, SystemExit, TimeLimitError) as error:  # noqa: BLE001 - foreign code may fail in any way
        catalog.note_failure(claim, f"the trace's calls ({TREE_HOOK})", error, loss="which stay as recorded")
        return False
    return True


def _changed_calls(table: TraceTable, tree: ForeignTree, catalog: Catalog) -> dict[int, OpSignature]:
    """Row -> the call that it is now, of ops whose names or recorded arguments changed; other arguments are noted."""
    changed: dict[int, OpSignature] = {}
    for uid, row in enumerate(tree.rows):
        event = tree.events_by_uid.get(uid)
        if table.kind[row] != Kind.CPU_OP or event is None:
            continue
        recorded, args = made_event(table, row), event.get("args") or {}
        before = {key: as_lists(value) for key, value in recorded["args"].items()}
        was_called = (recorded["name"], *(before.get(key) for key in ARGUMENT_KEYS))
        if (event.get("name"), *(args.get(key) for key in ARGUMENT_KEYS)) != was_called:
            changed[row] = _signature(event, table.signature_of(row).attributes)
        if more := {key: freeze(value) for key, value in args.items() if key not in before and isinstance(key, str)}:
            known = dict(catalog.arguments_by_hooks.get(row, ()))
            catalog.arguments_by_hooks[row] = tuple(sorted((known | more).items()))
    return changed


def _renamed(table: TraceTable, signatures: dict[int, OpSignature]) -> TraceTable:
    """The table with other calls in these rows."""
    changed = list(signatures)
    store, codes = table.signatures.extended([signatures[row] for row in changed])
    code_of = {name: code for code, name in enumerate(table.names)}
    name, signature = table.name[:].copy(), table.signature[:].copy()
    name[changed] = [code_of.setdefault(signatures[row].name, len(code_of)) for row in changed]
    signature[changed] = codes
    return replace(
        table, name=Column(name, np.int32), signature=Column(signature, np.int32), names=list(code_of),
        signatures=store, _op_signatures={},
    )  # fmt: skip


def _signature(event: dict[str, Any], attributes: tuple[tuple[str, Any], ...] = ()) -> OpSignature:
    args = event.get("args") or {}
    shapes, dtypes, strides, scalars = (
        freeze(value) if isinstance(value := args.get(key), list | tuple) else None for key in ARGUMENT_KEYS
    )
    return OpSignature(
        name=str(event.get("name")), shapes=shapes, strides=strides, attributes=attributes,
        dtypes=None if dtypes is None else tuple(map(str, dtypes)),
        scalars=None if scalars is None else tuple(map(str, scalars)),
    )  # fmt: skip


def _added(trace: Trace, tree: ForeignTree, catalog: Catalog, left: Counter[str]) -> AddedRows:
    """The ops that a hook made, round the launches below them; the outer ones first."""
    table, recorded = trace.table, len(tree.rows)
    made: list[tuple[Ints, OpSignature]] = []
    for uid, event in tree.events_by_uid.items():
        if isinstance(uid, int) and uid < recorded:
            continue
        name = str(event.get("name"))
        launches = _launches(tree, event, recorded)
        if launches is None:
            left[f"{name}, made by {TREE_HOOK}: its launches do not follow one another in one call"] += 1
            continue
        made.append((launches, _signature(event)))
        if (above := int(trace.tree.op_parent[launches[0]])) >= 0:
            catalog.split_by_hooks.add(table.name_of(above))
    made.sort(key=lambda each: -len(each[0]))
    first, last = (np.array([int(launches[at]) for launches, _ in made], np.int64) for at in (0, -1))
    return rows_of_ops(table, [signature for _, signature in made], first, last)


def _launches(tree: ForeignTree, event: dict[str, Any], recorded: int) -> Ints | None:
    """Rows of the launches below a made op, in order; None unless they are all that one call did between them."""
    found: list[int] = []
    waiting = list(event.get("children") or ())
    while waiting:
        uid = waiting.pop()
        child = tree.events_by_uid.get(uid)
        if child is None:
            return None
        if uid < recorded and child["cat"] in ("cpu_op", "kernel", "gpu_memcpy", "gpu_memset"):
            return None
        if uid < recorded:
            found.append(tree.rows[uid])
        else:
            waiting += child.get("children") or ()
    if not found:
        return None
    rows = np.array(sorted(found, key=lambda row: int(tree.trace.tree.position[row])), np.int64)
    above = int(tree.trace.tree.parent[rows[0]])
    siblings = tree.trace.tree.children(above) if above >= 0 else rows
    at = np.flatnonzero(siblings == rows[0])
    return rows if len(at) and np.array_equal(siblings[at[0] : at[0] + len(rows)], rows) else None
