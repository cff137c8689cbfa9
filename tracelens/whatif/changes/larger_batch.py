"""A step works on more sequences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracelens.analysis.attribution.host_scopes import FORWARD, OPTIMIZER, PHASES, RECOMPUTE
from tracelens.analysis.idle.dependency_replay import Bools, Floats
from tracelens.analysis.work.known_work import launch_floor_us
from tracelens.errors import UsageError
from tracelens.perf_models.attention.sdpa import SDPA
from tracelens.perf_models.base import PerfModel
from tracelens.perf_models.matrix.conv import Conv
from tracelens.perf_models.matrix.gemm import GEMM
from tracelens.perf_models.memory_bound.optimizer import MultiTensor
from tracelens.units import NS_PER_US
from tracelens.whatif.changes import WORK, change
from tracelens.whatif.plan import Plan
from tracelens.whatif.residuals import largest_sigma


@change("batch", WORK)
def larger_batch(plan: Plan, times: float) -> None:
    """``times`` as many: rows of products, sequences of attention, images of convolutions, amount of all else.

    The rows of a product are its m in forward, and its k where that is a number of rows of the forward in a gradient of
    weights. The optimizer and communication stay as they are.
    """
    if not times > 0:
        raise UsageError(f"--batch takes a factor above 0, like 2x; got {times:g}")
    subject = plan.subject
    code, phase = subject.reading_of_event, subject.attribution.phases.phase
    n = len(subject.readings)
    by_phase = np.stack([np.bincount(code[(code >= 0) & (phase == i)], minlength=n) for i in range(len(PHASES))])
    first = [PHASES[i] for i in by_phase.argmax(axis=0).tolist()]
    models = list(zip(plan.models, first, strict=True))
    rows = {m.m for m, where in models if isinstance(m, GEMM) and m.b == 1 and where in (FORWARD, RECOMPUTE)}
    for number, (model, where) in enumerate(models):
        if model is None or where == OPTIMIZER or isinstance(model, MultiTensor):
            continue
        larger = _larger(model, times, rows, where in (FORWARD, RECOMPUTE))
        if larger is None:
            plan.amount[number] *= times
        else:
            plan.models[number] = larger
    unknown = (code < 0) & ~subject.activity.communication & (phase != PHASES.index(OPTIMIZER))
    if unknown.any():
        plan.multiply(unknown, _beyond_a_launch(plan, unknown, times), largest_sigma())
        plan.note("kernels without a perf model grow with the batch, as far as they take longer than a launch")


def _beyond_a_launch(plan: Plan, events: Bools, times: float) -> Floats:
    """By what these device events grow: what any kernel takes, however little it does, stays."""
    device, duration = plan.subject.recording.device, plan.subject.activity.duration[events] / NS_PER_US
    floor = np.minimum(duration, 0.0 if device is None else launch_floor_us(device))
    return np.divide(floor + (duration - floor) * times, duration, out=np.ones(len(duration)), where=duration > 0)


def _larger(model: PerfModel, times: float, rows: set[int], forward: bool) -> PerfModel | None:
    """The model with the larger batch; None where only the amount of its work is known to grow."""
    if isinstance(model, GEMM):
        if model.b > 1:
            return replace(model, b=round(model.b * times))
        if not forward and model.k in rows and model.m not in rows:
            return replace(model, k=round(model.k * times))
        return replace(model, m=round(model.m * times))
    if isinstance(model, SDPA) and model.tokens_q is None and model.pairs is None:
        return replace(model, b=round(model.b * times))
    if isinstance(model, Conv):
        return replace(model, x=(round(model.x[0] * times), *model.x[1:]))
    return None
