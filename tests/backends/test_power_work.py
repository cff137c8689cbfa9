"""What kernels do, as the power model counts it: by class of FLOPs, bytes that miss L2, and which family they are of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tracelens.backends.base import System
from tracelens.backends.chain import chain
from tracelens.backends.kernels import kernel_table
from tracelens.backends.roofline_and_tile import drawn, works
from tracelens.backends.tiles.attention_tiles import AttentionColumns
from tracelens.backends.tiles.gemm_tiles import GEMMColumns
from tracelens.hardware import HardwareSpec
from tracelens.hardware.power import KernelWork
from tracelens.perf_models import GEMM, SDPA
from tracelens.perf_models.base import WorkColumns
from tracelens.predict.estimation.table_kinds import batches
from tracelens.types.dtypes import DType

H200 = HardwareSpec.load("h200-sxm")


def only(work, us: float = 100.0) -> KernelWork:
    ((_, found),) = works(work, H200, np.full(len(work), us))
    return found


def test_a_product_alone_reads_its_operands_and_a_repeated_one_finds_them_in_l2() -> None:
    """2 x 4096 cubed FLOPs; three matrices of 32 MiB, above 0.7 of L2's 50 MiB and twice that: all missed.

    Of 2048 cubed 24 MiB, all found in L2.
    """
    one, size = np.ones(1), np.array([4096.0])
    large = GEMMColumns.of("bf16", size, size, size, one)
    small = GEMMColumns.of("bf16", size / 2, size / 2, size / 2, one)
    assert only(large).flops["bf16"][0] == 2 * 4096**3
    assert only(large).hbm_bytes[0] == 3 * 32 * 2**20
    assert only(replace(large, as_layer=True)).hbm_bytes[0] == 3 * 32 * 2**20
    assert only(small).hbm_bytes[0] == 24 * 2**20
    assert only(replace(small, as_layer=True)).hbm_bytes[0] == 0
    assert only(replace(small, as_layer=True)).l2_bytes[0] == 24 * 2**20


def test_attention_is_of_prompts_or_decodes() -> None:
    def of(s: float, past: float) -> AttentionColumns:
        one = np.ones(1)
        return AttentionColumns(
            precision="bf16", b=one, s=one * s, past=one * past, q_heads=one * 32, kv_heads=one * 8, d_qk=one * 128,
            d_v=one * 128, window=one * np.inf, causal=one,
        )  # fmt: skip

    assert only(of(4096, 0)).family == "context-attention"
    assert only(of(1, 4095)).family == "generation-attention"
    assert set(only(of(4096, 0)).flops) == {"attention"}


def test_a_latent_layer_projects_in_one_type_and_attends_in_another() -> None:
    table = kernel_table("mla-context-module")
    frame = pd.DataFrame(
        [{"batch_size": 1, "isl": 4096, "num_heads": 16, "gemm_type": "fp8_block", "kv_cache_dtype": "bfloat16",
          "mla_dtype": "bfloat16", "architecture": "DeepseekV3ForCausalLM"}]
    )  # fmt: skip
    ((_, batch),) = batches(table, frame, np.arange(1))
    done = only(batch).flops
    assert set(done) == {"fp8_block", "attention"}
    assert sum(values[0] for values in done.values()) == pytest.approx(batch.flops()[0])
    # 4096 x 4097 / 2 pairs, 16 heads, 192 and 128 wide
    assert done["attention"][0] == 2 * 4096 * 4097 / 2 * 16 * (192 + 128)


def test_perf_models_of_a_trace_get_watts_by_their_kind() -> None:
    products = GEMM(m=8192, n=8192, k=8192, dtype=DType.BF16)
    prompt = SDPA(b=1, s_q=8192, s_kv=8192, q_heads=32, kv_heads=32, d_qk=128, d_v=128, mask="top_left", flash=True)
    decode = SDPA(b=64, s_q=1, s_kv=8192, q_heads=32, kv_heads=8, d_qk=128, d_v=128, mask="none", flash=True)
    columns = WorkColumns.of([products, prompt, decode])
    found = chain("tile").estimate_many(columns, System(device=H200))
    watts = drawn(columns, found, H200).power_w
    assert sorted(part.family for _, part in works(columns, H200, found.time_us)) == [
        "context-attention", "gemm", "generation-attention",
    ]  # fmt: skip
    assert watts[0] > watts[2] > 0
    assert np.isnan(drawn(columns, found, HardwareSpec.load("mi300x")).power_w).all()
