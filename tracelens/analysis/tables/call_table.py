"""``calls``: every recorded call of an op."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.attribution.window import in_steps
from tracelens.schema import column_set, count, identifier, table, text, us

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.analyze import Analysis

COLUMNS = column_set(
    identifier("call", "Number of the call in the trace."),
    identifier("parent", "The call within which it was made; NULL for an outermost one."),
    text("name", "Name of the op."),
    text("shapes", "Shapes of its inputs; NULL where they were not recorded."),
    text("thread", "Process and thread that made it."),
    count("depth", "How many ops and host calls enclose it."),
    us("start_us", "Since the first event of the trace."),
    us("host_us", "How long its host code ran."),
    us("kernel_us", "Durations of all device events that it and the calls within it launched."),
)


@table("calls", columns=COLUMNS)
def calls(analysis: Analysis) -> pd.DataFrame:
    """A row per call of an op in the analyzed steps (all without steps), nested ones included."""
    trace = analysis.trace
    made = trace.ops().rename(columns={"row": "call"})
    made = made[in_steps(trace.table, made["call"].to_numpy(), analysis.step_times, analysis.selected_steps)]
    rows = made["call"].to_numpy()
    parent = trace.tree.op_parent[rows]
    lanes = np.array([f"{process}/{thread}" for process, thread in trace.table.lanes] or [""], object)
    made["parent"] = np.where(parent < 0, np.nan, parent)
    made["thread"] = lanes[trace.table.lane[rows]]
    return made
