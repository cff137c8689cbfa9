"""Scripts that run one op: what is in them, what never is, and one run on PyTorch for CPUs."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.conftest import Builder
from tests.conftest import RealTrace
from tracelens.errors import NothingToAnalyzeError, UsageError
from tracelens.report.excerpts.op_scripts import op_scripts, write_scripts
from tracelens.trace.table import Kind

#: A Python with PyTorch: scripts need nothing else. .ci/run makes one.
PYTHON = os.environ.get("TRACELENS_TORCH_PYTHON") or (sys.executable if importlib.util.find_spec("torch") else "")
torch_only = pytest.mark.skipif(not PYTHON, reason="PyTorch is not installed, and TRACELENS_TORCH_PYTHON is not set")


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
    with pytest.raises(NothingToAnalyzeError, match="a string of more than one word"):
        op_scripts(built.launch(1, "gelu", 20, 5).trace(), op="aten::gelu")


def test_an_op_without_shapes_is_left_out_with_the_reason() -> None:
    built = Builder().op("aten::relu", 0, 9).launch(1, "relu", 20, 500).mm(16, 8, 4, 30, 540, 5)
    left_out, made = op_scripts(built.trace(), top=1)
    assert (left_out.file, left_out.why) == (None, "its shapes were not recorded")
    assert made.file == "002_aten_mm.py"
    with pytest.raises(UsageError, match="did you mean aten::mm"):
        op_scripts(built.trace(), op="aten::mn")


RUN_ALL = """
import contextlib, io, json, runpy, sys
for script in sys.argv[1:]:
    sys.argv, said = [script, "--device", "cpu", "--repeats", "2"], io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            runpy.run_path(script, run_name="__main__")
    except SystemExit as refused:
        said.write(f"{refused}")
    print(json.dumps(said.getvalue()))
"""


def run(folder: Path) -> list[str]:
    """What each script of a folder prints, in one process: most of the time is PyTorch's import."""
    scripts = sorted(map(str, folder.iterdir()))
    done = subprocess.run([PYTHON, "-c", RUN_ALL, *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@torch_only
def test_a_script_runs_and_yields_the_recorded_shapes(tmp_path: Path) -> None:
    write_scripts(op_scripts(Builder().mm(16, 8, 4, 0, 10, 5).trace(), op="aten::mm"), tmp_path / "ops")
    (output,) = run(tmp_path / "ops")
    assert output.startswith("aten::mm -> [16, 4]\n")
    assert "measured now on cpu" in output
    assert "5.00 us mean kernel time of the recording" in output


@torch_only
def test_a_script_says_in_a_sentence_what_is_missing(tmp_path: Path) -> None:
    built = Builder().op("fbgemm::f", 0, 9, **{"Input Dims": [[4]], "Input type": ["float"]}).launch(1, "f", 20, 9)
    clamped = {"Input Dims": [[4], []], "Input type": ["float", "Scalar"]}
    built.op("aten::clamp_min", 30, 9, **clamped).launch(31, "clamp", 50, 8)
    built.op("aten::index", 60, 9, **{"Input Dims": [[4], []], "Input type": ["float", ""]}).launch(61, "i", 80, 7)
    built.op("aten::relu", 90, 9, **{"Input Dims": [[1 << 50]], "Input type": ["float"]}).launch(91, "r", 110, 6)
    write_scripts(op_scripts(built.trace(), top=4), tmp_path / "ops")
    unknown, clamp, index, large = run(tmp_path / "ops")
    assert unknown == "fbgemm::f: PyTorch has no such op here; name the library that registers it with --import"
    assert clamp.splitlines()[:2] == ["aten::clamp_min -> [4]", "not recorded, so taken as: min=1"]
    assert index == "aten::index cannot be called here: indices was not recorded"
    assert large == "aten::relu: not enough memory on cpu: its tensors take 4503599.63 GB"


@torch_only
@pytest.mark.shared
@pytest.mark.parametrize(
    "name",
    [
        "h100/gaunernst_bert-small-uncased__1016001",
        "hta/amd_trace/mi250_minitoy_train_ROCm6_2_kineto",
        "perf_model/normalization/normalization_layer_test",
    ],
)
def test_the_ops_of_real_traces_run_and_yield_recorded_shapes(real_trace: RealTrace, name: str, tmp_path: Path) -> None:
    """Each result is what some recorded call takes, so its shape is among those of the trace."""
    trace = real_trace(name)
    table = trace.table
    shapes = {shape for row in table.rows_of((Kind.CPU_OP,)).tolist() for shape in table.signature_of(row).shapes or ()}
    write_scripts(op_scripts(trace, top=60), tmp_path / "ops")
    for output in run(tmp_path / "ops"):
        if "has no implementation for cpu" in output:
            continue
        assert "measured now on cpu" in output, output
        results = json.loads(output.splitlines()[0].partition(" -> ")[2].replace("None", "[]"))
        for shape in results if results and isinstance(results[0], list) else [results]:
            assert not shape or tuple(shape) in shapes, output
