"""Operations that only stream memory: the measured fraction of the HBM rate and a launch floor."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracelens.backends.base import Floats, Priced, hbm_peak, pricer
from tracelens.hardware import HardwareSpec
from tracelens.hardware.device_figures import STREAMS, Calibration
from tracelens.perf_models.base import MEMORY, PerfModel, WorkColumns


def stream_of(model: PerfModel) -> str:
    """Which row of ``[calibrated.memory_bound.*]`` an operation reads: tokens permuted, optimizers, others."""
    return "permute" if getattr(model, "permutes", False) else model.stream


def calibrated_row(model: Any) -> tuple[str, str] | None:
    """The constants that price an operation which moves something."""
    stream = stream_of(model)
    return ("memory_bound", stream) if stream in STREAMS and (model.hbm_bytes() or 0) > 0 else None


@pricer(MEMORY, row=calibrated_row)
def streams(work: WorkColumns, device: HardwareSpec) -> Priced:
    """Operations by what they do with their bytes; NaN where those are unknown."""
    names = np.array([stream_of(model) for model in work.models])
    parts = []
    for stream in np.unique(names).tolist():
        rows = np.flatnonzero(names == stream)
        constants = calibration(device, stream)
        found = None if constants is None else price(work.hbm_bytes[rows], device, constants)
        parts.append((rows.tolist(), found))
    return Priced.summed(len(work), parts)


def calibration(device: HardwareSpec, stream: str) -> Calibration | None:
    """The device's row for ``stream``, else its general one, else the published fraction of its HBM rate, else all that
    of the device which it is like.
    """
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
    if found is None and device.calibrated_like is not None:
        return calibration(HardwareSpec.load(device.calibrated_like), stream)
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
