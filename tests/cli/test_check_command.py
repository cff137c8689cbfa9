"""``tracelens check``: what a trace holds and lacks, without a report."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tracelens.cli import main


def test_it_counts_events_links_and_steps_and_writes_nothing(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = repository / "example_traces" / "moe_ep8" / "rank0.json.gz"
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    monkeypatch.chdir(tmp_path)
    assert main(["check", str(trace)]) == 0
    said = capsys.readouterr().out
    assert f"rank0.json.gz, rank 0 of 8: {len(events):,} events" in said
    kernels = sum(event.get("cat") == "kernel" for event in events)
    assert f"kernel {kernels}" in said
    assert "steps         3 named ProfilerStep" in said
    assert "device        mi300x (AMD Instinct MI300X)" in said
    assert list(tmp_path.iterdir()) == []


def test_a_given_device_is_used_and_an_unknown_one_is_refused(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(repository / "example_traces" / "moe_ep8" / "rank0.json.gz")
    assert main(["check", trace, "--device", "h100-sxm"]) == 0
    assert "h100-sxm" in capsys.readouterr().out
    assert main(["check", trace, "--device", "h100-sxn"]) == 2
    assert "did you mean h100-sxm" in capsys.readouterr().err


def test_without_device_events_it_says_what_it_saw_and_ends_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    path = tmp_path / "host.json"
    path.write_text(json.dumps({"traceEvents": [op]}))
    assert main(["check", str(path)]) == 3
    printed = capsys.readouterr()
    assert "cpu_op 1" in printed.out
    assert "links         no device events" in printed.out
    assert printed.err.startswith("error: ")


def test_a_missing_or_broken_file_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("no trace")
    for path in (tmp_path / "nowhere.json", broken):
        assert main(["check", str(path)]) == 1
        assert path.name in capsys.readouterr().err


def test_text_from_a_trace_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel = {"ph": "X", "cat": "kernel\u001b[31m", "name": "k", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    path = tmp_path / "hostile.json"
    path.write_text(json.dumps({"traceEvents": [kernel, {**kernel, "cat": "kernel"}]}))
    assert main(["check", str(path)]) == 0
    assert "\u001b" not in capsys.readouterr().out
