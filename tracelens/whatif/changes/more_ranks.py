"""Groups of more ranks, with the same work each."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np

from tracelens.analysis.reading.recorded_groups import attributes_of_calls
from tracelens.dtypes import DType
from tracelens.errors import UsageError
from tracelens.perf_models.communication.collective import Collective
from tracelens.perf_models.work_columns import WorkColumns
from tracelens.units import NS_PER_US
from tracelens.whatif.changes import ORDER, change
from tracelens.whatif.plan import Plan
from tracelens.whatif.pricing import estimated_us
from tracelens.whatif.residuals import largest_sigma


@change("ranks", ORDER)
def more_ranks(plan: Plan, times: float) -> None:
    """Every group ``times`` as large: a collective takes as much longer as its estimates say; waiting stays as it was.

    UsageError where no collective recorded its message and group.
    """
    subject, activity = plan.subject, plan.subject.activity
    events, models = [], []
    collectives = np.flatnonzero(activity.collective & (activity.duration > 0))
    calls, call = attributes_of_calls(subject.table, subject.tree, activity.rows[collectives])
    models_of_calls = [_collective(attributes) for attributes in calls]
    for event, number in zip(collectives.tolist(), call.tolist(), strict=True):
        model = models_of_calls[number]
        if model is not None:
            events.append(event)
            models.append(model)
    if not models:
        raise UsageError(f"{subject.table.source}: no collective whose message, type and group were recorded")
    larger = [replace(model, ranks=max(round((model.ranks or 1) * times), 1)) for model in models]
    old, new = (estimated_us(plan, WorkColumns.of(part)).time_us for part in (models, larger))
    at, more = np.array(events), np.nan_to_num(new - old) * NS_PER_US
    factor = np.ones(len(activity))
    factor[at] = np.maximum(activity.duration[at] + more, 0) / activity.duration[at]
    sigma = np.zeros(len(activity))
    sigma[at] = largest_sigma() * np.minimum(np.abs(more) / np.maximum(activity.duration[at] + more, 1), 1)
    everything = np.ones(len(activity), bool)
    plan.multiply(everything, factor, sigma)
    plan.note("each rank does the same work; ranks share nodes as the device's standard node has them")


def _collective(attributes: dict[str, Any]) -> Collective | None:
    names = ("Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype")
    kind, n_in, n_out, size, dtype = (attributes.get(name) for name in names)
    if not isinstance(kind, str) or not isinstance(dtype, str):
        return None
    if not isinstance(n_in, int) or not isinstance(n_out, int) or not isinstance(size, int):
        return None
    stride = _stride(attributes.get("Process Group Ranks"))
    return Collective(
        kind=kind, elements_in=n_in, elements_out=n_out, ranks=size, dtype=DType.parse(dtype), stride=stride
    )


def _stride(ranks: Any) -> int:
    """The distance between the recorded ranks; 1 where it is not known or differs."""
    try:
        members = json.loads(ranks) if isinstance(ranks, str) else list(ranks or ())
        steps = {b - a for a, b in itertools.pairwise(sorted(members))}
    except (TypeError, ValueError):
        return 1
    return steps.pop() if len(steps) == 1 and min(steps) > 0 else 1
