"""How a rank's tokens were spread over the ranks, from the all-to-alls of its trace."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tracelens.analysis.loaded_trace import load
from tracelens.analysis.reading.recorded_groups import attributes_of_calls
from tracelens.analysis.work.expert_layers import integers
from tracelens.errors import NothingToAnalyzeError, UsageError
from tracelens.trace.table import Kind


def recorded_split(path: Path, *, ranks: int) -> NDArray[np.float64]:
    """Elements that the trace's rank sent to each of ``ranks`` ranks (``In split size``), over all its all-to-alls.

    NothingToAnalyzeError without one that recorded its splits, UsageError when those were of groups of another size.
    """
    trace = load(path)
    total, sizes = np.zeros(ranks), set()
    calls, call = attributes_of_calls(trace.table, trace.tree, trace.table.rows_of((Kind.KERNEL,)))
    for attributes, times in zip(calls, np.bincount(call).tolist(), strict=True):
        split = integers(attributes.get("In split size"))
        if split is None:
            continue
        sizes.add(len(split))
        if len(split) == ranks:
            total += times * np.asarray(split, np.float64)
    if total.any():
        return total
    if sizes:
        raise UsageError(f"{path} recorded all-to-alls of {sorted(sizes)} ranks, not of {ranks}")
    raise NothingToAnalyzeError(f"{path} recorded no all-to-all with split sizes")
