"""Writes the predictions that ``tracelens score --public`` scores: ``python -m benchmarks.public_scores FOLDER``.

FOLDER holds the published points (training_points.csv, serving_points.csv, tables/). Each is predicted with constants
that were fitted without its family, and without its framework or source as a whole; its area says which. What is
written is each prediction and its interval over the measured value, which is 1.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks import fit_engines, fit_profiles
from tracelens.predict.calibration.scoring import public_predictions

_FIGURES = ["measured", "predicted", "low", "high"]
#: Servers are also predicted without their engine or device: too many rows for a package.
_LEFT = ("engine left out", "device left out")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the predictions of published points that were left out")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as made:
        training, serving = Path(made) / "training.csv", Path(made) / "serving.csv"
        fit_profiles.report(fit_profiles.read(folder), False, training, "")
        fit_engines.predictions(serving, *fit_engines.report(fit_engines.read(folder)))
        found = pd.concat([pd.read_csv(training, dtype=str), pd.read_csv(serving, dtype=str)], ignore_index=True)
    ratios_of(found).to_csv(public_predictions(), index=False, lineterminator="\n", float_format="%.10g")


def ratios_of(predictions: pd.DataFrame) -> pd.DataFrame:
    """Over the measured values. Bounds to a hundredth, away from 1: which are within stays what it is."""
    predictions = predictions[~predictions["area"].str.endswith(_LEFT)]
    figures = predictions[_FIGURES].astype(float)
    ratios = figures.div(figures["measured"], axis="index").round(4)
    bounds = (ratios[["low", "high"]] * 100).round(4)
    ratios[["low", "high"]] = np.where(bounds > 100, np.ceil(bounds), np.floor(bounds)) / 100
    publisher = predictions["source"].str.removeprefix("github ").str.extract(r"^([^@\s:]+)")[0]
    named = predictions[["area", "family"]].assign(source=publisher.replace("Primus", "AMD-AGI/Primus"))
    return named.join(ratios)


if __name__ == "__main__":
    main()
