"""``tracelens project``: what it writes, and what it refuses in one sentence."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from pathlib import Path

import pandas as pd
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


@pytest.mark.parametrize(
    ("model", "gpus"), [("llama3.1-8b", 16), pytest.param("llama3.1-70b", 64, marks=pytest.mark.sweep)]
)
def test_without_a_degree_the_fastest_split_that_fits_is_taken_and_named(
    model: str, gpus: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The split of `tracelens search`, and the very step that the command it prints asks for."""
    ask = ["--model", model, "--cluster", "dgx-h100", "--gpus", str(gpus)]
    assert main(["project", *ask]) == 0
    out = capsys.readouterr().out
    first, *step, command = out.splitlines()
    assert first.startswith("No degree was given, so tracelens took the fastest of ")
    assert f"The global batch is {8 * gpus} sequences, 8 per GPU (--global-batch)" in first
    words = shlex.split(command.removeprefix("the same step: "))
    assert main(words[1:]) == 0
    assert capsys.readouterr().out.splitlines() == step
    assert main(["search", *ask, "--global-batch", str(8 * gpus), "--sequence", "4096"]) == 0
    found = capsys.readouterr().out
    count = re.search(r"took the fastest of ([\d,]+) splits that fit", first)
    assert count is not None
    assert f"of {count[1]} configurations that fit" in found
    printed = next(line for line in found.splitlines() if line.startswith("  tracelens project "))
    low = re.search(r"likely too low, by some (\d+) %", first)
    assert low is not None
    assert abs(float(re.findall(r"around \+([\d.]+) %", found)[0]) - int(low[1])) <= 0.5
    assert set(words[words.index("--gpus") : words.index("--global-batch")]) <= set(printed.split())


def test_the_command_of_a_split_without_degrees_asks_for_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["project", "--model", "qwen2.5-0.5b", "--cluster", "dgx-h100", "--gpus", "8"]) == 0
    first, *step, command = capsys.readouterr().out.splitlines()
    assert "data parallelism alone" in first
    assert "--tp 1 " in command
    assert main(shlex.split(command.removeprefix("the same step: "))[1:]) == 0
    assert capsys.readouterr().out.splitlines() == step


def test_a_degree_of_1_is_a_degree(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "zero"):
        assert project(f"--{name}", 1, "--sequence", 8192) == 3
        found.append(capsys.readouterr().out)
    assert len(set(found)) == 1
    assert found[0].startswith("does not fit: stage 0 needs")
    assert "No degree" not in found[0]


def test_micro_batch_and_recomputation_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, table = tmp_path / "step.html", tmp_path / "step.json"
    assert project("--micro-batch", 2, "--recompute", "full", "--lora", 16, "-o", table) == 0
    out = capsys.readouterr().out
    assert "micro-batch of 2 x 4,096 tokens" in out
    assert "recompute full" in out
    assert "The global batch is 16 sequences. The search does not know --lora." in out
    assert json.loads(table.read_text())["summary"]["split"].endswith("micro-batch 2, recompute full")
    assert project("--power", 500) == 0
    assert "The search does not know --power." in capsys.readouterr().out
    assert project("-o", page) == 0
    assert "No degree was given, so tracelens took the fastest of" in page.read_text()


@pytest.mark.sweep
def test_where_no_split_fits_the_step_without_one_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["project", "--model", "llama3.1-70b", "--cluster", "dgx-h100", "--gpus", "8"]) == 3
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "No degree was given, and no split fits: this is the step without any"
    assert second.startswith("does not fit: stage 0 needs")


@pytest.mark.sweep
def test_each_point_of_a_sweep_without_degrees_takes_its_own_split(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "sweep.csv"
    assert project("--sweep", "gpus=8,16", "--sweep", "host_us=1,2", "-o", table) == 0
    rows = pd.read_csv(table)
    assert rows.fits.all()
    assert rows.split.str.contains("ZeRO").all()
    capsys.readouterr()
    assert project("--sweep", "tp=1,8", "-o", table) in (0, 3)
    assert "split" not in pd.read_csv(table)


def test_a_launch_file_and_a_measured_step_have_a_split_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = tmp_path / "run.sh"
    launch.write_text("--micro-batch-size 1 --global-batch-size 16 --seq-length 4096\n")
    assert project("--launch", launch) == 3
    assert "No degree" not in capsys.readouterr().out
    assert project("--anchor", tmp_path / "none.json") == 1
    assert "none.json" in capsys.readouterr().err
