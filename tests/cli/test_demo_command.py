"""``tracelens demo``: a report without a file of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracelens.cli import main
from tracelens.cli.reporting import example_trace


def test_the_demo_writes_a_report_where_one_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0
    assert "EP_Communication" in capsys.readouterr().out
    assert (tmp_path / "tracelens_demo.report" / "report.xlsx").is_file()


def test_the_bundled_trace_is_small(repository: Path) -> None:
    assert example_trace().stat().st_size < 100_000
    assert example_trace() == repository / "example_traces" / "moe_ep8" / "rank0.json.gz"
