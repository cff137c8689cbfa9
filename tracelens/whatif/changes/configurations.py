"""Matrix products run in another precision."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tracelens.analysis.idle.dependency_replay import Bools
from tracelens.analysis.work.known_work import launch_floor_us
from tracelens.dtypes import DType, Precision
from tracelens.errors import UsageError
from tracelens.lazy.patterns import lazy_pattern
from tracelens.perf_models.base import resolved
from tracelens.perf_models.compute_type import precisions
from tracelens.perf_models.matrix.gemm import GEMM
from tracelens.perf_models.memory_bound.elementwise import Operand, UnaryElementwise
from tracelens.perf_models.work_columns import WorkColumns
from tracelens.units import NS_PER_US
from tracelens.whatif.changes import WORK, change
from tracelens.whatif.plan import Z90, Plan
from tracelens.whatif.pricing import device_of, estimated_us
from tracelens.whatif.residuals import largest_p90


@change("precision", WORK)
def narrower(plan: Plan, text: str) -> None:
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
_TEMPLATE = lazy_pattern(r"^triton_tem_fused\w*?_(?:addmm|baddbmm|bmm|mm)(?:_|$)")


def _products_of_unknown_size(plan: Plan) -> Bools:
    """Kernels that are called as products of 16 or 32 bits, without an op whose shapes say more."""
    subject = plan.subject
    names = subject.table.names
    wider = np.array([said is None for said in precisions(names, DType.BF16)] or [False], bool)
    template = np.array([_TEMPLATE.search(name) is not None for name in names] or [False], bool)
    code = subject.activity.name
    found: Bools = (subject.reading_of_event < 0) & wider[code] & (subject.category.are(GEMM.category) | template[code])
    return found


def _by_rates(plan: Plan, events: Bools, dtype: DType, text: str) -> None:
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
