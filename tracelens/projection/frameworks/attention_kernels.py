"""Generations of attention kernels: how much longer one takes than the kernel that backends price on a device."""

from __future__ import annotations

import functools

from tracelens.backends.base import System
from tracelens.backends.roofline_and_tile import Tile
from tracelens.hardware import HardwareSpec
from tracelens.perf_models import SDPA
from tracelens.training_options import Attention

#: The kernel whose instructions are one architecture's runs elsewhere at that architecture's rate per unit and clock.
_HOME = {"fa1": "a100-sxm-80gb", "fa2": "a100-sxm-80gb", "fa3": "h100-sxm", "fa4": "b200", "cudnn": ""}
#: A training step's forward and backward, over the forward that backends price at home. fa2: fitted on 70 published
#: steps of llm-foundry on A100 (``benchmarks/fit_profiles.py``), 1.88-1.95 whichever model size is left out: about 97
#: TFLOPS causal. fa1: half of fa2's speed (Dao, 2023, arXiv 2307.08691, section 4.1: "around 2x").
_AT_HOME = {"fa1": 3.8, "fa2": 1.9, "fa3": 1.0, "fa4": 1.0}
#: What stands for a step's attention: causal, long enough for the rate to have settled.
_SAMPLE = SDPA(b=1, s_q=4096, s_kv=4096, q_heads=32, kv_heads=32, d_qk=128, d_v=128, mask="top_left", flash=True)


@functools.lru_cache(maxsize=256)
def kernel_factor(kernel: Attention, device: HardwareSpec) -> float:
    """What the priced time of attention is multiplied with. 1 for the device's own kernel (``flash``, ``cudnn``), and
    where a device's units or rates are not known; never less: a newer kernel does not run on an older device.
    """
    home = HardwareSpec.load(_HOME[kernel]) if _HOME.get(kernel) else None
    here = None if home is None else _cycles(device)
    there = None if home is None else _cycles(home)
    if home is None or here is None or there is None:
        return 1.0
    return max(1.0, _AT_HOME[kernel] * there / here)


def _cycles(device: HardwareSpec) -> float | None:
    """Unit-cycles that the sample takes: its time times units and clock."""
    found = Tile().estimate(_SAMPLE, System(device=device))
    if device.compute_units is None or device.clock_mhz is None or found is None:
        return None
    return float(found.time_us * device.compute_units * device.clock_mhz)
