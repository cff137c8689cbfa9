"""Engines' kernels: laws of the costs, the choice of constants, and tables as they stand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import tracelens as tl
from tests.conftest import part
from tracelens.backends.base import System
from tracelens.backends.kernels import kernel_table, kernel_tables
from tracelens.backends.kernels.kernel_costs import Costs, KernelColumns, KernelRates, combined_us, fitted_constants
from tracelens.backends.roofline_and_tile import Tile
from tracelens.backends.tiles.gemm_tiles import GEMMColumns
from tracelens.errors import UsageError
from tracelens.hardware import HardwareSpec
from tracelens.predict.calibration.fitting import MeasuredCalls, slopes
from tracelens.predict.estimation.estimate import operation_answers

H200 = HardwareSpec.load("h200")
#: Sizes that every table's columns start from; each is then doubled.
START = {
    "batch_size": 4, "isl": 300, "step": 700, "num_heads": 16, "head_dim": 64, "m": 100, "n": 3000, "k": 1000, "seq_len": 300,
    "num_k_heads": 8, "head_k_dim": 128, "num_v_heads": 16, "head_v_dim": 128, "nheads": 64, "n_groups": 8,
    "d_state": 128, "num_tokens": 300, "num_gpus": 4, "message_size": 100_000, "hidden_size": 4096, "inter_size": 2048,
    "topk": 4, "num_experts": 128, "num_slots": 128, "moe_tp_size": 1, "moe_ep_size": 4, "hidden": 7168.0,
    "q_rank": 1536.0, "nope": 128.0, "value": 128.0, "index_heads": 64.0, "rows": 300.0, "active": 30.0,
    "blocks_16": 40.0, "blocks_64": 32.0, "blocks_128": 31.0, "width": 2.0, "batch": 1.0, "scaled": 0.0, "general": 1.0,
}  # fmt: skip
#: More of these means less work for one rank, or the same total divided.
DIVIDES = {"moe_tp_size", "moe_ep_size", "num_slots", "num_experts"}


def columns(name: str, sizes: dict[str, np.ndarray], case: dict[str, str]) -> KernelColumns:
    table = kernel_table(name)
    assert table is not None
    return KernelColumns(precision="bf16", table=table, case=tuple(case.items()), sizes=sizes)


def sizes_of(name: str, rows: int) -> dict[str, np.ndarray]:
    table = kernel_table(name)
    assert table is not None
    names = [*table.sizes, *table.optional, *table.loads]
    if table.described is not None:
        _, meant = table.described
        names += list(meant(["DeepseekV32ForCausalLM"]))
    return {each: np.full(rows, float(START[each])) for each in names}


def test_a_norm_of_costs_by_hand():
    rates = KernelRates.of(H200)
    assert rates is not None
    costs = Costs({"matrix": np.array([3.0]), "l2": np.array([2.0]), "unused": np.array([9.0])})
    # 5 + sqrt((1 * 3)**2 + (2 * 2)**2) = 10
    constants = {"launch_us": 5.0, "overlap": 2.0, "matrix": 1.0, "l2": 2.0}
    assert combined_us(costs, rates, constants).tolist() == [10.0]
    # what follows is added: 5 + 4 + 3
    assert combined_us(costs._replace(after=("l2",)), rates, constants).tolist() == [12.0]
    # kernels of a chain, 3 + 4, beside a host that takes 24: 5 + sqrt(24**2 + 7**2) = 30
    chain = costs._replace(chained=True)
    assert combined_us(chain, rates, {**constants, "host_us": 24.0}).tolist() == [30.0]
    # 12 us of bytes hide what takes 5 by itself: 5 + sqrt(12**2 + 3**2 + 4**2) - 12 = 6
    bytes_12_us = np.array([12 * rates.hbm])
    hidden = costs._replace(streamed=bytes_12_us, held=bytes_12_us + 2 * rates.l2_bytes, beneath=True)
    assert combined_us(hidden, rates, {**constants, "hbm": 1.0}).tolist() == [6.0]


def test_slopes_of_a_fit_are_those_of_the_times():
    rates = KernelRates.of(H200)
    assert rates is not None
    us = {"matrix": np.array([3.0, 5.0]), "l2": np.array([2.0, 9.0]), "queries": np.array([1.0, 4.0])}
    streamed = np.array([5e7, 9e7])
    named = {"launch_us": 2.0, "host_us": 8.0, "overlap": 1.7, "cache": 0.8, "hbm": 1.2}
    constants = {**named, "matrix": 1.5, "l2": 2.0, "queries": 0.5}
    for is_chained, is_beneath in ((False, False), (True, False), (False, True)):
        costs = Costs(us, streamed, after=("queries",), chained=is_chained, beneath=is_beneath)
        calls = MeasuredCalls(costs=costs, rates=rates, least_us=0 * streamed, time_us=streamed)
        time = combined_us(costs, rates, constants)
        found = slopes(calls, constants, time)
        for at, name in enumerate(constants):
            more = combined_us(costs, rates, {**constants, name: constants[name] * 1.001})
            assert found[:, at] == pytest.approx((more / time - 1) / np.log(1.001), rel=0.02, abs=1e-6), name


@pytest.mark.parametrize("name", part(sorted(kernel_tables()), 5))
def test_no_kernel_gets_faster_when_a_size_grows(name):
    """By every row of constants on its own device, each size doubled in twenty steps."""
    table = kernel_table(name)
    assert table is not None
    for row in fitted_constants(name):
        if "_minus_" in row.case.get("kernel_source", ""):
            continue  # a difference of two kernels, see the next test
        device = HardwareSpec.load(row.device)
        rates = KernelRates.of(device)
        assert rates is not None
        for grown in [each for each in table.sizes if each not in DIVIDES]:
            sizes = sizes_of(name, 21)
            sizes[grown] = sizes[grown] * 2 ** np.linspace(0, 3, 21)
            if grown == "head_dim":
                # Some kernels take longer for heads that are no multiple of 16 than for the next one that is.
                sizes[grown] = 16 * np.ceil(sizes[grown] / 16)
            batch = columns(name, sizes, dict(row.case))
            time = batch.time_us(row, rates)
            assert (np.diff(time) >= -1e-9 * time[:-1]).all(), (row.label, grown)


@pytest.mark.parametrize("device", sorted({row.device for row in fitted_constants("quantize-scale")}))
def test_a_pass_with_its_scale_gets_no_faster_when_it_grows(device):
    """Finding the scale hides beneath a pass that waits for HBM: by itself it shrinks there, with the pass it does not.

    The two were measured apart, and where L2 fills their sum may dip by a tenth.
    """
    rows = np.unique(np.round(2 ** np.linspace(0, 15, 150)))
    for k in (64, 1024, 8192, 65536):
        frame = pd.DataFrame({"m": rows, "k": k, "framework": "vllm"})
        both = [tl.estimate(f"quantize-{name}", frame, device=device)["time_us"] for name in ("matrix", "scale")]
        assert min(both[1]) > 0
        time = (both[0] + both[1]).to_numpy()
        assert (time[1:] >= 0.9 * np.maximum.accumulate(time)[:-1]).all(), k


@pytest.mark.parametrize("name", part(sorted(kernel_tables()), 5))
def test_a_slightly_larger_call_takes_slightly_longer(name):
    """No border is a jump of more than 25 %: a further tile, a wave that begins, a wider kernel, a cache that is full.

    Sizes grow by a percent or by one, from few to many; steps have one new token per sequence.
    """
    table = kernel_table(name)
    assert table is not None
    for row in fitted_constants(name)[::5]:
        rates = KernelRates.of(HardwareSpec.load(row.device))
        assert rates is not None
        is_step = row.case.get("phase", "context") != "context"
        for grown in [each for each in table.sizes if each not in DIVIDES]:
            least = 2.0 if grown == "num_gpus" else max(START[grown] / 4, 1)
            grid = np.unique(np.round(least * 2 ** np.linspace(0, 7, 700)))
            sizes = {each: np.full(len(grid), values[0]) for each, values in sizes_of(name, 1).items()}
            if is_step:
                sizes["seq_len"] = np.ones(len(grid))
            sizes[grown] = grid
            time = columns(name, sizes, dict(row.case)).time_us(row, rates)
            # Work is at most quadratic in a size
            jumps = time[1:] / time[:-1] / (grid[1:] / grid[:-1]) ** 2
            at = int(jumps.argmax())
            assert jumps[at] <= 1.25, (row.label, grown, grid[at : at + 2], time[at : at + 2])


@pytest.mark.parametrize("name", part(sorted(kernel_tables()), 5))
def test_no_kernel_computes_faster_than_the_peak(name):
    for row in fitted_constants(name):
        device = HardwareSpec.load(row.device)
        batch = columns(name, {key: values * 16 for key, values in sizes_of(name, 2).items()}, dict(row.case))
        rates = KernelRates.of(device)
        assert rates is not None
        work = batch.table.work(batch.sizes, dict(row.case))
        assert (batch.time_us(row, rates) * rates.flops(work.rate) >= work.flops * (1 - 1e-9)).all(), row.label


@pytest.mark.parametrize("name", sorted(kernel_tables()))
def test_every_table_has_constants_with_a_measured_error(name):
    rows = fitted_constants(name)
    assert rows
    measured = [row for row in rows if row.error_percent is not None]
    assert sum(row.rows for row in measured) >= 0.95 * sum(row.rows for row in rows)


def test_a_row_says_which_measurements_it_rests_on():
    rows = pd.DataFrame({"device": ["b200_sxm"] * 2, "framework": ["trtllm", None], "m": [4096] * 2, "k": [4096] * 2})
    found = tl.estimate("quantize-matrix", rows)
    assert found["measured_as"][0] == "trtllm 1.3.0rc20 torch_ops fp8 on b200"
    # without a framework the fastest library counts
    assert found["time_us"][1] <= found["time_us"][0]
    chosen = tl.estimate("quantize-matrix", rows.drop(columns="framework"), library="sglang")
    assert chosen["measured_as"].str.startswith("sglang").all()
    with pytest.raises(UsageError, match="sglan"):
        tl.estimate("quantize-matrix", rows, library="sglan")


def test_few_tokens_of_amds_general_file_take_as_long_as_16():
    sizes = {"hidden_size": 7168, "inter_size": 512, "topk": 8, "num_experts": 256, "moe_dtype": "fp8"}
    files = ["tuned_fmoe.csv", "a_model.csv", None]
    rows = pd.DataFrame([{**sizes, "num_tokens": n, "model_file": name} for name in files for n in (1, 8, 16, 17)])
    for device, unnamed in (("mi308x", 0), ("mi355x", 1)):
        time = tl.estimate("moe", rows, device=device)["time_us"].to_numpy().reshape(3, 4)
        assert (np.diff(time) > 0).all()
        # the general file's rows of fewer tokens repeat what 16 took; where none is named, the device's usual file counts
        assert time[0, 2] / time[0, 0] < 1.6 < 3 < time[1, 2] / time[1, 0]
        assert time[2].tolist() == time[unnamed].tolist()


def test_anothers_general_file_does_not_stand_for_a_devices_own():
    """MI300X's FP8 experts have MI308X's constants, whose usual file is AITER's general one; MI300X's models have own."""
    sizes = {"hidden_size": 7168, "inter_size": 512, "topk": 8, "num_experts": 256, "moe_dtype": "fp8"}
    rows = pd.DataFrame(
        [{**sizes, "num_tokens": n, "model_file": f} for f in (None, "tuned_fmoe.csv") for n in (1, 16)]
    )
    found = tl.estimate("moe", rows, device="mi300x")
    assert found["measured_as"].str.endswith("on mi308x").all()
    few, usual, few_general, usual_general = found["time_us"]
    assert usual == usual_general
    # 8 experts of 256 are touched instead of 102
    assert few < 0.5 * usual < 0.8 * few_general


def test_a_device_that_nobody_measured_takes_its_sisters_constants():
    rows = pd.DataFrame({"device": ["b300", "mi300x", "nobody"], "m": [4096] * 3, "k": [4096] * 3})
    found = tl.estimate("quantize-matrix", rows)
    assert found["measured_as"][0].endswith("on b200")
    assert found["time_us"][1] > 0
    assert found["reason"][2] == "no device of that name"


def test_a_convolution_does_not_stand_in_for_the_recurrence():
    sizes = {
        "batch_size": 1,
        "seq_len": 4096,
        "num_k_heads": 16,
        "head_k_dim": 128,
        "num_v_heads": 32,
        "head_v_dim": 128,
    }
    rows = pd.DataFrame([{**sizes, "phase": "context", "kernel_source": name} for name in ("new_conv1d", "new_chunks")])
    found = tl.estimate("gdn", rows, device="h200")
    assert "conv1d" in found["measured_as"][0]
    assert "delta_rule" in found["measured_as"][1]


@pytest.mark.shared
@pytest.mark.parametrize("rows", [60, pytest.param(2_000, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("name", part(sorted(kernel_tables()), 5))
def test_rows_of_all_measured_tables_have_an_estimate(name, rows, shared_data):
    pytest.importorskip("pyarrow")
    folder = "tables" if name.endswith("-aiter") else "silicon"
    table = pd.read_parquet(shared_data / folder / f"{name.replace('-', '_')}.parquet")
    table = table.iloc[:: max(1, len(table) // rows)]
    found = tl.estimate(name, table.drop(columns="latency_ms"))
    assert found["time_us"].notna().all()
    assert (found["backend"] == "tile").all()


@pytest.mark.parametrize("device", ["mi350x", "mi355x"])
def test_fp4_products_of_amd_take_what_its_tuned_kernels_take(device):
    system = System.load(device)
    narrow = GEMMColumns.of("nvfp4", *(np.full(1, 8192.0) for _ in range(3)))
    table = kernel_table("gemm-aiter")
    assert table is not None
    tuned = KernelColumns(
        precision="bf16", table=table, case=(("gemm_dtype", "mxfp4"),),
        sizes={"m": narrow.m, "n": narrow.n, "k": narrow.k, "batch": narrow.b},
    )  # fmt: skip
    found = Tile().estimate_batch(narrow, system)
    assert found.time_us == Tile().estimate_batch(tuned, system).time_us
    assert found.backend == ("tile",)
    assert found.time_us > 1.4 * found.peak_us


@pytest.mark.parametrize("device", ["mi350x", "mi355x"])
@pytest.mark.parametrize("precision", ["fp8", "fp8_block"])
def test_fp8_products_of_amd_stay_below_the_peak(device, precision):
    narrow = GEMMColumns.of(precision, *(np.full(1, 8192.0) for _ in range(3)))
    found = Tile().estimate_batch(narrow, System.load(device))
    assert found.time_us > 1.4 * found.peak_us
    # MI300X has no FP4 units, and nobody tuned other vendors' products
    assert Tile().estimate_batch(replace(narrow, precision="nvfp4"), System.load("mi300x")).backend == (None,)
    assert Tile().estimate_batch(narrow, System.load("a100-sxm-80gb")).backend == (None,)


def test_types_are_read_in_any_spelling_and_an_unknown_one_costs_its_row():
    sizes = {"batch_size": 8, "num_heads": 16, "step": 4096, "framework": "trtllm"}
    rows = pd.DataFrame([{**sizes, "kv_cache_dtype": name} for name in ("bfloat16", "BF16", "fp8", "FP8", "fp7")])
    found = tl.estimate("generation-mla", rows, device="b200")
    assert found["time_us"][0] == found["time_us"][1]
    assert found["time_us"][2] == found["time_us"][3] < found["time_us"][0]
    assert found["reason"].tolist() == [""] * 4 + ["there are no estimates for type 'fp7' in kv_cache_dtype"]


@pytest.mark.parametrize("device", ["h200", "b200", "mi300x", "mi355x", "a100"])
def test_a_product_in_any_spelling_of_a_type_answers_or_is_refused(device):
    def found(dtype: str) -> tuple[float, str] | None:
        (answer,) = operation_answers("gemm", {"m": 512, "n": 4096, "k": 4096, "b": 1}, device=device, dtype=dtype)
        return None if answer.estimate is None else (answer.estimate.time_us, answer.estimate.backend)

    for name, others in {
        "bf16": ("torch.bfloat16", "BF16", "half"), "fp8": ("float8_e4m3fn", "FP8_e5m2"), "nvfp4": ("mxfp4", "fp4"),
    }.items():  # fmt: skip
        assert {found(other) for other in others} == {found(name)}
    assert found("int8")[1] == "tile"
    assert found("fp32")[0] > found("bf16")[0]
    for name in ("w4a16", "int7", "mxfp8"):
        with pytest.raises(UsageError, match="there are no estimates for type"):
            found(name)
