"""The origami adapter beside a module with the real one's names and pitfalls."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import tracelens as tl
from tracelens.backends import System, origami
from tracelens.backends.origami import Origami
from tracelens.backends.tiles.gemm_tiles import GEMMColumns
from tracelens.cli import main
from tracelens.hardware import HardwareSpec
from tracelens.perf_models import GEMM, SDPA, GroupedGEMM
from tracelens.types.dtypes import DType


def bare(name: str) -> HardwareSpec:
    """A device without measured slowdowns of Origami's answers: what the module says arrives as it is."""
    found = HardwareSpec.load(name)
    kept = {key: row for key, row in found.calibrated.items() if not key[0].startswith("origami")}
    return replace(found, calibrated=kept)


MI300X = System(device=bare("mi300x"))


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
    slow = System(device=bare("mi300x").at_clock(1050))
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
    rows = [line for line in capsys.readouterr().out.splitlines()[1:] if line.startswith("mi300x ")]
    assert [row.split()[-1] for row in rows] == ["origami"] * (3 if direction else 1)


SIZES = {"b": 4, "s_q": 8192, "q_heads": 32, "kv_heads": 8, "d_qk": 128}


@pytest.mark.parametrize("which", ["forward", "backward"])
def test_a_table_of_attention_is_asked_too_forward_and_backward(which, installed):
    """A row has the time of the perf model that a report and a projection ask about."""
    found = tl.estimate("sdpa", {**SIZES, "pass": which}, device="mi300x", backend="origami").iloc[0]
    model = SDPA(b=4, s_q=8192, s_kv=8192, q_heads=32, kv_heads=8, d_qk=128, d_v=128, mask="bottom_right")
    model = model if which == "forward" else model.backward()
    assert found["backend"] == "origami"
    assert found["time_us"] == pytest.approx(Origami().estimate(model, System.load("mi300x")).time_us)
    assert found["measured_as"] == "origami, uncalibrated"


def test_the_command_says_which_backend_spoke(installed, capsys):
    words = "estimate sdpa --b 4 --q-heads 32 --kv-heads 8 --d-qk 128 --device mi300x --backend origami --s-kv 8192"
    for queries, backends in ((8192, ["origami", "origami"]), (32, ["roofline", "roofline"])):
        assert main([*words.split(), "--s-q", str(queries), "--backward"]) == 0
        rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:] if line.startswith("mi300x ")]
        assert [row[-1] for row in rows] == backends
    assert main([*words.split(), "--s-q", "8192"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("origami on mi300x: GEMMs x 1.45 by mi300x's constants, 12 % off on shapes not fitted; ")
    assert "attention uncalibrated, at the boost clock" in said


def test_groups_of_unequal_rows_are_padded_to_tiles(installed):
    """128, 4096 and 77 rows fill 2 + 64 + 2 tiles of 64: 4352 rows, 1451 to each of three groups; none has no rows."""
    found = tl.estimate(
        "grouped-gemm", {"rows": "128,4096,0,77", "n": 512, "k": 256}, device="mi300x", backend="origami"
    )
    problem = installed.calls[-1][0]
    assert (problem.size, problem.batch) == ((1451, 512, 256), 3)
    assert found["backend"].tolist() == ["origami"]
    tl.estimate("grouped-gemm", {"m": 4096, "groups": 8, "n": 512, "k": 256}, device="mi300x", backend="origami")
    assert (installed.calls[-1][0].size, installed.calls[-1][0].batch) == ((512, 512, 256), 8)


@pytest.mark.parametrize("direction", [[], ["--backward"]])
def test_grouped_products_are_answered_in_every_direction(direction, installed, capsys):
    words = "estimate grouped-gemm --rows 512,4096,700 --n 4096 --k 2048 --device mi300x --backend origami"
    assert main([*words.split(), *direction]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines()[1:] if line.startswith("mi300x ")]
    assert [row.split()[-1] for row in rows] == ["origami"] * (3 if direction else 1)


def test_a_batch_of_products_is_one_question(installed):
    tl.estimate("gemm", {"m": 512, "n": 512, "k": 256, "b": 96}, device="mi300x", backend="origami")
    assert (installed.calls[-1][0].size, installed.calls[-1][0].batch) == ((512, 512, 256), 96)


def test_answers_are_multiplied_by_what_was_measured(installed):
    """MI355X: 1.23 times Origami's from 4096 rows on, (rows / 4096) ** 0.173 times that below."""
    for rows in (4096, 512):
        table = {"m": rows, "n": 4096, "k": 4096}
        plain = Origami().estimate_batch(
            GEMMColumns.of("bf16", *map(np.array, ([rows], [4096], [4096]))), System(device=bare("mi355x"))
        )
        found = tl.estimate("gemm", table, device="mi355x", backend="origami").iloc[0]
        assert found["time_us"] / plain.time_us[0] == pytest.approx(1.23 * (rows / 4096) ** 0.173)
        assert (found["measured_as"], found["error_percent"]) == ("origami bf16 on mi355x", 12.1)
    model = Origami().estimate(GEMM(m=512, n=4096, k=4096), System.load("mi355x"))
    assert model.time_us == pytest.approx(found["time_us"])
    # MI350X has MI355X's, without its error.
    carried = tl.estimate("gemm", table, device="mi350x", backend="origami").iloc[0]
    assert carried["measured_as"] == "origami bf16 on mi355x"
    assert np.isnan(carried["error_percent"])


def test_mi325x_and_mi300x_are_slowed_by_their_own_shares(installed):
    sizes = {"m": 8192, "n": 8192, "k": 8192}
    slow, fast = (
        tl.estimate("gemm", sizes, device=name, backend="origami")["time_us"][0] for name in ("mi300x", "mi325x")
    )
    assert slow / fast == pytest.approx(1.453 / 1.22)


def test_a_projection_says_what_its_answers_were_held_against(installed):
    def notes(framework: str | None) -> list[str]:
        found = tl.project(
            "llama2-7b",
            cluster="mi300x",
            nodes=1,
            global_batch=8,
            framework=framework,
            backend="origami,tile,collectives",
        )
        return [note for note in found.projection.notes if note.startswith("origami")]

    (fitted,), (ideal,) = notes(None), notes("ideal")
    assert "attention uncalibrated" in fitted
    assert ideal == f"{fitted}; no constants of a framework: the step itself is uncalibrated"


@pytest.mark.sweep
def test_calibration_fits_its_slowdown_to_measured_shapes(installed, tmp_path, capsys):
    """Products that take 1.5 times the stand-in's answers at any size."""
    rows = pd.DataFrame(
        [(m, n, k) for m in (4096, 8192) for n in (1024, 2048, 4096) for k in (1024, 4096)], columns=list("mnk")
    )
    answers = Origami().uncalibrated_us(
        GEMMColumns.of("bf16", *(rows[name].to_numpy(float) for name in "mnk")), bare("mi300x")
    )
    rows.assign(time_us=1.5 * answers).to_csv(tmp_path / "gemm.csv", index=False)
    out = tmp_path / "mine.toml"
    assert main(["calibrate", str(tmp_path / "gemm.csv"), "--device", "mi300x", "-o", str(out)]) == 0
    assert "origami  bf16" in capsys.readouterr().out
    assert HardwareSpec.load(out).calibration("origami", "bf16")["slowdown"] == pytest.approx(1.5, rel=0.02)
