"""Every step of a serving engine: requests, tokens and time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.reading.engine_steps import iterations
from tracelens.analysis.sheets.shared_columns import COMPLETE, STEP_DURATION
from tracelens.schema import column_set, count, flag, identifier, sheet, text, us

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import SheetContext


TITLE = "inference_iterations"
COLUMNS = column_set(
    identifier("step", "Engine steps are numbered from 0, as --steps takes them."),
    text("phase", "From the requests in the step's annotation.", width=10),
    count("context_requests", "Requests in prefill."),
    count("context_tokens", "New tokens of these requests."),
    count("generation_requests", "Requests in decode."),
    count("generation_tokens", "New tokens of these requests."),
    count("padded_requests", "The batch size of the captured graph that ran."),
    count("past_tokens", "Keys in the cache before the step, of all requests."),
    us("duration_us", STEP_DURATION),
    us("busy_us", "Union of its device events."),
    us("attention_us", "Union of its attention over the cache, writes to the cache included."),
    us("communication_us", "Union of its communication."),
    count("tokens_s", "New tokens over its duration."),
    count("device_events", "Kernels and copies."),
    COMPLETE,
    flag("steady", "TRUE: in the steady window, which --steps steady takes.", width=10),
)


@sheet(TITLE, columns=COLUMNS, order=59, json=20)
def frame(context: SheetContext) -> pd.DataFrame | None:
    """Every step of a serving engine: requests, tokens and time."""
    engine = context.window.engine
    steps, step_of = engine.steps, engine.step_of
    if not len(steps):
        return None
    found = iterations(steps, engine.times, step_of, context.activity, context.event_category)
    return found[np.isin(np.arange(len(steps)), step_of)]
