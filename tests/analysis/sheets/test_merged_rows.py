"""A row of calls with other arguments says ``*`` for these, and the arguments where they are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import RealAnalysis, part
from tracelens.analysis.analyze import Analysis, analyze
from tracelens.analysis.loaded_trace import AnalysisOptions
from tracelens.types.signature import recorded_text

Build = Callable[[], Any]
ARGUMENTS = {"input_dims": "shapes", "input_types": "dtypes", "input_strides": "strides", "concrete_inputs": "scalars"}


def texts_of_calls(found: Analysis, row: int, argument: str) -> set[str | None]:
    """What the ops that launched this row's kernels recorded."""
    assert found.row_of_event is not None
    ops = found.activity.op[found.row_of_event == row]
    return {recorded_text(getattr(found.trace.table.signature_of(int(op)), argument)) for op in ops.tolist()}


@pytest.mark.shared
@pytest.mark.parametrize(
    "name", part(["b200/eager_trace", "more/torchrec_pr1460/sst_long_a2a_optimizer_5/rank0.pt.trace"], 2)
)
def test_rows_of_one_kernel_show_a_star_exactly_where_their_ops_differ(real_analysis: RealAnalysis, name: str):
    found = real_analysis(name, on_demand=True)
    rows = found.frames["unified_perf_summary"]
    merged = rows[rows["name"].str.contains("->")]
    assert len(merged) > 0
    for row in merged.index:
        for key, argument in ARGUMENTS.items():
            texts = texts_of_calls(found, row, argument)
            assert rows.loc[row, key] == ("*" if len(texts) > 1 else texts.pop()), (rows.loc[row, "name"], key)


@pytest.mark.shared
def test_copies_of_many_sizes_are_one_row_with_a_star_in_ops_too(real_analysis: RealAnalysis):
    ops = real_analysis("b200/eager_trace", on_demand=True).frames["ops"].set_index("name")
    assert ops.loc["aten::copy_->Memcpy HtoD (Pinned -> Device)", "shapes"] == "*"


@pytest.mark.parametrize(("other", "shown"), [([16], "*"), ([8], "((8,), (8,))")])
def test_copies_of_two_sizes(build: Build, other: list[int], shown: str):
    b = build()
    for at, shape in ((0, [8]), (100, other)):
        kinds = {"Input type": ["float", "float"], "Input Strides": [[1], [1]], "Concrete Inputs": ["", ""]}
        b.op("aten::copy_", at, 20, **{"Input Dims": [shape, shape], **kinds})
        b.launch(at + 1, "Memcpy DtoH (Device -> Pinned)", at + 30, 5, cat="gpu_memcpy")
    row = analyze(b.trace(), AnalysisOptions(), on_demand=True).frames["unified_perf_summary"].iloc[0]
    assert (row["operation_count"], row["input_dims"]) == (2, shown)
    assert row["input_types"] == "('float', 'float')"
