"""Projected memory beside measured, and what changes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tracelens.backends.system import System
from tracelens.projection.project import Result
from tracelens.projection.step import Projection, project
from tracelens.units import BYTES_PER_GIB
from tracelens.workload.model_config import ModelConfig, expanded
from tracelens.workload.parallel_config import ParallelConfig

EXPERTS = "1(*-) 3(*E)"


def step(model: str, blocks: str, p: ParallelConfig) -> Projection:
    whole = ModelConfig.load(model)
    # The 405B that was measured has 16 key heads
    kv_heads = 16 if model == "llama3.1-405b" else whole.kv_heads
    cut = replace(whole, blocks=expanded(blocks), mtp_layers=0, kv_heads=kv_heads)
    return project(cut, replace(p, sequence_parallel=p.tp > 1, micro_batches=4), System.load("b200"), sequence=4096)


# MooreThreads/SimuMax at e691807, docs/b200/b200_release_v1.2_summary.json: most that PyTorch's allocator handed out, GiB.
@pytest.mark.parametrize(
    ("model", "blocks", "p", "measured", "error"),
    [
        ("llama3.1-70b", "12(*-)", ParallelConfig(pp=2, dp=4), 66.55, -0.032),
        ("llama3.1-70b", "12(*-)", ParallelConfig(tp=2, dp=4), 60.68, -0.010),
        ("llama3.1-70b", "12(*-)", ParallelConfig(tp=8), 28.29, -0.011),
        ("llama3.1-405b", "4(*-)", ParallelConfig(pp=2, dp=4), 87.08, -0.086),
        ("llama3.1-405b", "4(*-)", ParallelConfig(tp=8), 38.57, -0.033),
        ("deepseek-v2", EXPERTS, ParallelConfig(pp=2, dp=4, ep=4), 44.70, 0.019),
        ("deepseek-v3", EXPERTS, ParallelConfig(dp=8, ep=8), 104.30, 0.002),
    ],
)
def test_measured_peaks_of_megatron(model: str, blocks: str, p: ParallelConfig, measured: float, error: float) -> None:
    fullest = step(model, blocks, p).peak_memory
    projected = (fullest.peak - fullest.outside) / BYTES_PER_GIB
    assert projected / measured - 1 == pytest.approx(error, abs=0.001)


def test_gradients_in_16_bits_halve_their_buffer_and_their_sum() -> None:
    """Per step and parameter: 4 or 2 bytes scattered, 2 gathered."""
    p = ParallelConfig(dp=8)
    wide, narrow = (step("llama3.1-70b", "12(*-)", replace(p, gradients=each)) for each in ("fp32", "bf16"))
    assert wide.peak_memory.gradients == 2 * narrow.peak_memory.gradients
    times = [Result(projection=each).communication.set_index("stream").time_us["dp"] for each in (wide, narrow)]
    assert times[1] / times[0] == pytest.approx((2 + 2) / (4 + 2), rel=0.02)
