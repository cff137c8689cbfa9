"""``trace_view.json`` of torch_npu: times as texts, ids beyond 2**53, categories from processes, launches from arrows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracelens.analysis.loaded_trace import load
from tracelens.cli import main
from tracelens.trace.table import Kind

EPOCH_US = 1_699_529_623_106_750
PYTHON, CANN, NPU = 2_383_960_608, 2_383_960_672, 2_383_960_736


def named(pid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}


def event(name: str, pid: int, tid: int, at_ns: int, duration_us: float, **args: Any) -> dict[str, Any]:
    ts = f"{EPOCH_US + at_ns // 1000}.{at_ns % 1000:03d}"
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": duration_us, "args": args}


def arrow(ph: str, number: int, pid: int, tid: int, at_ns: int, category: str) -> dict[str, Any]:
    ts = f"{EPOCH_US + at_ns // 1000}.{at_ns % 1000:03d}"
    return {"ph": ph, "bp": "e", "id": str(number), "pid": pid, "tid": tid, "ts": ts, "cat": category, "name": category}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    first, second = 2**53 + 3, 2**53 + 4
    op = {"cat": "cpu_op"}
    path = tmp_path / "trace_view.json"
    path.write_text(json.dumps([
        named(PYTHON, "Python"), named(CANN, "CANN"), named(NPU, "Ascend Hardware"), named(NPU + 1, "Overlap Analysis"),
        event("aten::mm", PYTHON, 7, 100, 50.5, **{"Input Dims": [[4, 8], [8, 4]], "Input type": ["float", "float"]}) | op,
        event("aten::add", PYTHON, 7, 60_000, 20) | op,
        event("AscendCL@aclrtLaunchKernel", CANN, 7, 300, 5.0, connection_id=first),
        event("MatMulV2", NPU, 2, 70_123, 12.34, **{"Task Type": "AI_CORE", "connection_id": first}),
        event("EVENT_WAIT", NPU, 2, 90_000, 2, **{"Task Type": "EVENT_WAIT"}),
        event("Add", NPU, 3, 95_001, 1.5, **{"Task Type": "AI_VECTOR_CORE"}),
        event("Computing", NPU + 1, 0, 70_123, 12.34),
        arrow("s", first, CANN, 7, 300, "HostToDevice"), arrow("f", first, NPU, 2, 70_123, "HostToDevice"),
        arrow("s", second, PYTHON, 7, 60_000, "async_npu"), arrow("f", second, NPU, 3, 95_001, "async_npu"),
    ]))  # fmt: skip
    return path


def test_what_ran_where_and_who_launched_it(trace: Path) -> None:
    loaded = load(trace)
    table, tree = loaded.table, loaded.tree
    mm, add = table.rows_of([Kind.KERNEL]).tolist()
    assert [table.name_of(mm), table.name_of(add)] == ["MatMulV2", "Add"]
    assert (table.start_ns[mm] + table.base_ns, table.duration_ns[mm]) == (EPOCH_US * 1000 + 70_123, 12_340)
    assert (table.stream[mm], table.stream[add], table.device[mm]) == (2, 3, 0)
    assert table.name_of(int(tree.launch[mm])) == "AscendCL@aclrtLaunchKernel"
    assert table.name_of(int(tree.op[mm])) == "aten::mm"
    assert table.name_of(int(tree.op[add])) == "aten::add"
    assert [table.name_of(row) for row in table.rows_of([Kind.SYNC])] == ["EVENT_WAIT"]


def test_a_report_is_made(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(trace), "-o", str(tmp_path / "out")]) == 0
    assert "MatMulV2" in (tmp_path / "out" / "report.json").read_text()
