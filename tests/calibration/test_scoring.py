"""Predictions beside measured points: errors, draws of families, intervals, and what a file must have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracelens.cli import main
from tracelens.errors import InputError
from tracelens.predict.calibration.scoring import ALL, score_file


def _file(folder: Path, text: str) -> Path:
    path = folder / "points.csv"
    path.write_text(text)
    return path


def test_errors_of_four_points(tmp_path: Path) -> None:
    """110/100 and 95/100 in family a, 240/200 in b, and one without a prediction: errors 10, -5 and 20 %."""
    path = _file(tmp_path, "family,measured,predicted\na,100,110\na,100,95\nb,200,240\nb,200,\n")
    every, a, b = score_file(path)
    assert (every.name, every.rows, every.missing) == (ALL, 3, 1)
    assert every.median == pytest.approx(0.10)
    assert every.signed == pytest.approx(0.10)
    assert (a.rows, a.median, a.signed) == (2, pytest.approx(0.075), pytest.approx(0.025))
    assert (b.rows, b.missing, b.median) == (1, 1, pytest.approx(0.20))
    assert every.median_low is None, "two families are too few to draw from"
    assert every.inside is None


def test_share_inside_the_intervals_and_draws_of_families(tmp_path: Path) -> None:
    rows = [f"m{at},100,{100 + at},{95 + at},{110 + at}" for at in range(10)]
    path = _file(tmp_path, "\n".join(["family,measured,predicted,low,high", *rows]) + "\n")
    every = score_file(path)[0]
    assert every.inside == pytest.approx(0.6), "of 95..104, six are at most 100"
    assert every.median is not None
    assert every.median_low is not None
    assert every.median_high is not None
    assert every.median_low < every.median < every.median_high


def test_what_batch_wrote_is_scored_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _file(tmp_path, "model,step_time_s,step_time_s_est\nllama,2,2.2\nllama,,2.2\n")
    assert main(["score", str(path), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in document["scores"]] == ["all", "llama"]
    assert document["scores"][0]["median"] == pytest.approx(0.1)
    assert main(["score", str(path)]) == 0
    assert "10.0%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "no pair of columns"),
        ("measured,predicted\n1,x\n", "row 2: predicted must be"),
        ("measured,predicted\n0,1\n", "row 2: measured must be"),
        ("measured,predicted\n,1\n", "no row has a value"),
    ],
)
def test_a_file_that_cannot_be_scored_says_what_and_where(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        score_file(_file(tmp_path, text))


def test_energies_are_scored_beside_times(tmp_path: Path) -> None:
    """J per token: 1.1 and 0.9 of what was measured, the second outside its interval."""
    path = tmp_path / "out.csv"
    path.write_text(
        "model,median_itl_ms,itl_ms_est,energy_per_token_joules,energy_per_token_j_est,energy_per_token_j_low,"
        "energy_per_token_j_high\na,10,12,2,2.2,1.5,3\nb,10,12,2,1.8,1.7,1.9\n"
    )
    times, energies = (each for each in score_file(path) if each.name.endswith(ALL))
    assert (times.name, energies.name) == (ALL, f"energy_per_token_j_est: {ALL}")
    assert times.median == pytest.approx(0.2)
    assert energies.median == pytest.approx(0.1)
    assert energies.inside == 0.5
