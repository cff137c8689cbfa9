"""Attention without a flash kernel gets one."""

from __future__ import annotations

import numpy as np

from tracelens.errors import UsageError
from tracelens.perf_models.attention.sdpa import SDPA
from tracelens.perf_models.work_columns import WorkColumns
from tracelens.units import NS_PER_US
from tracelens.whatif.changes import TIME, change
from tracelens.whatif.plan import Plan
from tracelens.whatif.pricing import device_of, estimated_us
from tracelens.whatif.residuals import sigma_of


@change("sdpa", TIME)
def flash_attention(plan: Plan, _: str) -> None:
    """Calls recorded as memory-efficient, cuDNN's or unfused attention: one kernel each, as long as a flash one should.

    UsageError where there are none. The host's time stays.
    """
    subject, tree, activity = plan.subject, plan.subject.tree, plan.subject.activity
    readings = subject.attribution.readings
    models = [reading.model for reading in readings.readings]
    wanted = {c: model for c, model in enumerate(models) if isinstance(model, SDPA) and model.flash is False}
    if not wanted:
        raise UsageError(
            f"{subject.table.source}: no attention op that is not a flash one already; what computes it from products "
            "and softmax is replaced by --apply attention_from_parts"
        )
    found = estimated_us(plan, WorkColumns.of(wanted.values()))
    taken = dict(zip(wanted, zip(found.time_us.tolist(), found.backend, strict=True), strict=True))
    at = np.argsort(tree.position[np.maximum(tree.launch[activity.rows], 0)], kind="stable")
    at = at[tree.launch[activity.rows[at]] >= 0]
    position, replaced = tree.position[tree.launch[activity.rows[at]]], 0
    for row, code in zip(readings.rows.tolist(), readings.code.tolist(), strict=True):
        time_us, backend = taken.get(code, (np.nan, None))
        events = at[np.searchsorted(position, tree.position[row]) : np.searchsorted(position, tree.last[row])]
        model = wanted.get(code)
        if model is None or backend is None or not len(events) or not np.isfinite(time_us):
            continue
        lead = events[np.argmin(activity.start[events])]
        plan.removed[np.setdiff1d(events, lead)] = True
        plan.factor[lead] = time_us * NS_PER_US / max(int(activity.duration[lead]), 1)
        place = device_of(plan) if plan.system is None else plan.system.device
        plan.sigma[lead] = sigma_of(model, model.compute_dtype, place, backend)
        replaced += 1
    plan.note(f"{replaced} attention calls take what the estimate of a flash kernel says; a mask or bias must allow it")
