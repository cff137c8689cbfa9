"""``tracelens fuse``: several ranks in one file for Perfetto."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tracelens.cli import main

HERE = ["--executor", "serial"]


@pytest.fixture
def two_ranks(repository: Path, tmp_path: Path) -> Path:
    job = tmp_path / "job"
    job.mkdir()
    for rank in (0, 1):
        shutil.copy(repository / "example_traces" / "moe_ep8" / f"rank{rank}.json.gz", job)
    return job


def events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return found


def named(path: Path, category: str) -> int:
    return sum(event.get("cat") == category and event["ph"] == "X" for event in events(path))


def test_all_kernels_of_the_ranks_are_in_one_file(
    two_ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fused.json.gz"
    assert main(["fuse", str(two_ranks), "-o", str(out), *HERE]) == 0
    said = capsys.readouterr().out
    assert "2 ranks (0-1)" in said
    assert said.rstrip().endswith(f"wrote {out}")
    assert named(out, "kernel") == sum(named(path, "kernel") for path in two_ranks.iterdir()) > 0
    processes = {event["args"]["name"] for event in events(out) if event["name"] == "process_name"}
    assert any("rank 0" in name for name in processes)
    assert any("rank 1" in name for name in processes)


def test_ranks_categories_and_counters_may_be_left_out(two_ranks: Path, tmp_path: Path) -> None:
    out = tmp_path / "fused.json.gz"
    words = ["--ranks", "1", "--category", "kernel", "--no-counters", "--no-clocks"]
    assert main(["fuse", str(two_ranks), "-o", str(out), *words, *HERE]) == 0
    assert named(out, "kernel") == named(two_ranks / "rank1.json.gz", "kernel")
    assert {event.get("cat") for event in events(out) if event["ph"] == "X"} == {"kernel"}
    assert not [event for event in events(out) if event["ph"] == "C"]


def test_the_file_is_named_after_the_folder_unless_o_says(two_ranks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuse", str(two_ranks), *HERE]) == 0
    assert (two_ranks.parent / "job.fused.json.gz").exists()


def test_a_category_that_no_event_has_is_said(
    two_ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fuse", str(two_ranks), "-o", str(tmp_path / "f.json"), "--category", "kernal", *HERE]) == 0
    assert "note: no event has --category kernal" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["nowhere"], 1),
        (["{job}", "--window", "5:1"], 2),
        (["{job}", "--ranks", "a"], 2),
        (["{job}", "--ranks", "7"], 2),
    ],
)
def test_what_cannot_be_fused_ends_with_a_sentence_and_no_file(
    two_ranks: Path, tmp_path: Path, words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fused.json.gz"
    assert main(["fuse", *(word.format(job=two_ranks) for word in words), "-o", str(out), *HERE]) == code
    assert capsys.readouterr().err.startswith("error: ")
    assert not out.exists()


def test_an_input_is_never_written_over(two_ranks: Path) -> None:
    trace = two_ranks / "rank0.json.gz"
    before = trace.read_bytes()
    assert main(["fuse", str(two_ranks), "-o", str(trace), *HERE]) == 2
    assert trace.read_bytes() == before
