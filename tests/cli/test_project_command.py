"""``tracelens project``: what it writes, and what it refuses in one sentence."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from tracelens.cli import main
from tracelens.cli import project as verb

STEP = ["project", "--model", "llama3.1-8b", "--cluster", "dgx-h100", "--gpus", "8", "--global-batch", "16"]


def project(*more: object) -> int:
    return main([*STEP, *map(str, more)])


def refused(capsys: pytest.CaptureFixture[str], *more: object) -> str:
    assert project(*more) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_the_old_name_of_the_gemm_factor_does_the_same_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    for asked in (["--{}-factor", "1.5"], ["--sweep", "{}-factor=1,1.5"]):
        assert project("--tp", 8, *(word.format("gemm") for word in asked)) == 0
        new = capsys.readouterr()
        assert project("--tp", 8, *(word.format("products") for word in asked)) == 0
        old = capsys.readouterr()
        assert old.out == new.out
        assert new.err == ""
        assert old.err.count("hint: ") == 1
        assert "products-factor is called --gemm-factor now" in old.err


def test_a_step_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert project("--tp", 8, "-o", tmp_path / "step.json") == 0
    shown = capsys.readouterr().out
    step_s = json.loads((tmp_path / "step.json").read_text())["summary"]["step_time_s"]
    assert f"{step_s:.3f} s per step" in shown
    assert shown.rstrip().endswith(f"wrote {tmp_path / 'step.json'}")


def test_files_are_written_although_nobody_reads_the_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*args: object, **kwargs: object) -> None:
        raise BrokenPipeError

    parser = argparse.ArgumentParser()
    verb.configure(parser)
    asked = parser.parse_args([*STEP[1:], "--tp", "8", "-o", str(tmp_path / "ops.csv")])
    monkeypatch.setattr(verb, "say", closed)
    with pytest.raises(BrokenPipeError):
        verb.run(asked)
    assert (tmp_path / "ops.csv").exists()


def test_each_rank_is_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert project("--tp", 8, "--trace", tmp_path / "traces", "--trace-ranks", "0,0") == 0
    assert f"wrote 1 traces to {tmp_path / 'traces'}" in capsys.readouterr().out


def test_the_traced_step_has_one_value_per_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert "one value per option" in refused(capsys, "--anchor", "r.json", "--traced", "tp=1,2")


def test_an_option_is_swept_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--sweep names tp twice" in refused(capsys, "--sweep", "tp=1,2", "--sweep", "tp=4,8")


def test_a_straggler_stands_in_a_stage_that_exists(capsys: pytest.CaptureFixture[str]) -> None:
    assert "with pp 1 the stages are 0 to 0" in refused(capsys, "--straggler", "9:5")
    assert "straggler factor must be >= 1" in refused(capsys, "--straggler", "0:0.5")
