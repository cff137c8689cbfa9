"""Constants of engines' kernels from a table that a user measured, in the user's device file."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import tracelens as tl
from tests.conftest import part
from tracelens.backends.kernels import kernel_table, kernel_tables
from tracelens.cli import main
from tracelens.errors import InputError
from tracelens.hardware import HardwareSpec
from tracelens.predict.calibration.kernel_calibration import calibrated_kernels, table_of

SIZES = pd.DataFrame([(m, k) for m in (1, 64, 512, 4096, 16384) for k in (1024, 4096, 8192)], columns=["m", "k"])


def measured(factor: float) -> pd.DataFrame:
    """Quantization on an H200 whose kernels take ``factor`` times as long, launches included."""
    rows = SIZES.assign(framework="vllm", quant_dtype="fp8", device="h200_sxm")
    return rows.assign(latency_ms=tl.estimate("quantize-matrix", rows)["time_us"] * factor / 1e3)


def test_a_users_measurements_of_a_kernel_make_its_estimates(tmp_path, capsys):
    path, made = tmp_path / "quantize_matrix.csv", tmp_path / "mine.toml"
    measured(1.6).to_csv(path, index=False)
    assert main(["calibrate", str(path), "--device", "h200", "-o", str(made)]) == 0
    line = next(row for row in capsys.readouterr().out.splitlines() if row.startswith("quantize-matrix"))
    # estimates were 1 / 1.6 of the measured times
    assert "37.5 %" in line
    asked = SIZES.assign(framework="vllm", quant_dtype="fp8")
    found = tl.estimate("quantize-matrix", asked, device=str(made))
    off = found["time_us"] / (measured(1.6)["latency_ms"] * 1e3) - 1
    assert off.abs().mean() < 0.05
    # other libraries' kernels are still those of the device that it is based on
    other = asked.assign(framework="sglang")
    times = [tl.estimate("quantize-matrix", other, device=name)["time_us"].tolist() for name in (str(made), "h200")]
    assert times[0] == times[1]


def test_a_file_of_two_shapes_changes_nothing(tmp_path, capsys):
    path = tmp_path / "quantize_matrix.csv"
    measured(1.6).iloc[[0, 1, 0, 1]].to_csv(path, index=False)
    assert main(["calibrate", str(path), "--device", "h200", "-o", str(tmp_path / "mine.toml")]) == 3
    assert "2 shape groups determine no constant: not fitted" in capsys.readouterr().out
    assert not (tmp_path / "mine.toml").exists()


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("fitted = [{ rows = 4 }]", r"kernels.gdn.fitted\[0\].constants must be a table of numbers"),
        ("fitted = 7", "kernels.gdn.fitted must be a list of tables"),
        ("fitted = [{ rows = 4, constants = { l2 = 'x' } }]", r"fitted\[0\].constants.l2 must be a number"),
    ],
)
def test_damaged_constants_are_named(tmp_path, row, fault):
    path = tmp_path / "mine.toml"
    path.write_text(HardwareSpec.file_text("h200") + f"\n[kernels.gdn]\n{row}\nfitted_on = 'me'\n")
    with pytest.raises(InputError, match=fault):
        HardwareSpec.load(path)


@pytest.mark.shared
@pytest.mark.parametrize("name", part(sorted(kernel_tables()), 4))
def test_every_measured_table_is_taken_as_it_stands(name, shared_data):
    """A few shape groups of one kernel on one device, by the file's name."""
    pytest.importorskip("pyarrow")
    folder = "tables" if name.endswith("-aiter") else "silicon"
    path = Path(shared_data) / folder / f"{name.replace('-', '_')}.parquet"
    table = kernel_table(name)
    assert table is not None
    assert table_of(path) is table
    frame = pd.read_parquet(path)
    cases = [each for each in ("device", "framework", "version", "kernel_source", *table.cases) if each in frame]
    alike = frame.groupby(cases).ngroup()
    part = frame[alike == alike.value_counts().index[0]]
    part = part.iloc[:: -(-len(part) // 40)]
    found = list(calibrated_kernels(table, part, HardwareSpec.load(part["device"].iloc[0])))
    made = [each for each in found if each.made is not None]
    assert made
    for each in made:
        assert each.outcome.after <= 1.1 * max(each.outcome.before, 5)
