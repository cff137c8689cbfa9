"""The tile model: what it may never do, and rows that stand for many."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tracelens.backends import System
from tracelens.backends.base import hbm_peak, matrix_peak
from tracelens.backends.roofline_and_tile import Roofline, Tile
from tracelens.backends.tiles.attention_tiles import AttentionColumns
from tracelens.backends.tiles.gemm_tiles import GEMMColumns, precision
from tracelens.errors import UsageError
from tracelens.hardware import HardwareSpec
from tracelens.perf_models import (
    GEMM,
    SDPA,
    GroupedGEMM,
    GroupedGEMMVariableK,
    GroupQuant,
    InferenceAttention,
    MoEFused,
    MultiTensor,
    SparseAttention,
)
from tracelens.perf_models.base import WorkColumns
from tracelens.perf_models.inference_attention import AttentionSums
from tracelens.types.dtypes import DType

CALIBRATED = ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200", "gb200", "l40s", "mi300x", "mi355x")
devices = st.sampled_from(CALIBRATED)
sizes = st.integers(1, 20_000)


def on(name: str) -> System:
    return System(device=HardwareSpec.load(name))


def gemm_us(device: str, precision: str, m: float, n: float, k: float, *, as_layer: bool = False) -> float:
    columns = replace(GEMMColumns.of(precision, *(np.array([float(x)]) for x in (m, n, k))), as_layer=as_layer)
    found = columns.price(HardwareSpec.load(device))
    assert found is not None
    return float(found.time_us[0])


def attention(precision: str = "bf16", *, as_layer: bool = True, **given: float) -> AttentionColumns:
    defaults = {
        "b": 1, "s": 1, "past": 0, "q_heads": 8, "kv_heads": 8, "d_qk": 128, "d_v": 128, "window": np.inf, "causal": 1,
    }  # fmt: skip
    values = {name: np.array([float(value)]) for name, value in (defaults | given).items()}
    return AttentionColumns(precision=precision, as_layer=as_layer, **values)


def attention_us(device: str, precision: str = "bf16", *, as_layer: bool = True, **given: float) -> float:
    found = attention(precision, as_layer=as_layer, **given).price(HardwareSpec.load(device))
    assert found is not None
    return float(found.time_us[0])


precisions_of = {
    name: [p for p in ("bf16", "fp8", "fp8_block", "nvfp4") if HardwareSpec.load(name).calibration("gemm", p)]
    for name in CALIBRATED
}
gemm_kinds = st.sampled_from([(name, p) for name, kinds in precisions_of.items() for p in kinds])


@given(gemm_kinds, sizes, sizes, sizes, st.booleans())
def test_a_gemm_never_beats_the_peak_of_the_device(kind, m, n, k, as_layer):
    device, precision = kind
    spec = HardwareSpec.load(device)
    columns = replace(GEMMColumns.of(precision, *(np.array([float(x)]) for x in (m, n, k))), as_layer=as_layer)
    time = gemm_us(device, precision, m, n, k, as_layer=as_layer)
    assert time >= columns.flops()[0] / matrix_peak(spec, precision)
    assert time >= columns.hbm_bytes()[0] / hbm_peak(spec)


@settings(max_examples=examples(300))
@given(gemm_kinds, sizes, sizes, sizes, st.sampled_from("mnk"), st.integers(1, 3000))
def test_a_larger_gemm_never_takes_less_time(kind, m, n, k, grown, by):
    shape = {"m": m, "n": n, "k": k}
    larger = shape | {grown: shape[grown] + by}
    assert gemm_us(*kind, **larger) >= gemm_us(*kind, **shape) * (1 - 1e-12)


@given(
    st.sampled_from(["h100-sxm", "h200-sxm", "b200", "gb200", "l40s"]),
    st.integers(7, 500), st.integers(64, 9000), st.integers(128, 9000), st.integers(1, 500),
)  # fmt: skip
def test_a_block_scaled_layer_grows_with_its_rows_where_they_are_a_multiple_of_four(device, rows, n, k, by):
    # Measured exceptions: unaligned rows, and n or k below a block of scales, take the host longer than larger ones.
    small, large = (gemm_us(device, "fp8_block", 4 * r, n, k, as_layer=True) for r in (rows, rows + by))
    assert large >= small * (1 - 1e-12)


@given(devices, st.integers(1, 64), st.integers(1, 5000), st.sampled_from([64, 128, 192]), st.integers(0, 1))
def test_attention_never_beats_the_peak_of_the_device(device, b, s, d, causal):
    columns = attention(b=b, s=s, d_qk=d, d_v=d, causal=causal)
    spec = HardwareSpec.load(device)
    time = columns.price(spec).time_us[0]
    assert time >= columns.flops()[0] / matrix_peak(spec, "bf16")
    assert time >= columns.hbm_bytes()[0] / hbm_peak(spec) * (1 - 1e-12)


@settings(max_examples=examples(300))
@given(
    devices, st.integers(1, 64), st.integers(2, 5000), st.integers(0, 5000), st.sampled_from(["b", "s", "past"]),
    st.integers(1, 3000), st.booleans(),
)  # fmt: skip
def test_more_prefill_never_takes_less_time(device, b, s, past, grown, by, as_layer):
    shape = {"b": b, "s": s, "past": past}
    small = attention_us(device, as_layer=as_layer, **shape)
    large = attention_us(device, as_layer=as_layer, **shape | {grown: shape[grown] + by})
    assert large >= small * (1 - 1e-9)


@given(devices, st.integers(1, 512), st.integers(0, 60_000), st.integers(1, 60_000))
def test_decoding_over_a_longer_cache_never_takes_less_time(device, b, past, by):
    assert attention_us(device, b=b, past=past + by) >= attention_us(device, b=b, past=past) * (1 - 1e-9)


def test_a_window_caps_what_a_long_prompt_costs():
    whole, windowed = (attention_us("h100-sxm", b=4, s=16384, window=w) for w in (np.inf, 1024))
    assert windowed < whole / 3


def test_attended_pairs_are_those_of_the_perf_model():
    for s, keys, window in ((4, 4, None), (3, 10, None), (8, 20, 5), (6, 6, 2), (1, 9, 4)):
        model = SDPA(b=2, s_q=s, s_kv=keys, q_heads=1, kv_heads=1, d_qk=1, d_v=1, mask="bottom_right", window=window)
        columns = attention(b=2, s=s, past=keys - s, window=window or np.inf)
        assert columns.pairs()[0] == model.total_pairs


def engine_step(**sums: int) -> InferenceAttention:
    heads = {"q_heads": 32, "kv_heads": 8, "d_qk": 128, "d_v": 128}
    return InferenceAttention(tokens=sums.get("c_sq", 0) + sums.get("g_sq", 0), sums=AttentionSums(**sums), **heads)


def kernel_us(**given: float) -> float:
    return attention_us("h200-sxm", as_layer=False, q_heads=32, kv_heads=8, **given)


def test_an_engine_step_is_its_prompts_and_its_decoding_in_one_launch():
    # 3 prompts of 512 tokens after 1536 cached ones; 16 requests that generate over 4096 keys.
    prompts = {"c_sq": 3 * 512, "c_sk": 3 * 2048, "c_sqsq": 3 * 512**2, "c_sqsk": 3 * 512 * 2048}
    decoding = {"g_sq": 16, "g_sk": 16 * 4096, "g_sqsq": 16, "g_sqsk": 16 * 4096}
    first, second, both = (
        Tile().estimate(engine_step(**sums), on("h200-sxm")).time_us for sums in (prompts, decoding, prompts | decoding)
    )
    assert first == pytest.approx(kernel_us(b=3, s=512, past=1536))
    assert second == pytest.approx(kernel_us(b=16, s=1, past=4095))
    assert both == pytest.approx(first + second - 2.5)


def test_speculated_tokens_read_the_cache_once():
    one, four = (engine_step(g_sq=8 * n, g_sk=8 * 16384, g_sqsq=8 * n**2, g_sqsk=8 * n * 16384) for n in (1, 4))
    first, second = (Tile().estimate(op, on("h200-sxm")).time_us for op in (one, four))
    assert first <= second < 1.2 * first


def test_latent_rows_are_read_once_for_keys_and_values():
    shape = {"b": 64, "past": 8191, "q_heads": 16, "kv_heads": 1, "d_qk": 576, "d_v": 512}
    apart = attention(as_layer=False, **shape)
    latent = replace(apart, value_in_key=True)
    cached = 64 * 8191 * 2
    assert apart.hbm_bytes()[0] - latent.hbm_bytes()[0] == (cached + 64 * 2) * 512
    spec = HardwareSpec.load("h200-sxm")
    assert latent.price(spec).time_us[0] < apart.price(spec).time_us[0]
    listed = SparseAttention(tokens=64, q_heads=16, d_qk=576, d_v=512, pairs=64 * 8192, dtype=DType.BF16)
    assert Tile().estimate(listed, on("h200-sxm")).time_us == latent.price(spec).time_us[0]


def test_an_fp8_cache_is_read_in_half_the_bytes():
    base = SDPA(b=64, s_q=1, s_kv=32768, q_heads=32, kv_heads=8, d_qk=128, d_v=128, mask="bottom_right")
    narrow = replace(base, dtype_k=DType.FP8_E4M3FN, dtype_v=DType.FP8_E4M3FN)
    wide, small = (Tile().estimate(op, on("b200")).time_us for op in (base, narrow))
    assert 0.5 <= small / wide < 0.65


def test_grouped_query_heads_pay_for_the_cache_of_their_key_heads():
    multi, grouped = (attention_us("h100-sxm", b=64, past=16383, q_heads=32, kv_heads=kv) for kv in (32, 8))
    assert 3 < multi / grouped < 4.5  # a quarter of the bytes


def test_a_grouped_gemm_with_one_group_is_the_gemm():
    tile, system = Tile(), on("mi355x")
    one = tile.estimate(GroupedGEMM(m=4096, n=4096, k=7168, groups=1), system)
    assert one.time_us == tile.estimate(GEMM(m=4096, n=4096, k=7168), system).time_us


def test_ragged_groups_cost_at_least_what_even_ones_do():
    n, k = np.array([4096.0]), np.array([7168.0])
    spec = HardwareSpec.load("h100")
    even = GEMMColumns.ragged("bf16", [[1024] * 8], n, k).price(spec).time_us[0]
    # 8192 rows in both; the second has two tiles that are almost empty in every column of tiles.
    ragged = GEMMColumns.ragged("bf16", [[1, 2047, 1, 2047, 1024, 1024, 1024, 1024]], n, k).price(spec).time_us[0]
    assert ragged >= even


def test_groups_without_rows_cost_nothing():
    n, k = np.array([4096.0]), np.array([7168.0])
    spec = HardwareSpec.load("h100")
    with_empty, without = (GEMMColumns.ragged("bf16", [r], n, k).price(spec) for r in ([512, 0, 0, 512], [512, 512]))
    assert with_empty.time_us[0] == without.time_us[0]


def test_the_gradient_of_weights_is_one_product_per_group():
    system = on("h100-sxm")
    found = Tile().estimate(GroupedGEMMVariableK(m=8192, n=2048, k=1024, groups=8), system)
    batched = Tile().estimate(GEMM(b=8, m=1024, n=2048, k=1024), system)
    assert found.time_us == batched.time_us


def test_a_bias_and_a_wide_output_are_never_faster_than_their_bytes():
    wide = GEMM(m=8192, n=8192, k=16, dtype_out=DType.FP32, bias=True)
    found = Tile().estimate(wide, on("h100-sxm"))
    assert found.time_us >= wide.hbm_bytes() / 3.35e6


@pytest.mark.parametrize(
    "op",
    [
        GEMM(m=8, n=8, k=8, dtype=None),
        GEMM(m=8, n=8, k=8, dtype=DType.FP64),
        SDPA(b=1, s_q=None, s_kv=None, q_heads=1, kv_heads=1, d_qk=64, d_v=64),
        MoEFused(tokens=8, hidden=64, ffn=64, experts=4, top_k=2, dtype=None),
        MoEFused(tokens=8, hidden=64, ffn=64, experts=4, top_k=2, dtype_weight=DType.FP4_E2M1),
        MultiTensor(tensors=3, elements=10**9, flops_per_element=3, reads=3, writes=1, dtype=None),
    ],
)
def test_what_is_not_known_has_no_estimate(op):
    assert Tile().estimate(op, on("h100-sxm")) is None


def test_narrow_weights_are_read_in_their_own_bytes_and_multiplied_in_the_wider_type():
    def us(m, weights):
        return Tile().estimate(GroupedGEMM(m=m, n=8192, k=8192, groups=8, dtype_b=weights), on("h100-sxm")).time_us

    assert us(8, DType.FP4_E2M1) == pytest.approx(us(8, DType.BF16) / 4, rel=0.05)  # streams the weights
    assert us(65_536, DType.FP4_E2M1) == pytest.approx(us(65_536, DType.BF16), rel=0.05)


def test_scales_per_row_or_tensor_are_not_per_block():
    def scaled(count, m=16, n=7168, k=7168):
        return precision(GEMM(m=m, n=n, k=k, dtype=DType.FP8_E4M3FN, dtype_out=DType.BF16, scale_elements=count))

    assert [scaled(2), scaled(16 + 7168), scaled(1 + 7168)] == ["fp8"] * 3
    assert scaled(16 * 56 + 56 * 56) == "fp8_block"
    assert scaled((16 + 7168) * 224) == "mxfp8"
    assert scaled(16 + 7168, k=32) == "fp8"  # as many as blocks of 32, but one per row


def test_products_of_the_mx_format_take_five_percent_longer_where_nobody_fitted_them():
    """7.161 ms against 6.812 for a layer's products on B300; what is bound by loads differs by its scales only."""
    plain = GEMM(m=8192, n=8192, k=8192, dtype=DType.FP8_E4M3FN, dtype_out=DType.BF16)
    scaled = replace(plain, scale_elements=2 * 8192 * 256, dtype_scale=DType.FP8_E8M0FNU)
    times = [Tile().estimate(each, on("b200")).time_us for each in (plain, scaled)]
    assert 1.03 < times[1] / times[0] <= 7.161 / 6.812 + 0.001
    few = [replace(each, m=8, scale_elements=each.scale_elements and (8 + 8192) * 256) for each in (plain, scaled)]
    times = [Tile().estimate(each, on("b200")).time_us for each in few]
    assert 1.0 < times[1] / times[0] < 1.04


def test_a_device_without_constants_has_no_estimate():
    assert Tile().estimate(GEMM(m=8, n=8, k=8), on("mi210")) is None


def test_a_kernel_that_nobody_knows_is_named():
    device = HardwareSpec.load("h100-sxm")
    row = replace(device.calibration("gemm", "bf16"), kernel="cubas")
    device = replace(device, calibrated={**device.calibrated, ("gemm", "bf16"): row})
    with pytest.raises(UsageError, match=r"no kernel of calibrated\.gemm\.bf16 named 'cubas'; did you mean cublas"):
        Tile().estimate(GEMM(m=8, n=8, k=8), System(device=device))


def test_a_sister_device_answers_with_its_own_rates():
    h100, h800 = (Tile().estimate(GEMM(m=8192, n=8192, k=8192), on(name)) for name in ("h100-sxm", "h800-sxm"))
    assert h800.time_us == pytest.approx(h100.time_us, rel=0.02)
    assert HardwareSpec.load("h800-sxm").calibration("gemm", "bf16").carried_from == "h100-sxm"


def test_memory_bound_work_takes_the_published_fraction_of_the_rate_and_a_launch():
    # H100: 0.8 of 3.35 TB/s and 3 us, aiconfigurator's factors. 1e8 bf16 read and written.
    op = GroupQuant(elements=10**8, scale_elements=0, dtype=DType.BF16, dtype_out=DType.BF16)
    assert Tile().estimate(op, on("h100-sxm")).time_us == pytest.approx(3 + 4e8 / (0.8 * 3.35e6))


def test_half_the_clock_doubles_a_compute_bound_gemm_and_leaves_a_stream_alone():
    full, half = HardwareSpec.load("h100-sxm"), HardwareSpec.load("h100-sxm").at_clock(915)
    big = GEMMColumns.of("bf16", *(np.array([16384.0]),) * 3)
    ratio = big.price(half).time_us[0] / big.price(full).time_us[0]
    assert ratio == pytest.approx(2, rel=0.01)
    copy = GroupQuant(elements=10**8, scale_elements=0, dtype=DType.BF16, dtype_out=DType.BF16)
    both = [Tile().estimate(copy, System(device=device)).time_us for device in (full, half)]
    assert both[0] == both[1]


def test_the_clock_scales_attention_too():
    full, half = HardwareSpec.load("b200"), HardwareSpec.load("b200").at_clock(982.5)
    long = attention(b=4, s=16384, q_heads=32, kv_heads=32, as_layer=False)
    assert long.price(half).time_us[0] / long.price(full).time_us[0] > 1.8


@pytest.mark.parametrize("name", ["mi300x", "mi355x"])
def test_keys_in_the_cache_are_read_at_the_clocks_rate_and_others_at_the_memorys(name):
    device = HardwareSpec.load(name)
    slow = device.at_clock(0.9 * device.clock_mhz)
    # 1024 keys of 8 heads of 2 * 128 elements of 2 bytes: 4 MiB of 32; 512 times as many: 2 GiB
    for keys, ratio in ((1024, 1 / 0.9), (512 * 1024, 1.0)):
        read = attention(past=keys - 1, q_heads=32)
        assert read.price(slow).memory_us / read.price(device).memory_us == pytest.approx(ratio)


def test_many_rows_are_the_rows_one_by_one():
    ops = [
        GEMM(m=8192, n=1024, k=512),
        GEMM(m=1, n=2, k=3, dtype=DType.FP64),
        SDPA(b=1, s_q=512, s_kv=512, q_heads=8, kv_heads=8, d_qk=64, d_v=64, mask="top_left").backward(),
        MoEFused(tokens=512, hidden=2048, ffn=512, experts=64, top_k=8),
        GEMM(m=77, n=1024, k=512),
    ]
    table = Tile().estimate_many(WorkColumns.of(ops), on("h200-sxm"))
    assert list(table.rows()) == [Tile().estimate(op, on("h200-sxm")) for op in ops]


def test_rows_in_chunks_are_the_same_rows():
    m = np.arange(1, 20_001, dtype=np.float64)
    columns = GEMMColumns.of("bf16", m, m, m)
    whole = columns.price(HardwareSpec.load("h100")).time_us
    assert whole[15_000] == gemm_us("h100-sxm", "bf16", 15_001, 15_001, 15_001)
    assert len(whole) == 20_000


def test_no_rows_give_no_rows():
    empty = np.array([])
    assert len(Tile().estimate_batch(GEMMColumns.of("bf16", empty, empty, empty), on("h100-sxm"))) == 0
    assert len(Tile().estimate_many(WorkColumns.of([]), on("h100-sxm"))) == 0


def test_the_roofline_reads_stores_too():
    columns = GEMMColumns.of("bf16", *(np.array([8192.0]),) * 3)
    found = Roofline().estimate_batch(columns, on("h100-sxm")).row(0)
    assert found == Roofline().estimate(GEMM(m=8192, n=8192, k=8192), on("h100-sxm"))


@pytest.mark.parametrize("name", CALIBRATED)
def test_every_calibration_has_few_constants_and_no_fraction_above_one(name):
    for row in HardwareSpec.load(name).calibrated.values():
        assert len(row.constants) <= (18 if row.family.startswith("moe") else 8), (row.family, row.precision)
        assert all(value <= 1 for key, value in row.constants.items() if key.endswith("_efficiency"))
        assert row.fitted_on
        assert math.isfinite(sum(row.constants.values()))


def test_a_clock_needs_a_known_base():
    with pytest.raises(UsageError, match="gives no clock for them"):
        replace(HardwareSpec.load("h100"), matrix_cores=None, chip={}).at_clock(1000)
