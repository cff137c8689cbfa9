"""``tracelens collectives``: the ranks of a job, as a user compares them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

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


def test_the_result_is_written_where_o_says_and_printed(
    two_ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["collectives", str(two_ranks), "-o", str(out), "--csv", *HERE]) == 0
    said = capsys.readouterr().out
    assert "2 ranks of 8: 0-1" in said
    assert said.rstrip().endswith(f"wrote {out}/")
    assert {path.name for path in out.iterdir()} == {"collectives.xlsx", "collectives.html", "collectives.json", "csv"}
    assert list((out / "csv").glob("*.csv"))


def test_one_file_is_all_that_is_written_and_json_is_what_it_holds(
    two_ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "alone.json"
    assert main(["collectives", str(two_ranks), "-o", str(path), "--format", "json", *HERE]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(path.read_text(encoding="utf-8"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["alone.json", "job"]


def test_a_broken_rank_is_left_out_and_named(
    two_ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (two_ranks / "rank2.json").write_text("no trace")
    assert main(["collectives", str(two_ranks), "-o", str(tmp_path / "out.json"), *HERE]) == 0
    assert "rank2.json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nowhere"], 1, "nowhere"),
        (["{job}", "-o", "{job}/x.xlsx", "--csv"], 2, "must be a folder"),
        (["{job}", "--extension", "megatrn"], 2, "did you mean megatron"),
        (["{job}/rank0.json.gz", "{job}/rank1.json.gz", "-o", "{job}"], 2, "is not a tracelens report"),
    ],
)
def test_what_cannot_be_compared_ends_with_a_sentence(
    two_ranks: Path, words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["collectives", *(word.format(job=two_ranks) for word in words), *HERE]) == code
    assert message in capsys.readouterr().err


def test_an_input_is_never_written_over(two_ranks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = two_ranks / "rank0.json.gz"
    before = trace.read_bytes()
    assert main(["collectives", str(two_ranks), "-o", str(trace), *HERE]) == 2
    assert trace.read_bytes() == before
