"""The origami adapter beside a module with the real one's names and pitfalls."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from tracelens.backends import System, origami
from tracelens.backends.origami import Origami
from tracelens.backends.tiles.gemm_tiles import GEMMColumns
from tracelens.cli import main
from tracelens.dtypes import DType
from tracelens.hardware import HardwareSpec
from tracelens.perf_models import GEMM, SDPA, GroupedGEMM

MI300X = System(device=HardwareSpec.load("mi300x"))


class Bag:
    """Assigned to, attribute by attribute, as the bindings' structs are."""


def fake(*, register_file: bool = True) -> ModuleType:
    module = ModuleType("origami")
    module.calls, module.hardware = [], []

    def hardware(arch, N_CU, lds_capacity, L2_capacity, compute_clock_khz, **more):
        if not register_file and more:
            raise TypeError("incompatible function arguments")
        return SimpleNamespace(
            arch=arch, N_CU=N_CU, sizes=(lds_capacity, L2_capacity, more.get("rf_capacity")), compute_clock_ghz=compute_clock_khz / 1e6,
            get_recommended_matrix_instruction=lambda t: SimpleNamespace(m=16, n=16, k=16) if t != "f8" else SimpleNamespace(m=0, n=0, k=0),
        )  # fmt: skip

    def datatype(name):
        if name not in ("bf16", "f16", "f32", "f8", "bf8", "i8"):
            raise ValueError(f"unknown {name}")
        return name

    def select(problem, hw, configs, model):
        module.calls.append((problem, configs))
        module.hardware.append(hw)
        # One cycle per thousand multiplications: 2.1 GHz makes cycles / 2100 us.
        return SimpleNamespace(latency=problem.size[0] * problem.size[1] * problem.size[2] / 1000.0, config=configs[0])

    module.get_hardware_for_arch, module.string_to_datatype, module.select_config = hardware, datatype, select
    module.problem_t, module.config_t = Bag, Bag
    module.dim3_t = lambda *sizes: sizes
    module.transpose_t = SimpleNamespace(T="T", N="N")
    module.architecture_t = SimpleNamespace(gfx942="gfx942", gfx950="gfx950")
    module.model_t = SimpleNamespace(gemm="gemm")
    return module


@pytest.fixture
def installed(monkeypatch):
    module = fake()
    monkeypatch.setitem(sys.modules, "origami", module)
    origami._hardware.cache_clear()
    return module


def test_cycles_become_microseconds_at_the_device_clock(installed):
    found = Origami().estimate(GEMM(m=2048, n=2048, k=2048), MI300X)
    assert found.time_us == pytest.approx(2048**3 / 1000 / 2100)
    assert found.backend == "origami"


def test_a_lower_clock_takes_longer(installed):
    slow = System(device=HardwareSpec.load("mi300x").at_clock(1050))
    fast, slow = (Origami().estimate(GEMM(m=2048, n=2048, k=2048), s).time_us for s in (MI300X, slow))
    assert slow == pytest.approx(2 * fast)


def test_times_above_the_peak_rate_are_clamped(installed, monkeypatch):
    monkeypatch.setattr(installed, "select_config", lambda *_: SimpleNamespace(latency=1.0))
    found = Origami().estimate(GEMM(m=8192, n=8192, k=8192), MI300X)
    assert found.time_us == found.peak_us == pytest.approx(2 * 8192**3 / 1307.4e6)


@pytest.mark.parametrize("latency", [float("inf"), 0.0])
def test_an_inadmissible_configuration_is_no_answer(installed, monkeypatch, latency):
    monkeypatch.setattr(installed, "select_config", lambda *_: SimpleNamespace(latency=latency))
    assert Origami().estimate(GEMM(m=8192, n=8192, k=8192), MI300X) is None


def test_few_rows_attention_and_other_vendors_are_left_to_others(installed):
    assert Origami().estimate(GEMM(m=64, n=8192, k=8192), MI300X) is None
    assert Origami().estimate(SDPA(b=1, s_q=8, s_kv=8, q_heads=1, kv_heads=1, d_qk=64, d_v=64), MI300X) is None
    assert Origami().estimate(GEMM(m=8192, n=8192, k=8192), System(device=HardwareSpec.load("h100"))) is None


def test_fp8_takes_the_first_name_with_an_instruction(installed):
    assert Origami().estimate(GEMM(m=512, n=512, k=512, dtype=DType.FP8_E4M3FNUZ), MI300X) is not None
    assert installed.calls[-1][0].a_dtype == "bf8"


def test_groups_are_a_batch(installed):
    Origami().estimate(GroupedGEMM(m=2000, n=512, k=256, groups=16), MI300X)
    problem = installed.calls[-1][0]
    assert (problem.size, problem.batch) == ((125, 512, 256), 16)


def test_it_is_asked_for_the_devices_units_memories_and_tiles(installed):
    """MI300X: 304 units of 64 KiB LDS and 512 KiB registers, 4 MiB L2 per die; MI355X: 256 units of 160 KiB."""
    for name, kind, units, lds in (("mi300x", "gfx942", 304, 64), ("mi355x", "gfx950", 256, 160)):
        Origami().estimate(GEMM(m=512, n=512, k=512), System(device=HardwareSpec.load(name)))
        found = installed.hardware[-1]
        assert (found.arch, found.N_CU, found.sizes) == (kind, units, (lds << 10, 4 << 20, 512 << 10))
    problem, tiles = installed.calls[-1]
    assert (problem.a_transpose, problem.b_transpose) == ("T", "N")
    assert problem.a_mx_block_size == problem.b_mx_block_size == 0
    # 4 heights, 4 widths, 3 depths and 3 occupancies, each once
    assert len({(tile.mt, tile.occupancy) for tile in tiles}) == len(tiles) == 4 * 4 * 3 * 3
    assert {tile.mt[0] for tile in tiles} == {tile.mt[1] for tile in tiles} == {64, 128, 192, 256}
    assert {tile.occupancy for tile in tiles} == {1, 2, 4}


@pytest.mark.parametrize(("k", "depths"), [(16, {32, 64, 128}), (64, {64, 128}), (128, {128})])
def test_tiles_are_as_deep_as_the_instruction_at_least(installed, k, depths):
    found = origami._candidates(installed, SimpleNamespace(k=k))
    assert {tile.mt[2] for tile in found} == depths


def attention(s: int = 2048, mask: str = "none", **given: object) -> SDPA:
    heads = {"q_heads": 19, "kv_heads": 19, "d_qk": 128, "d_v": 128}
    return SDPA(**{"b": 1, "s_q": s, "s_kv": s, "mask": mask, **heads, **given})


def test_attention_is_its_work_groups_on_one_unit_times_waves(installed):
    found = Origami().estimate(attention(8192), MI300X)
    # 32 tiles of 256 queries for 19 heads: 608 groups, 2 waves of 304 units; two products per group.
    group = 2 * 256 * 8192 * 128 / 1000 / 2100
    assert found.time_us == pytest.approx(2 * group)
    assert {problem.size for problem, _ in installed.calls} == {(256, 8192, 128), (256, 128, 8192)}
    assert {hw.N_CU for hw in installed.hardware} == {1}


def test_causal_tiles_are_counted_and_shared_out(installed):
    whole, causal = (Origami().estimate(attention(8192, mask), MI300X).time_us for mask in ("none", "top_left"))
    # Query tile i of 32 sees i * 256 keys: 33 / 64 of all.
    assert causal / whole == pytest.approx(33 / 64)


def test_a_cache_before_the_queries_is_seen_by_all_of_them(installed):
    cached = Origami().estimate(attention(s_q=1024, s_kv=8192, mask="bottom_right", q_heads=304), MI300X).time_us
    new = Origami().estimate(attention(1024, mask="bottom_right", q_heads=304), MI300X).time_us
    assert cached > 10 * new


def test_a_window_limits_what_a_long_prompt_costs(installed):
    whole, windowed = (
        Origami().estimate(attention(16384, "top_left", window=window), MI300X).time_us for window in (None, 1024)
    )
    assert windowed < whole / 6


def test_the_gradient_is_five_products_and_memory_bounds_what_is_added_to_dq(installed, monkeypatch):
    backward = attention(8192).backward()
    found = Origami().estimate(backward, MI300X)
    assert found.time_us == pytest.approx(2 * 5 * 256 * 8192 * 128 / 1000 / 2100)
    # Where d_qk is d_v, the scores and dP have one shape, dV and dK another.
    assert len({problem.size for problem, _ in installed.calls}) == 3
    monkeypatch.setattr(installed, "select_config", lambda *_: SimpleNamespace(latency=1.0))
    # 32 tiles of keys add 8192 rows of 128 in fp32, read and written, for 19 heads.
    assert Origami().estimate(backward, MI300X).time_us >= 32 * 8192 * 19 * 128 * 8 / 5.3e6


def test_exponentials_bound_narrow_heads(installed, monkeypatch):
    monkeypatch.setattr(installed, "select_config", lambda *_: SimpleNamespace(latency=1.0))
    found = Origami().estimate(attention(8192, d_qk=16, d_v=16), MI300X)
    assert found.time_us == pytest.approx(19 * 8192**2 / (16 * 2100 * 304))


def test_decoding_and_unknown_lengths_have_no_answer(installed):
    assert Origami().estimate(attention(s_q=1, s_kv=8192), MI300X) is None
    assert Origami().estimate(attention(s_q=None, s_kv=None), MI300X) is None
    assert Origami().estimate(attention(4096, mask=None), MI300X) is None


def test_versions_without_a_register_file_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "origami", fake(register_file=False))
    origami._hardware.cache_clear()
    assert Origami().estimate(GEMM(m=512, n=512, k=512), MI300X) is not None


def test_an_unrelated_package_of_that_name_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "origami", ModuleType("origami"))
    assert "is not rocm-origami: it has no get_hardware_for_arch" in (origami.absence() or "")
    assert Origami().estimate(GEMM(m=512, n=512, k=512), MI300X) is None


def test_an_absent_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "origami", None)
    assert origami.absence() == "rocm-origami is not installed (its build needs ROCm)"


def test_a_table_of_products_is_asked_too(installed):
    """One cycle per thousand multiplications at 2.1 GHz; 64 rows and fewer are left to the next backend."""
    import pandas as pd

    import tracelens as tl

    rows = pd.DataFrame({"m": [4096, 32, 4096], "n": [4096] * 3, "k": [4096] * 3})
    batch = GEMMColumns.of("bf16", *(rows[name].to_numpy(float) for name in "mnk"))
    found = Origami().estimate_batch(batch, MI300X)
    assert found.time_us[0] == pytest.approx(4096**3 / 1000 / 2100)
    assert found.backend == ("origami", None, "origami")
    assert found.rate_basis == ("peak", None, "peak")
    assert found.bound == ("compute", None, "compute")
    assert len(installed.calls) == 1
    answered = tl.estimate("gemm", rows, device="mi300x", backend="origami")
    assert answered["backend"].tolist() == ["origami", "roofline", "origami"]


@pytest.mark.parametrize("direction", [[], ["--backward"]])
def test_the_command_asks_it_for_products_and_their_gradients(direction, installed, capsys):
    words = "estimate gemm --m 4096 --n 4096 --k 4096 --device mi300x --backend origami"
    assert main([*words.split(), *direction]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[-1] for row in rows] == ["origami"] * (3 if direction else 1)
