"""A trace for Perfetto."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import tracelens
from tests.conftest import RealAnalysis, RealTrace, device_traces, part_of_traces
from tests.trace.event_texts import read_events
from tracelens.analysis.reading.added_ops import rows_of_ops
from tracelens.cli import main
from tracelens.report.excerpts.converting import write_perfetto
from tracelens.trace.rewriting import events
from tracelens.trace.table import Kind, with_rows
from tracelens.types.signature import OpSignature


def test_kernels_say_their_rates_and_findings_are_tracks(repository, moe_report, tmp_path, capsys):
    trace, written = repository / "example_traces" / "moe_ep8" / "rank0.json.gz", tmp_path / "x.json"
    assert main(["perfetto", str(trace), "-o", str(written)]) == 0
    assert "https://ui.perfetto.dev" in capsys.readouterr().out
    events = json.loads(written.read_text())["traceEvents"]
    mean = moe_report.result.frames["unified_perf_summary"]["tflops_s_mean"].dropna()
    said = {
        event["args"]["TFLOPS/s"] for event in events if event.get("cat") == "kernel" and "TFLOPS/s" in event["args"]
    }
    assert said == {round(float(rate), 3) for rate in mean} & said
    assert len(said) > 10
    assert [e["name"] for e in events if e.get("cat") == "finding"] == [f.why for f in moe_report.result.findings]
    counters = [event for event in events if event.get("ph") == "C" and event["name"] == "TFLOPS/s"]
    assert len(counters) % 2 == 0
    assert [event["ts"] for event in counters] == pytest.approx(sorted(event["ts"] for event in counters))
    recorded = tracelens.load(trace).table
    assert sum(event.get("cat") == "kernel" for event in events) == sum(
        recorded.category_of(row) == "kernel" for row in range(len(recorded))
    )


def test_events_behind_the_last_row_stand_beside_added_ops() -> None:
    behind = [{"ph": "M", "name": f"process_{i}", "pid": 0, "args": {}} for i in range(3)]
    table = read_events([{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 0, "tid": 0, "ts": 1, "dur": 2}, *behind])
    row = np.zeros(1, np.int64)
    more = with_rows(table, rows_of_ops(table, [OpSignature(name="b")], row, row))
    assert [(row, event["name"]) for row, event in events(more)] == [(0, "a"), *((-1, each["name"]) for each in behind)]
    assert more.event(1)["name"] == "b"


@pytest.mark.shared
@pytest.mark.parametrize("name", part_of_traces(device_traces()))
def test_every_recorded_kernel_is_written(
    name: str, real_analysis: RealAnalysis, real_trace: RealTrace, tmp_path: Path
) -> None:
    write_perfetto(real_analysis(name, on_demand=True), tmp_path / "x.json")
    written = json.loads((tmp_path / "x.json").read_bytes())["traceEvents"]
    table = real_trace(name).table
    assert Counter(event["name"] for event in written if str(event.get("cat")).lower() == "kernel") == Counter(
        table.name_of(row) for row in np.flatnonzero(table.kind == Kind.KERNEL).tolist()
    )
