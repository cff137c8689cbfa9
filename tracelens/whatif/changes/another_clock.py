"""The device runs at another clock."""

from __future__ import annotations

from tracelens.errors import UsageError
from tracelens.whatif.changes import PLACE, change
from tracelens.whatif.plan import Plan
from tracelens.whatif.pricing import device_of


@change("gpu_clock", PLACE)
def another_clock(plan: Plan, scale: float) -> None:
    """``scale`` times that of the recording: matrix, vector and cache rates scale, memory and links do not."""
    device = device_of(plan) if plan.system is None else plan.system.device
    base = device.matrix_cores.clock_mhz if device.matrix_cores is not None else device.clock_mhz
    if base is None or plan.system is None:
        raise UsageError(f"{device.name}: its rates cannot be scaled, because their clock is unknown")
    plan.system = plan.system.at_clock(scale * base * device.clock_scale)
