"""Another configuration of the step: device, clock, batch, precision, number of ranks."""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np

from tracelens.analysis.attribution.host_scopes import FORWARD, OPTIMIZER, PHASES, RECOMPUTE
from tracelens.analysis.idle.dependency_replay import Bools, Floats
from tracelens.analysis.reading.recorded_groups import attributes_of_calls
from tracelens.analysis.work.known_work import launch_floor_us
from tracelens.backends.base import System
from tracelens.dtypes import DType, Precision
from tracelens.errors import UsageError
from tracelens.perf_models.base import PerfModel, WorkColumns, resolved
from tracelens.perf_models.collective import Collective
from tracelens.perf_models.conv import Conv
from tracelens.perf_models.elementwise import MultiTensor, Operand, UnaryElementwise
from tracelens.perf_models.gemm import GEMM
from tracelens.perf_models.kernels import precisions
from tracelens.perf_models.sdpa import SDPA
from tracelens.units import NS_PER_US
from tracelens.whatif.changes import ORDER, PLACE, WORK, change
from tracelens.whatif.plan import Z90, ChangePlan
from tracelens.whatif.pricing import device_of, estimated_us, largest_p90, largest_sigma


@change("device", PLACE)
def another_device(plan: ChangePlan, name: str) -> None:
    """A device or cluster by name or file. The host, launches and communication stay as recorded."""
    device_of(plan)
    plan.system = System.load(name)
    plan.note("the host, its launches and what waits for them take as long as recorded")
    if plan.subject.activity.communication.any():
        plan.note("communication takes as long as recorded")


@change("gpu_clock", PLACE)
def another_clock(plan: ChangePlan, scale: float) -> None:
    """``scale`` times that of the recording: matrix, vector and cache rates scale, memory and links do not."""
    device = device_of(plan) if plan.system is None else plan.system.device
    base = device.matrix_cores.clock_mhz if device.matrix_cores is not None else device.clock_mhz
    if base is None or plan.system is None:
        raise UsageError(f"{device.name}: its rates cannot be scaled, because their clock is unknown")
    plan.system = plan.system.at_clock(scale * base * device.clock_scale)


@change("batch", WORK)
def larger_batch(plan: ChangePlan, times: float) -> None:
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


def _beyond_a_launch(plan: ChangePlan, events: Bools, times: float) -> Floats:
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


@change("precision", WORK)
def narrower(plan: ChangePlan, text: str) -> None:
    """Products of 16 and 32 bits run in ``text``; their result stays as it is, and A is converted by a kernel before.

    UsageError for a precision that there is not, and for a trace without such products.
    """
    precision = Precision.parse(text)
    dtype = DType.parse(text) if precision is None else precision.dtype
    if dtype is None:
        raise UsageError.unknown("precision", text, [*(each.value for each in Precision), "int8"])
    found = [code for code, model in enumerate(plan.models) if isinstance(model, GEMM) and _is_wider(model, dtype)]
    unknown = _products_of_unknown_size(plan)
    if not found and not unknown.any():
        raise UsageError(f"{plan.subject.table.source}: no matrix product that is wider than {text}")
    if unknown.any():
        _by_rates(plan, unknown, dtype, text)
    if not found:
        return
    converted = []
    for code in found:
        model = plan.models[code]
        if isinstance(model, GEMM):
            out = resolved(model.dtype_out, model.dtype)
            shape = (model.b, model.m, model.k)
            read, written = Operand(shape=shape, dtype=model.dtype), Operand(shape=shape, dtype=dtype)
            converted.append(UnaryElementwise(shape=shape, inputs=(read,), outputs=(written,)))
            plan.models[code] = replace(model, dtype=dtype, dtype_b=dtype, dtype_out=out, dtype_bias=out)
            plan.computed_in[code] = None
    plan.more_us[found] += np.nan_to_num(estimated_us(plan, WorkColumns.of(converted)).time_us)
    plan.note(f"each product in {text} is preceded by a kernel that converts its first operand; weights are ready")


def _is_wider(model: GEMM, dtype: DType) -> bool:
    return model.dtype is not None and model.dtype.bits > dtype.bits and not model.dtype.is_complex


#: Inductor's templates of products, which stand for no other category than its.
_TEMPLATE = re.compile(r"^triton_tem_fused\w*?_(?:addmm|baddbmm|bmm|mm)(?:_|$)")


def _products_of_unknown_size(plan: ChangePlan) -> Bools:
    """Kernels that are called as products of 16 or 32 bits, without an op whose shapes say more."""
    subject = plan.subject
    names = subject.table.names
    wider = np.array([said is None for said in precisions(names, DType.BF16)] or [False], bool)
    template = np.array([_TEMPLATE.search(name) is not None for name in names] or [False], bool)
    code = subject.activity.name
    found: Bools = (subject.reading_of_event < 0) & wider[code] & (subject.category.are(GEMM.category) | template[code])
    return found


def _by_rates(plan: ChangePlan, events: Bools, dtype: DType, text: str) -> None:
    """Between as long as before, where memory or launches bound them, and the ratio of the rates, where arithmetic
    does; as far beside that as products of both precisions lie beside their estimates; and a kernel before that
    converts, as short as a kernel can be.
    """
    device = device_of(plan)
    rates = [device.rate("matrix", each) for each in (DType.BF16, dtype)]
    if rates[0] is None or rates[1] is None:
        raise UsageError(f"{device.name} has no matrix rate of {text}")
    ratio = rates[0].peak_tflops_s / rates[1].peak_tflops_s
    floor_us, measured_us = launch_floor_us(device), plan.subject.activity.duration[events] / NS_PER_US
    unlike = math.log1p(largest_p90(GEMM.price_family()) / 100) / Z90
    sigma = math.hypot(abs(math.log(ratio)) / 2 / Z90, unlike, unlike)
    plan.multiply(events, math.sqrt(ratio) + floor_us / np.maximum(measured_us, floor_us), sigma)
    plan.note(
        f"{events.sum()} products of unknown size take between {ratio:.2f} of their time, the ratio of the rates, and "
        f"all of it, in kernels that may be better or worse; each after a conversion of {floor_us:.1f} us"
    )


@change("ranks", ORDER)
def more_ranks(plan: ChangePlan, times: float) -> None:
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
