"""Prefill, decode and mixed steps of a serving engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.analysis.reading.engine_steps import by_phase
from tracelens.analysis.sheets.shared_columns import STEP_DURATION
from tracelens.analysis.sheets.timeline import inference_iterations
from tracelens.schema import column_set, count, identifier, number, percent, sheet, text, us

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import SheetContext


COLUMNS = column_set(
    text("phase", "Of the complete steps; the steady window also has a row.", width=18),
    count("steps", "Engine steps of the phase."),
    identifier("first_step", "First step number."),
    identifier("last_step", "Last step number."),
    number("requests_mean", "Requests in a step.", shape="#,##0.0"),
    number("tokens_mean", "New tokens in a step.", shape="#,##0.0"),
    us("duration_us_median", STEP_DURATION),
    us("duration_us_min", STEP_DURATION),
    us("duration_us_max", STEP_DURATION),
    percent("busy_percent", "Share of the steps' time in which the device was busy."),
    percent("attention_percent", "Share of the busy time in attention over the cache."),
    count("tokens_s", "New tokens over the steps' time; for decode: generated tokens."),
)


@sheet("inference_phases", columns=COLUMNS, order=15, json=10)
def frame(context: SheetContext) -> pd.DataFrame | None:
    """Prefill, decode and mixed steps of a serving engine, and its steady window."""
    steps = context.frames.get(inference_iterations.TITLE)
    return None if steps is None else by_phase(steps)
