"""Device time of the forward pass, its repetition by checkpointing, the backward pass and the optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.analysis.sheets.shared_columns import DURATIONS
from tracelens.schema import column_set, count, percent, sheet, text, us

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import SheetContext


COLUMNS = column_set(
    text(
        "phase",
        "By where the work was launched: backward, run by autograd's engine; recompute, the forward ops that "
        "checkpointing repeats there; optimizer, inside Optimizer.step; forward, all else. Annotations marked (F), (B) "
        "and (W) come first: (W) is backward: weights, the gradients of weights.",
        width=22,
    ),
    count("kernels", "Device events of the phase; each is in exactly one."),
    us("kernel_us", DURATIONS),
    us("busy_us", "Union of the device events."),
    percent("percent_of_kernels", "Share of all kernel time."),
    percent("percent_of_forward", "Share of first runs and repeated ones together."),
)


@sheet("phases", columns=COLUMNS, order=16, json=100)
def frame(context: SheetContext) -> pd.DataFrame | None:
    """Device time of the forward pass, its repetition by checkpointing, the backward pass and the optimizer."""
    phases = context.attribution.phases
    return phases.frame(context.activity) if phases.has_backward else None
