"""Ops that do not say how much they move, read with their kernel, gradient and caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tracelens.analysis.analyze import Analysis, analyze
from tracelens.analysis.loaded_trace import AnalysisOptions

Build = Callable[[], Any]
COPY = "void at::native::CatArrayBatchedCopy<at::native::OpaqueType<{}u>, unsigned int, 3, 64, 64>()"
SIZED = {"Input Dims": [[[4, 8], [4, 8]], []], "Input type": ["TensorList", "Scalar"], "Concrete Inputs": ["", "0"]}
UNSIZED = {"Input Dims": [[], []], "Input type": ["TensorList", "Scalar"], "Concrete Inputs": ["", "0"]}


def bytes_of(found: Analysis, name: str) -> list[float]:
    rows = found.frames["unified_perf_summary"]
    return sorted(1e6 * rows[rows["name"] == name]["hbm_mb"])


def test_concatenations_alike_but_for_their_kernel_are_rows_of_their_own(build: Build):
    made = build()
    for i, width in enumerate((2, 2, 8)):
        made.op("aten::cat", 100 * i, 20, **SIZED).launch(100 * i + 1, COPY.format(width), 100 * i + 30, 5)
    found = analyze(made.trace(), AnalysisOptions(), on_demand=True)
    assert bytes_of(found, "aten::cat") == pytest.approx([2 * 2 * 64, 2 * 8 * 64])


def test_several_kernels_of_one_concatenation_say_the_width_once(build: Build):
    made = build().op("aten::cat", 0, 20, **SIZED)
    made.launch(1, COPY.format(4), 30, 5).launch(2, COPY.format(4), 36, 5)
    assert bytes_of(analyze(made.trace(), AnalysisOptions(), on_demand=True), "aten::cat") == pytest.approx(
        [2 * 4 * 64]
    )


def test_the_backward_node_of_the_same_number_says_the_size(build: Build):
    made = build().op("aten::cat", 0, 20, **UNSIZED, **{"Sequence number": 3, "Fwd thread id": 0})
    made.launch(1, COPY.format(2), 30, 5)
    node = {"Sequence number": 3, "Fwd thread id": 1}
    made.op("autograd::engine::evaluate_function: CatBackward0", 200, 50, 2, **node)
    made.op("CatBackward0", 205, 40, 2, **node, **{"Input Dims": [[16, 416]], "Input type": ["float"]})
    made.op("aten::mul", 210, 20, 2, **{"Input Dims": [[16, 416], [16, 416]], "Input type": ["float", "float"]})
    made.launch(211, "mul_kernel", 240, 5, tid=2)
    assert bytes_of(analyze(made.trace(), AnalysisOptions(), on_demand=True), "aten::cat") == pytest.approx(
        [2 * 2 * 16 * 416]
    )


def test_a_concatenation_of_unknown_size_counts_as_unknown(build: Build):
    made = build().op("aten::cat", 0, 20, **UNSIZED).launch(1, COPY.format(2), 30, 5)
    found = analyze(made.trace(), AnalysisOptions(), on_demand=True)
    assert found.coverage.perf_model == 0
    row = found.frames["unified_perf_summary"].iloc[0]
    assert (row["name"], row["category"]) == ("aten::cat", "memory")
    assert row[["gflops", "hbm_mb"]].isna().all()


def test_a_model_without_flops_and_bytes_is_no_coverage(build: Build):
    made = build().op("aten::cat", 0, 20, **SIZED).launch(1, "copy_kernel", 30, 5)
    assert analyze(made.trace(), AnalysisOptions(), on_demand=True).coverage.perf_model == 0
    made = build().op("aten::cat", 0, 20, **SIZED).launch(1, COPY.format(2), 30, 5)
    assert analyze(made.trace(), AnalysisOptions(), on_demand=True).coverage.perf_model == 1


@pytest.mark.parametrize(
    ("result", "gflops"), [([2, 16, 4, 4], 2 * 2 * 16 * 4 * 4 * 8 * 3 * 3 / 1e9), ([2, 8, 8, 8], None)]
)
def test_a_convolution_without_numbers_takes_its_result_from_the_op_that_follows(
    build: Build, result: list[int], gflops: float | None
):
    """x [2, 8, 8, 8], w [16, 8, 3, 3]: a result of [2, 16, 4, 4] is stride 2; an input of 8 channels is no result."""
    record = {"Input Dims": [[2, 8, 8, 8], [16, 8, 3, 3], [], []], "Input type": ["float", "float", "", ""]}
    made = build().op("aten::conv2d", 0, 40, **record).op("aten::cudnn_convolution", 5, 30, **record)
    made.launch(6, "implicit_convolve_sgemm", 60, 50)
    made.op("aten::add", 45, 5, **{"Input Dims": [[], []], "Input type": ["long int", "Scalar"]})
    made.op("aten::batch_norm", 55, 5, **{"Input Dims": [result], "Input type": ["float"]})
    rows = analyze(made.trace(), AnalysisOptions(), on_demand=True).frames["unified_perf_summary"]
    row = rows[rows["name"].str.startswith("aten::c")].iloc[0]
    assert row["category"] == "CONV_fwd"
    assert row["gflops"] == (pytest.approx(gflops) if gflops is not None else pytest.approx(float("nan"), nan_ok=True))
