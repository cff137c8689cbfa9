"""Scripts that run one op: what is in them, what never is, and one run on PyTorch for CPUs."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.conftest import Builder
from tests.conftest import RealTrace
from tracelens.errors import NothingToAnalyzeError, UsageError
from tracelens.excerpts.op_scripts import op_scripts, write_scripts

torch_only = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")


def recorded_call(text: str) -> dict[str, Any]:
    """The literal of a script."""
    (found,) = [
        node.value
        for node in ast.parse(text).body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "CALL"
    ]
    return ast.literal_eval(found)


def test_the_arguments_are_those_recorded() -> None:
    (script,) = op_scripts(Builder().mm(16, 8, 4, 0, 10, 5).trace(), op="aten::mm")
    call = recorded_call(script.text)
    assert (call["namespace"], call["name"]) == ("aten", "mm")
    assert call["arguments"] == [
        {"kind": "tensor", "shape": [16, 8], "dtype": "c10::BFloat16", "strides": [8, 1]},
        {"kind": "tensor", "shape": [8, 4], "dtype": "c10::BFloat16", "strides": [4, 1]},
    ]
    assert call["expected_us"]["mean kernel time of the recording"] == 5


@pytest.mark.parametrize(
    "name", ["aten::mm'); import os; ('", "__import__('os').system('x')::mm", "aten::m m", "aten::mm\n", "aten"]
)
def test_a_name_that_is_no_identifier_never_becomes_code(name: str) -> None:
    built = Builder().op(name, 0, 9, **{"Input Dims": [[4]], "Input type": ["float"]}).launch(1, "kernel", 20, 5)
    with pytest.raises(NothingToAnalyzeError, match="no op of a library"):
        op_scripts(built.trace(), top=1)


@pytest.mark.parametrize("text", ["'); __import__('os').system('touch /tmp/evil'); ('", "/etc/passwd", "..", "x" * 99])
def test_texts_that_are_no_words_are_never_in_a_script(text: str) -> None:
    built = Builder().op(
        "aten::gelu", 0, 9, **{"Input Dims": [[4], []], "Input type": ["float", ""], "Concrete Inputs": ["", text]}
    )
    with pytest.raises(NothingToAnalyzeError, match="a text that is no word"):
        op_scripts(built.launch(1, "gelu", 20, 5).trace(), op="aten::gelu")


def test_an_op_without_shapes_is_left_out_with_the_reason() -> None:
    built = Builder().op("aten::relu", 0, 9).launch(1, "relu", 20, 500).mm(16, 8, 4, 30, 540, 5)
    left_out, made = op_scripts(built.trace(), top=1)
    assert (left_out.file, left_out.why) == (None, "its shapes were not recorded")
    assert made.file == "002_aten_mm.py"
    with pytest.raises(UsageError, match="did you mean aten::mm"):
        op_scripts(built.trace(), op="aten::mn")


def run(script: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(script), "--device", "cpu", "--repeats", "2"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@torch_only
def test_a_script_runs_and_yields_the_recorded_shapes(tmp_path: Path) -> None:
    write_scripts(op_scripts(Builder().mm(16, 8, 4, 0, 10, 5).trace(), op="aten::mm"), tmp_path / "ops")
    (script,) = sorted((tmp_path / "ops").iterdir())
    output = run(script)
    assert output.startswith("aten::mm -> [16, 4]\n")
    assert "measured now on cpu" in output
    assert "5.00 us mean kernel time of the recording" in output


@torch_only
@pytest.mark.shared
@pytest.mark.parametrize("op", ["aten::addmm", "aten::layer_norm", "aten::gelu", "aten::index_select"])
def test_the_ops_of_a_real_trace_run(real_trace: RealTrace, op: str, tmp_path: Path) -> None:
    scripts = op_scripts(real_trace("h100/gaunernst_bert-small-uncased__1016001"), op=op)
    write_scripts(scripts, tmp_path / "ops")
    for script in scripts:
        assert script.file is not None
        (line, *_) = run(tmp_path / "ops" / script.file).splitlines()
        (first, *others) = [a["shape"] for a in recorded_call(script.text)["arguments"] if a["kind"] == "tensor"]
        if op == "aten::addmm":
            first = [others[0][0], others[1][1]]
        if op == "aten::index_select":
            first = [*others[0], first[-1]]
        assert line == f"{op} -> {first}"
