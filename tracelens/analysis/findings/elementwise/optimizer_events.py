"""Which device events an optimizer launched."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens.analysis.findings.observed import Observed
from tracelens.trace.table import Kind

_STEP = "Optimizer.step#"


def within_optimizer(seen: Observed) -> npt.NDArray[np.int64]:
    """Device events that were launched in an annotated Optimizer.step."""
    table, activity = seen.table, seen.activity
    codes = [code for code, name in enumerate(table.names) if name.startswith(_STEP)]
    steps = np.flatnonzero(table.is_named(codes) & (table.kind == Kind.USER_ANNOTATION))
    linked = np.flatnonzero(activity.op >= 0)
    if not len(steps) or not len(linked):
        return np.zeros(0, np.int64)
    steps = steps[np.argsort(table.start_ns[steps], kind="stable")]
    op = activity.op[linked]
    at = np.searchsorted(table.start_ns[steps], table.start_ns[op], side="right") - 1
    around = steps[np.maximum(at, 0)]
    inside = (at >= 0) & (table.start_ns[op] < table.ends_ns(around)) & (table.lane[op] == table.lane[around])
    return np.compress(inside, linked).astype(np.int64)
