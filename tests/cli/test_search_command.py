"""``tracelens search`` prints the published winner."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from tracelens.cli import main

GPT3 = ["search", "--model", "gpt3-175b", "--cluster", "a100-nvs4", "--strategy", "1d", "--global-batch", "1024"]


def test_the_table_is_written_with_the_published_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GPT3, "--gpus", "512", "--top", "3", "-o", str(tmp_path / "out.csv")]) == 0
    table = pd.read_csv(tmp_path / "out.csv")
    assert len(table) == 3
    assert round(table["t"].iloc[0], 3) == 22.469
    assert "22.469" in capsys.readouterr().out


def test_nothing_that_fits_is_exit_3_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GPT3, "--gpus", "4..8"]) == 3
    assert "no feasible configuration on 4, 8 devices" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--gpus", "many"], ["--gpus", "512", "--cluster", "a100"], ["--gpus", "0"]])
def test_bad_parameters_are_one_sentence(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*GPT3, *wrong]) == 2
    assert capsys.readouterr().err.startswith("error: --")
