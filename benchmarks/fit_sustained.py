"""Measures how much longer than the tile model says the longest measured products take, as device files hold it.

    python benchmarks/fit_sustained.py FOLDER [--flops 1e13] [--write]

FOLDER holds gemm.parquet (reading it takes pyarrow). The tile model's constants rest on thousands of products, most of
them done before the device's power limit lowered its clock. A training step never gives it that rest, so projections
slow their products down as the median of the longest ones, of all precisions together: a clock is the same for all.
The estimate is the table's layer, quantizing included.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from tracelens.analysis.calibration import device_file
from tracelens.backends.columns import GEMMColumns
from tracelens.backends.tile import price
from tracelens.hardware import HardwareSpec
from tracelens.hardware.calibration import Calibration
from tracelens.hardware.spec import FOLDER

PRECISION = {"bfloat16": "bf16", "fp8": "fp8", "nvfp4": "nvfp4"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--flops", type=float, default=1e13, help="what counts as long")
    parser.add_argument("--write", action="store_true", help="put it into the device files of the package")
    args = parser.parse_args()
    table = pd.read_parquet(args.folder / "gemm.parquet")
    table = table[(2 * table.m * table.n * table.k > args.flops) & table.gemm_dtype.isin(list(PRECISION))]
    for name, rows in table.groupby("device"):
        device = HardwareSpec.load(str(name))
        each = [longer(device, PRECISION[str(dtype)], some) for dtype, some in rows.groupby("gemm_dtype")]
        ratios = np.concatenate(each)
        low, high = np.percentile(ratios, [25, 75])
        print(f"{device.name}: {np.median(ratios):.3g}, quartiles {low:.2f} to {high:.2f}")
        fitted_on = (
            f"aiconfigurator measured tables (Apache-2.0), gemm: the {len(ratios)} products above "
            f"{args.flops / 1e12:.0f} TFLOP, median over the constants above; benchmarks/fit_sustained.py"
        )
        slowdown = {"slowdown": float(np.median(ratios))}
        made = Calibration(family="sustained", precision="products", constants=slowdown, fitted_on=fitted_on)
        if args.write:
            file = FOLDER / f"{device.name}.toml"
            file.write_text(device_file(file.read_text(encoding="utf-8"), [made]), encoding="utf-8")


def longer(device: HardwareSpec, precision: str, rows: pd.DataFrame) -> np.ndarray:
    """Measured over estimated times; nothing where the device has no constants."""
    m, n, k = (rows[column].to_numpy(np.float64) for column in "mnk")
    found = price(GEMMColumns.of(precision, m, n, k, np.ones(len(rows)), as_layer=True), device)
    return np.empty(0) if found is None else rows.latency_ms.to_numpy() * 1e3 / found.time_us


if __name__ == "__main__":
    main()
