"""Neighboring operations that stream the same elements become one kernel."""

from __future__ import annotations

from math import prod

import numpy as np

from tracelens.analysis.attribution.activity import streams_of
from tracelens.errors import UsageError
from tracelens.perf_models.base import MEMORY, PerfModel
from tracelens.whatif.changes import TIME, change
from tracelens.whatif.plan import Plan

#: Every chain, wherever it is.
ANYWHERE = "chain"


@change("fuse", TIME)
def fused_chains(plan: Plan, where: str) -> None:
    """Chains of kernels of a stream, each over as many elements as the one before: one kernel, as long as the longest.

    ``where``: ``chain``, or a module, op or range in which they are. A bound: the fused kernel reads what its members
    read from outside, which may be more than one of them does. UsageError where there is no chain.
    """
    subject, activity = plan.subject, plan.subject.activity
    inside = np.ones(len(activity), bool) if where == ANYWHERE else subject.events_of(where)
    elements = np.array([*(_elements(reading.model) for reading in subject.readings), 0])[subject.reading_of_event]
    stream = streams_of(subject.table, activity)[1]
    order = np.lexsort((activity.start, stream))
    one, following = order[:-1], order[1:]
    joined = (stream[one] == stream[following]) & (elements[one] > 0) & (elements[one] == elements[following])
    joined &= inside[one] & inside[following]
    number = np.concatenate(([0], np.cumsum(~joined)))
    if not joined.any():
        raise UsageError(f"{subject.table.source}: no neighboring kernels over the same elements in {where}")
    duration = activity.duration[order] * plan.factor[order]
    longest = np.zeros(int(number[-1]) + 1)
    np.maximum.at(longest, number, duration)
    first = np.concatenate(([True], ~joined))
    rows = subject.tree.launch[activity.rows[order[~first]]]
    plan.removed[order[~first]] = True
    plan.gone[rows[rows >= 0]] = True
    leads = np.flatnonzero(first & np.append(joined, False))
    mask = np.zeros(len(activity), bool)
    mask[order[leads]] = True
    factor = np.ones(len(activity))
    factor[order[leads]] = longest[number[leads]] / np.maximum(duration[leads], 1)
    plan.multiply(mask, factor[mask])
    plan.note(f"a bound: {joined.sum() + len(leads)} kernels become {len(leads)}, each as long as its longest member")


def _elements(model: PerfModel | None) -> int:
    """How many elements an operation that streams memory goes over; 0 for others."""
    shape = getattr(model, "shape", None)
    return prod(shape) if model is not None and model.price_family() == MEMORY and shape else 0
