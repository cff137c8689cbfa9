"""``tracelens search``: tables, reasons, constraints, files; the published winner under the paper's rules."""

from __future__ import annotations

from pathlib import Path

import openpyxl
import orjson
import pandas as pd
import pytest

from tracelens.cli import main
from tracelens.predict.projection.search import COLUMNS

GPT3 = ["search", "--model", "gpt3-175b", "--cluster", "a100-nvs4", "--strategy", "1d", "--global-batch", "1024"]
PAPER = [*GPT3, "--rules", "paper"]
SMALL = ["search", "--model", "llama3.1-8b", "--cluster", "dgx-h100", "--strategy", "1d", "--global-batch", "64"]


def test_the_table_is_written_with_the_published_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PAPER, "--gpus", "512", "--top", "3", "-o", str(tmp_path / "out.csv")]) == 0
    table = pd.read_csv(tmp_path / "out.csv")
    assert tuple(table.columns) == COLUMNS
    assert len(table) == 3
    assert round(table["t"].iloc[0], 3) == 22.469
    assert "22.469" in capsys.readouterr().out


def test_nothing_that_fits_is_exit_3_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PAPER, "--gpus", "4..8"]) == 3
    assert "no feasible configuration on 4, 8 devices" in capsys.readouterr().out


@pytest.mark.sweep
def test_too_few_devices_are_told_how_many_hold_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    """405.9 G parameters of 2 bytes, 4 of gradient and 12 of optimizer are 7,305 GB: 86 devices of 85.0 GB."""
    model = ["search", "--model", "llama3.1-405b", "--cluster", "dgx-h100", "--global-batch", "64"]
    assert main([*model, "--gpus", "64"]) == 3
    said = "no feasible configuration on 64 devices: weights, gradients and optimizer alone are 7,305 GB, the memory of 86 devices"
    assert said in capsys.readouterr().out


def test_what_does_not_fit_is_in_the_file_as_on_the_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fixed = ["--fix", "tp=1,pp=1,mbs=8", "--fix", "recompute=none", "--gpus", "8"]
    assert main([*SMALL, *fixed, "-o", str(tmp_path / "out.csv")]) == 3
    assert "does not fit: needs" in capsys.readouterr().out
    assert len(pd.read_csv(tmp_path / "out.csv")) >= 1


def test_the_winner_its_reasons_and_its_recheck_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--gpus", "8,16", "--top", "3", "--pareto"]) == 0
    out = capsys.readouterr().out
    assert "what the best alternatives cost" in out
    assert "the event graph (tracelens project) gives" in out
    assert "configurations that fit; the slowest takes" in out
    assert "Pareto front of time, devices and memory" in out


def test_the_printed_projection_is_the_winner(capsys: pytest.CaptureFixture[str]) -> None:
    """The command that the answer names projects the step that it was re-checked with."""
    assert main([*SMALL, "--gpus", "16", "--framework", "megatron"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (command,) = (line.split()[1:] for line in lines if line.startswith("  tracelens project "))
    (checked,) = (line for line in lines if "the event graph (tracelens project) gives" in line)
    assert main(command) == 0
    step_s = checked.split(" gives ")[1].split(" s,")[0]
    assert f": {step_s} s per step" in capsys.readouterr().out


def test_one_configuration_that_does_not_fit_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    fixed = ["--fix", "tp=1,pp=1,mbs=8", "--fix", "recompute=none", "--gpus", "8", "--explain", "0"]
    assert main([*SMALL, *fixed]) == 3
    out = capsys.readouterr().out
    assert "does not fit: needs" in out
    assert "attention.sdpa" in out


def test_devices_are_limited_and_dimensions_forbidden(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    flags = ["--max-gpus", "16", "--forbid", "pp", "--forbid", "zero", "-o", str(out)]
    assert main([*SMALL, *flags]) == 0
    rows = orjson.loads(out.read_bytes())["rows"]
    assert {row["n_gpus"] for row in rows} <= {1, 2, 4, 8, 16}
    assert {(row["pp"], row["zero"]) for row in rows} == {(1, 1)}


def test_a_workbook_has_a_row_per_configuration(tmp_path: Path) -> None:
    out = tmp_path / "out.xlsx"
    assert main([*SMALL, "--gpus", "8", "--top", "4", "-o", str(out)]) == 0
    rows = list(openpyxl.load_workbook(out).active.values)
    assert rows[0][:3] == ("Model", "GPU", "Nvs")
    assert len(rows) == 5


@pytest.mark.parametrize(
    "wrong",
    [
        ["--gpus", "many"],
        ["--gpus", "512", "--cluster", "a100-nvs"],
        ["--gpus", "512", "--rules", "paper", "--cluster", "a100"],
        ["--gpus", "0"],
        [],
        ["--gpus", "8", "--fix", "tp"],
        ["--gpus", "8", "--fix", "tpp=1"],
        ["--gpus", "8", "--fix", "tp=two"],
        ["--gpus", "8", "--rules", "paper", "--precision", "fp8"],
        ["--gpus", "8", "-o", "out.csv", "--sweep", "hbm_gb=80", "--explain", "0"],
        ["--gpus", "8", "--precision", "bf17"],
        ["--gpus", "8", "--memory-headroom", "2"],
        ["--gpus", "8", "--objective", "cost"],
        ["--gpus", "8", "-o", "out.pdf"],
        pytest.param(["--gpus", "512", "--explain", "99"], marks=pytest.mark.sweep),
    ],
)
def test_bad_parameters_are_one_sentence(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GPT3, *wrong]) == 2
    assert capsys.readouterr().err.startswith("error: ")


SWEEP = [*PAPER, "--gpus", "64", "--top", "1", "--executor", "serial"]


def test_a_sweep_goes_on_where_it_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More memory never makes the best slower; a second run with more values keeps the rows of the first."""
    out = tmp_path / "out.csv"
    command = [*SWEEP, "-o", str(out), "--plot", str(tmp_path), "--sweep"]
    assert main([*command, "hbm_gb=80/160,flops=312..624"]) == 0
    first = pd.read_csv(out)
    assert first.groupby("set_flops")["t"].apply(lambda t: t.is_monotonic_decreasing).all()
    assert "hbm_gb" in (tmp_path / "flops_hbm_gb.svg").read_text()
    first.loc[0, "t"] = 123.0
    first.to_csv(out, index=False)
    assert main([*command, "hbm_gb=80/160/320,flops=312..624"]) == 0
    again = pd.read_csv(out)
    assert (len(first), len(again)) == (4, 6)
    assert 123.0 in set(again["t"])
    assert "6 points, 6 rows" in capsys.readouterr().out
    assert main([*command, "hbm_gb=80/160/320", "--top", "2"]) == 1
    assert "choose another file" in capsys.readouterr().err
    assert len(pd.read_csv(out)) == 6


def test_a_sweep_over_models_says_which_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.csv"
    assert main([*SWEEP, "-o", str(out), "--sweep", "model=gpt3-175b/gpt5"]) == 0
    assert set(pd.read_csv(out)["model"]) == {"gpt3-175b"}
    assert "no result: gpt5" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", ["hbm=80", "flops", "flops=a", "flops=2..1"])
def test_a_sweep_of_nothing_is_one_sentence(wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SWEEP, "-o", str(tmp_path / "out.csv"), "--sweep", wrong]) == 2
    assert capsys.readouterr().err.startswith("error: --sweep")


def test_plots_show_scaling_components_degrees_and_the_landscape(tmp_path: Path) -> None:
    assert main([*SMALL, "--gpus", "8..32", "--top", "1", "--plot", str(tmp_path)]) == 0
    names = {path.stem for path in tmp_path.glob("*.svg")}
    assert names == {"scaling", "degrees", "time", "time_shares", "memory", "landscape"}
    assert "computing" in (tmp_path / "time.svg").read_text()
    assert "<svg" in (tmp_path / "landscape.svg").read_text()
