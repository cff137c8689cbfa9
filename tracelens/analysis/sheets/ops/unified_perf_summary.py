"""Every distinct call beside its work and its estimate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.analysis.sheets import shared_columns as shared
from tracelens.schema import PARAMETER, column_set, number, sheet, statistics, text, us

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import SheetContext


TITLE = "unified_perf_summary"
_HOST = "From the op's start on the host to its end on the host; device time is kernel_us."
_HOST_TIME = statistics(("sum", "mean", "std"), us("host_us", _HOST))
COLUMNS = column_set(
    shared.NAME, shared.CATEGORY, shared.PROCESS, shared.ARGUMENTS, shared.EXAMPLE, shared.CALLS,
    _HOST_TIME, shared.GFLOPS, shared.HBM_MB, shared.INTENSITY,
    shared.SPEC,
    shared.HBM_RATE, shared.COMPUTE_RATE, shared.KERNEL_TIME, shared.WIRE, shared.EXCHANGE, shared.ROOFLINE,
    shared.ACHIEVABLE,
    statistics(("median", "min", "max"), us("host_us", _HOST)),
    shared.KERNELS_BEHIND,
    text("perf_params", PARAMETER, width=40),
    text("model", "Class of the perf model.", width=20),
    shared.HAS_PERF_MODEL,
    text(
        "computed_in", "Compute precision according to the kernel names, where the recorded type leaves it open.",
        width=12, optional=True,
    ),
    number(
        "kernels_per_call", "Kernels, copies and memsets of one call, on average.", shape="#,##0.0",
        optional=True,
    ),
    us(
        "launch_gap_us", "Median over the calls: GPU idle time just before the call's first kernel.", optional=True,
    ),
    shared.PLACES,
    text("note", "Why there is no perf model, or what the row is.", width=44, optional=True),
    shared.PERCENTAGES,
)  # fmt: skip


@sheet(TITLE, columns=COLUMNS, order=70, json=None)
def frame(context: SheetContext) -> pd.DataFrame:
    """Every distinct call beside its work and its estimate; each kernel that is no collective is in one row."""
    return context.priced.rows
