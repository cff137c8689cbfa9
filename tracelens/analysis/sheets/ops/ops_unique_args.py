"""Kernel time by distinct call."""

from __future__ import annotations

import pandas as pd

from tracelens.analysis.attribution.op_places import with_places
from tracelens.analysis.sheets.context import SheetContext
from tracelens.analysis.sheets.shared_columns import (
    ARGUMENTS,
    CALLS,
    CATEGORY,
    DIRECT,
    EXAMPLE,
    KERNELS_BEHIND,
    NAME,
    PERCENTAGES,
    PLACES,
    PROCESS,
    SUBTREE,
)
from tracelens.schema import column_set, sheet

COLUMNS = column_set(
    NAME, CATEGORY, PROCESS, ARGUMENTS, CALLS, DIRECT, SUBTREE, EXAMPLE, KERNELS_BEHIND, PLACES, PERCENTAGES
)  # fmt: skip


@sheet("ops_unique_args", columns=COLUMNS, order=40, json=None)
def frame(context: SheetContext) -> pd.DataFrame:
    """Kernel time by distinct call: name, shapes, types, strides and scalars of the launching op."""
    return with_places(
        context.priced.launchers, context.trace.tree, context.attribution.phases, context.attribution.repeated
    )
