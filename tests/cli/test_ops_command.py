"""tracelens ops: the map from op names to perf models."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tracelens.cli import main

MINE = """
from tracelens import CategoryOf, GEMM, OpSignature, traced_as

@traced_as("my_lib::gemm")
def _gemm(op: OpSignature) -> GEMM:
    return GEMM(m=1, n=1, k=1)

OTHERS = CategoryOf(category="MoE_aux", names=("my_lib::sort",))
"""


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[list[str]]:
    assert main(["ops", *arguments]) == 0
    return [line.split(None, 3) for line in capsys.readouterr().out.splitlines()]


def test_a_name_is_listed_with_model_category_and_source(capsys: pytest.CaptureFixture[str]):
    header, row, *_ = listed(capsys, "--extension", "none", "aten::addmm")
    assert header == ["name", "category", "model", "source"]
    assert row[:3] == ["aten::addmm", "GEMM", "GEMM"]
    assert row[3].startswith("perf_models/gemm.py:")


def test_bundled_extensions_are_listed_unless_named(capsys: pytest.CaptureFixture[str]):
    assert "aiter::mhc_post" in [row[0] for row in listed(capsys) if row]
    assert "aiter::mhc_post" not in [row[0] for row in listed(capsys, "--extension", "vllm") if row]


def test_patterns_and_names_without_a_model_are_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "mine.py"
    path.write_text(MINE, encoding="utf-8")
    rows = {row[0]: row[1:3] for row in listed(capsys, "--extension", str(path)) if len(row) > 2}
    assert rows["my_lib::gemm"] == ["GEMM", "GEMM"]
    assert rows["my_lib::sort"] == ["MoE_aux", "-"]
    assert rows["/^triton_(poi|red|per|spl)_fused/"] == ["triton", "FusedKernel"]


def test_ops_that_are_taken_apart_and_backwards_by_their_forward_say_so(capsys: pytest.CaptureFixture[str]):
    assert main(["ops"]) == 0
    rows = {
        cells[0]: cells[1:3] for line in capsys.readouterr().out.splitlines() if (cells := re.split(r" {2,}", line))
    }
    assert rows["vllm::moe_forward"] == ["MoE_unfused", "its inner ops"]
    assert rows["_GroupedLinearBackward"] == ["GroupedGEMM_bwd", "backward of _GroupedLinear"]


def test_in_a_terminal_a_long_name_has_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "150")
    assert main(["ops", "--extension", "sglang", "sglang_profiler::quant_dynamic"]) == 0
    _, name, rest, *_ = capsys.readouterr().out.splitlines()
    assert name.startswith("/^sglang_profiler::quant_dynamic_mxfp4_quant")
    assert rest.split()[:2] == ["GroupQuant", "GroupQuant"]
    assert len(rest) <= 150
