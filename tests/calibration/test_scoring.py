"""Predictions beside measured points: errors, draws of families, intervals, and what a file must have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracelens.cli import main
from tracelens.errors import InputError
from tracelens.predict.calibration.scoring import ALL, errors_by_area, score_file
from tracelens.report import fleet_pages


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


def test_a_page_shows_scores_and_what_share_is_within_an_error(tmp_path: Path, capsys) -> None:
    """Errors of 10 and 5 % in area a: at 7.5 % half of its points, at 10 % both."""
    path = _file(tmp_path, "area,family,measured,predicted\na,<b>x</b>,100,110\na,y,100,95\nc,y,100,120\n")
    assert {name: errors.round(3).tolist() for name, errors in errors_by_area(path).items()} == {
        "a": [0.05, 0.1],
        "c": [0.2],
    }
    assert main(["score", str(path), "-o", str(tmp_path / "page.html")]) == 0
    out = capsys.readouterr().out
    meaning = (
        "of families drawn: the median in 9 of 10 draws of as many; inside: share within their predicted intervals"
    )
    assert meaning in out.splitlines()
    assert f"wrote {tmp_path / 'page.html'}" in out
    page = (tmp_path / "page.html").read_text()
    assert "Predictions of points.csv" in page
    assert "&lt;b&gt;x&lt;/b&gt;" in page
    assert "<b>x</b>" not in page
    assert fleet_pages._within(errors_by_area(path)["a"])[15] == (7.5, 50.0)
    assert fleet_pages._within(errors_by_area(path)["a"])[21] == (10.5, 100.0)


def test_groups_are_called_what_they_are(capsys) -> None:
    """The committed predictions are grouped by their source, other tables by a family."""
    assert main(["score", "--public"]) == 0
    head, *_ = out = capsys.readouterr().out.splitlines()
    assert "of sources drawn" in head
    assert any(line.startswith("of sources drawn: ") for line in out)
    assert main(["score", "--public", "--family", "area", "--format", "md"]) == 0
    assert "of families drawn" in capsys.readouterr().out


def test_public_predictions_are_of_points_left_out_and_score_as_the_docs_say(capsys) -> None:
    assert main(["score", "--public", "--format", "json"]) == 0
    scores = {score["name"]: score for score in json.loads(capsys.readouterr().out)["scores"]}
    accuracy = (Path(__file__).parents[2] / "docs" / "accuracy.md").read_text(encoding="utf-8")
    for area, title in {
        "training dense": "training step, dense",
        "training moe": "training step, MoE",
        "serving TPOT": "serving, time per token",
    }.items():
        row = next(line for line in accuracy.splitlines() if line.startswith(f"| {title} |"))
        said = [cell.strip() for cell in row.strip("| ").split("|")]
        found = scores[area]
        assert said[1:3] == [str(found["rows"]), f"{100 * found['median']:.1f} %"]
        assert said[4] == f"{100 * found['p90']:.1f} %"
        assert said[6] == f"{100 * found['inside']:.1f} %"


@pytest.mark.parametrize(
    "words", [["score"], ["score", "points.csv", "--public"], ["score", "--public", "-o", "scores.pdf"]]
)
def test_what_score_cannot_do_is_a_sentence(words: list[str], capsys) -> None:
    assert main(words) == 2
    assert "score takes one of" in (said := capsys.readouterr().err) or "must end in .html" in said
