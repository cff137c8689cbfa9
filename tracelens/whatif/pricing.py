"""What the operations take when they, or the device, are others: the measured efficiency carried over, with the
spread of estimates on measured kernels.
"""

from __future__ import annotations

import math
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tracelens.analysis.attribution.calls import launch_floor_us
from tracelens.analysis.idle.dependency_replay import Bools, Floats
from tracelens.backends.base import EstimateTable, System
from tracelens.backends.chain import chain
from tracelens.dtypes import DType
from tracelens.errors import UsageError
from tracelens.hardware import HardwareSpec
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import PerfModel, WorkColumns
from tracelens.units import NS_PER_US
from tracelens.whatif.plan import Z90, ChangePlan

_RATES = {"fp16": "bf16", "fp4": "nvfp4"}


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("residuals.toml").read_text(encoding="utf-8"))


@cache
def largest_p90(family: str | None = None) -> float:
    """The largest 90th percentile of a family, or of all where that family was not measured."""
    families = [_table()[family]] if family in _table() else [v for v in _table().values() if isinstance(v, dict)]
    return float(max(p90 for devices in families for row in devices.values() for p90 in row.values()))


def largest_sigma() -> float:
    """For what no model speaks of."""
    return math.log1p(largest_p90() / 100) / Z90


def sigma_of(model: PerfModel, computed_in: DType | None, device: HardwareSpec, backend: str) -> float:
    """Standard deviation of the logarithm of measured over estimated time.

    From the 90th percentile that was measured for the family, device and precision with the tile model; where none was,
    the largest of the family's or, without a measured family, of all.
    """
    family = model.price_family()
    p90 = None
    if backend == "tile" and computed_in is not None and computed_in.rate is not None:
        measured = _table().get(family or "", {})
        row = measured.get(device.name) or measured.get(device.based_on or "") or {}
        p90 = row.get(_RATES.get(computed_in.rate, computed_in.rate))
    return math.log1p((largest_p90(family) if p90 is None else p90) / 100) / Z90


def device_of(plan: ChangePlan) -> HardwareSpec:
    """The device of the recording. UsageError where it is not known."""
    device = plan.subject.recording.device
    if device is None:
        raise UsageError(f"the device of {plan.subject.table.source} is not known, so nothing can be estimated on it")
    return device


def price(plan: ChangePlan) -> None:
    """Times of the calls whose model, amount or device changes, by the ratio of new to old estimate.

    ratio = max(new estimate, new launch floor) / max(old estimate, old launch floor): what the device reached of the
    old estimate it is taken to reach of the new one. Both are from the tile model where it knows both, else both are
    rooflines. Rooflines too where an amount multiplies them, as a part of a tile model's time does not grow with it.
    Kernels without an estimate follow the memory of the device.
    """
    subject, readings = plan.subject, plan.subject.readings
    old_models = [reading.model for reading in readings]
    same_place = plan.system is plan.recorded_on
    changed = [
        model is not None and (not same_place or model is not old or amount != 1)
        for model, old, amount in zip(plan.models, old_models, plan.amount, strict=True)
    ]
    if not any(changed) and same_place:
        return
    old_device = device_of(plan)
    old_system, new_system = plan.recorded_on, plan.system
    if old_system is None or new_system is None:
        raise UsageError(f"{subject.table.source}: no device to estimate for")
    codes = np.flatnonzero(changed)
    ratio, sigma, by_bytes = np.ones(len(readings) + 1), np.zeros(len(readings) + 1), np.full(len(readings) + 1, np.nan)
    kernels = _kernels(plan)
    measured = measured_us(plan)
    if len(codes):
        found = _estimates(plan, codes.tolist(), old_system, new_system)
        old = found.old_us
        floor = np.minimum(kernels[codes] * launch_floor_us(old_device), measured[codes])
        new_floor = floor * launch_floor_us(new_system.device) / launch_floor_us(old_device)
        after, before = np.fmax(found.new_us * plan.amount[codes], new_floor) + plan.more_us[codes], np.fmax(old, floor)
        is_known = np.isfinite(old) & np.isfinite(found.new_us) & (before > 0)
        ratio[codes] = np.divide(after, before, out=np.full(len(codes), np.nan), where=is_known)
        sigma[codes] = _sigmas(plan, codes.tolist(), found.backend, new_system.device)
        if new_system.device.name != old_device.name:
            # How much of what the estimate misses belongs to the device, and goes with it, is not known
            sigma[codes] = np.hypot(sigma[codes], _missed(measured[codes], before) / 2)
        by_bytes[codes] = np.where(is_known, np.nan, found.bytes_ratio * plan.amount[codes])
    code = subject.reading_of_event
    is_changed = np.append(changed, False)[code] & (code >= 0)
    known = np.isfinite(ratio[code]) & is_changed
    plan.multiply(known, ratio[code[known]], sigma[code[known]])
    _by_their_bytes(plan, is_changed & np.isfinite(by_bytes[code]) & (by_bytes[code] != 1), by_bytes[code])
    if not same_place:
        _without_estimate(plan, ~known & ~subject.activity.communication, old_device, new_system.device)


def _missed(measured: Floats, estimate: Floats) -> Floats:
    """The logarithm of one over the other, whichever is larger; 0 where either is nothing."""
    known = (measured > 0) & (estimate > 0)
    return np.where(known, np.abs(np.log(np.where(known, measured, 1) / np.where(known, estimate, 1))), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Estimates:
    """Of readings, in us, as they are and are to be, NaN where unknown; who made both, and new over old bytes."""

    old_us: Floats
    new_us: Floats
    bytes_ratio: Floats
    backend: list[str]


def _estimates(plan: ChangePlan, codes: list[int], old: System, new: System) -> _Estimates:
    readings = plan.subject.readings
    before = WorkColumns.of([readings[c].model for c in codes], [readings[c].computed_in for c in codes])  # type: ignore[misc]
    after = WorkColumns.of([plan.models[c] for c in codes], [plan.computed_in[c] for c in codes])  # type: ignore[misc]
    by_tile = [chain("tile").estimate_many(columns, system) for columns, system in ((before, old), (after, new))]
    rooflines = [chain("roofline").estimate_many(columns, system) for columns, system in ((before, old), (after, new))]
    both = np.array([one == other == "tile" for one, other in zip(*(t.backend for t in by_tile), strict=True)])
    moved = np.divide(after.hbm_bytes, before.hbm_bytes, out=np.full(len(codes), np.nan), where=before.hbm_bytes > 0)
    both &= plan.amount[codes] == 1
    found = [np.where(both, tile.time_us, line.time_us) for tile, line in zip(by_tile, rooflines, strict=True)]
    backend = ["tile" if one else "roofline" for one in both.tolist()]
    return _Estimates(old_us=found[0], new_us=found[1], bytes_ratio=moved, backend=backend)


def _by_their_bytes(plan: ChangePlan, events: Bools, ratio: Floats) -> None:
    """Calls without an estimate, of attention whose mask was not recorded for one: by how many more bytes they move."""
    if not events.any():
        return
    plan.multiply(events, ratio[events], largest_sigma())
    names = sorted({name for name, is_one in zip(plan.subject.op_name, events.tolist(), strict=True) if is_one})
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    plan.note(f"no estimate of {', '.join(names[:3])}{more}: by the bytes that they move")


def _sigmas(plan: ChangePlan, codes: list[int], backend: list[str], new: HardwareSpec) -> list[float]:
    """By the residuals of both estimates; where only the clock is another, half of the clock's effect."""
    device, result = device_of(plan), []
    for code, who in zip(codes, backend, strict=True):
        reading, model = plan.subject.readings[code], plan.models[code]
        if model is None or reading.model is None:
            result.append(0.0)
            continue
        if model is reading.model and new.name == device.name:
            result.append(abs(math.log(new.clock_scale / device.clock_scale)) / 2 / Z90)
            continue
        types = reading.compute_dtype, plan.computed_in[code] or model.compute_dtype
        new_type = types[1] if types[1] is None or hasattr(types[1], "rate") else types[1].dtype
        result.append(
            math.hypot(
                sigma_of(reading.model, types[0], device, who),
                sigma_of(model, new_type, new, who),  # type: ignore[arg-type]
            )
        )
    return result


def _kernels(plan: ChangePlan) -> Floats:
    """Kernels per call of each reading."""
    calls, code = plan.subject.attribution.unified, plan.subject.reading_of_event
    n = len(plan.subject.readings)
    events = np.bincount(code[code >= 0], minlength=n)
    distinct = np.unique(plan.subject.call_of_event[code >= 0])
    of = np.full(len(calls.row), -1)
    of[plan.subject.call_of_event[code >= 0]] = code[code >= 0]
    return np.asarray(events / np.maximum(np.bincount(of[distinct], minlength=n), 1))


def measured_us(plan: ChangePlan) -> Floats:
    """Mean kernel time of a call of each reading."""
    subject, n = plan.subject, len(plan.subject.readings)
    code, duration = subject.reading_of_event, subject.activity.duration
    total = np.bincount(code[code >= 0], duration[code >= 0], minlength=n)
    of = np.full(len(subject.attribution.unified.row), -1)
    of[subject.call_of_event[code >= 0]] = code[code >= 0]
    return np.asarray(total / np.maximum(np.bincount(of[of >= 0], minlength=n), 1) / NS_PER_US)


def _without_estimate(plan: ChangePlan, events: Bools, old: HardwareSpec, new: HardwareSpec) -> None:
    """What no model speaks of moves memory, most often; how much else it does is not known."""
    rates = [None if device.hbm is None else device.hbm.tb_s for device in (old, new)]
    if not events.any():
        return
    if old.name == new.name:
        plan.note(f"{_share(plan, events)} of kernel time has no estimate and takes as long as recorded")
        return
    if rates[0] is None or rates[1] is None:
        plan.note("kernels without a perf model keep their time: a memory rate is not known")
        return
    plan.multiply(events, rates[0] / rates[1], largest_sigma())
    plan.note(f"{_share(plan, events)} of kernel time has no estimate and follows the devices' memory rates")


def _share(plan: ChangePlan, events: Bools) -> str:
    ns = plan.subject.activity.duration
    return f"{100 * float(ns[events].sum() / max(ns.sum(), 1)):.0f} %"


def estimated_us(plan: ChangePlan, columns: WorkColumns) -> EstimateTable:
    """The estimate of new operations on the system that is to be."""
    device_of(plan)
    if plan.system is None:
        raise UsageError(f"{plan.subject.table.source}: no device to estimate for")
    return chain("tile").estimate_many(columns, plan.system)
