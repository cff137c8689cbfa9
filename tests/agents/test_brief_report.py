"""The compact report says what report.json says; the map of the documentation leads to pages that are there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tracelens.cli import main


def test_the_compact_report_is_the_report_in_short(repository, tmp_path, capsys):
    trace = str(repository / "example_traces" / "moe_ep8" / "rank0.json.gz")
    assert main(["report", trace, "--format", "json", "--brief", "-o", str(tmp_path / "report.json")]) == 0
    printed = capsys.readouterr().out
    brief, whole = json.loads(printed), json.loads((tmp_path / "report.json").read_bytes())
    assert brief["schema"] == "tracelens.report.brief/2"
    assert printed.count("\n") == 1
    assert len(printed) < (tmp_path / "report.json").stat().st_size / 15
    assert brief["step"]["time_us"] == pytest.approx(whole["step"]["time_us"], rel=1e-4)
    assert [found["gain_us"] for found in brief["findings"]] == pytest.approx(
        [found["gain_us"] for found in whole["findings"]], rel=1e-4
    )
    assert brief["cannot_answer"] == whole["cannot_answer"]
    assert set(whole) - set(brief) == {"ops", "views", "extensions"}


def test_the_map_for_agents_leads_to_pages_that_are_there():
    docs = Path(__file__).resolve().parents[2] / "docs"
    pages = re.findall(r"\]\((\S+?)\)", (docs / "llms.txt").read_text(encoding="utf-8"))
    assert len(pages) > 10
    assert all((docs / page).is_file() for page in pages)
