"""Steps and servers whose family was left out of the fit: errors and intervals as docs/accuracy.md says them.

Every family is fitted without once: minutes, so with ``-m sweep`` only.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

from benchmarks import fit_engines, fit_profiles
from tracelens.predict.calibration.scoring import Score, score_file

pytestmark = [pytest.mark.shared, pytest.mark.sweep]


def scores(path: Path) -> dict[str, Score]:
    return {score.name: score for score in score_file(path) if score.name.startswith(("training", "serving"))}


def assert_holds(score: Score, most: float, p90: float, inside: float = 0.85) -> None:
    assert score.median is not None
    assert score.p90 is not None
    assert score.inside is not None
    assert score.median <= most
    assert score.p90 <= p90
    assert inside <= score.inside <= 0.95


def test_training_steps_of_families_left_out(shared_data: Path, tmp_path: Path) -> None:
    told = fit_profiles.report(fit_profiles.read(shared_data), False, tmp_path / "p.csv", "today")
    found = scores(tmp_path / "p.csv")
    # Families of frameworks with constants of their own.
    assert_holds(found["training dense"], 0.05, 0.12)
    assert_holds(found["training moe"], 0.09, 0.30)
    assert_holds(found["training lora"], 0.09, 0.20, inside=0.83)  # 41 of 49 rows
    # Frameworks left out as a whole: what a framework that nobody measured has to expect.
    assert_holds(found["training framework left out"], 0.09, 0.30)
    for kinds in (("dense", "moe"), ("dense", "moe", "lora")):
        errors = sorted(abs(ratio - 1) for ratio in fit_profiles.mlperf(told, kinds))
        assert median(errors) <= 0.06
        assert errors[int(0.9 * len(errors))] <= 0.17


def test_time_per_token_of_models_left_out(shared_data: Path, tmp_path: Path) -> None:
    points = fit_engines.report(fit_engines.read(shared_data), False, tmp_path / "p.csv", "today")
    found = scores(tmp_path / "p.csv")
    assert_holds(found["serving TPOT"], 0.11, 0.35)
    # SGLang +6.7 %, 39 points above 128 at once +9.1 %, as docs/accuracy.md says (0.09 was the bound of +8.3)
    # The target of ITL is 0.12: prompts of unpublished lengths are in the median step of 61 rows
    assert_holds(found["serving ITL"], 0.14, 0.48)
    groups: dict[str, list[float]] = {}
    for point, ratio in points:
        if not point.is_gap:
            groups.setdefault(point.engine, []).append(ratio)
            groups.setdefault(point.band, []).append(ratio)
    biased = {name: median(ratios) for name, ratios in groups.items() if abs(median(ratios) - 1) >= 0.10}
    assert biased == {}


def test_a_source_left_out_as_a_whole(shared_data: Path) -> None:
    """What to expect of a server that nobody measured: median errors as docs/accuracy.md states them."""
    points = fit_engines.read(shared_data)
    found = {
        source: [abs(ratio - 1) for _, ratio in fit_engines.source_left_out(points, source)]
        for source in ("aiconfigurator", "InferenceX", "ML.ENERGY")
    }
    most = {"aiconfigurator": 0.15, "InferenceX": 0.13, "ML.ENERGY": 0.36}
    assert all(median(found[source]) <= limit for source, limit in most.items())


def test_time_per_token_of_every_point_with_those_that_ran_far_fewer_at_once(shared_data: Path, tmp_path: Path) -> None:
    """Points that by their own times ran less than half of the stated requests are off, but few: 16 of 1,590."""
    served = fit_engines.read(shared_data, queued=0.0)
    tokens = [one for one in served if not one.is_gap]
    assert 0 < sum(one.running <= fit_engines.QUEUED * one.batch for one in tokens) <= 0.011 * len(tokens)
    fit_engines.report(served, False, tmp_path / "p.csv", "today")
    assert_holds(scores(tmp_path / "p.csv")["serving TPOT"], 0.11, 0.35)
