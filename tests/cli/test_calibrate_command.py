"""``tracelens calibrate``: measured times in, a device file out that other commands take."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tracelens.backends.tiles.gemm_tiles import GEMMColumns
from tracelens.cli import main
from tracelens.hardware import HardwareSpec
from tracelens.predict.calibration.measurements import analysis_measured, report_measured

SIZES = (1024, 8192)


def table(path: Path) -> Path:
    """GEMMs that take a fifth longer than an H200 should."""
    shapes = np.array([(m, n, k) for m in (16, 256, 4096) for n in SIZES for k in SIZES], dtype=np.float64)
    time = GEMMColumns.of("bf16", *shapes.T).price(HardwareSpec.load("h200")).time_us * 1.2
    pd.DataFrame(shapes.astype(int), columns=["m", "n", "k"]).assign(time_us=time).to_csv(path, index=False)
    return path


def test_a_table_becomes_a_device_that_estimates_like_it(tmp_path, capsys):
    out = tmp_path / "mine.toml"
    assert main(["calibrate", str(table(tmp_path / "gemm.csv")), "--device", "h200", "-o", str(out)]) == 0
    header, row, *_ = capsys.readouterr().out.splitlines()
    assert header.split() == ["family", "precision", "calls", "groups", "before", "after", "unseen"]
    assert row.split()[:4] == ["gemm", "bf16", "12", "4"]
    # 1 / 1.2: 17 % too fast before.
    assert float(row.split()[4]) == pytest.approx(16.7, abs=0.1)
    assert float(row.split()[6]) < 3
    size = ["--m", "4096", "--n", "8192", "--k", "8192"]
    assert main(["estimate", "gemm", *size, "--device", f"h200,{out}"]) == 0
    _, first, second = capsys.readouterr().out.splitlines()
    assert second.split()[0] == "mine"
    assert float(second.split()[1]) / float(first.split()[1]) == pytest.approx(1.2, rel=0.03)
    assert (
        main(["estimate", "collective", "--op", "all_reduce", "--bytes", "1e8", "--ranks", "8", "--device", str(out)])
        == 0
    )
    assert "mine in its standard node, dgx-h200" in capsys.readouterr().out


def test_a_trace_and_its_report_are_the_same_measurements(tmp_path, moe_report):
    moe_report.to_json(tmp_path / "r.json")
    of_trace = analysis_measured(moe_report.result)
    of_report, device = report_measured(tmp_path / "r.json")
    assert device == "mi300x"
    shown = [
        [(m.family, m.precision, m.time_us.tolist(), m.groups.tolist()) for m in some] for some in (of_trace, of_report)
    ]
    assert shown[0] == shown[1]
    assert {"gemm", "prefill", "backward", "memory_bound"} <= {family for family, *_ in shown[0]}


@pytest.mark.sweep
def test_a_trace_becomes_a_device_that_its_report_takes(tmp_path, repository):
    trace, out = str(repository / "example_traces" / "moe_ep8" / "rank0.json.gz"), str(tmp_path / "mine.toml")
    assert main(["calibrate", trace, "--device", "mi300x", "-o", out]) == 0
    assert main(["report", trace, "--device", out, "--backend", "tile", "-o", str(tmp_path / "x.json")]) == 0
    assert json.loads((tmp_path / "x.json").read_text())["device"]["id"] == "mine"


def test_files_that_determine_nothing_write_nothing(tmp_path, capsys):
    pd.DataFrame({"m": [64], "n": [64], "k": [64], "time_us": [5.0]}).to_csv(tmp_path / "one.csv", index=False)
    out = tmp_path / "mine.toml"
    assert main(["calibrate", str(tmp_path / "one.csv"), "--device", "h200", "-o", str(out)]) == 3
    assert "1 shape groups determine no constant" in capsys.readouterr().out
    assert not out.exists()


def test_a_report_of_another_device_is_said(tmp_path, capsys):
    document = {"schema": "tracelens.report/1", "device": {"id": "b200"}, "extensions": [], "ops": []}
    (tmp_path / "r.json").write_text(json.dumps(document))
    assert main(["calibrate", str(tmp_path / "r.json"), "--device", "h200", "-o", str(tmp_path / "x.toml")]) == 3
    assert "r.json names b200, not h200-sxm" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argument", "message"),
    [("out.txt", "ends in .toml"), ("x.toml", "cannot be read as a table")],
)
def test_bad_input_is_one_sentence(tmp_path, capsys, argument, message):
    (tmp_path / "in.csv").write_bytes(b"\x00\xff\xfe,,\n\x00")
    code = main(["calibrate", str(tmp_path / "in.csv"), "--device", "h200", "-o", str(tmp_path / argument)])
    assert code in (1, 2)
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.sweep
@pytest.mark.shared
def test_real_traces_of_an_mi300x_run_through(shared_traces, tmp_path, capsys):
    files = sorted(str(path) for path in (shared_traces / "mi300").glob("F*.json.gz"))
    assert main(["calibrate", *files, "--device", "mi300x", "-o", str(tmp_path / "mine.toml")]) == 0
    found = HardwareSpec.load(tmp_path / "mine.toml").calibration("gemm", "bf16")
    assert found.fitted_on.startswith("tracelens calibrate")
    assert "memory_bound" in capsys.readouterr().out
