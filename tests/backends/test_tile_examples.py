"""The tile model's times worked by hand, on a device of 4 units whose rates are powers of two."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, inf, log2
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import row_by_row
from tracelens.backends import System
from tracelens.backends.base import Chip, Priced
from tracelens.backends.roofline_and_tile import Tile
from tracelens.backends.tiles import attention_tiles, gemm_tiles, pricer_of
from tracelens.backends.tiles.attention_tiles import AttentionColumns
from tracelens.backends.tiles.gemm_tiles import GEMMColumns, MoEColumns
from tracelens.hardware import HardwareSpec
from tracelens.hardware.device_figures import Calibration, Figure, Hbm, Rate
from tracelens.perf_models import (
    GEMM,
    SDPA,
    AttentionSums,
    CacheWrite,
    InferenceAttention,
    MoEFused,
    MoEUp,
    Movement,
    MultiTensor,
    PerfModel,
    SparseAttention,
    StateSpaceScan,
    WorkColumns,
)
from tracelens.types.dtypes import DType

#: Per us: 2^24 flops in BF16, a quarter of them on each unit, 2^17 bytes of HBM, 2^12 clocks; 1 MiB of L2.
FLOPS, HBM, UNITS, CLOCKS, L2 = 2.0**24, 2.0**17, 4, 2.0**12, 2**20
CHIP = {"compute_units": UNITS, "clock": CLOCKS, "l2": 1.0}


def rate(dtype: str, flops: float) -> Rate:
    return Rate(engine="matrix", dtype=dtype, peak_tflops_s=flops / 1e6, source="made up")


DEVICE = HardwareSpec(
    name="plain",
    label="plain",
    vendor="nobody",
    matrix={"bf16": rate("bf16", FLOPS), "fp8": rate("fp8", 2 * FLOPS)},
    hbm=Hbm(peak_tb_s=HBM / 1e6, source="made up"),
    chip={key: Figure(key=key, value=value, source="made up") for key, value in CHIP.items()},
)


def constants(kernel: str, **values: float) -> Calibration:
    return Calibration(family="any", precision="bf16", constants=values, kernel=kernel, fitted_on="made up")


def arrays(given: Mapping[str, float]) -> dict[str, Any]:
    return {name: np.array([float(value)]) for name, value in given.items()}


def calls(precision: str = "bf16", *, as_layer: bool = False, **given: float) -> AttentionColumns:
    plain = {
        "b": 1, "s": 1, "past": 0, "q_heads": 8, "kv_heads": 2, "d_qk": 64, "d_v": 64, "window": inf, "causal": 1,
    }  # fmt: skip
    return AttentionColumns(precision=precision, as_layer=as_layer, **arrays(plain | given))


def norm(multiply: float, exponential: float = 1 / (16 * CLOCKS)) -> float:
    """Of order 1.5: between the sum of both and the longer; 16 exponentials per clock."""
    return (multiply**1.5 + exponential**1.5) ** (2 / 3)


def times(found: Priced | None) -> tuple[float, float, float]:
    """(in all, of the arithmetic, of memory)."""
    assert found is not None
    return float(found.time_us[0]), float(found.compute_us[0]), float(found.memory_us[0])


PROMPT = {
    "launch_us": 5.0, "group_us": 7.0, "matrix_efficiency": 0.5, "wide_head": 1.0, "q_efficiency": 0.5,
    "kv_efficiency": 0.25, "tail": 0.25, "longest": 2.0,
}  # fmt: skip
#: Time of one product of a head of 64 + 64: 2 * 128 flops at half of a unit's rate.
PAIR = 2 * 128 / (0.5 * FLOPS / UNITS)


@pytest.mark.parametrize(
    ("kernel", "call", "groups", "rows", "mean", "last", "multiply"),
    [
        # 256 queries are 2 groups of 128 for each of 8 heads and 2 sequences, which see 256 keys
        ("composable-kernel", {"b": 2, "s": 256, "causal": 0}, 2 * 8 * 2, 128, 256, 256, PAIR),
        # half of the keys and half of a tile on the diagonal
        ("composable-kernel", {"b": 2, "s": 256}, 2 * 8 * 2, 128, 128 + 64, 256, PAIR),
        # a single group: idle units, and the longest group counts
        ("composable-kernel", {"s": 128, "q_heads": 1, "kv_heads": 1}, 1, 128, 64 + 64, 128, PAIR),
        # after 1000 keys each query sees 100, and half a tile more on either side of them
        ("composable-kernel", {"s": 256, "past": 1000, "window": 100}, 8 * 2, 128, 100 + 64 + 64, 100 + 128, PAIR),
        # up to 256 keys, of the window of 192 and half a tile, the first 156 queries see 100 + 78 on average
        (
            "composable-kernel",
            {"s": 256, "past": 100, "window": 192},
            8 * 2,
            128,
            (156 * (100 + 78) + 100 * 256) / 256 + 64,
            192 + 128,
            PAIR,
        ),
        # four query heads share a group: 128 rows are 32 tokens, less than a step of 64 keys
        ("flash-attention-2", {"s": 256}, 2 * 8, 128, 128 + 32, 256, PAIR),
        # tiles of 192 rows for narrow heads, and of 80 keys for wide ones, which take twice as long at 256
        ("flash-attention-3", {"s": 384, "kv_heads": 8}, 8 * 2, 192, 192 + 96, 384, PAIR),
        (
            "flash-attention-3",
            {"s": 320, "kv_heads": 8, "d_qk": 256, "d_v": 128},
            8 * 3,
            128,
            160 + 64,
            320,
            2 * 384 / (0.5 * FLOPS / UNITS) * 2,
        ),
    ],
)
def test_attention_of_a_prompt(
    kernel: str, call: dict[str, float], groups: int, rows: int, mean: float, last: float, multiply: float
):
    group = 7 + mean * rows * norm(multiply)
    compute = max(
        2 * (7 + last * rows * norm(multiply)), groups * group / UNITS + 0.25 * group * min(1, groups / UNITS)
    )
    alone, layer = calls(**call), calls(as_layer=True, **call)
    memory = float(alone.hbm_bytes()[0]) / (0.5 * HBM)
    found = attention_tiles.forward(alone, DEVICE, constants(kernel, **PROMPT))
    assert times(found) == pytest.approx((2.5 + max(compute, memory), compute, memory))
    # in a layer Q and O are moved, and K and V written into pages, which takes 4 heads' time to the power of 0.8
    b, s, q, kv, d_qk, d_v = (
        float(getattr(alone, name)[0]) for name in ("b", "s", "q_heads", "kv_heads", "d_qk", "d_v")
    )
    written = 8 * (kv / 4) ** 0.8 * (64 + d_v / 2) / 0.25
    memory = 2 * b * s * (q * (d_qk + d_v) / 0.5 + written) / HBM
    found = attention_tiles.forward(layer, DEVICE, constants(kernel, **PROMPT))
    assert times(found) == pytest.approx((5 + compute + memory, compute, memory))


def test_constants_that_a_row_lacks_leave_their_terms_out():
    call = calls(s=256, kv_heads=8)
    plain = constants("composable-kernel", launch_us=5.0, matrix_efficiency=0.5)
    group = 128 * norm(PAIR)
    _, compute, memory = times(attention_tiles.forward(call, DEVICE, plain))
    assert compute == pytest.approx(max(256 * group, 16 * 192 * group / UNITS))
    assert memory == pytest.approx(float(call.hbm_bytes()[0]) / HBM)


@pytest.mark.parametrize(
    ("causal", "extra"), [(1, 256 * 64), (0, 0)], ids=["half a tile of the diagonal more", "all pairs"]
)
def test_gradients_of_attention(causal: int, extra: float):
    """Two groups of 128 keys for each of 4 heads and 2 sequences; dQ is added up in memory by each."""
    call = calls(b=2, s=256, q_heads=4, kv_heads=2, causal=causal)
    pairs = 256 * 257 / 2 if causal else 256 * 256
    per_pair = norm(2 * (3 * 64 + 2 * 64) / (0.5 * FLOPS / UNITS))
    group = 7 + (pairs + extra) / 2 * per_pair
    compute = max(7 + 128 * 256 * per_pair, 16 * group / UNITS)
    read_and_written = 3 * 256 * 4 + 4 * 256 * 2  # of Q and its gradient's kind, of K and V's
    memory = 2 * 2 * (read_and_written * 128 / 2 + 256 * 4 * (2 * 64 + 2 * 64)) / HBM
    atomics = (pairs + extra) / 128 * 2 * 4 * 64 * 8 / (3 * HBM)
    values = {"launch_us": 5.0, "group_us": 7.0, "matrix_efficiency": 0.5}
    found = attention_tiles.backward(call, DEVICE, constants("flash-attention-2", **values))
    assert times(found) == pytest.approx((15 + max(compute, atomics) + memory, compute, memory))
    # the least: five products at the peak
    least = found.peak_us[0]  # type: ignore[union-attr]
    assert least == pytest.approx(2 * 4 * 2 * pairs * (3 * 64 + 2 * 64) / FLOPS)


def test_short_gradients_are_bound_by_their_longest_group_or_by_what_they_move():
    """With fast units dQ's additions count, and the data sheet's least are bytes."""
    call = calls(b=2, s=256, q_heads=4, kv_heads=2)
    fast = Calibration(
        family="backward", precision="bf16", kernel="flash-attention-2", fitted_on="made up",
        constants={"launch_us": 0.0, "matrix_efficiency": 1e6},
    )  # fmt: skip
    single = calls(b=1, s=256, q_heads=1, kv_heads=1)
    pairs = 256 * 257 / 2 + 256 * 64
    group = norm(320 / (0.25e6 * FLOPS) * 2)
    found = attention_tiles.backward(single, DEVICE, fast)
    # two groups on four units: the longer one's 128 keys by 256 queries
    assert times(found)[1] == pytest.approx(128 * 256 * group)
    rich = attention_tiles.backward(call, DEVICE.at_clock(1e9 * CLOCKS), fast)
    once = 256 * 4 * (2 * 64 + 64) + 2 * 256 * 2 * (64 + 64)
    assert rich is not None
    assert rich.peak_us[0] == pytest.approx(2 * 2 * once / HBM)
    assert times(rich)[0] == pytest.approx(times(rich)[2] + max(times(rich)[1], pairs / 128 * 8 * 64 * 8 / (3e9 * HBM)))


STEP = {
    "launch_us": 5.0, "group_us": 3.0, "tile_us": 0.5, "hbm_efficiency": 0.5, "l2_efficiency": 0.8, "combine_us": 7.0,
    "q_efficiency": 0.5, "split_cap": 3.0,
}  # fmt: skip


def stepped(kernel: str, call: dict[str, float], more: Mapping[str, float] | None = None) -> tuple[float, float, float]:
    """A step as a kernel of its own, less its start and the rows of queries and results."""
    columns = calls(d_qk=128, d_v=128, **call)
    found = times(attention_tiles.decode(columns, DEVICE, constants(kernel, **STEP, **(more or {}))))
    b, q, kv = (float(getattr(columns, name)[0]) for name in ("b", "q_heads", "kv_heads"))
    rows = 2 * b * (q * 256 + kv * 256) / 0.5 / HBM
    layer = calls(d_qk=128, d_v=128, as_layer=True, **call)
    in_layer = times(attention_tiles.decode(layer, DEVICE, constants(kernel, **STEP, **(more or {}))))
    assert in_layer[0] - found[0] == pytest.approx(5 - 2.5)
    return found[0] - 2.5 - rows, found[1], found[2]


#: Of one tile of 64 keys: 64 * 256 elements of two bytes, twice the 16 KiB of half a us.
TILE = 64 * 256 * 2 / 16384 * 0.5


def test_a_step_over_a_cache_beyond_l2():
    # 2 sequences of 2 key heads on 4 units: 16 tiles each; 2 MiB from HBM at half its rate take 32 us
    memory = 2 * 2 * 256 * 2 * 1024 / (0.5 * HBM)
    assert stepped("flash-attention-2", {"b": 2, "past": 1023}) == pytest.approx((memory, 3 + 16 * TILE, memory))


def test_a_step_of_one_sequence_is_split_among_idle_units():
    # three parts at most; half a MiB from L2, at 0.8 of the HBM's rate; merging takes 7
    memory = 256 * 2 * 1024 / (0.8 * HBM)
    split = 3 + 16 / 3 * TILE
    found = stepped("flash-attention-2", {"past": 1023, "kv_heads": 1})
    assert found == pytest.approx((max(split, memory) + 7, split, memory))
    # 128 keys are two tiles, and a part has two at least: not split
    memory = 256 * 2 * 128 / (0.8 * HBM)
    found = stepped("flash-attention-2", {"past": 127, "kv_heads": 1})
    assert found == pytest.approx((3 + 2 * TILE, 3 + 2 * TILE, memory))
    # without constants for it, into as many parts as there are units
    bare = {name: STEP[name] for name in ("launch_us", "tile_us", "hbm_efficiency")}
    call = calls(d_qk=128, d_v=128, past=1023, kv_heads=1)
    _, compute, memory = times(attention_tiles.decode(call, DEVICE, constants("flash-attention-2", **bare)))
    assert (compute, memory) == pytest.approx((16 / 4 * TILE, 256 * 2 * 1024 / HBM))


def test_a_cache_about_as_large_as_l2_is_read_from_it_in_part():
    # 1.0625 MiB: 0.2625 / 0.5 of it is missed
    missed = (1.0625 - 0.8) / 0.5
    memory = 1.0625 * L2 / HBM * (missed / 0.5 + (1 - missed) / 0.8)
    assert stepped("flash-attention-2", {"past": 1087})[2] == pytest.approx(memory)
    # kernels that do not keep it there read all from HBM
    assert stepped("flash-attention-3", {"past": 1087})[2] == pytest.approx(1.0625 * L2 / (0.5 * HBM))


def test_a_window_is_one_tile_more_than_it_fills():
    # 256 / 64 + 1 tiles of the 16
    found = stepped("flash-attention-2", {"b": 8, "past": 1023, "window": 256})
    assert found[1:] == pytest.approx((4 * (3 + 5 * TILE), 8 * 2 * 256 * 2 * 320 / (0.5 * HBM)))


def test_a_kernel_that_starts_up_before_its_second_tile():
    # tiles of 128 keys; half a tile to start where there are several
    for past, tiles, start in ((1023, 8, 0.5 * 2 * TILE), (127, 1, 0)):
        compute = 3 + start + tiles * 2 * TILE
        assert stepped("flash-attention-3", {"b": 2, "past": past})[1] == pytest.approx(compute)


def test_kernels_that_split_neither_multi_head_attention_nor_windows():
    for call in ({"q_heads": 2}, {"q_heads": 8, "window": 1e9}):
        # of 128 elements, tiles of 128 keys: 8 per head, on as many units as there are query heads
        compute = max(1, call["q_heads"] / UNITS) * (3 + 8 * 2 * TILE)
        assert stepped("ada", {"past": 1023, **call})[1] == pytest.approx(compute)
    split = 3 + 8 / 2 * 2 * TILE  # two heads' groups on four units
    assert stepped("ada", {"past": 1023})[1] == pytest.approx(split)


def test_narrow_and_wide_heads_have_factors():
    def tiles_us(kernel: str, d: int, **more: float) -> float:
        call = calls(d_qk=d, d_v=d, b=2, past=1023)
        return times(attention_tiles.decode(call, DEVICE, constants(kernel, **STEP | {"group_us": 0.0, **more})))[1]

    # 1024 keys of 2 x 64 elements are half of those of 128; narrow heads take (128/64)^0.3 of that
    assert tiles_us("ada", 64) == pytest.approx(16 * TILE / 2 * 2**0.3)
    assert tiles_us("flash-attention-2", 256, wide_head=0.5) == pytest.approx(16 * TILE * 2 * 2**0.5)


def test_many_heads_of_one_key_head_take_longer_than_their_loads():
    # two groups of 64 heads; 2 * 64 * 64 keys * 256 at 1/1024 of a unit's rate
    tile = 2 * 64 * 64 * 256 / (2.0**-10 * FLOPS / UNITS)
    found = stepped(
        "flash-attention-2", {"b": 2, "past": 1023, "q_heads": 128, "kv_heads": 1}, {"matrix_efficiency": 2.0**-10}
    )
    assert found[1] == pytest.approx(3 + 16 * tile)
    groups = stepped("flash-attention-2", {"b": 8, "past": 1023, "q_heads": 128, "kv_heads": 1})
    assert groups[1] == pytest.approx(16 / UNITS * (3 + 16 * TILE))


def test_an_fp8_cache_is_widened_unless_the_kernel_multiplies_in_fp8():
    def tile_us(kernel: str) -> float:
        call = calls("fp8", d_qk=128, d_v=128, b=2, past=1023)
        more = STEP | {"group_us": 0.0, "matrix_efficiency": 1e-4}
        return times(attention_tiles.decode(call, DEVICE, constants(kernel, **more)))[1] / 16

    assert tile_us("flash-attention-2") == pytest.approx(2 * 4 * 64 * 256 / (1e-4 * FLOPS / UNITS))
    assert tile_us("flash-mla") == pytest.approx(2 * 4 * 64 * 256 / (1e-4 * 2 * FLOPS / UNITS))


@given(st.integers(1, 12), st.integers(0, 12), st.sampled_from([1, 3, 7, inf]), st.booleans())
def test_pairs_are_those_that_a_count_finds(s: int, past: int, window: float, causal: bool):
    seen = [min(past + i + 1, window) if causal else past + s for i in range(s)]
    assert calls(b=3, s=s, past=past, window=window, causal=causal).pairs().tolist() == [3 * sum(seen)]


def product_us(
    shape: tuple[int, int, int, int], tile: tuple[int, int], split: int, values: Mapping[str, float]
) -> float:
    """One choice of tile and split, as its docstrings say, in plain numbers."""
    b, m, n, k = shape
    tm, tn = tile
    tiles = b * ceil(m / tm) * ceil(n / tn) * split
    depth, waves = ceil(k / split), ceil(tiles / UNITS)
    unit_flops, byte_us = values["matrix_efficiency"] * FLOPS / UNITS, 1 / (values["hbm_efficiency"] * HBM)
    stored = 2 * tm * tn * UNITS / (values["store_efficiency"] * HBM)
    busy = waves * norm(2 * tm * tn * (depth + values["k_overhead"]) / unit_flops, stored)
    loads = 2 * (tm + tn)
    unit_us = UNITS * byte_us / values["unit_ratio"]
    from_l2 = tiles * depth * loads / (values["l2_ratio"] * HBM)
    loading = max(waves * (loads * depth + 2 * tm * tn) * unit_us, from_l2)
    # parts of a split are written and read again in float32
    moved = b * 2 * (m * k + k * n + m * n) + (2 * 4 * split * b * m * n if split > 1 else 0)
    return (max(busy, loading) ** 3 + (moved * byte_us) ** 3) ** (1 / 3)


PRODUCT = {
    "matrix_efficiency": 2.0**-9, "hbm_efficiency": 0.25, "launch_us": 5.0, "k_overhead": 32.0, "store_efficiency": 0.125,
    "l2_ratio": 4.0, "unit_ratio": 2.0, "split_us": 3.0,
}  # fmt: skip


@given(
    st.tuples(st.integers(1, 3), *[st.integers(1, 600)] * 3),
    st.sampled_from([2.0**-14, 2.0**-9, 0.2]),
    st.sampled_from([0.02, 4.0]),
    st.sampled_from([0.05, 2.0]),
)
def test_a_product_takes_its_best_tile_and_split(shape: Any, efficiency: float, l2: float, unit: float):
    """Whichever of computing, L2, a unit's own loads and HBM is slowest."""
    values = PRODUCT | {"matrix_efficiency": efficiency, "l2_ratio": l2, "unit_ratio": unit}
    kernel = gemm_tiles.GemmTiling(tiles=((64, 64, inf), (128, 64, 300)), splits=(1, 4))
    b, m, n, k = shape
    options = []
    for tile in ((64, 64), (128, 64)):
        if tile == (64, 64) or m <= 300:
            options.append(product_us(shape, tile, 1, values))
        # splits are for idle units
        if 4 * b * ceil(m / tile[0]) * ceil(n / tile[1]) <= 2 * UNITS:
            options.append(product_us(shape, tile, 4, values) + 3)
    columns = GEMMColumns.of("bf16", *(np.array([float(size)]) for size in (m, n, k, b)))
    chip = Chip.of(DEVICE, "bf16")
    assert chip is not None
    found = gemm_tiles._priced(columns, chip, constants("any", **values), kernel)
    least = max(2 * b * m * n * k / FLOPS, 2 * b * (m * k + k * n + m * n) / HBM)
    assert found.time_us[0] == pytest.approx(max(5 + min(options), least))
    assert found.peak_us[0] == pytest.approx(least)


#: Beside a product alone a linear layer narrows its rows, and its host launches several kernels.
LAYER = {
    **PRODUCT, "row_ns": 20.0, "single_row_us": 40.0, "host_us": 10.0, "host_small_us": 20.0, "host_unaligned_us": 30.0,
    "host_fallback_us": 60.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("m", "n", "k", "host"),
    [
        (28, 64, 128, 10),
        (24, 64, 128, 20),
        (26, 64, 128, 30),
        (28, 63, 128, 60),
        (28, 64, 127, 60),
        (1, 64, 2049, 20),
    ],
)
def test_a_layer_narrows_its_rows_and_waits_for_its_host(m: int, n: int, k: int, host: float):
    sizes = [np.array([float(size)]) for size in (m, n, k)]
    columns, chip = GEMMColumns.of("bf16", *sizes), Chip.of(DEVICE, "bf16")
    kernel = gemm_tiles.GemmTiling(tiles=((64, 64, inf),))
    assert chip is not None
    alone = gemm_tiles._priced(columns, chip, constants("any", **LAYER), kernel).time_us[0]
    layer = GEMMColumns(precision="bf16", as_layer=True, **{name: getattr(columns, name) for name in "mnkb"},
                        groups=columns.groups)  # fmt: skip
    # the second 2048 elements of a row take 0.6 of the first; one row takes a detour
    narrowed = m * 0.020 * (1 + 0.6 * (k > 2048)) + (40 if m == 1 else 0)
    wanted = ((alone + narrowed) ** 6 + host**6) ** (1 / 6)
    assert gemm_tiles._priced(layer, chip, constants("any", **LAYER), kernel).time_us[0] == pytest.approx(wanted)


EXPERT = {
    "matrix_efficiency": 2.0**-9, "hbm_efficiency": 0.25, "l2_efficiency": 0.5, "overlap": 2.0, "cache": 0.5, "spill": 3.0,
    "spill_cache": 0.25, "launch_us": 5.0, "k_overhead": 2.0, "least_ffn": 128.0, "unaligned": 0.5, "copies_us": 7.0,
    "depth_us": 11.0, "experts_us": 13.0, "active_us": 17.0, "permute_passes": 1.5, "activate_passes": 2.5,
    "combine_passes": 3.5,
}  # fmt: skip
#: Tokens of 4 ranks with 3 of 16 experts each; this rank's four are touched by 192 rows, 48 each.
TOKENS = {
    "tokens": 256, "hidden": 256, "ffn": 192, "gated": 1, "ranks": 4, "topk": 3, "local_experts": 4, "rows": 192,
    "active": 4,
}  # fmt: skip


def layers(*, as_layer: bool = False, **given: float) -> MoEColumns:
    sizes = TOKENS | given
    each = sizes["rows"] / max(sizes["active"], 1)
    blocks = {size: np.array([sizes["active"] * np.ceil(each / size)]) for size in gemm_tiles.EXPERT_BLOCKS}
    return MoEColumns(precision="bf16", as_layer=as_layer, blocks=blocks, **arrays(sizes))


def experts_us(values: Mapping[str, float], *, missed: float, **given: float) -> tuple[float, float, float]:
    """(in all, computing, reading) of both products and what is around them, in plain numbers."""
    s = TOKENS | given
    ffn = max(s["ffn"], values["least_ffn"])
    l2_rate = values["l2_efficiency"] * UNITS * CLOCKS * 64
    both = computing = reading = 0.0
    for n, k in (((1 + s["gated"]) * ffn, s["hidden"]), (s["hidden"], ffn)):
        weights = n * k * 2
        load = missed * (s["active"] * weights + s["rows"] * (2 * k + 2 * n)) / (values["hbm_efficiency"] * HBM)
        share = (weights / (values["spill_cache"] * L2)) ** 3
        slow = (1 + values["spill"] * share / (1 + share)) * (1 + values["unaligned"] if s["ffn"] % 16 else 1)
        found = []
        for tm, tn in ((16, 128), (32, 128), (64, 128), (128, 128), (128, 256)):
            tiles = s["active"] * ceil(s["rows"] / max(s["active"], 1) / tm) * ceil(n / tn)
            waves = max(1, tiles / UNITS)
            waves = ceil(waves) if waves < 8 else max(waves + 0.5, 8)
            compute = slow * waves * 2 * tm * tn * (k + 64 * values["k_overhead"]) * UNITS
            compute /= values["matrix_efficiency"] * FLOPS
            busy = max(compute, slow * 2 * tiles * (tm + tn) * k / l2_rate)
            found.append(((busy ** values["overlap"] + load ** values["overlap"]) ** (1 / values["overlap"]), compute))
        both, computing = both + min(found)[0], computing + min(compute for _, compute in found)
        reading += load
    around = {
        "permute_passes": s["rows"] * s["hidden"] * (2 + 4) / HBM,
        "activate_passes": s["rows"] * s["ffn"] * (2 * (1 + s["gated"]) + 2) / HBM,
        "combine_passes": 2 * s["tokens"] * s["hidden"] * (1 - 1 / s["ranks"]) / HBM,
        "copies_us": log2(1 + s["tokens"] * s["topk"]) / 10,
        "depth_us": (s["hidden"] + s["ffn"]) / 1000,
        "experts_us": s["local_experts"] * s["ranks"] / 100,
        "active_us": s["active"] / 100,
    }
    return values["launch_us"] + both + sum(values[name] * us for name, us in around.items()), computing, reading


@pytest.mark.parametrize("given", [{}, {"gated": 0}, {"ffn": 72}, {"rows": 6000}, {"rows": 64, "ffn": 1024}])
@pytest.mark.parametrize("l2", [2.0**-14, 1.0], ids=["bound by loads of tiles", "bound by products"])
def test_a_fused_layer_of_experts(given: dict[str, float], l2: float):
    values = EXPERT | {"l2_efficiency": l2}
    found = gemm_tiles.price_layers(layers(**given), DEVICE, constants("any", **values))
    assert times(found) == pytest.approx(experts_us(values, missed=1, **given))


def test_weights_that_fit_into_l2_are_found_there_in_a_layer_that_is_repeated():
    # 4 experts of 3 * 192 * 256 weights of two bytes are 2.25 of half a MiB: all missed. With ``cache`` 2 a ninth more
    # than fits, of which misses are twice that
    filled = 4 * 3 * 192 * 256 * 2 / L2
    for cache, missed in ((0.5, 1.0), (1.0, 2 * (filled - 1)), (2.0, 0.0)):
        values = EXPERT | {"cache": cache}
        found = gemm_tiles.price_layers(layers(as_layer=True), DEVICE, constants("any", **values))
        assert times(found) == pytest.approx(experts_us(values, missed=missed))


def test_a_layer_without_rows_is_its_launch():
    plain = constants("any", launch_us=5.0, matrix_efficiency=0.5, hbm_efficiency=0.5)
    assert times(gemm_tiles.price_layers(layers(rows=0, active=0), DEVICE, plain))[0] == 5


@pytest.mark.parametrize(
    ("rows", "more"),
    [
        # an even load: all 256 tokens reach this rank, with three rows each
        (192, 3.0),
        # twice as many: a token misses all with (1 - 1/2)^3
        (384, 3 * 256 * (1 - 0.5**3) / 384),
    ],
)
def test_a_replayed_layer_runs_all_choices_of_the_tokens_that_it_has(rows: int, more: float):
    replayed = gemm_tiles._replayed(layers(rows=rows))
    assert replayed.rows.tolist() == pytest.approx([rows * more])
    # as many blocks as the rows fill at least
    assert replayed.blocks[128].tolist() == pytest.approx([max(4, ceil(rows * more / 128))])


def test_tiles_are_whole_matrix_instructions_and_splits_powers_of_two():
    """Instructions take 16 rows and columns or a multiple; parts of k or of a sequence are halves again and again."""
    edges = [edge for kernel in gemm_tiles.KERNELS.values() for tm, tn, _ in kernel.tiles for edge in (tm, tn)]
    edges += [edge for tile in gemm_tiles.EXPERT_TILES for edge in tile]
    splits = [split for kernel in gemm_tiles.KERNELS.values() for split in kernel.splits]
    for kernel in attention_tiles.KERNELS.values():
        edges += [*kernel.rows, *kernel.keys, *kernel.decode_keys, kernel.decode_heads]
        splits += [kernel.least_tiles]
    assert [edge for edge in edges if edge % 16] == []
    assert [split for split in splits if split & (split - 1)] == []


def heads(**given: Any) -> SDPA:
    return SDPA(**{"b": 1, "s_kv": 8, "q_heads": 1, "kv_heads": 1, "d_qk": 8, "d_v": 8, "dtype": DType.BF16} | given)


def engine(**sums: int) -> InferenceAttention:
    shape = {"tokens": 1, "q_heads": 1, "kv_heads": 1, "d_qk": 8, "d_v": 8, "dtype": DType.BF16}
    return InferenceAttention(sums=AttentionSums(**sums), **shape)


@row_by_row(("model", "row"), [
        (GEMM(m=8, n=8, k=8), ("gemm", "bf16")),
        (GEMM(m=8, n=8, k=8, dtype=DType.FP8_E4M3FN), ("gemm", "fp8")),
        (GEMM(m=8, n=8, k=8, dtype=DType.FP64), None),
        (StateSpaceScan(b=1, tokens=8, heads=1, head_dim=8, state=8, groups=1, chunk=8, dtype=DType.BF16), None),
        (MoEFused(tokens=8, hidden=64, ffn=64, experts=4, top_k=2), ("moe", "bf16")),
        (MoEUp(tokens=8, hidden=64, ffn=64, experts=4, top_k=2), ("gemm", "bf16")),
        (CacheWrite(elements=8, dtype=DType.BF16), ("memory_bound", "stream")),
        (CacheWrite(elements=8, dtype=None), None),
        (CacheWrite(elements=0, dtype=DType.BF16), None),
        (MultiTensor(tensors=3, elements=9, flops_per_element=3, reads=3, writes=1, dtype=DType.FP32),
         ("memory_bound", "optimizer")),
        (Movement(read=((8, DType.BF16),), written=((8, DType.BF16),), permutes=True), ("memory_bound", "permute")),
        (heads(s_q=8, mask="none"), ("prefill", "bf16")),
        (heads(s_q=1, mask="none"), ("decode", "bf16")),
        (heads(s_q=1, mask="none", dtype_k=DType.FP8_E4M3FN), ("decode", "fp8")),
        (heads(s_q=8, mask="none").backward(), ("backward", "bf16")),
        (heads(s_q=8, mask="none", dtype=DType.FP32), None),
        (SparseAttention(tokens=8, q_heads=1, d_qk=8, d_v=8, pairs=8, dtype=DType.BF16), ("latent", "bf16")),
        (engine(c_sq=1), ("prefill", "bf16")),
        (engine(g_sq=1), ("decode", "bf16")),
        (engine(c_sq=1, g_sq=1), None),
        (engine(), None),
    ])  # fmt: skip
def test_which_constants_price_a_call(model: PerfModel, row: tuple[str, str] | None):
    """As ``tracelens calibrate`` asks, which fits them to measured calls."""
    claim = pricer_of(type(model))
    assert claim is not None
    assert claim.options["row"](model) == row


def test_only_products_on_matrix_units_run_at_an_achievable_rate():
    models = [GEMM(m=64, n=64, k=64), CacheWrite(elements=64, dtype=DType.BF16), GEMM(m=8, n=8, k=8, dtype=None)]
    found = Tile().estimate_many(WorkColumns.of(models), System.load("h100"))
    assert found.rate_basis == ("achievable", None, None)
    assert found.backend == ("tile", "tile", None)
    assert found.bound[2] is None
