"""Several ranks in one file: ids that both have never link across them."""

from __future__ import annotations

from typing import Any

import pytest

import tracelens
from tests.conftest import part
from tests.trace.event_texts import read_events
from tracelens.errors import UsageError
from tracelens.trace.provenance import merged_ranks
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
    tree = OpTree(read_events(rank(100, 0, [1, 2]) + rank(200, 1, [11, 12])))
    assert launched_by(tree) == {"kernel of 100": {"op of 100"}, "kernel of 200": {"op of 200"}}
    assert tree.ambiguous == 0


def test_shared_ids_link_within_the_process_that_the_device_serves_otherwise() -> None:
    """Correlation 5 is in both; 1 and 12 say which device process belongs to which host process."""
    tree = OpTree(read_events(rank(100, 0, [1, 5]) + rank(200, 1, [12, 5], start=0.5)))
    assert launched_by(tree) == {"kernel of 100": {"op of 100"}, "kernel of 200": {"op of 200"}}
    assert tree.ambiguous == 0


def test_shared_ids_without_any_evidence_stay_unlinked_and_are_said() -> None:
    table = read_events(rank(100, 0, [1, 2]) + rank(200, 1, [1, 2], start=0.5))
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
    assert "4 device events match several processes" in notice.text


def test_one_process_may_repeat_its_ids() -> None:
    tree = OpTree(read_events(rank(100, 0, [1, 1])))
    assert tree.ambiguous == 0
    assert len(tree.unlinked) == 0


def named(pid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}


def kernel_names(events: list[dict[str, Any]], **options: Any) -> tuple[list[str], str]:
    """Kernels of the report, and what it says about the ranks."""
    table = read_events(events)
    report = tracelens.report(tracelens.Trace.of(table), **options)
    (notice,) = [n.text for n in report.summary.notices if n.id == "several_processes"]
    return sorted(report["kernel_summary"]["kernel_name"]), notice


def test_the_first_rank_is_reported_and_the_others_are_named() -> None:
    events = rank(100, 0, [1, 2]) + rank(200, 1, [11, 12])
    names, notice = kernel_names(events)
    assert names == ["kernel of 100"]
    assert notice == (
        "the file holds 2 ranks (0: process 100, 1: process 200, numbered in the order of their processes); "
        "this report covers rank 0; choose another with --rank N"
    )
    assert kernel_names(events, rank=1)[0] == ["kernel of 200"]


def test_waits_for_an_event_stay_with_their_rank() -> None:
    """Correlations count alike in both ranks: call 9 waits for what call 8 recorded on stream 20 here, on 30 there."""
    wait = {"ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "pid": 0, "tid": 7, "ts": 5, "dur": 0}
    args = {"correlation": 9, "wait_on_cuda_event_record_corr_id": 8, "wait_on_stream": 20}
    waits = [wait | {"args": args}, wait | {"pid": 1, "args": args | {"wait_on_stream": 30}}]
    trace = tracelens.Trace.of(read_events(rank(100, 0, [1, 2]) + rank(200, 1, [11, 12]) + waits))
    ranks = merged_ranks(trace.table, trace.tree)
    assert ranks is not None
    assert [ranks.table(trace.table, number).event_waits.stream.tolist() for number in (0, 1)] == [[20], [30]]


def test_numbers_in_process_names_are_the_ranks_numbers() -> None:
    events = [
        named(100, "rank 3 \u00b7 CPU"),
        named(0, "rank 3 \u00b7 GPU 3"),
        named(200, "[rank5]: python"),
        *rank(100, 0, [1, 2]),
        *rank(200, 1, [11, 12]),
    ]
    names, notice = kernel_names(events, rank=5)
    assert names == ["kernel of 200"]
    assert "(3: rank 3 \u00b7 CPU 100, 5: [rank5]: python 200); this report covers rank 5;" in notice
    with pytest.raises(UsageError, match=r"has ranks 3, 5, not 0"):
        kernel_names(events, rank=0)


def test_ranks_of_two_nodes_share_a_device_process_and_are_told_apart_by_their_launches() -> None:
    """Device 0 of two nodes: one process of the file. The kernel of launch 99 is of either and in no rank's figures."""
    events = rank(100, 0, [1, 2]) + rank(200, 0, [11, 12])
    events += [{**rank(300, 0, [99])[2], "ts": 50}]
    table = read_events(events)
    ranks = merged_ranks(table, tracelens.Trace.of(table).tree)
    assert ranks is not None
    assert ranks.ambiguous == 1
    names, notice = kernel_names(events, rank=1)
    assert names == ["kernel of 200"]
    assert "1 device events match several ranks and are left out" in notice


def test_one_rank_is_no_merged_file_also_with_a_second_process_that_launches_nothing() -> None:
    loader = {"ph": "X", "cat": "cpu_op", "name": "aten::stack", "pid": 101, "tid": 1, "ts": 0, "dur": 2}
    table = read_events([*rank(100, 0, [1, 2]), loader])
    trace = tracelens.Trace.of(table)
    assert merged_ranks(table, trace.tree) is None
    with pytest.raises(UsageError, match="one rank, or its ranks cannot be separated"):
        tracelens.report(trace, rank=3)


def test_a_process_that_launched_little_is_no_rank() -> None:
    """One launch of nine has another process id: damage, or a helper; a rank of its own would hide eight kernels."""
    events = rank(100, 0, list(range(1, 9))) + rank(101, 0, [9], start=100)
    table = read_events(events)
    assert merged_ranks(table, tracelens.Trace.of(table).tree) is None


@pytest.mark.sweep
@pytest.mark.parametrize("number", part([5, 0], 2))
def test_the_ranks_of_a_fused_file_report_as_their_own_files_do(repository: Any, tmp_path: Any, number: int) -> None:
    from tracelens.cli import main

    files = [repository / "example_traces" / "moe_ep8" / f"rank{each}.json.gz" for each in (0, 5)]
    for file in files:
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert main(["fuse", str(tmp_path), "-o", str(tmp_path / "fused.json.gz")]) == 0
    fused = tracelens.load(tmp_path / "fused.json.gz")
    alone, fused_rank = tracelens.report(files[number == 5]), tracelens.report(fused, rank=number)
    assert fused_rank.summary.input.ranks == (number,)
    columns = list(alone["kernel_summary"].columns[:5])
    assert fused_rank["kernel_summary"][columns].equals(alone["kernel_summary"][columns])
    timelines = [report["gpu_timeline"].round(6).to_dict("list") for report in (fused_rank, alone)]
    assert timelines[0] == timelines[1]
