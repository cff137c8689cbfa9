"""What limits a call besides arithmetic, HBM and links: the launch of its kernels, and the cache in front of HBM."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracelens.hardware import HardwareSpec
from tracelens.hardware.device_figures import Rate
from tracelens.lazy.records import dataclass
from tracelens.perf_models.compute_type import ComputeType
from tracelens.units import BYTES_PER_MIB, NS_PER_US, TERA_PER_S_IN_PER_US

Floats = npt.NDArray[np.float64]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LastLevelCache:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
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
