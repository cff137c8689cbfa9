"""The sheet ``ops_unique_args``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.report.columns import UNIQUE_ARGUMENTS, Analyzed, sheet

if TYPE_CHECKING:
    import pandas as pd


@sheet("ops_unique_args", columns=UNIQUE_ARGUMENTS, order=40)
def ops_unique_args(result: Analyzed) -> pd.DataFrame | None:
    """Kernel time by distinct call: name, shapes, types, strides and scalars of the launching op."""
    return result.frames.get("ops_unique_args")
