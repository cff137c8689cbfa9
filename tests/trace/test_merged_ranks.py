"""Several ranks in one file: ids that both have never link across them."""

from __future__ import annotations

from typing import Any

import tracelens
from tracelens.trace.table import TraceTable
from tracelens.trace.tree import OpTree


def rank(host: int, device: int, correlations: list[int], start: float = 0) -> list[dict[str, Any]]:
    """One launch and kernel per correlation, 10 µs apart."""
    events: list[dict[str, Any]] = []
    for i, correlation in enumerate(correlations):
        at = start + 10 * i
        args = {"correlation": correlation}
        events += [
            {"ph": "X", "cat": "cpu_op", "name": f"op of {host}", "pid": host, "tid": 1, "ts": at, "dur": 4},
            {"ph": "X", "cat": "cuda_runtime", "name": "launch", "pid": host, "tid": 1, "ts": at + 1, "dur": 1, "args": args},
            {"ph": "X", "cat": "kernel", "name": f"kernel of {host}", "pid": device, "tid": 7, "ts": at + 3, "dur": 2, "args": args | {"stream": 7}},
        ]  # fmt: skip
    return events


def launched_by(tree: OpTree) -> dict[str, set[str]]:
    """Kernel name -> names of the ops that its kernels hang on."""
    table = tree.table
    found: dict[str, set[str]] = {}
    for row in range(len(table)):
        if table.category_of(row) == "kernel":
            found.setdefault(table.name_of(row), set()).add(table.name_of(tree.op[row]) if tree.op[row] >= 0 else "")
    return found


def test_ids_of_their_own_link_as_in_one_file() -> None:
    tree = OpTree(TraceTable.from_events(rank(100, 0, [1, 2]) + rank(200, 1, [11, 12])))
    assert launched_by(tree) == {"kernel of 100": {"op of 100"}, "kernel of 200": {"op of 200"}}
    assert tree.ambiguous == 0


def test_shared_ids_link_within_the_process_that_the_device_serves_otherwise() -> None:
    """Correlation 5 is in both; 1 and 12 say which device process belongs to which host process."""
    tree = OpTree(TraceTable.from_events(rank(100, 0, [1, 5]) + rank(200, 1, [12, 5], start=0.5)))
    assert launched_by(tree) == {"kernel of 100": {"op of 100"}, "kernel of 200": {"op of 200"}}
    assert tree.ambiguous == 0


def test_shared_ids_without_any_evidence_stay_unlinked_and_are_said() -> None:
    table = TraceTable.from_events(rank(100, 0, [1, 2]) + rank(200, 1, [1, 2], start=0.5))
    tree = OpTree(table)
    assert launched_by(tree) == {"kernel of 100": {""}, "kernel of 200": {""}}
    assert tree.ambiguous == 4
    assert tree.self_check() == []
    notice = next(
        n
        for n in tracelens.report(tracelens.Trace(table=table, tree=tree)).summary.notices
        if n.id == "several_processes"
    )
    assert notice.count == 2
    assert "process 100, process 200" in notice.text
    assert "4 device events could be of several of them" in notice.text


def test_one_process_may_repeat_its_ids() -> None:
    tree = OpTree(TraceTable.from_events(rank(100, 0, [1, 1])))
    assert tree.ambiguous == 0
    assert len(tree.unlinked) == 0
