"""A trace for Perfetto."""

from __future__ import annotations

import json

import pytest

import tracelens
from tracelens.cli import main


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
