"""Constants recovered from times that were made with known ones, and what the data leave open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.conftest import part
from tracelens.backends import System
from tracelens.backends.roofline_and_tile import Tile
from tracelens.errors import InputError
from tracelens.hardware import HardwareSpec
from tracelens.hardware.device_figures import CONSTANTS, Calibration
from tracelens.perf_models import GEMM, SDPA, GroupQuant
from tracelens.predict.calibration.device import BOUNDS, Measured, bounds, calibrate, device_file, joined, kernel
from tracelens.predict.calibration.measurements import calls_measured, table_kind, table_measured
from tracelens.types.dtypes import DType

H100 = HardwareSpec.load("h100-sxm")
KNOWN = {"matrix_efficiency": 0.6, "hbm_efficiency": 0.7, "launch_us": 6.0}


def altered(device: HardwareSpec, family: str, precision: str, **constants: float) -> HardwareSpec:
    """The device with some constants set by hand."""
    key = (family, precision)
    own = device.calibrated[key]
    made = replace(own, constants={**own.constants, **constants})
    return replace(device, calibrated={**device.calibrated, key: made})


def times_us(models: list, device: HardwareSpec) -> list[float]:
    return [Tile().estimate(model, System(device=device)).time_us for model in models]


def products(sizes: list[int], rows: list[int]) -> pd.DataFrame:
    """A table of GEMMs, timed by the altered H100."""
    shapes = [(m, n, k) for m in rows for n in sizes for k in sizes]
    device = altered(H100, "gemm", "bf16", **KNOWN)
    times = times_us([GEMM(m=m, n=n, k=k) for m, n, k in shapes], device)
    return pd.DataFrame(shapes, columns=["m", "n", "k"]).assign(latency_ms=np.array(times) / 1e3)


@pytest.mark.parametrize("sizes", part([[1024, 8192], [1024, 2048, 4096, 8192]], 2), ids=len)
def test_constants_that_made_the_times_are_found_again(sizes):
    table = products(sizes, [16, 256, 4096, 16384])
    (measured,) = table_measured(table, H100, "gemm.csv")
    found = calibrate(measured, H100, "gemm.csv")
    assert (found.rows, found.groups) == (4 * len(sizes) ** 2, len(sizes) ** 2)
    assert found.before > 15
    assert found.after < 1.5
    # four groups leave none to hold out
    assert found.unseen is None if len(sizes) == 2 else found.unseen < 3
    for name, value in KNOWN.items():
        assert found.calibration.constants[name] == pytest.approx(value, rel=0.06)


@pytest.mark.sweep
def test_what_the_data_do_not_determine_stays_and_is_said():
    # Large products alone: nothing splits k, nothing waits for a launch.
    (measured,) = table_measured(products([8192, 12288, 16384], [16384, 32768]), H100, "gemm.csv")
    found = calibrate(measured, H100, "gemm.csv")
    own = H100.calibration("gemm", "bf16").constants
    assert found.calibration.constants["split_us"] == own["split_us"]
    assert found.calibration.constants["matrix_efficiency"] == pytest.approx(0.6, rel=0.05)
    assert "do not determine" in found.warnings[0]
    assert "split_us" in found.warnings[0]
    assert "split_us" in found.calibration.fitted_on


def test_fewer_than_three_shape_groups_are_not_fitted():
    table = products([4096], [16, 64, 256, 1024])
    (measured,) = table_measured(table, H100, "gemm.csv")
    found = calibrate(measured, H100, "gemm.csv")
    assert found.calibration is None
    assert found.warnings == ("1 shape groups determine no constant: not fitted",)


@pytest.mark.sweep
def test_times_faster_than_the_data_sheet_do_not_make_an_efficiency_above_one():
    table = products([4096, 8192, 16384], [4096])
    (measured,) = table_measured(table.assign(latency_ms=table["latency_ms"] / 4), H100, "gemm.csv")
    found = calibrate(measured, H100, "gemm.csv").calibration
    assert all(value <= 1 for name, value in found.constants.items() if name.endswith("_efficiency"))


def test_rows_of_one_shape_group_are_in_one_half():
    (measured,) = table_measured(products([1024, 2048, 4096], [16, 256, 4096]), H100, "gemm.csv")
    halves = measured.halves()
    assert set(halves.tolist()) == {0, 1}
    for group in set(measured.groups.tolist()):
        assert len(set(halves[measured.groups == group].tolist())) == 1


def test_calls_of_a_trace_are_kernels_by_family_and_type():
    sums = GroupQuant(elements=1 << 20, scale_elements=0, dtype=DType.BF16, dtype_out=DType.BF16)
    attention = SDPA(b=1, s_q=512, s_kv=512, q_heads=8, kv_heads=8, d_qk=64, d_v=64, mask="top_left")
    calls = [
        (GEMM(m=64, n=64, k=64), "aten::mm", 5.0),
        (GEMM(m=64, n=64, k=64, dtype=DType.FP16), "aten::mm", 5.0),
        (GEMM(m=64, n=64, k=64, dtype=DType.FP64), "aten::mm", 5.0),
        (attention, "flash", 9.0),
        (attention.backward(), "flash", 9.0),
        (replace(attention, s_q=1), "flash", 9.0),
        (sums, "quantize", 3.0),
        (None, "unknown", 3.0),
    ]
    found = {(m.family, m.precision): len(m.time_us) for m in calls_measured(calls)}
    assert found == {
        ("gemm", "bf16"): 2, ("prefill", "bf16"): 1, ("backward", "bf16"): 1, ("decode", "bf16"): 1,
        ("memory_bound", "stream"): 1,
    }  # fmt: skip


def test_a_memory_rate_and_its_launch_are_found_again():
    device = replace(
        H100,
        calibrated={
            **H100.calibrated,
            ("memory_bound", "stream"): Calibration(
                family="memory_bound", precision="stream", constants={"hbm_efficiency": 0.55, "launch_us": 4.5},
                fitted_on="a test",
            ),
        },
    )  # fmt: skip
    ops = [
        GroupQuant(elements=1 << power, scale_elements=0, dtype=DType.BF16, dtype_out=DType.BF16)
        for power in range(10, 30)
    ]
    calls = [(op, f"op{i % 7}", time) for i, (op, time) in enumerate(zip(ops, times_us(ops, device), strict=True))]
    (measured,) = calls_measured(calls)
    found = calibrate(measured, H100, "trace.json").calibration.constants
    assert found == {"hbm_efficiency": pytest.approx(0.55, rel=0.02), "launch_us": pytest.approx(4.5, rel=0.02)}


def test_measurements_of_one_family_are_fitted_together():
    first, second = (table_measured(products([2048, 4096], [m]), H100, "x.csv")[0] for m in (64, 4096))
    (both,) = joined([first, second])
    rows = np.array([False, True, False, True, True, False, False, False])
    assert both.estimate(H100, None, rows).tolist() == [
        *first.estimate(H100, None, rows[:4]).tolist(), *second.estimate(H100, None, rows[4:]).tolist(),
    ]  # fmt: skip


def test_rows_of_other_devices_and_without_a_time_are_left_out():
    table = products([2048], [16, 64, 256, 1024]).assign(device=["h100_sxm", "H100", "b200_sxm", "h100_sxm"])
    table.loc[0, "latency_ms"] = np.nan
    (measured,) = table_measured(table, H100, "gemm.csv")
    assert len(measured.time_us) == 2


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ({"m": 1, "n": 1, "k": 1}, "gemm"),
        ({"batch_size": 1, "isl": 8, "num_heads": 8, "num_key_value_heads": 8, "head_dim": 64, "step": 0}, "context-attention"),
        ({"batch_size": 1, "isl": 1, "num_heads": 8, "num_key_value_heads": 8, "head_dim": 64, "step": 9}, "generation-attention"),
        ({"batch_size": 1, "isl": 1, "num_heads": 8, "step": 9}, "generation-mla"),
    ],
)  # fmt: skip
def test_a_table_is_what_its_columns_say(columns, kind):
    assert table_kind(pd.DataFrame([columns | {"latency": 0.1}]), "x.csv") == kind


def test_a_table_without_times_is_refused():
    with pytest.raises(InputError, match=r"x\.csv: a calibration table needs the columns"):
        table_kind(pd.DataFrame({"m": [1], "n": [1], "k": [1]}), "x.csv")


def made(**constants: float) -> Calibration:
    return Calibration(
        family="gemm", precision="bf16", constants=constants, kernel="cublas", fitted_on='a "name"\nwith\\all',
        error_percent=4.25,
    )  # fmt: skip


def test_a_device_file_keeps_everything_but_the_rows_that_are_new(tmp_path: Path):
    text = device_file(
        HardwareSpec.file_text("h100"), [made(matrix_efficiency=0.5, hbm_efficiency=0.8)], based_on="h100-sxm"
    )
    (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
    mine = HardwareSpec.load(tmp_path / "mine.toml")
    new = mine.calibration("gemm", "bf16")
    assert dict(new.constants) == {"matrix_efficiency": 0.5, "hbm_efficiency": 0.8}
    assert (new.fitted_on, new.error_percent) == ('a "name" with\\all', 4.2)
    assert {k: v for k, v in mine.calibrated.items() if k != ("gemm", "bf16")} == {
        k: v for k, v in H100.calibrated.items() if k != ("gemm", "bf16")
    }
    assert mine.figures() == H100.figures()
    assert mine.based_on == "h100-sxm"
    again = device_file(text, [made(matrix_efficiency=0.4)], based_on="h100-sxm")
    assert again.count("[calibrated.gemm.bf16]") == again.count("based_on") == 1


def test_every_constant_that_can_be_fitted_has_a_meaning_and_few_are():
    for family, names in BOUNDS.items():
        assert set(names) <= set(CONSTANTS[family])
        assert all(least <= start <= most for start, least, most in names.values())
        assert all(most <= 1 for name, (_, _, most) in names.items() if name.endswith("_efficiency"))
    for device in ("a100", "l40s", "h100", "b200", "mi300x", "mi355x"):
        spec = HardwareSpec.load(device)
        for family in BOUNDS:
            precisions = ("stream",) if family == "memory_bound" else ("bf16", "fp8", "fp8_block", "nvfp4")
            for precision in precisions if family in ("gemm", "moe", "memory_bound") else ("bf16", "fp8"):
                assert len(bounds(family, precision, spec)) <= (18 if family == "moe" else 8)
                own = spec.calibrated.get((family, precision))
                if own is not None and spec.vendor == "nvidia":
                    assert own.kernel == kernel(family, precision, spec)


def test_a_measured_without_rows_to_fit_has_no_groups():
    empty = Measured(
        family="gemm", precision="bf16", parts=(), time_us=np.array([]), groups=np.array([], str),
        use=np.array([], bool),
    )  # fmt: skip
    assert calibrate(empty, H100, "nothing").calibration is None
