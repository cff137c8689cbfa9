"""Fits the constants of engines' kernels on measured tables, and reports the error on shape groups not fitted.

    python benchmarks/fit_kernels.py FOLDER [--table NAME ...] [--write] [--quiet]

FOLDER holds aiconfigurator's measured tables by name (``gdn.parquet``; reading them takes pyarrow). Halves are split by
shape group (``KernelTable.groups``), never by row. Errors are |estimate / measured - 1| in percent, mean / median /
90th percentile, each half by the constants of the other. ``--write`` puts constants fitted on all groups into
``tracelens/hardware/kernels/NAME.toml``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from tracelens.backends.kernels import kernel_table, kernel_tables
from tracelens.backends.kernels.kernel_costs import FOLDER
from tracelens.hardware.device_figures import KernelConstants
from tracelens.predict.calibration.kernel_calibration import constants_file, kernel_fits

FROM = {True: "ROCm/aiter@e4048607a5 tuned configurations (MIT)", False: "aiconfigurator measured tables (Apache-2.0)"}
SOURCE = "{source}, {name}.parquet; benchmarks/fit_kernels.py, all shape groups; error_percent: of each part of the \
shape groups by constants of the others"


def summary(values: np.ndarray) -> str:
    return f"{values.mean():5.1f} / {np.median(values):4.1f} / {np.percentile(values, 90):5.1f}"


def tuned(measured: pd.DataFrame) -> pd.DataFrame:
    """AMD's tuned kernels as one library: which of them won is not known beforehand.

    Without copies: a model's file repeats a time to all digits for other numbers of tokens, up to the peak's 90 %.
    """
    measured = measured.drop(columns="library").assign(framework="aiter")
    if "num_tokens" not in measured:
        return measured
    measured = measured.sort_values("num_tokens", kind="stable")
    alike = measured.columns.difference(["num_tokens", "stage1_ms", "stage2_ms"]).tolist()
    is_copy = measured.duplicated(alike) & (measured["model_file"] != "tuned_fmoe.csv")
    return measured[~is_copy]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--table", action="append")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--quiet", action="store_true", help="means over devices only")
    args = parser.parse_args()
    for name in args.table or sorted(kernel_tables()):
        table, file = kernel_table(name), args.folder / f"{name.replace('-', '_')}.parquet"
        if table is None or not file.is_file():
            continue
        rows: list[KernelConstants] = []
        unseen: dict[str, list[np.ndarray]] = {}
        measured = pd.read_parquet(file)
        if name.endswith("-aiter"):
            measured = tuned(measured)
        for fit in kernel_fits(table, measured):
            unseen_here = fit.unseen()
            for on, errors, made in zip(fit.on, unseen_here, fit.constants(unseen_here), strict=True):
                rows.append(made)
                unseen.setdefault(on.device.name, []).append(errors)
                if not args.quiet:
                    words = " ".join(text for key, text in on.case.items() if key != "version")
                    short = {key: float(f"{value:.3g}") for key, value in made.constants.items()}
                    words = f"{name} | {on.device.name} | {words} | {len(errors)}"
                    seen = on.calls.errors(made.constants).mean()
                    print(f"| {words} | {summary(errors)} | {seen:.1f} | {short}", flush=True)
        by_device = {device: np.concatenate(parts) for device, parts in unseen.items()}
        each = ", ".join(f"{device} {errors.mean():.1f}" for device, errors in by_device.items())
        everything = np.concatenate(list(by_device.values()))
        print(f"| {name} | all | | {len(everything)} | {summary(everything)} | {each}", flush=True)
        if args.write:
            FOLDER.mkdir(exist_ok=True)
            (FOLDER / f"{name}.toml").write_text(
                constants_file(rows, SOURCE.format(name=file.stem, source=FROM[name.endswith("-aiter")])),
                encoding="utf-8",
            )


if __name__ == "__main__":
    main()
