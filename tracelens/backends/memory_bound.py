"""Operations that only stream memory: the measured fraction of the HBM rate and a launch floor."""

from __future__ import annotations

from typing import Literal

import numpy as np

from tracelens.backends.base import Floats
from tracelens.backends.family_columns import Priced, hbm_peak
from tracelens.hardware import HardwareSpec
from tracelens.hardware.tile_constants import Calibration
from tracelens.perf_models import Movement, MultiTensor, PerfModel

Stream = Literal["stream", "permute", "optimizer"]


def stream_of(model: PerfModel) -> Stream:
    """Which row of ``[calibrated.memory_bound.*]`` an operation reads: tokens permuted, optimizers, others."""
    if isinstance(model, MultiTensor):
        return "optimizer"
    return "permute" if isinstance(model, Movement) and model.permutes else "stream"


def calibration(device: HardwareSpec, stream: Stream) -> Calibration | None:
    """The device's row for ``stream``, else its general one, else the published fraction of its HBM rate."""
    found = device.calibration("memory_bound", stream) or device.calibration("memory_bound", "stream")
    published = device.efficiency_factor.get("hbm")
    if found is None and published is not None:
        return Calibration(
            family="memory_bound",
            precision=stream,
            # The same source adds a constant latency of 3 us to every such operation.
            constants={"hbm_efficiency": published.value, "launch_us": 3.0},
            fitted_on=published.source,
        )
    return found


def price(nbytes: Floats, device: HardwareSpec, constants: Calibration) -> Priced | None:
    """Launch, then the bytes at the sustained rate, NaN where they are; None without an HBM rate."""
    hbm = hbm_peak(device)
    if hbm is None:
        return None
    least = nbytes / hbm
    memory = least / constants["hbm_efficiency"]
    time = np.where(nbytes == 0, 0.0, constants["launch_us"] + memory)
    return Priced(time_us=time, compute_us=np.zeros(len(nbytes)), memory_us=memory, peak_us=least)
