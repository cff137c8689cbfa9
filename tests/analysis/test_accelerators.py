"""Accelerators that are neither CUDA's nor HIP's, as Kineto records them: launches, kernels, copies, a report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import part
from tests.trace.event_texts import read_events
from tracelens.analysis.analyze import analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace
from tracelens.cli import main
from tracelens.trace.links import LinkedBy
from tracelens.trace.table import DEVICE_KINDS

#: (category of its host calls, of its kernels) by device.
ACCELERATORS = {
    "xpu": ("xpu_runtime", "kernel"),
    "xpu driver": ("xpu_driver", "kernel"),
    "mtia": ("mtia_runtime", "mtia_ccp_events"),
    "mtia of newer versions": ("runtime", "kernel"),
    "privateuse1": ("privateuse1_runtime", "kernel"),
    "privateuse1 driver": ("privateuse1_driver", "kernel"),
    "hpu": ("hpu_op", "kernel"),
}


def events(host: str, device: str, *, arrows: bool) -> list[dict[str, Any]]:
    """A product, a copy and a fill: linked by correlation, or by arrows alone."""
    found: list[dict[str, Any]] = []

    def add(cat: str, name: str, lane: tuple[int, int], ts: float, dur: float, **args: Any) -> None:
        pid, tid = lane
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}
        found.append(event)

    shapes = {"Input Dims": [[512, 256], [256, 128]], "Input type": ["float", "float"]}
    work = (("aten::mm", "gemm", device, shapes), ("aten::copy_", "Memcpy HtoD", "gpu_memcpy", {}),
            ("aten::zero_", "Memset", "gpu_memset", {}))  # fmt: skip
    for number, (op, name, category, args) in enumerate(work, 1):
        at = 100.0 * number
        link = {} if arrows else {"correlation": number}
        add("cpu_op", op, (9, 9), at, 50, **{"External id": number}, **args)
        add(host, "enqueue", (9, 9), at + 10, 5, **link)
        add(category, name, (0, 3), at + 40, 20, device=0, stream=3, **link)
        if arrows:
            for phase, lane, ts in (("s", (9, 9), at + 10), ("f", (0, 3), at + 40)):
                arrow = {"ph": phase, "cat": "ac2g", "name": "ac2g", "id": number, "pid": lane[0], "tid": lane[1]}
                found.append(arrow | {"ts": ts, "bp": "e"})
    return found


@pytest.mark.parametrize("arrows", [False, True])
@pytest.mark.parametrize("name", part(list(ACCELERATORS), 3))
def test_launches_kernels_and_copies_are_linked(name: str, arrows: bool) -> None:
    trace = Trace.of(read_events(events(*ACCELERATORS[name], arrows=arrows)))
    table, tree = trace.table, trace.tree
    rows = table.rows_of(DEVICE_KINDS).tolist()
    assert [table.name_of(row) for row in rows] == ["gemm", "Memcpy HtoD", "Memset"]
    assert {table.name_of(int(tree.launch[row])) for row in rows} == {"enqueue"}
    assert set(tree.linked_by[rows].tolist()) == {LinkedBy.FLOW if arrows else LinkedBy.CORRELATION}
    frame = analyze(trace, AnalysisOptions(), on_demand=True).frames["unified_perf_summary"].set_index("name")
    assert frame.loc["aten::mm", "gflops"] == pytest.approx(2 * 512 * 256 * 128 / 1e9)
    assert frame["kernel_us_sum"].sum() == pytest.approx(60)
    assert not [row for row in frame.index if "(unlinked" in row]


@pytest.mark.parametrize("name", part(list(ACCELERATORS), 3))
def test_the_report_of_an_unknown_device_is_written(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events(*ACCELERATORS[name], arrows=False)}))
    assert main(["report", str(path), "-o", str(tmp_path / "out.json")]) == 0
    assert json.loads((tmp_path / "out.json").read_text())
