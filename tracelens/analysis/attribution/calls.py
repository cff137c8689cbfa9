"""Which op call every kernel belongs to, how long each call kept the device busy, what work is known of calls and what
limits them.

An op's model speaks of the kernels below the op, save those that are clearly something else: what communicates belongs
to ops that communicate and to no other, copies from or to another memory belong to none, what rearranges operands
belongs to no matrix product, and a GEMM kernel not to a model of what is left of an op beside its GEMMs.

Three views of the same kernels, all of them interval unions in whole ns:

* a *launcher*'s direct time: kernels it launched itself; its subtree time: kernels of all ops below it as well;
* a *unified* call: every kernel belongs to exactly one of them (``unified_calls``);
* a *modelled* call: any op with a perf model, also one inside another, for the per-family sheets.

NCCL and RCCL kernels stay out of all three: they have the collective sheets.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity, Labels
from tracelens.analysis.grouping import Codes, first_of_each, numbered
from tracelens.analysis.intervals import Bools, Floats, Ints, overlapping, union_by_group
from tracelens.analysis.reading.catalog import OTHER
from tracelens.analysis.reading.op_readings import Callers, OpReadings
from tracelens.perf_models.base import PerfModel, UnknownWork, WorkColumns
from tracelens.perf_models.gemm import GEMM
from tracelens.perf_models.kernels import ComputeType
from tracelens.perf_models.sdpa import SDPA, SDPABackward
from tracelens.trace.narrow_columns import narrowed
from tracelens.trace.table import Kind, RowColumn, TraceTable
from tracelens.trace.tree import nearest
from tracelens.types.dtypes import DType
from tracelens.types.records import Record
from tracelens.types.units import BYTES_PER_MIB, NS_PER_US, TERA_PER_S_IN_PER_US

if TYPE_CHECKING:
    from tracelens.backends.base import EstimateTable
    from tracelens.hardware.device_figures import Rate
    from tracelens.hardware.spec import HardwareSpec

#: The category of NCCL and RCCL kernels, which stand outside the op tables.
COLLECTIVES = "collectives"
#: The category of copies between a device and the host, or another device.
COPY = "copy"


def with_communicating_ops(activity: DeviceActivity, callers: Callers, readings: OpReadings) -> DeviceActivity:
    """``activity``, where the kernels of ops that communicate do so too, whatever they are called.

    A kernel's op is the innermost one above it of known category; a copy to another device counts below any op that
    communicates. Copies from or to the host and matrix products stay what they are.
    """
    if not readings.communicates.any():
        return activity
    judged = ~(activity.host_copy[callers.events] | activity.category[callers.events].are(GEMM.category))
    linked, op = callers.events[judged], callers.op[judged]
    of_op = readings.code_of(callers.rows)
    above = callers.innermost(readings.known[of_op])[op]
    peer = activity.peer_copy[linked]
    above[peer] = callers.innermost(readings.communicates[of_op])[op[peer]]
    code = np.append(of_op, np.int32(-1))[above]
    found = readings.communicates[code]
    events, category = linked[found], [r.category or OTHER for r in readings.readings]
    communication, label = activity.communication.copy(), activity.category.code + np.int32(len(category))
    peer_copy, unnamed = activity.peer_copy.copy(), ~communication[events]
    communication[events], peer_copy[events] = True, False
    label[events[unnamed]] = code[found][unnamed]
    return replace(
        activity,
        communication=communication,
        peer_copy=peer_copy,
        category=Labels.of(label, (*category, *activity.category.texts)),
    )


def speaks_of(
    readings: OpReadings, wanted: Bools, code: Codes, activity: DeviceActivity, events: npt.NDArray[np.integer]
) -> Bools:
    """Whether readings ``code`` of ops above ``events`` (pairs) are ``wanted`` (last: of code -1) and about them."""
    # Kinds of events: what each of the flags adds says which it has
    kind = activity.communication + np.uint8(2) * activity.between_memories + np.uint8(4) * activity.rearranges
    speaks = np.zeros((len(wanted), 8), bool)
    speaks[:, 0], speaks[:, 1] = ~readings.communicates, readings.communicates
    speaks[:, 4], speaks[:, 5] = speaks[:, 0] & ~readings.is_product, speaks[:, 1] & ~readings.is_product
    speaks[~wanted] = False
    found: Bools = speaks.ravel().take(code * np.int32(8) + kind[events])
    if readings.of_rest.any():
        found &= ~(readings.of_rest[code] & activity.category[events].are(GEMM.category))
    return found


def event_categories(
    activity: DeviceActivity, readings: OpReadings, events: Codes, op: RowColumn, is_synthetic: Bools
) -> Labels:
    """The category of every event; ``events`` are counted for ``op``, in pairs, the others for none.

    It is what the op's reading says, where it speaks of the event; else what the kernel's name says. Kernels left under
    a passed parent (``is_synthetic``) are first what their names say.
    """
    texts = (COLLECTIVES, COPY, *activity.category.texts, *(r.category or OTHER for r in readings.readings))
    label = activity.category.code + np.int32(2)
    label[activity.between_memories], label[activity.collective] = 1, 0
    code = readings.code_of(op)
    of_op = speaks_of(readings, readings.known, code, activity, events)
    of_op &= ~is_synthetic | activity.category[events].are(OTHER)
    label[events[of_op]] = code[of_op] + np.int32(2 + len(activity.category.texts))
    return Labels.of(label, texts)


#: What the name of a kernel that is an op of its own ends with, unless it is a copy.
SYNTHETIC = " (Synthetic Op)"


class Calls(Record, frozen=True, kw_only=True):
    """One entry per op call and category of its kernels. ``row``: table row; ``kernel_ns``: busy union of its kernels.

    ``kernel_name`` is -1, or the name code that tells the synthetic calls of one parent apart;
    ``first_event`` indexes the activity: the earliest kernel of the call; ``events`` and
    ``call_of_event`` pair every kernel with its call.
    """

    row: RowColumn
    kernel_ns: Ints
    kernel_name: Codes
    first_event: Codes
    events: Codes
    call_of_event: Codes
    category: Labels

    def among(self, inside: Bools) -> Calls:
        """The same calls in the part of the activity that is ``inside``, as all their events are."""
        place = np.cumsum(inside, dtype=np.int32) - np.int32(1)
        return replace(self, first_event=place[self.first_event], events=place[self.events])


def launchers(callers: Callers, activity: DeviceActivity) -> tuple[RowColumn, Ints]:
    """(every op that launched kernels itself, in order of the file, its subtree time in ns)."""
    events, n = callers.events, len(callers.rows)
    shared = overlapping(activity.start[events], activity.end[events])
    # Only events that overlap another in time need the union; the others are summed
    total = callers.sums(np.where(shared, 0, activity.duration[events]))
    at, op = events[shared], callers.op[shared]
    nesting = callers.sums(shared.astype(np.int64)) > np.bincount(op, minlength=n)
    launching = np.zeros(n, bool)
    launching[callers.op] = True
    nested = callers.depth(nesting & launching) > 0
    inside = nested[op]
    alone = at[~inside]
    total += union_by_group(op[~inside], activity.start[alone], activity.end[alone], n)
    _add_nested_unions(total, callers, launching & nested, op[inside], activity, at[inside])
    places = np.flatnonzero(launching)
    places = places[np.argsort(callers.rows[places])]
    return callers.rows[places], total[places]


class _Union:
    """Spans that lie apart, in order, and their length."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.length = 0

    def add(self, start: int, end: int) -> None:
        first, last = bisect_left(self.ends, start), bisect_right(self.starts, end)
        if first < last:
            start, end = min(start, self.starts[first]), max(end, self.ends[last - 1])
            self.length -= sum(self.ends[first:last]) - sum(self.starts[first:last])
        self.starts[first:last], self.ends[first:last] = [start], [end]
        self.length += end - start


def _add_nested_unions(
    total: Ints, callers: Callers, launching: Bools, op: RowColumn, activity: DeviceActivity, events: RowColumn
) -> None:
    """Adds to ``total`` of each launching op the union of the ``events`` at or below it; ``op`` launched each.

    Callers take over what their callees have, the shorter union span by span into the longer: a span moves at most
    log n times.
    """
    above = nearest(callers.parent, launching)
    own, unions = dict[int, list[tuple[int, int]]](), dict[int, _Union]()
    # Callees launch later: with time turned round, what callers add is added at the end
    for place, start, end in zip(
        op.tolist(), (-activity.end[events]).tolist(), (-activity.start[events]).tolist(), strict=True
    ):
        own.setdefault(place, []).append((start, end))
    for place in np.flatnonzero(launching)[::-1].tolist():
        union = unions.pop(place, None) or _Union()
        for span in own.get(place, ()):
            union.add(*span)
        total[place] += union.length
        caller = int(above[place])
        if caller >= 0:
            shorter, longer = sorted((union, unions.get(caller, _Union())), key=lambda each: len(each.starts))
            for start, end in zip(shorter.starts, shorter.ends, strict=True):
                longer.add(start, end)
            unions[caller] = longer


def unified_calls(
    table: TraceTable, activity: DeviceActivity, readings: OpReadings, callers: Callers
) -> tuple[Calls, Labels]:
    """Every linked device event in exactly one call; and the category of every event, linked or not.

    Walking down from the root: the first op with a perf model owns everything below it that the model speaks of;
    without one, an op with no launching op below it owns its kernels; what remains under a passed parent, and what the
    model of its own op does not speak of, becomes one synthetic call per parent and kernel name.
    """
    linked = callers.events
    launcher = callers.rows[callers.op]
    owner = _owners(activity, readings, callers)
    free = owner < 0
    has_launching_child = callers.last > np.arange(1, len(callers.rows) + 1)
    passed = has_launching_child[callers.op] | ~table.is_of((Kind.CPU_OP, Kind.KERNEL))[launcher]
    foreign = activity.between_memories[linked] | readings.modelled[readings.code_of(launcher)]
    synthetic = free & (passed | foreign)
    row = np.where(free, launcher, owner)
    category = event_categories(activity, readings, linked, row, synthetic)
    kernel_name = np.where(synthetic, activity.name[linked], np.int32(-1))
    return grouped_calls(activity, linked, row, kernel_name, category[linked]), category


def _owners(activity: DeviceActivity, readings: OpReadings, callers: Callers) -> RowColumn:
    """The outermost op above each linked event whose model speaks of it; -1 without one."""
    events, code = callers.events, readings.code_of(callers.rows)
    owner: RowColumn = np.full(len(events), -1, np.int32)
    own = _claimed(activity, readings, events, callers.rows[callers.op])
    owner[own] = callers.rows[callers.op[own]]
    # Models speak of all events that are alike in this
    alike = numbered(
        activity.communication[events], activity.between_memories[events], activity.rearranges[events],
        activity.category[events].are(GEMM.category),
    )  # fmt: skip
    for number, first in enumerate(first_of_each(alike).tolist()):
        speaks = speaks_of(readings, readings.modelled, code, activity, np.full(len(code), events[first]))
        outermost = callers.outermost(speaks & ~readings.leaf_only[code])
        at = np.flatnonzero(alike == number)
        of_op = outermost[callers.op[at]]
        owner[at[of_op >= 0]] = callers.rows[of_op[of_op >= 0]]
    return owner


#: Of more modeled calls round each other than this, the inner ones have no row: a trace may hold a million of them.
MOST_NESTED = 64


def modelled_calls(activity: DeviceActivity, readings: OpReadings, callers: Callers) -> Calls:
    """Every call whose model speaks of an event it launched, nested ones to a depth of ``MOST_NESTED``."""
    modelled = readings.modelled[readings.code_of(callers.rows)]
    modelled &= callers.depth(modelled) <= MOST_NESTED
    above, at = nearest(callers.parent, modelled), callers.innermost(modelled)[callers.op]
    event, pairs = callers.events, [(callers.events[:0], callers.rows[:0])]
    while (kept := at >= 0).any():
        event, at = event[kept], at[kept]
        pairs.append((event, callers.rows[at]))
        at = above[at]
    events, ops = (np.concatenate(each) for each in zip(*pairs, strict=True))
    claimed = _claimed(activity, readings, events, ops)
    events, ops = events[claimed], ops[claimed]
    category = Labels.of(readings.code_of(ops), [r.category or OTHER for r in readings.readings])
    return grouped_calls(activity, events, ops, np.full(len(ops), -1, np.int32), category)


def _claimed(activity: DeviceActivity, readings: OpReadings, events: Codes, ops: RowColumn) -> Bools:
    """Which pairs of an event and an op above it are of an op whose model speaks of the event."""
    code = readings.code_of(ops)
    claimed = speaks_of(readings, readings.modelled, code, activity, events)
    if readings.leaf_only.any():
        claimed &= ~readings.leaf_only[code] | (activity.op[events] == ops)
    return claimed


def grouped_calls(
    activity: DeviceActivity, events: Codes, row: RowColumn, kernel_name: Codes, category: Labels
) -> Calls:
    """Calls from (event, owning row, kernel name code or -1, category); sorted by row."""
    order = np.lexsort((activity.start[events], narrowed(category.code), narrowed(kernel_name), row))
    r, k, e, c = row[order], kernel_name[order], events[order], category.code[order]
    del order
    fresh = np.ones(len(r), bool)
    fresh[1:] = (r[1:] != r[:-1]) | (k[1:] != k[:-1]) | (c[1:] != c[:-1])
    group = np.cumsum(fresh, dtype=np.int32) - np.int32(1)
    n = int(fresh.sum())
    return Calls(
        row=r[fresh],
        kernel_ns=union_by_group(group, activity.start[e], activity.end[e], n),
        kernel_name=narrowed(k[fresh]),
        first_event=e[fresh],
        events=e,
        call_of_event=group,
        category=Labels(c[fresh], category.texts),
    )


#: What a launch and one wave of blocks take at least where the device file has no fitted figure: the published models
#: of kernels assume 2.8 µs (MI300X), 2.6 (H100) and 2.1 (B200) were fitted to measured GEMMs; see docs/accuracy.md.
GENERIC_LAUNCH_US = 2.8
#: A kernel up to this long whose work needs less than a launch is said to be at the launch floor.
SHORT_KERNEL_US = 5.0
#: What bounds a call whose work takes less than the launch of its kernels.
LAUNCH = "launch"
#: Times of kernels are recorded in whole nanoseconds.
TOLERANCE_US = 1 / NS_PER_US
#: How many times faster than HBM a cache is, where the device file has no fitted ratio: the largest of those fitted.
_CACHE_OVER_HBM = 10.0


class LastLevelCache(Record, frozen=True, kw_only=True):
    """The cache in front of a device's memory. ``ratio``: its rate over that of HBM."""

    name: str
    nbytes: float
    ratio: float


def launch_floor_us(device: HardwareSpec) -> float:
    """What one kernel takes at least: the fitted constant of the device's GEMMs, else a generic one."""
    fitted = device.calibration("gemm", "bf16")
    return GENERIC_LAUNCH_US if fitted is None else fitted.get("launch_us", GENERIC_LAUNCH_US)


def rate_of(device: HardwareSpec | None, compute_spec: str) -> Rate | None:
    """The rate of ``matrix_bf16``; of an emulated one (``matrix_bf16x9``) that of its products over their number."""
    engine, _, label = compute_spec.partition("_")
    precision = ComputeType.parse(label)
    if device is None or precision is None or math.isnan(precision.passes):
        return None
    rate = device.rate(engine, precision.dtype)
    if rate is None or precision.passes == 1:
        return rate
    achievable = rate.achievable_tflops_s
    return replace(
        rate,
        peak_tflops_s=rate.peak_tflops_s / precision.passes,
        achievable_tflops_s=None if achievable is None else achievable / precision.passes,
    )


def last_level_cache(device: HardwareSpec) -> LastLevelCache | None:
    """AMD's Infinity Cache where the device has one, else its L2; None where the device file gives no size."""
    name, mib = ("L2", device.l2_mib) if device.mall_mib is None else ("Infinity Cache", device.mall_mib)
    if mib is None:
        return None
    fitted = device.calibration("gemm", "bf16")
    ratio = _CACHE_OVER_HBM if fitted is None else fitted.get("l2_ratio", _CACHE_OVER_HBM)
    return LastLevelCache(name=name, nbytes=mib * BYTES_PER_MIB, ratio=ratio)


class Limits(Record, frozen=True, kw_only=True):
    """Those of one device."""

    launch_us: float
    cache: LastLevelCache | None
    hbm_peak_tb_s: float | None

    @classmethod
    def of(cls, device: HardwareSpec) -> Limits:
        peak = device.hbm.peak_tb_s if device.hbm is not None else None
        return cls(launch_us=launch_floor_us(device), cache=last_level_cache(device), hbm_peak_tb_s=peak)

    def floor_us(self, kernels: Floats, measured_us: Floats) -> Floats:
        """The launch floor of calls of so many kernels each: a typical cost and no law, so a faster call is at it."""
        return np.minimum(kernels * self.launch_us, measured_us)

    def served_from(self, hbm_bytes: Floats, peak_us: Floats, measured_us: Floats, kernels: Floats) -> list[str | None]:
        """Per call: the cache that explains a time below that of HBM, None where none is needed or none explains it.

        ``peak_us``: the least time at data-sheet rates. What does not fit in the cache came from HBM at its peak rate.
        """
        if self.cache is None or self.hbm_peak_tb_s is None:
            return [None] * len(hbm_bytes)
        per_us = self.hbm_peak_tb_s * TERA_PER_S_IN_PER_US
        memory_us, latest = hbm_bytes / per_us, measured_us + kernels * TOLERANCE_US
        beyond_us = np.maximum(hbm_bytes - self.cache.nbytes, 0) / per_us
        is_memory = memory_us >= peak_us * (1 - 1e-9)
        served = is_memory & (memory_us > latest) & (beyond_us <= latest) & (memory_us <= latest * self.cache.ratio)
        names = np.where(beyond_us > 0, f"{self.cache.name} in part", self.cache.name)
        return [name if is_so else None for name, is_so in zip(names.tolist(), served.tolist(), strict=True)]


class KnownWork:
    """The work and the estimate of every reading, evaluated once per distinct signature."""

    def __init__(
        self,
        readings: OpReadings,
        estimate: Callable[[WorkColumns], EstimateTable] | None,
        chosen: Callable[[WorkColumns], EstimateTable] | None = None,
        limits: Limits | None = None,
        expect: Callable[[WorkColumns], EstimateTable] | None = None,
    ) -> None:
        self.readings = readings
        known = [r for r in readings.readings if r.model is not None]
        models = [r.model for r in known if r.model is not None]
        self.columns = WorkColumns.of(models, [r.computed_in for r in known])
        #: Of the device, None where it is not known.
        self.limits = limits
        self.estimates = estimate(self.columns) if estimate is not None and models else None
        #: What the backend that the caller chose says is achievable, beside the roofline.
        self.achievable = chosen(self.columns) if chosen is not None and models else None
        #: The same, or what the tile model says where the caller chose none.
        self.expected = self.achievable or (expect(self.columns) if expect is not None and models else None)
        self.position = np.cumsum(readings.modelled) - 1
        self.position[~readings.modelled] = -1

    def take(self, values: Floats, position: Ints) -> Floats:
        """``values`` at ``position``; NaN where there is no model."""
        if not len(values):
            return np.full(len(position), np.nan)
        return np.where(position >= 0, values[np.maximum(position, 0)], np.nan)


#: How far above the data sheet's roofline inferred work may be: below it the rest is clocks, caches and timestamps.
MOST_OF_ROOFLINE = 1.5


def without_impossible_work(
    readings: OpReadings, calls_of: Callable[[], Calls], device: HardwareSpec | None
) -> OpReadings:
    """Readings; those whose ``inferred`` work is above ``MOST_OF_ROOFLINE`` over all calls keep only their dimensions.

    Bytes that fit in the device's last cache may come from there, so they are never too many.
    """
    inferred = [code for code, r in enumerate(readings.readings) if r.model is not None and r.model.inferred]
    if device is None or not inferred:
        return readings
    calls = calls_of()
    code = readings.code_of(calls.row)
    known = code >= 0
    count = np.bincount(code[known], minlength=len(readings.readings))
    busy_us = np.bincount(code[known], calls.kernel_ns[known], minlength=len(readings.readings)) / NS_PER_US
    changed = {}
    for reading in inferred:
        model = readings.readings[reading].model
        if model is not None and busy_us[reading] > 0:
            reason = too_much(model, busy_us[reading] / count[reading], device)
            if reason is not None:
                changed[reading] = replace(readings.readings[reading], model=UnknownWork(of=model), note=reason)
    return readings.with_readings(changed)


def too_much(model: PerfModel, time_us: float, device: HardwareSpec) -> str | None:
    """Why a call of ``model`` cannot have taken ``time_us`` on the device; None where it can.

    >>> from tracelens import GEMM
    >>> from tracelens.hardware import HardwareSpec
    >>> too_much(GEMM(m=8192, n=8192, k=8192), 100.0, HardwareSpec.load("h100-sxm"))
    'the work inferred from what was recorded would be 10,995 TFLOPS/s, the device has 989: not counted'
    """
    rate = device.rate(model.engine, model.compute_dtype) if model.compute_dtype is not None else None
    flops, nbytes, cache = model.flops(), model.hbm_bytes(), last_level_cache(device)
    if nbytes is not None and cache is not None and nbytes <= cache.nbytes:
        nbytes = None
    limits = (
        (flops, rate.peak_tflops_s if rate is not None else None, "TFLOPS/s", 0),
        (nbytes, device.hbm.peak_tb_s if device.hbm is not None else None, "TB/s", 2),
    )
    for amount, peak, unit, digits in limits:
        if amount is None or peak is None:
            continue
        reached = amount / time_us / TERA_PER_S_IN_PER_US
        if reached > MOST_OF_ROOFLINE * peak:
            return (
                f"the work inferred from what was recorded would be {reached:,.{digits}f} {unit}, the device has "
                f"{peak:,.{digits}f}: not counted"
            )
    return None


class ExecutedWork(Record, frozen=True, kw_only=True, eq=False):
    """What the trace's calls with a perf model did: matrix FLOPs by step (one entry over all without steps).

    ``dtype`` is the type that most of them are computed in. ``attention``: (table row, model) of forward attention.
    """

    flops_by_step: Floats
    dtype: DType | None
    attention: tuple[tuple[int, SDPA], ...]


def executed_work(calls: Calls, readings: OpReadings, step_of_event: Codes | None, steps: int) -> ExecutedWork:
    """Over calls not inside one another, without upper bounds; ``step_of_event``: -1 for none, None without steps."""
    code = readings.code_of(calls.row)
    models = [reading.model for reading in readings.readings]
    matrix = [m if m is not None and m.engine == "matrix" and not m.at_most else None for m in models]
    flops = np.array([0.0, *((m.flops() or 0) if m is not None else 0 for m in matrix)])
    modelled = np.where(calls.kernel_name < 0, code, -1)
    step = np.zeros(len(code), np.int32) if step_of_event is None else step_of_event[calls.first_event]
    total = np.zeros(max(1, steps))
    np.add.at(total, step[step >= 0], flops[modelled[step >= 0] + 1])
    forward = np.array([isinstance(m, SDPA) and not isinstance(m, SDPABackward) for m in models] + [False], bool)
    attention = np.flatnonzero(forward[modelled])
    return ExecutedWork(
        flops_by_step=total,
        dtype=_most_computed_in(readings, flops[1:] * np.bincount(modelled + 1, minlength=len(flops))[1:]),
        attention=tuple(
            (int(calls.row[call]), model)
            for call in attention.tolist()
            if isinstance(model := models[int(code[call])], SDPA)
        ),
    )


def _most_computed_in(readings: OpReadings, flops: Floats) -> DType | None:
    """The type of most matrix ``flops``, of each reading all its calls'; None without any."""
    by_type: dict[DType, float] = {}
    for reading, total in zip(readings.readings, flops.tolist(), strict=True):
        dtype = reading.compute_dtype
        if reading.model is not None and reading.model.engine == "matrix" and dtype is not None:
            by_type[dtype] = by_type.get(dtype, 0.0) + total
    return max(by_type, key=lambda d: (by_type[d], d.label)) if any(by_type.values()) else None


def copied_bytes(table: TraceTable, activity: DeviceActivity) -> Floats:
    """Bytes that each copy between memories moved; NaN where that was not recorded, and for all other events."""
    result = np.full(len(activity), np.nan)
    at = np.flatnonzero(activity.between_memories)
    code = table.signature[activity.rows[at]]
    distinct, inverse = np.unique(code, return_inverse=True)
    recorded = [table.signatures.signature("", c).attribute("bytes") for c in distinct.tolist()]
    known = [float(n) if isinstance(n, int) and not isinstance(n, bool) and n >= 0 else np.nan for n in recorded]
    result[at] = np.array(known, np.float64)[inverse]
    return result
