"""Published tables of measured times, in a package folder with aiconfigurator's layout."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tracelens as tl
from tracelens.backends import System, measured_tables
from tracelens.backends.chain import chain
from tracelens.backends.measured_tables import Silicon
from tracelens.backends.tiles.attention_tiles import AttentionColumns
from tracelens.backends.tiles.gemm_tiles import GEMMColumns
from tracelens.errors import InputError
from tracelens.hardware import HardwareSpec
from tracelens.perf_models import GEMM, SDPA
from tracelens.perf_models.base import WorkColumns

H100 = System(device=HardwareSpec.load("h100-sxm"))


def cube(*, factor: float = 1.0) -> pd.DataFrame:
    """m, n and k of 1024 and 4096, 1 ms at the smallest, four times as long per step of any."""
    sizes = [(m, n, k) for m in (1024, 4096) for n in (1024, 4096) for k in (1024, 4096)]
    frame = pd.DataFrame(sizes, columns=["m", "n", "k"])
    return frame.assign(gemm_dtype="bfloat16", latency=frame.prod(axis=1) / 1024**3 * factor)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed ``aiconfigurator_core``; returns the H100's folder."""
    system = tmp_path / "aiconfigurator_core" / "systems" / "data" / "h100_sxm"
    system.mkdir(parents=True)
    (tmp_path / "aiconfigurator_core" / "__init__.py").write_text("raise AssertionError('never imported')\n")
    (system.parent / "nobody_knows").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in (measured_tables, measured_tables):
        module._grids.cache_clear()
    yield system
    for module in (measured_tables, measured_tables):
        module._grids.cache_clear()


def write(system: Path, place: str, frame: pd.DataFrame) -> None:
    path = system / place
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(path, index=False)


def gemm_ms(m: int, n: int, k: int, system: System = H100) -> float | None:
    found = Silicon().estimate(GEMM(m=m, n=n, k=k), system)
    return None if found is None else found.time_us / 1e3


def test_a_measured_point_is_its_time_and_between_points_logarithms_are_linear(package):
    write(package, "gemm/vllm/0.24.0/gemm_perf.txt", cube())
    assert gemm_ms(1024, 1024, 1024) == pytest.approx(1)
    assert gemm_ms(4096, 1024, 4096) == pytest.approx(16)
    # Twice a size is half way to four times: a factor 2 of 4.
    assert gemm_ms(2048, 1024, 4096) == pytest.approx(8)


def test_outside_of_what_was_measured_there_is_no_answer(package):
    write(package, "gemm/vllm/0.24.0/gemm_perf.txt", cube())
    assert gemm_ms(512, 1024, 1024) is None
    assert gemm_ms(1024, 1024, 8192) is None
    assert gemm_ms(1024, 1024, 1024, System(device=HardwareSpec.load("h200"))) is None
    assert gemm_ms(1024, 1024, 1024, H100.at_clock(1000)) is None
    assert Silicon().estimate(GEMM(m=1024, n=1024, k=1024, b=2), H100) is None


def test_a_row_without_an_answer_says_neither_bound_nor_basis(package):
    write(package, "gemm/vllm/0.24.0/gemm_perf.txt", cube())
    found = Silicon().estimate_many(WorkColumns.of([GEMM(m=1024, n=1024, k=1024), GEMM(m=512, n=1024, k=1024)]), H100)
    assert (found.backend, found.rate_basis) == (("silicon", None), ("achievable", None))
    assert [word is None for word in found.bound] == [False, True]


def test_a_corner_that_was_not_measured_leaves_its_cell_without_an_answer(package):
    write(package, "gemm/vllm/0.24.0/gemm_perf.txt", cube().iloc[:-1])
    assert gemm_ms(2048, 2048, 2048) is None
    assert gemm_ms(2048, 2048, 1024) == pytest.approx(4)


def test_the_newest_version_of_each_framework_counts_and_the_fastest_of_them(package):
    write(package, "gemm/vllm/0.9.0/gemm_perf.txt", cube(factor=0.5))
    write(package, "gemm/vllm/0.24.0/gemm_perf.txt", cube())
    assert gemm_ms(1024, 1024, 1024) == pytest.approx(1)
    measured_tables._grids.cache_clear()
    # Without a folder per family, as before version 0.10.
    write(package, "trtllm/1.0.0/gemm_perf.txt", cube(factor=0.8))
    assert gemm_ms(1024, 1024, 1024) == pytest.approx(0.8)


def test_no_time_beats_the_data_sheet(package):
    write(package, "gemm/vllm/0.24.0/gemm_perf.txt", cube(factor=1e-6))
    found = Silicon().estimate(GEMM(m=4096, n=4096, k=4096), H100)
    assert found.time_us == found.peak_us == pytest.approx(2 * 4096**3 / 989.4e6)


def test_attention_is_answered_as_the_layer_that_was_measured(package):
    rows = [(b, s, 4.0 * b * s / 1024) for b in (1, 4) for s in (1024, 4096)]
    context = pd.DataFrame(rows, columns=["batch_size", "isl", "latency"]).assign(
        num_heads=32, num_key_value_heads=8, head_dim=128, window_size=0, step=0, kv_cache_dtype="bfloat16"
    )
    write(package, "attention/trtllm/1.0.0/context_attention_perf.txt", context)
    one = {
        "b": 1, "s": 2048, "past": 0, "q_heads": 32, "kv_heads": 8, "d_qk": 128, "d_v": 128, "window": math.inf,
        "causal": 1,
    }  # fmt: skip
    arrays = {name: np.array([float(value)]) for name, value in one.items()}
    layer = AttentionColumns(precision="bf16", as_layer=True, **arrays)
    assert Silicon().estimate_batch(layer, H100).time_us[0] == pytest.approx(8e3)
    kernel = AttentionColumns(precision="bf16", **arrays)
    assert np.isnan(Silicon().estimate_batch(kernel, H100).time_us[0])


def test_a_step_is_looked_up_by_the_keys_that_it_sees(package):
    """Tables name the new token and those before it: 1 + 1023 and 1 + 4095 keys take 1 and 4 ms per 8 sequences."""
    rows = [(b, 1, step, 64, b / 8 * (1 + step) / 1024) for b in (8, 32) for step in (1023, 4095)]
    table = pd.DataFrame(rows, columns=["batch_size", "isl", "step", "head_dim", "latency"]).assign(
        num_heads=32, num_key_value_heads=8, head_dim=128, kv_cache_dtype="bfloat16"
    )
    write(package, "attention/trtllm/1.0.0/generation_attention_perf.txt", table)
    one = {
        "b": 16, "s": 1, "past": 2047, "q_heads": 32, "kv_heads": 8, "d_qk": 128, "d_v": 128, "window": math.inf,
        "causal": 1,
    }  # fmt: skip
    arrays = {name: np.array([float(value)]) for name, value in one.items()}
    found = Silicon().estimate_batch(AttentionColumns(precision="bf16", as_layer=True, **arrays), H100)
    assert found.time_us[0] == pytest.approx(2 * 2 * 1e3)


def experts(**more) -> pd.DataFrame:
    sizes = {"hidden_size": 4096, "inter_size": 1024, "topk": 4, "num_experts": 64, "moe_tp_size": 1, "moe_ep_size": 4}
    tokens = pd.DataFrame({"num_tokens": [128, 512]})
    return tokens.assign(**sizes, distribution="balanced", moe_dtype="w4a16_mxfp4", **more)


def test_experts_kernels_are_looked_up_where_loads_are_even(package):
    """1 ms per 128 tokens; uneven loads were measured, too, and are left to the next."""
    table = experts().assign(latency=[1.0, 4.0])
    uneven = table.assign(distribution="power_law", latency=99.0)
    write(package, "moe/vllm/0.24.0/moe_perf.txt", pd.concat([table, uneven]))
    asked = experts().assign(num_tokens=256, distribution=["balanced", "power_law_1.2"])
    found = tl.estimate("moe-mxfp4", asked, device="h100", backend="silicon,tile")
    assert found["backend"].tolist() == ["silicon", "tile"]
    assert found["time_us"][0] == pytest.approx(2000)


def test_a_chain_asks_the_next_where_nothing_was_measured(package):
    write(package, "gemm/vllm/0.24.0/gemm_perf.txt", cube())
    attention = SDPA(b=1, s_q=4096, s_kv=4096, q_heads=16, kv_heads=16, d_qk=128, d_v=128)
    ops = [GEMM(m=1024, n=2048, k=1024), GEMM(m=64, n=64, k=64), attention]
    table = chain("silicon,tile").estimate_many(WorkColumns.of(ops), H100)
    assert list(table.backend) == ["silicon", "tile", "tile"]


def test_quantizing_layers_are_not_products_alone(package):
    write(package, "gemm/vllm/0.24.0/gemm_perf.txt", cube().assign(gemm_dtype="fp8"))
    sizes = (np.array([1024.0]),) * 3
    layer = Silicon().estimate_batch(replace(GEMMColumns.of("fp8", *sizes), as_layer=True), H100)
    alone = Silicon().estimate_batch(GEMMColumns.of("fp8", *sizes), H100)
    assert layer.time_us[0] == pytest.approx(1e3)
    assert np.isnan(alone.time_us[0])


def scan(factor: float = 1.0) -> pd.DataFrame:
    """Delta-rule updates of two head counts: 10 ns per sequence and token of one, 30 of the other."""
    points = [(b, n, heads) for b in (1, 4) for n in (1024, 4096) for heads in (16, 48)]
    frame = pd.DataFrame(points, columns=["batch_size", "seq_len", "num_v_heads"])
    frame["latency"] = frame["batch_size"] * frame["seq_len"] * frame["num_v_heads"] / 16 * 1e-5 * factor
    return frame.assign(phase="context", kernel_source="chunk_delta", num_k_heads=16, head_k_dim=128, head_v_dim=128)


def test_an_engines_kernel_is_looked_up_in_the_file_of_its_name(package):
    write(package, "linear/vllm/0.24.0/gdn_perf.txt", scan())
    write(package, "linear/sglang/0.5.14/gdn_perf.txt", scan(0.5))
    asked = pd.DataFrame({"batch_size": [4, 2, 4, 4, 4], "seq_len": [4096, 2048, 4096, 4096, 8192]})
    asked = asked.assign(num_v_heads=[16, 48, 48, 32, 48], num_k_heads=16, head_k_dim=128, head_v_dim=128)
    asked = asked.assign(phase="context", framework=["vllm", "vllm", None, "vllm", "vllm"])
    found = tl.estimate("gdn", asked, device="h100", backend="silicon,tile")
    # 4 x 4096 x 10 ns; half way between sizes; the faster library; other heads and longer sequences: the tile model
    assert found["backend"].tolist() == ["silicon"] * 3 + ["tile"] * 2
    assert found["time_us"][:3].tolist() == pytest.approx([163.84, 122.88, 245.76])


def test_a_products_pass_has_a_file_of_another_name_and_no_operands_that_l2_holds(package):
    sizes = pd.DataFrame([(m, k) for m in (256, 1024) for k in (1024, 4096)], columns=["m", "k"])
    write(package, "trtllm/1.3.0/scale_matrix_perf.txt", sizes.assign(quant_dtype="fp8", latency=1e-3))
    found = tl.estimate("quantize-matrix", sizes.assign(quant_dtype="FP8"), device="h100", backend="silicon")
    # 12 MB take 3.8 us from HBM, and 1 us where they are in L2
    assert found["time_us"].tolist() == pytest.approx([1.0] * 4)


@pytest.mark.shared
@pytest.mark.parametrize(("name", "axis", "median"), [("kda", "seq_len", 4), ("mla-bmm", "num_tokens", 3)])
def test_every_second_size_left_out_is_met_within_a_few_percent(package, shared_data, name, axis, median):
    file = name.replace("-", "_")
    table = pd.read_parquet(shared_data / "silicon" / f"{file}.parquet").query("device == 'h100_sxm'")
    left_out = table[axis].isin(sorted(table[axis].unique())[1:-1:2])
    for (framework, version), rows in table[~left_out].groupby(["framework", "version"]):
        write(package, f"{framework}/{version}/{file}_perf.txt", rows.rename(columns={"latency_ms": "latency"}))
    newest = table["version"] == table.groupby("framework")["version"].transform("max")
    asked = table[left_out & newest].reset_index(drop=True)
    found = tl.estimate(name, asked.drop(columns="latency_ms"), backend="silicon")
    off = (found["time_us"] / (asked["latency_ms"] * 1e3) - 1).abs() * 100
    looked_up = found["backend"] == "silicon"
    assert looked_up.mean() > 0.4
    assert off[looked_up].median() < median


def test_a_file_that_is_no_such_table_is_named(package):
    write(package, "gemm/vllm/0.24.0/gemm_perf.txt", pd.DataFrame({"m": [1]}))
    with pytest.raises(InputError, match=r"gemm_perf\.txt is not a table of aiconfigurator"):
        gemm_ms(1024, 1024, 1024)


def test_an_absent_package_is_no_answer_and_named(monkeypatch):
    monkeypatch.setattr(measured_tables, "PACKAGES", ("no_such_package_as_this",))
    assert measured_tables.absence() == "aiconfigurator is not installed"
    assert gemm_ms(1024, 1024, 1024) is None


def test_a_package_without_tables_is_named(tmp_path, monkeypatch):
    (tmp_path / "aiconfigurator_core").mkdir()
    (tmp_path / "aiconfigurator_core" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "aiconfigurator_core", raising=False)
    monkeypatch.setattr(measured_tables, "PACKAGES", ("aiconfigurator_core",))
    assert measured_tables.absence() == "the installed aiconfigurator has no folder systems/data"
