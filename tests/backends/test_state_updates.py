"""Linear attention in perf models is priced by the measured kernels, and keeps their laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracelens.backends import System
from tracelens.backends.chain import chain
from tracelens.perf_models import LinearAttention, WorkColumns
from tracelens.types.dtypes import DType

SYSTEM = System.load("dgx-h100")


def time_us(*models: LinearAttention) -> list[float]:
    return chain("tile").estimate_many(WorkColumns.of(models), SYSTEM).time_us.tolist()


def update(**changes: Any) -> LinearAttention:
    base: dict[str, Any] = {
        "tokens": 8192, "v_heads": 32, "d_k": 128, "d_v": 128, "qkv_width": 2 * 16 * 128 + 32 * 128, "dtype": DType.BF16,
    }  # fmt: skip
    return LinearAttention(**(base | changes))


@pytest.mark.parametrize("rule", ["delta", "channel_delta"])
def test_time_grows_with_tokens_sequences_and_heads(rule: str):
    lengths = time_us(*(update(rule=rule, tokens=n) for n in (512, 2048, 8192, 32768)))
    steps = time_us(*(update(rule=rule, tokens=n, sequences=n) for n in (1, 8, 64, 512)))
    heads = time_us(*(update(rule=rule, v_heads=h, qkv_width=(2 * 16 + h) * 128) for h in (16, 32, 64)))
    for times in (lengths, steps, heads):
        assert times == sorted(times)


@pytest.mark.parametrize("rule", ["delta", "channel_delta"])
def test_no_time_is_below_the_data_sheet_and_a_gradient_is_two_calls(rule: str):
    forward = update(rule=rule)
    table = chain("tile").estimate_many(WorkColumns.of([forward, forward.backward()]), SYSTEM)
    assert np.all(table.time_us >= np.array([1, 2]) * forward.flops() / (989.4e6))
    assert table.time_us[1] == pytest.approx(2 * table.time_us[0])


def test_it_is_what_the_command_says_of_the_same_kernels():
    """The chunked kernel of the fastest library at 1 x 8192 tokens, 16 and 32 heads."""
    from tracelens.backends.kernels.kernel_costs import KernelColumns
    from tracelens.backends.kernels.tile_model_kernels import GDN

    sizes = {name: np.array([float(value)]) for name, value in zip(GDN.sizes, (1, 8192, 16, 128, 32, 128), strict=True)}
    case = (("kernel_source", "chunk_gated_delta_rule"), ("phase", "context"))
    batch = KernelColumns(precision="bf16", table=GDN, case=case, sizes=sizes)
    libraries = [
        KernelColumns(precision="bf16", table=GDN, case=(*case, ("framework", name)), sizes=sizes).price(SYSTEM.device)
        for name in ("vllm", "sglang", "trtllm")
    ]
    assert batch.price(SYSTEM.device) is not None
    fastest = min(float(each.time_us[0]) for each in libraries if each is not None)
    assert time_us(update()) == [pytest.approx(fastest)]


def test_a_rule_that_nobody_measured_keeps_its_roofline():
    roofline = chain("roofline").estimate_many(WorkColumns.of([update(rule="decay")]), SYSTEM)
    assert time_us(update(rule="decay")) == [pytest.approx(roofline.time_us[0])]
