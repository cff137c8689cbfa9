"""A device's constants of engines' kernels from a table that was measured on it: ``gdn.parquet``, ``kda_perf.csv``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracelens.backends.kernels import kernel_table
from tracelens.backends.kernels.kernel_costs import KernelTable, chosen_constants, constants_of_device
from tracelens.calibration.device import LEAST_GROUPS, Outcome, quoted, replaced_tables
from tracelens.calibration.kernel_fits import KernelFit, constants_lines, kernel_fits
from tracelens.calibration.measurements import of_device as rows_of_device
from tracelens.hardware import HardwareSpec
from tracelens.hardware.device_figures import KernelConstants

if TYPE_CHECKING:
    import pandas as pd


class KernelOutcome(NamedTuple):
    """Errors of one kernel before and after, and its constants; None where it was not fitted."""

    outcome: Outcome
    made: KernelConstants | None


def table_of(path: Path) -> KernelTable | None:
    """The measured table that a file is named after; None for another."""
    return kernel_table(path.stem.removesuffix("_perf").replace("_", "-"))


def calibrated_kernels(table: KernelTable, frame: pd.DataFrame, device: HardwareSpec) -> Iterator[KernelOutcome]:
    """Every kernel of the rows of ``device`` (of all, where there is no such column). UsageError for other tables."""
    mine = frame[rows_of_device(frame, device)].reset_index(drop=True)
    for fit in kernel_fits(table, mine, device) if len(mine) else ():
        for at in range(len(fit.on)):
            yield _calibrated(table, replace(fit, on=(fit.on[at],)), device)


def _calibrated(table: KernelTable, fit: KernelFit, device: HardwareSpec) -> KernelOutcome:
    (on,) = fit.on
    known = chosen_constants(table, device, on.case, constants_of_device(table.name, device))
    before = min((float(on.calls.errors(each.constants).mean()) for each in known), default=None)
    words = (text for name, text in on.case.items() if name != "version")
    groups = len(np.unique(on.groups))
    outcome = Outcome(family=table.name, precision=" ".join(words), rows=len(on.groups), groups=groups, before=before)
    if groups < LEAST_GROUPS:
        few = f"{groups} shape groups determine no constant: not fitted"
        return KernelOutcome(replace(outcome, warnings=(few,)), None)
    fit = replace(fit, known=known[0].constants if known else None)
    unseen = fit.unseen()
    (made,) = fit.constants(unseen)
    after = float(on.calls.errors(made.constants).mean())
    made = replace(made, device="")
    return KernelOutcome(replace(outcome, after=after, unseen=made.error_percent), made)


def with_kernels(text: str, made: Mapping[str, Sequence[KernelConstants]], source: str) -> str:
    """The text of a device file with these constants of each table in place of its own."""
    return replaced_tables(
        text,
        {
            f"kernels.{table}": [*constants_lines(rows, "fitted"), f"fitted_on = {quoted(source)}"]
            for table, rows in made.items()
        },
    )
