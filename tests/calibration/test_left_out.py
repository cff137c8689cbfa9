"""Steps and servers whose family was left out of the fit: errors and intervals as docs/accuracy.md says them.

Every family is fitted without once: minutes, so with ``-m sweep`` only.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pandas as pd
import pytest

from benchmarks import fit_engines, fit_profiles, public_scores
from tracelens.predict.calibration.scoring import Score, public_predictions, score_file

pytestmark = [pytest.mark.shared, pytest.mark.sweep]


#: Of an engine or of points by how many ran at once; 39 above 128 at once are +11 %.
BIAS = 0.12


def scores(path: Path) -> dict[str, Score]:
    return {score.name: score for score in score_file(path) if score.name.startswith(("training", "serving"))}


def assert_published(path: Path, area: str) -> None:
    """What ``tracelens score --public`` scores was predicted with today's constants."""
    found, public = public_scores.ratios_of(pd.read_csv(path, dtype=str)), pd.read_csv(public_predictions())
    made, said = (table.loc[table["area"] == area].reset_index(drop=True) for table in (found, public))
    pd.testing.assert_frame_equal(made[["family", "predicted"]], said[["family", "predicted"]], rtol=1e-3)
    pd.testing.assert_frame_equal(made[["low", "high"]], said[["low", "high"]], atol=0.0101)


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
    assert_published(tmp_path / "p.csv", "training dense")
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


def test_time_per_token_of_what_was_left_out(shared_data: Path, tmp_path: Path) -> None:
    """Models; then sources, engines and devices as a whole, which is what to expect of a server nobody measured."""
    told, first = fit_engines.report(fit_engines.read(shared_data))
    fit_engines.predictions(tmp_path / "p.csv", told, first)
    found = scores(tmp_path / "p.csv")
    assert_published(tmp_path / "p.csv", "serving TPOT")
    assert_holds(found["serving TPOT"], 0.095, 0.30)
    # Prompts of unpublished lengths, MXFP4 experts and hosts that differ make the tail
    assert_holds(found["serving ITL"], 0.12, 0.46)
    groups: dict[str, list[float]] = {}
    for point, ratio in told["model"]:
        if not point.is_gap:
            groups.setdefault(point.engine, []).append(ratio)
            groups.setdefault(point.band, []).append(ratio)
    biased = {name: median(ratios) for name, ratios in groups.items() if abs(median(ratios) - 1) >= BIAS}
    assert biased == {}
    # Median errors as docs/accuracy.md states them
    most = {"aiconfigurator": 0.10, "InferenceX": 0.08, "ML.ENERGY": 0.36}
    for source, limit in most.items():
        assert median(abs(ratio - 1) for point, ratio in told["source"] if point.source == source) <= limit


def test_time_per_token_of_every_point_with_those_that_ran_far_fewer_at_once(shared_data: Path, tmp_path: Path) -> None:
    """Points that by their own times ran less than half of the stated requests are off, but few: 16 of 1,590."""
    served = fit_engines.read(shared_data, queued=0.0)
    tokens = [one for one in served if not one.is_gap]
    assert 0 < sum(one.running <= fit_engines.QUEUED * one.batch for one in tokens) <= 0.011 * len(tokens)
    fit_engines.predictions(tmp_path / "p.csv", {"model": fit_engines.left_out(served)}, {})
    assert_holds(scores(tmp_path / "p.csv")["serving TPOT"], 0.11, 0.35)
