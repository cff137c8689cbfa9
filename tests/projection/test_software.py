"""What a step has on top of kernels measured alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tracelens.backends.base import System
from tracelens.backends.roofline_and_tile import Tile
from tracelens.errors import UsageError
from tracelens.hardware import HardwareSpec
from tracelens.perf_models import GEMM, SDPA, GroupedGEMM
from tracelens.perf_models.base import WorkColumns
from tracelens.predict.projection.overheads import LARGE, Software, held, slowdown, sustained_us
from tracelens.predict.projection.step import Projection, project
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import ParallelConfig
from tracelens.types.dtypes import DType


def test_products_are_slowed_down_as_the_longest_measured_ones_and_nothing_else_is() -> None:
    system = System.load("h100-sxm")
    product = GEMM(m=4096, n=4096, k=4096)
    grouped = GroupedGEMM(m=4096, n=4096, k=4096, groups=8, dtype=DType.FP16)
    attention = SDPA(b=1, s_q=4096, s_kv=4096, q_heads=8, kv_heads=8, d_qk=128, d_v=128, mask="top_left")
    measured = system.device.calibrated["sustained", "bf16"]["slowdown"]
    assert 1.02 < measured < 1.15
    assert held([product, grouped, attention], system).tolist() == [measured, measured, 1.0]


def test_wide_products_among_narrow_ones_are_held_down_as_the_narrow_ones_are() -> None:
    """GB200's long products take 1.66 times as long in BF16 and 1.11 times in FP4, which draws less power."""
    system = System.load("gb200")
    wide = GEMM(m=4096, n=4096, k=4096)
    narrow = GEMM(m=4096, n=4096, k=4096, dtype=DType.FP4_E2M1, dtype_out=DType.BF16)
    alone, together = held([wide], system), held([wide, narrow], system)
    assert alone[0] == slowdown("bf16", system.device) > 1.5
    assert together.tolist() == [slowdown("fp4", system.device)] * 2


def test_without_long_products_a_large_one_runs_at_the_published_sustained_rate() -> None:
    device = HardwareSpec.load("mi300x")
    found = Tile().estimate(GEMM(m=LARGE, n=LARGE, k=LARGE), System(device=device))
    assert found is not None
    assert 2 * LARGE**3 / (found.time_us * slowdown("bf16", device)) / 1e6 == pytest.approx(708)
    assert slowdown("fp4", HardwareSpec.load("a100-sxm-80gb")) == 1.0


@pytest.mark.parametrize(
    ("dtype", "milliseconds"), [(DType.BF16, 13.102), (DType.FP8_E4M3FN, 6.812), (DType.FP4_E2M1, 3.764)]
)
def test_a_published_layer_takes_on_b300_what_was_measured(dtype: DType, milliseconds: float) -> None:
    """Twelve products of 15,872 tokens, hidden 4096, ffn 16384; GB300, the same chip with more power, is faster."""
    took = {}
    for name in ("b300", "gb300"):
        system = System.load(name)
        products = []
        for n, k in ((12288, 4096), (4096, 4096), (16384, 4096), (4096, 16384)):
            forward = GEMM(m=15872, n=n, k=k, dtype=dtype, dtype_out=DType.BF16)
            products += [forward, replace(forward, n=k, k=n), replace(forward, m=n, n=k, k=15872)]
        found = Tile().estimate_many(WorkColumns.of(products), system)
        took[name] = sustained_us(found, products, system).sum() / 1e3
    assert took["b300"] == pytest.approx(milliseconds, rel=0.005)
    assert 1.03 < took["b300"] / took["gb300"] < 1.11


LLAMA = ModelConfig.load("llama3-8b")


def projected(ranks: int, scale_loss: float, **options: object) -> Projection:
    parallel = ParallelConfig(dp=ranks, zero=3, **options)  # type: ignore[arg-type]
    software = Software(scale_loss=scale_loss)
    return project(LLAMA, parallel, System.load("h100-sxm"), sequence=4096, software=software)


def test_a_step_loses_by_the_logarithm_of_how_many_ranks_there_are() -> None:
    """Of 512 ranks: ln(512 / 8) = 4.159 times the share of the step that they would take alone."""
    alone, together = projected(512, 0.0), projected(512, 0.02)
    assert together.step_us / alone.step_us == pytest.approx(1 + 0.02 * math.log(64), rel=1e-6)
    assert together.breakdown_us["scale_loss"] == pytest.approx(together.step_us - alone.step_us, rel=1e-6)
    assert "scale_loss" not in alone.breakdown_us
    assert sum(together.breakdown_us.values()) == pytest.approx(together.step_us)


def test_one_machine_and_steps_with_adapters_lose_nothing() -> None:
    assert projected(8, 0.5).step_us == projected(8, 0.0).step_us
    assert projected(64, 0.5, lora=8).step_us == projected(64, 0.0, lora=8).step_us


def test_the_timeline_of_each_rank_shows_the_loss_in_the_sum_over_all_ranks() -> None:
    found = projected(64, 0.05)
    (finish,) = found.run.finish
    assert finish.scale_loss_us == found.breakdown_us["scale_loss"]
    assert finish.summed_us - finish.reduced_us > finish.scale_loss_us


def test_a_gain_with_scale_is_refused() -> None:
    with pytest.raises(UsageError, match="scale_loss must not be negative"):
        Software(scale_loss=-0.01)
