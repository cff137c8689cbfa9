"""What no estimate may do, on every device that has constants: beat the data sheet, or get faster as the work grows.

``docs/estimation.md`` lists what was measured to get faster; the shapes here stay clear of exactly that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import part
from tracelens.backends import System
from tracelens.backends.base import ColumnBatch, hbm_peak, matrix_peak
from tracelens.backends.chain import chain
from tracelens.backends.tiles.attention_tiles import AttentionColumns
from tracelens.backends.tiles.gemm_tiles import EXPERT_BLOCKS, GEMMColumns, MoEColumns
from tracelens.hardware import HardwareSpec
from tracelens.perf_models import (
    GEMM,
    SDPA,
    Collective,
    EPComm,
    GroupedGEMM,
    GroupedGEMMVariableK,
    GroupQuant,
    InferenceAttention,
    Operand,
    PerfModel,
    SparseAttention,
    UnaryElementwise,
)
from tracelens.perf_models.base import WorkColumns
from tracelens.perf_models.inference_attention import AttentionSums
from tracelens.types.dtypes import DType

DEVICES = [spec.name for spec in HardwareSpec.all() if spec.calibrated or spec.calibrated_like]
#: Of both makers, with and without constants for 4 bits.
of_devices = pytest.mark.parametrize("name", part(DEVICES, 20, ("h100-sxm", "mi300x")))
PRECISIONS = ("bf16", "fp8", "fp8_block", "nvfp4")
ROWS = 200
seeds = st.integers(0, 2**32 - 1)
Sizes = dict[str, np.ndarray]


def test_there_are_devices_of_every_vendor_and_generation():
    assert {"a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200", "gb200", "l40s", "mi300x", "mi355x"} <= set(DEVICES)


class Draw:
    """Random sizes, spread evenly over their logarithms."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def sizes(self, least: float, most: float) -> np.ndarray:
        return np.floor(np.exp(self.random.uniform(np.log(least), np.log(most + 1), ROWS)))

    def among(self, *values: float) -> np.ndarray:
        return self.random.choice(np.array(values, dtype=np.float64), ROWS)

    def larger(self, values: np.ndarray) -> np.ndarray:
        return np.maximum(values + 1, np.floor(values * np.exp(self.random.uniform(0, 1.2, ROWS))))


def holds(
    device: HardwareSpec, made: Callable[[Sizes], ColumnBatch], shape: Sizes, larger: Sizes, *, forward: bool = True
) -> None:
    """No row beats the peak of the device, and none gets faster when one of its sizes becomes that of ``larger``."""
    columns = made(shape)
    before = columns.price(device)
    if before is None:
        return
    assert np.isfinite(before.time_us).all()
    if forward:
        peak = matrix_peak(device, columns.precision) or matrix_peak(
            device, "bf16"
        )  # a cache is widened where it is none
        assert (before.time_us >= columns.flops() / peak * (1 - 1e-9)).all()
        assert (before.time_us >= columns.hbm_bytes() / hbm_peak(device) * (1 - 1e-9)).all()
    assert (before.time_us >= before.peak_us).all()
    for name, grown in larger.items():
        after = made({**shape, name: grown}).price(device)
        faster = np.flatnonzero(after.time_us < before.time_us * (1 - 1e-9))
        assert not len(faster), (name, {key: value[faster[0]] for key, value in shape.items()}, grown[faster[0]])


#: Of each device; each example draws 200 rows.
few = settings(max_examples=2, deadline=None)


@of_devices
@few
@given(seeds)
def test_products(name, seed):
    device, draw = HardwareSpec.load(name), Draw(seed)
    shape = {"m": draw.sizes(1, 20_000), "n": draw.sizes(1, 20_000), "k": draw.sizes(1, 20_000), "b": draw.sizes(1, 64)}
    larger = {key: draw.larger(value) for key, value in shape.items()}
    one = np.ones(ROWS)
    for precision in PRECISIONS:
        holds(device, lambda s, p=precision: GEMMColumns.of(p, s["m"], s["n"], s["k"], s["b"]), shape, larger)
        even = {**shape, "groups": draw.sizes(1, 128)}
        grouped = lambda s, p=precision: GEMMColumns.of(p, s["m"], s["n"], s["k"], one, s["groups"])  # noqa: E731
        holds(device, grouped, even, {key: larger[key] for key in "mnk"})


@of_devices
@few
@given(seeds)
def test_layers_of_products(name, seed):
    device, draw = HardwareSpec.load(name), Draw(seed)
    # m = 1 in FP8, rows that are no multiple of 4, and n and k below a block of scales are measured exceptions.
    shape = {"m": 4 * draw.sizes(7, 5000), "n": draw.sizes(64, 20_000), "k": draw.sizes(128, 20_000)}
    larger = {key: draw.larger(value) for key, value in shape.items()}
    larger["m"] = 4 * np.ceil(larger["m"] / 4)
    for precision in PRECISIONS:
        layer = lambda s, p=precision: replace(GEMMColumns.of(p, s["m"], s["n"], s["k"]), as_layer=True)  # noqa: E731
        holds(device, layer, shape, larger)


def attended(draw: Draw, *, queries: bool) -> Sizes:
    return {
        "b": draw.sizes(1, 64), "s": draw.sizes(2, 16_000) if queries else np.ones(ROWS), "past": draw.sizes(1, 30_000) - 1,
        "kv": draw.among(1, 2, 4, 8), "shared": draw.among(1, 2, 4, 8), "d": draw.among(64, 128, 192, 256),
        "window": draw.among(np.inf, 128, 1024, 8192),
    }  # fmt: skip


@of_devices
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@few
@given(seeds, st.booleans(), st.booleans())
def test_attention(name, precision, seed, causal, as_layer):
    device, draw = HardwareSpec.load(name), Draw(seed)

    def made(s: Sizes) -> AttentionColumns:
        return AttentionColumns(
            precision=precision, b=s["b"], s=s["s"], past=s["past"], q_heads=s["kv"] * s["shared"], kv_heads=s["kv"],
            d_qk=s["d"], d_v=s["d"], window=s["window"], causal=np.full(ROWS, float(causal)), as_layer=as_layer,
        )  # fmt: skip

    for queries in (True, False):
        shape = attended(draw, queries=queries)
        grown = {key: draw.larger(shape[key]) for key in ("b", "past")} | {
            "kv": shape["kv"] + 1,
            "window": 2 * shape["window"],
        }
        # Kernels for wider heads have other tiles: only within a class. A window's margin shrinks as heads are packed.
        holds(device, made, shape, grown | ({"s": draw.larger(shape["s"])} if queries else {}))
        whole = {**shape, "window": np.full(ROWS, np.inf), "shared": np.maximum(shape["shared"], 2)}
        holds(device, made, whole, {"shared": whole["shared"] + 1})
    if not as_layer and precision == "bf16" and device.calibration("backward", precision) is not None:
        shape = {**attended(draw, queries=True), "window": np.full(ROWS, np.inf)}
        grown = {key: draw.larger(shape[key]) for key in ("b", "s", "past")}
        grown |= {"kv": shape["kv"] + 1, "shared": shape["shared"] + 1, "d": shape["d"] + 64}
        holds(device, lambda s: replace(made(s), gradient=True), shape, grown, forward=False)


@of_devices
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@few
@given(seeds, st.booleans())
def test_latent_decoding(name, precision, seed, as_layer):
    device, draw, one = HardwareSpec.load(name), Draw(seed), np.ones(ROWS)
    shape = {"b": draw.sizes(1, 256), "past": draw.sizes(1, 60_000), "heads": draw.among(1, 16, 64, 128)}

    def made(s: Sizes) -> AttentionColumns:
        return AttentionColumns(
            precision=precision, b=s["b"], s=one, past=s["past"], q_heads=s["heads"], kv_heads=one, d_qk=576 * one,
            d_v=512 * one, window=np.inf * one, causal=one, as_layer=as_layer, value_in_key=True,
        )  # fmt: skip

    holds(device, made, shape, {key: draw.larger(shape[key]) for key in ("b", "past")})


@of_devices
@few
@given(seeds, st.booleans(), st.booleans())
def test_expert_layers(name, seed, gated, as_layer):
    device, draw, one = HardwareSpec.load(name), Draw(seed), np.ones(ROWS)
    # Widths that are no multiple of 16 were measured to take longer than larger ones.
    shape = {"tokens": draw.sizes(1, 30_000), "hidden": draw.sizes(64, 16_000), "ffn": 16 * draw.sizes(4, 1000)}
    larger = {key: draw.larger(value) for key, value in shape.items()}
    larger["ffn"] = 16 * np.ceil(larger["ffn"] / 16)

    def made(s: Sizes, precision: str) -> MoEColumns:
        """Top 8 of 128 experts, even."""
        rows = 8 * s["tokens"]
        active = np.minimum(128, rows)
        return MoEColumns(
            precision=precision, tokens=s["tokens"], hidden=s["hidden"], ffn=s["ffn"], gated=one * gated, ranks=one,
            topk=8 * one, local_experts=128 * one, rows=rows, active=active,
            blocks={size: active * np.ceil(rows / active / size) for size in EXPERT_BLOCKS}, as_layer=as_layer,
        )  # fmt: skip

    for precision in PRECISIONS:
        # A layer that is timed again and again finds weights in L2: it is held against its own ``peak_us``.
        holds(device, lambda s, p=precision: made(s, p), shape, larger, forward=not as_layer)


def operations(scale: int) -> list[PerfModel]:
    """One of each family, ``scale`` times as large."""
    attention = SDPA(b=scale, s_q=512, s_kv=512, q_heads=8, kv_heads=8, d_qk=128, d_v=128, mask="top_left")
    sums = AttentionSums(
        c_sq=512 * scale, c_sk=512 * scale, c_sqsq=512**2 * scale, c_sqsk=512**2 * scale, g_sq=scale, g_sk=4096 * scale,
        g_sqsq=scale, g_sqsk=4096 * scale,
    )  # fmt: skip
    heads = {"q_heads": 8, "kv_heads": 2, "d_qk": 128, "d_v": 128}
    return [
        GEMM(m=64 * scale, n=1024, k=1024),
        GEMM(m=64 * scale, n=1024, k=1024, dtype=DType.FP32, dtype_out=DType.FP32),
        GroupedGEMM(m=64 * scale, n=1024, k=1024, groups=8),
        GroupedGEMM(m=64 * scale, n=1024, k=1024, groups=8, dtype_b=DType.FP4_E2M1),
        GroupedGEMM(m=64 * scale, n=1024, k=1024, groups=8).backward(),
        GroupedGEMMVariableK(m=64 * scale, n=1024, k=1024, groups=8),
        attention,
        attention.backward(),
        InferenceAttention(tokens=513 * scale, sums=sums, **heads),
        SparseAttention(tokens=8 * scale, q_heads=128, d_qk=576, d_v=512, pairs=8 * 2048 * scale, dtype=DType.BF16),
        GroupQuant(elements=4096 * scale, scale_elements=0, dtype=DType.BF16, dtype_out=DType.BF16),
        Collective(kind="all_reduce", elements_in=4096 * scale, elements_out=4096 * scale, ranks=8),
        Collective(kind="all_to_all", elements_in=4096 * scale, elements_out=4096 * scale, ranks=8),
        EPComm(tokens=64 * scale, hidden=7168, ranks=8),
        EPComm(tokens=64 * scale, hidden=7168, ranks=8, phase="dispatch", experts=256, topk=8),
    ]


@of_devices
@pytest.mark.parametrize("spec", ["roofline", "tile", "tile,collectives"])
def test_operations_of_a_trace(name, spec):
    system, asked = System.load(name), chain(spec)
    scales = [1, 2, 5, 13, 100, 1000]
    tables = [asked.estimate_many(WorkColumns.of(operations(scale)), system) for scale in scales]
    times, peaks = (np.array([getattr(table, field) for table in tables]) for field in ("time_us", "peak_us"))
    known = np.isfinite(times) & np.isfinite(peaks)
    assert (times[known] >= peaks[known] * (1 - 1e-9)).all()
    steps = times[1:] / times[:-1]
    assert (steps[np.isfinite(steps)] >= 1 - 1e-9).all()


@of_devices
def test_a_slower_clock_is_never_faster_and_leaves_what_streams_alone(name):
    device = HardwareSpec.load(name)
    if device.matrix_cores is None and device.clock_mhz is None:
        pytest.skip(f"the clock of {name}'s rates is not known")
    system = System.load(name)
    slow = replace(system, device=device.at_clock(500))
    ops = WorkColumns.of(operations(512))
    full, half = (chain("tile").estimate_many(ops, each).time_us for each in (system, slow))
    known = np.isfinite(full) & np.isfinite(half)
    assert (half[known] >= full[known] * (1 - 1e-9)).all()
    names = [type(op).__name__ for op in operations(1)]
    for index, op in enumerate(names):
        if op in ("GEMM", "SDPA", "SDPABackward", "GroupedGEMM") and known[index] and full[index] > 50:
            assert half[index] > 1.2 * full[index], op
        if op in ("Collective", "EPComm") and known[index]:
            assert half[index] == full[index], op


@pytest.mark.parametrize(
    "name", [one.name for one in HardwareSpec.all() if one.calibrated_like and "bf16" in one.matrix and hbm_peak(one)]
)
def test_a_device_with_the_constants_of_another_has_its_launches_and_floors(name):
    """Calls of a few kilobytes take what a launch does, whatever the rates. B300, whose units nobody published, and the
    norms of ten devices took as long as their bytes alone: 0.07 and 0.003 us.
    """
    device = HardwareSpec.load(name)
    row = Operand(shape=(1, 4096), dtype=DType.BF16)
    small = WorkColumns.of(
        [
            UnaryElementwise(shape=(1, 4096), inputs=(row,), outputs=(row,)),
            GEMM(m=1, n=128, k=512, dtype=DType.BF16),
            SDPA(b=1, s_q=1, s_kv=128, q_heads=8, kv_heads=8, d_qk=64, d_v=64, mask="none", flash=True),
        ]
    )
    here, there = (
        list(chain("tile").estimate_many(small, System(device=one)).time_us)
        for one in (device, HardwareSpec.load(device.calibrated_like or ""))
    )
    assert here == pytest.approx(there, rel=0.5)
    assert min(here) > 2
