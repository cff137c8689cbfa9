"""Kernel time by distinct call."""

from __future__ import annotations

import pandas as pd

from tracelens.analysis.attribution.host_scopes import with_places
from tracelens.analysis.sheets import shared_columns as shared
from tracelens.analysis.sheets.context import SheetContext
from tracelens.schema import column_set, sheet

COLUMNS = column_set(
    shared.NAME, shared.CATEGORY, shared.PROCESS, shared.ARGUMENTS, shared.CALLS, shared.DIRECT, shared.SUBTREE,
    shared.EXAMPLE, shared.KERNELS_BEHIND, shared.PLACES, shared.PERCENTAGES,
)  # fmt: skip


@sheet("ops_unique_args", columns=COLUMNS, order=40, json=None)
def frame(context: SheetContext) -> pd.DataFrame:
    """Kernel time by distinct call: name, shapes, types, strides and scalars of the op; without collectives."""
    return with_places(
        context.priced.launchers, context.trace.tree, context.attribution.phases, context.attribution.repeated
    )
