"""Dimensions of matrix products are rounded up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracelens.errors import UsageError
from tracelens.perf_models.matrix.gemm import GEMM
from tracelens.perf_models.work_columns import WorkColumns
from tracelens.whatif.changes import TIME, change
from tracelens.whatif.plan import Plan
from tracelens.whatif.pricing import estimated_us, measured_us


@change("pad", TIME)
def padded(plan: Plan, multiple: int) -> None:
    """Products whose m, n or k is no multiple of ``multiple`` take what the padded ones should, at the efficiency that
    the aligned products of the same trace reached in the median.

    UsageError where all are aligned, or none is to learn from.
    """
    codes = [code for code, model in enumerate(plan.models) if type(model) is GEMM]
    models = [model for model in plan.models if type(model) is GEMM]
    padded_models = [_padded(model, multiple) for model in models]
    measured = measured_us(plan)[codes]
    estimate, after = (estimated_us(plan, WorkColumns.of(part)).time_us for part in (models, padded_models))
    aligned = np.array([model == other for model, other in zip(models, padded_models, strict=True)], bool)
    known = np.isfinite(estimate) & (measured > 0)
    if aligned.all():
        raise UsageError(f"{plan.subject.table.source}: all matrix products are multiples of {multiple} already")
    if not (aligned & known).any():
        raise UsageError(f"{plan.subject.table.source}: no product is a multiple of {multiple}, to learn from")
    reached = np.log(measured[aligned & known] / estimate[aligned & known])
    for code, us, before in zip(*(np.asarray(c)[~aligned & known] for c in (codes, after, measured)), strict=True):
        events = plan.subject.reading_of_event == code
        plan.multiply(events, float(us * np.exp(np.median(reached)) / before), float(reached.std()))
    plan.note(
        f"{(~aligned & known).sum()} distinct products padded; {(aligned & known).sum()} aligned ones say how fast"
    )


def _padded(model: GEMM, multiple: int) -> GEMM:
    m, n, k = (-(-size // multiple) * multiple for size in (model.m, model.n, model.k))
    return replace(model, m=m, n=n, k=k)
