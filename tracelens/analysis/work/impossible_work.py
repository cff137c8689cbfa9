"""Work that was inferred, and that no device of the kind could have done in the time measured: it is not known then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tracelens.analysis.attribution.calls import Calls
from tracelens.analysis.reading.op_readings import OpReadings
from tracelens.analysis.work.limits import last_level_cache
from tracelens.hardware.spec import HardwareSpec
from tracelens.perf_models.base import PerfModel, UnknownWork
from tracelens.units import NS_PER_US, TERA_PER_S_IN_PER_US

#: How far above the data sheet's roofline inferred work may be: below it the rest is clocks, caches and timestamps.
MOST_OF_ROOFLINE = 1.5


def forget_impossible_work(readings: OpReadings, calls_of: Callable[[], Calls], device: HardwareSpec | None) -> None:
    """Readings whose ``inferred`` work is above ``MOST_OF_ROOFLINE`` over all their calls keep only their dimensions.

    Bytes that fit in the device's last cache may come from there, so they are never too many.
    """
    if device is None:
        return
    inferred = [code for code, r in enumerate(readings.readings) if r.model is not None and r.model.inferred]
    if not inferred:
        return
    calls = calls_of()
    code = readings.code_of(calls.row)
    known = code >= 0
    count = np.bincount(code[known], minlength=len(readings.readings))
    busy_us = np.bincount(code[known], calls.kernel_ns[known], minlength=len(readings.readings)) / NS_PER_US
    for reading in inferred:
        model = readings.readings[reading].model
        if model is not None and busy_us[reading] > 0:
            reason = too_much(model, busy_us[reading] / count[reading], device)
            if reason is not None:
                changed = replace(readings.readings[reading], model=UnknownWork(of=model), note=reason)
                readings.replace(reading, changed)


def too_much(model: PerfModel, time_us: float, device: HardwareSpec) -> str | None:
    """Why a call of ``model`` cannot have taken ``time_us`` on the device; None where it can.

    >>> from tracelens import GEMM
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
