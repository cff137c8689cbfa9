"""What a step has on top of kernels measured alone."""

from __future__ import annotations

import pytest

from tracelens.backends.system import System
from tracelens.backends.tile import Tile
from tracelens.dtypes import DType
from tracelens.hardware import HardwareSpec
from tracelens.perf_models import GEMM, SDPA, GroupedGEMM
from tracelens.projection.software import LARGE, held, slowdown, sustained_tflops_s


def test_products_are_slowed_down_as_the_longest_measured_ones_and_nothing_else_is() -> None:
    system = System.load("h100-sxm")
    product = GEMM(m=4096, n=4096, k=4096)
    grouped = GroupedGEMM(m=4096, n=4096, k=4096, groups=8, dtype=DType.FP16)
    attention = SDPA(b=1, s_q=4096, s_kv=4096, q_heads=8, kv_heads=8, d_qk=128, d_v=128, mask="top_left")
    measured = system.device.calibrated["sustained", "products"]["slowdown"]
    assert 1.02 < measured < 1.1
    assert held([product, grouped, attention], system).tolist() == [measured, measured, 1.0]


def test_without_long_products_a_large_one_runs_at_the_published_sustained_rate() -> None:
    device = HardwareSpec.load("mi300x")
    found = Tile().estimate(GEMM(m=LARGE, n=LARGE, k=LARGE), System(device=device))
    assert found is not None
    assert 2 * LARGE**3 / (found.time_us * slowdown("bf16", device)) / 1e6 == pytest.approx(708)


def test_without_a_sustained_rate_the_best_short_run_keeps_the_share_that_its_sister_keeps() -> None:
    """GB300: best 4007.6 in FP8; GB200 holds 3615.6 of its best 3887.1. FP4 holds what FP8 does."""
    device = HardwareSpec.load("gb300")
    assert sustained_tflops_s("fp8", device) == pytest.approx(4007.6 * 3615.6 / 3887.1)
    assert sustained_tflops_s("fp4", device) == pytest.approx(6466.6 * 3615.6 / 3887.1)
    assert sustained_tflops_s("fp4", HardwareSpec.load("a100-sxm-80gb")) is None


def test_measurements_of_a_sister_are_no_measurements() -> None:
    """GB300 draws more power than GB200, whose long products take a third longer."""
    assert slowdown("fp8", HardwareSpec.load("gb200")) == pytest.approx(1.33, abs=0.03)
    assert slowdown("fp8", HardwareSpec.load("gb300")) < 1.05
