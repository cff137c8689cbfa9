"""What can be different, each marked with the name of its option and how early it applies: configurations (device,
clock, power limit, batch, precision, ranks) and optimizations (operations removed, faster, padded or fused, graphs,
overlap, what a finding advises).
"""

from __future__ import annotations

import itertools
import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tracelens.analysis.attribution.activity import streams_of
from tracelens.analysis.attribution.calls import launch_floor_us
from tracelens.analysis.attribution.host_scopes import FORWARD, OPTIMIZER, PHASES, RECOMPUTE
from tracelens.analysis.attribution.window import attribute
from tracelens.analysis.intervals import Bools, Ints, union_ns
from tracelens.analysis.reading.process_groups import attributes_of_calls
from tracelens.backends.base import System
from tracelens.comparison.whatif.plan import (
    HOST_SIGMA,
    Z90,
    ChangePlan,
    Subject,
    device_of,
    estimated_us,
    largest_p90,
    largest_sigma,
    measured_us,
    sigma_of,
)
from tracelens.errors import UsageError
from tracelens.hardware.power import beyond_design
from tracelens.perf_models.base import MEMORY, PerfModel, WorkColumns, resolved
from tracelens.perf_models.collective import Collective
from tracelens.perf_models.conv import Conv
from tracelens.perf_models.elementwise import MultiTensor, Operand, UnaryElementwise
from tracelens.perf_models.gemm import GEMM
from tracelens.perf_models.kernels import precisions
from tracelens.perf_models.sdpa import SDPA
from tracelens.predict.projection.pipeline import OVERLAP_COST
from tracelens.registry import Registry, mark
from tracelens.types.dtypes import DType, Precision
from tracelens.types.units import NS_PER_US, duration

if TYPE_CHECKING:
    from tracelens.analysis.findings.rule import Claimed, Observed
    from tracelens.analysis.verdict.summary import Finding


T = TypeVar("T")
#: What the operations are comes first, then what they run on, then what is said of their times, then their order.
WORK, PLACE, TIME, ORDER = range(4)


def change(name: str, stage: int) -> Callable[[T], T]:
    """Marks ``apply(plan, value)`` as what the option ``name`` does; those of an earlier ``stage`` apply first."""
    return mark("change", name, stage=stage)


@cache
def changes() -> Registry:
    """Every change by the name of its option."""
    return Registry.collect("change", [sys.modules[__name__]])


@change("device", PLACE)
def another_device(plan: ChangePlan, name: str) -> None:
    """A device or cluster by name or file. The host, launches and communication stay as recorded."""
    device_of(plan)
    plan.system = System.load(name)
    plan.note("the host, its launches and the waits for them take as long as recorded")
    if plan.recorded_on is None or plan.system.device.name != plan.recorded_on.device.name:
        plan.host_sigma = HOST_SIGMA
    if plan.subject.activity.communication.any():
        plan.note("communication takes as long as recorded")


@change("gpu_clock", PLACE)
def another_clock(plan: ChangePlan, scale: float) -> None:
    """``scale`` times that of the recording: matrix, vector and cache rates scale, memory and links do not."""
    device = device_of(plan) if plan.system is None else plan.system.device
    base = device.matrix_cores.clock_mhz if device.matrix_cores is not None else device.clock_mhz
    if base is None or plan.system is None:
        raise UsageError(f"{device.name}: its rates cannot be scaled: its device file gives no clock for them")
    plan.system = plan.system.at_clock(scale * base * device.clock_scale)


@change("power_limit", PLACE)
def another_limit(plan: ChangePlan, watts: float) -> None:
    """At the clock of products that draw all of it (``hardware.power.device_at``)."""
    device_of(plan)
    if plan.system is not None:
        if note := beyond_design(plan.system.device, watts):
            plan.note(note)
        plan.system = plan.system.at_power(watts)


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
        # What any kernel takes, however little it does, stays
        device, duration = subject.recording.device, subject.activity.duration[unknown] / NS_PER_US
        floor = np.minimum(duration, 0.0 if device is None else launch_floor_us(device))
        grown = floor + (duration - floor) * times
        by = np.divide(grown, duration, out=np.ones(len(duration)), where=duration > 0)
        plan.multiply(unknown, by, largest_sigma())
        plan.note("kernels without a perf model grow with the batch, except for the time of a launch")


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
    """Products of 16 and 32 bits run in ``text``, A converted by a kernel before; UsageError if unknown, or no such."""
    precision = Precision.parse(text)
    dtype = DType.parse(text) if precision is None else precision.dtype
    if dtype is None:
        raise UsageError.unknown("precision", text, [each.value for each in Precision])
    products = [(code, model) for code, model in enumerate(plan.models) if isinstance(model, GEMM)]
    found = [(code, model) for code, model in products if _is_wider(model, dtype)]
    unknown = _products_of_unknown_size(plan)
    if not found and not unknown.any():
        raise UsageError(f"{plan.subject.table.source}: no GEMM computes in a wider type than {text}")
    if unknown.any():
        _by_rates(plan, unknown, dtype, text)
    if not found:
        return
    converted = []
    for code, model in found:
        out = resolved(model.dtype_out, model.dtype)
        shape = (model.b, model.m, model.k)
        read, written = Operand(shape=shape, dtype=model.dtype), Operand(shape=shape, dtype=dtype)
        converted.append(UnaryElementwise(shape=shape, inputs=(read,), outputs=(written,)))
        plan.models[code] = replace(model, dtype=dtype, dtype_b=dtype, dtype_out=out, dtype_bias=out)
        plan.computed_in[code] = None
    plan.more_us[[code for code, _ in found]] += np.nan_to_num(estimated_us(plan, WorkColumns.of(converted)).time_us)
    plan.note(f"a kernel converts the first operand of each GEMM in {text}; the weights are already converted")


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
    return (subject.reading_of_event < 0) & wider[code] & (subject.category.are(GEMM.category) | template[code])


def _by_rates(plan: ChangePlan, events: Bools, dtype: DType, text: str) -> None:
    """Between as long as before, where memory or launches bound them, and the ratio of the rates, where arithmetic
    does; off by as much as products of both precisions are off their estimates; and a kernel before that
    converts, as short as a kernel can be.
    """
    device = device_of(plan)
    rates = [device.rate("matrix", each) for each in (DType.BF16, dtype)]
    if rates[0] is None or rates[1] is None:
        raise UsageError(f"{device.name} has no matrix rate for {text}; choose another precision")
    ratio = rates[0].peak_tflops_s / rates[1].peak_tflops_s
    floor_us, measured_us = launch_floor_us(device), plan.subject.activity.duration[events] / NS_PER_US
    unlike = math.log1p(largest_p90(GEMM.price_family()) / 100) / Z90
    sigma = math.hypot(abs(math.log(ratio)) / 2 / Z90, unlike, unlike)
    plan.multiply(events, math.sqrt(ratio) + floor_us / np.maximum(measured_us, floor_us), sigma)
    plan.note(
        f"{events.sum()} GEMMs of unknown size take between {ratio:.2f} (the ratio of the peak rates) and all of their "
        f"time, in kernels that may be better or worse, each after a conversion of {duration(floor_us)}"
    )


@change("ranks", ORDER)
def more_ranks(plan: ChangePlan, times: float) -> None:
    """Groups ``times`` as large: collectives by their estimates, waiting as before; UsageError where none is known."""
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
        raise UsageError(f"{subject.table.source}: no collective has a recorded message size, type and group")
    larger = [replace(model, ranks=max(round((model.ranks or 1) * times), 1)) for model in models]
    old, new = (estimated_us(plan, WorkColumns.of(part)).time_us for part in (models, larger))
    at, more = np.array(events), np.nan_to_num(new - old) * NS_PER_US
    factor, sigma = np.ones(len(activity)), np.zeros(len(activity))
    factor[at] = np.maximum(activity.duration[at] + more, 0) / activity.duration[at]
    sigma[at] = largest_sigma() * np.minimum(np.abs(more) / np.maximum(activity.duration[at] + more, 1), 1)
    plan.multiply(np.ones(len(activity), bool), factor, sigma)
    plan.note("each rank does the same work, and ranks share nodes as in the device's standard node")


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


@change("remove", TIME)
def removed(plan: ChangePlan, wanted: tuple[str, ...]) -> None:
    """Their device events are gone; of an op, module or range also the host's time in it, and what it waited for."""
    for selector in wanted:
        plan.removed |= plan.subject.events_of(selector)
        plan.gone |= plan.subject.rows_named(selector)


#: The selector of host time: ops, launches, and what lies between them.
HOST = "host"


@change("scale", TIME)
def scaled(plan: ChangePlan, wanted: tuple[str, ...]) -> None:
    """``GEMM=0.9``: the factor of what ``events_of`` selects, or of ``host``; UsageError for another form."""
    for text in wanted:
        selector, _, number = text.rpartition("=")
        try:
            by = float(number)
        except ValueError:
            by = -1.0
        if not selector or not 0 <= by < float("inf"):
            raise UsageError(f"--scale takes NAME=FACTOR with a factor of at least 0, like GEMM=0.9; got {text!r}")
        if selector == HOST:
            plan.host *= by
        else:
            plan.multiply(plan.subject.events_of(selector), by)


@change("pad", TIME)
def padded(plan: ChangePlan, multiple: int) -> None:
    """Products whose m, n or k is no multiple of ``multiple`` take what the padded ones should, at the efficiency that
    the aligned products of the same trace reached in the median.

    UsageError where all are aligned, or none is to learn from.
    """
    codes = [code for code, model in enumerate(plan.models) if type(model) is GEMM]
    models = [model for model in plan.models if type(model) is GEMM]
    padded_models = []
    for model in models:
        m, n, k = (-(-size // multiple) * multiple for size in (model.m, model.n, model.k))
        padded_models.append(replace(model, m=m, n=n, k=k))
    measured = measured_us(plan)[codes]
    estimate, after = (estimated_us(plan, WorkColumns.of(part)).time_us for part in (models, padded_models))
    aligned = np.array([model == other for model, other in zip(models, padded_models, strict=True)], bool)
    known = np.isfinite(estimate) & (measured > 0)
    if aligned.all():
        raise UsageError(f"{plan.subject.table.source}: the sizes of all GEMMs are multiples of {multiple} already")
    if not (aligned & known).any():
        raise UsageError(
            f"{plan.subject.table.source}: no GEMM has multiples of {multiple} as sizes, so their speed is unknown"
        )
    reached = np.log(measured[aligned & known] / estimate[aligned & known])
    for code, us, before in zip(*(np.asarray(c)[~aligned & known] for c in (codes, after, measured)), strict=True):
        events = plan.subject.reading_of_event == code
        plan.multiply(events, float(us * np.exp(np.median(reached)) / before), float(reached.std()))
    plan.note(
        f"{(~aligned & known).sum()} distinct GEMMs are padded; {(aligned & known).sum()} aligned ones show how fast"
    )


#: Every chain, wherever it is.
ANYWHERE = "chain"


@change("fuse", TIME)
def fused_chains(plan: ChangePlan, where: str) -> None:
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
        raise UsageError(f"{subject.table.source}: no consecutive kernels work on equally many elements in {where}")
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
    plan.note(
        f"this is a bound: {joined.sum() + len(leads)} kernels become {len(leads)}, each as long as its longest member"
    )


def _elements(model: PerfModel | None) -> int:
    """How many elements an operation that streams memory goes over; 0 for others."""
    shape = getattr(model, "shape", None)
    return prod(shape) if model is not None and model.price_family() == MEMORY and shape else 0


@change("sdpa", TIME)
def flash_attention(plan: ChangePlan, _: str) -> None:
    """Attention without a flash kernel becomes one kernel a call, by its estimate; UsageError without such calls."""
    subject, tree, activity = plan.subject, plan.subject.tree, plan.subject.activity
    readings = subject.attribution.readings
    models = [reading.model for reading in readings.readings]
    wanted = {c: model for c, model in enumerate(models) if isinstance(model, SDPA) and model.flash is False}
    if not wanted:
        raise UsageError(
            f"{subject.table.source}: no attention op that flash attention could replace; for attention from separate "
            "GEMMs and a softmax use --apply attention_from_parts"
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
    plan.note(f"{replaced} attention calls take the estimated time of a flash kernel; their mask or bias must allow it")


#: Queued kernels from which the gaps between them are those of a graph, and the gap (ns) with fewer: of traces with
#: more the medians are 0 to 3 us.
_LEAST_QUEUED, _USUAL_GAP = 20, 2000


@change("graphs", ORDER)
def in_graphs(plan: ChangePlan, _: bool) -> None:
    """No host time between synchronizations but data loading and communication; kernels follow as queued ones do."""
    replay = plan.subject.replay
    gaps = replay.queued_gaps
    if len(gaps) >= _LEAST_QUEUED:
        low, gap, high = (int(ns) for ns in np.quantile(gaps, (0.05, 0.5, 0.95)))
        source = "the median of queued kernels in this trace"
    else:
        low, gap, high = 0, _USUAL_GAP, max(replay.device.usual, _USUAL_GAP)
        source = "as in other traces, because this one has too few queued kernels"
    plan.gaps = low, gap, high
    plan.note(f"a kernel in a graph starts {duration(gap / 1000)} after the one before, {source}")


#: What can be overlapped.
COMMUNICATION = "comm"


@change("overlap", ORDER)
def overlapped(plan: ChangePlan, _: str) -> None:
    """No kernel waits for communication; computing slows while it overlaps more of it, as in a projection.

    A bound: what needs a message before it can start is not recorded, but the host and other messages still wait.
    """
    activity = plan.subject.activity
    if not activity.communication.any():
        raise UsageError(f"{plan.subject.table.source}: no communication to overlap")
    recorded = _exposed_ns(plan, *_times(plan))
    plan.detached = plan.detached | activity.communication
    hidden = max(recorded - _exposed_ns(plan, *_times(plan)), 0)
    computes = ~(activity.communication | activity.memcpy)
    slower = OVERLAP_COST * min(hidden / max(float(activity.duration[computes].sum()), 1.0), 1.0)
    plan.multiply(np.asarray(computes), 1 + slower)
    share = 100 * hidden / max(recorded, 1)
    plan.note(
        f"this is a bound: no kernel waits for communication, which hides {share:.0f} % of the exposed time; overlap "
        f"slows computation by {100 * slower:.1f} %"
    )


def _times(plan: ChangePlan) -> tuple[Ints, Ints]:
    """(start, end) of the replay's device events, as planned so far."""
    changes = plan.changes()
    start = plan.subject.replay.times(changes).start
    return start, start + np.rint(np.where(changes.removed, 0.0, changes.length)).astype(np.int64)


def _exposed_ns(plan: ChangePlan, start: Ints, end: Ints) -> int:
    """Communication during which nothing computes."""
    activity, at = plan.subject.activity, plan.subject.replay.at
    sent, computes = activity.communication[at], ~(activity.communication | activity.memcpy)[at]
    both = union_ns(start[sent | computes], end[sent | computes])
    return both - union_ns(start[computes], end[computes])


@change("apply", TIME)
def finding_applied(plan: ChangePlan, wanted: tuple[str, ...]) -> None:
    """Findings by id, kind or key: their device events become shorter by what is claimed of each, and the host spends
    that much less in idle time that waits for it, or the event that was late comes that much sooner.

    UsageError for a finding that the report of the trace does not have.
    """
    # The sheets of a report take long to import, and no other change needs them
    from tracelens.analysis.findings.ranking import ReplayedGain, findings_and_claims

    seen = _observed(plan.subject)
    found = findings_and_claims(seen, plan.subject.recording.extensions)
    applied: dict[str | None, tuple[Finding, Claimed]] = {}
    for name in wanted:
        chosen = [pair for pair in found if name in (pair[0].id, pair[0].kind, pair[0].key)]
        if not chosen:
            known = sorted({finding.key or finding.id for finding, _ in found})
            raise UsageError.unknown("finding in the report of this trace", name, known)
        if all(finding.gain_us is None for finding, _ in chosen):
            raise UsageError(f"{name!r} cannot be applied: the trace does not show what its remedy saves")
        applied |= {finding.key: (finding, claimed) for finding, claimed in chosen if finding.gain_us is not None}
    for finding, claimed in applied.values():
        _apply(plan, seen, claimed)
        plan.claims.append((claimed, claimed.gain_ns))
        gains = finding.gain_low_us, finding.gain_us, finding.gain_high_us
        low, gain, high = (f"{(us or 0) / 1e3:.3g}" for us in gains)
        name = finding.key or finding.id
        plan.note(f"the report gives {name} a gain of {gain} ms ({low} to {high}) per step: {finding.why}")
    plan.replayed = seen.once(ReplayedGain)


def _observed(subject: Subject) -> Observed:
    from tracelens.analysis.findings.rule import Observed
    from tracelens.analysis.sheets.context import SheetContext
    from tracelens.analysis.sheets.priced_calls import PricedCalls

    recording, options = subject.recording, subject.options
    window = subject.window.within(subject.window.selected)
    attribution = attribute(recording, window, options)
    return Observed(SheetContext(
        recording=recording, options=options, step_times=window.times, selected=window.selected, window=window,
        attribution=attribution, priced=PricedCalls.of(recording, window, attribution, options),
    ))  # fmt: skip


def _apply(plan: ChangePlan, seen: Observed, claimed: Claimed) -> None:
    from tracelens.analysis.findings.ranking import spared_by

    spared, activity = spared_by(seen, claimed, claimed.gain_ns), plan.subject.activity
    at = np.searchsorted(activity.rows, seen.activity.rows[spared.events])
    plan.factor[at] *= 1 - spared.share
    plan.removed[at[spared.is_removed]] = True
    np.add.at(plan.sooner, np.searchsorted(activity.rows, spared.late), spared.sooner_ns)
    plan.saved += zip(*(column.tolist() for column in spared.spans), strict=True)
