"""The sheet ``ops``: the rows of unified_perf_summary in few readable columns."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import tracelens as tl
from tracelens.analysis.sheets import perf_summary

TRACES = sorted((Path(__file__).parents[3] / "example_traces" / "moe_ep8").glob("*.json.gz"))[:2]


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_it_is_the_first_sheet_and_says_the_same_as_the_long_one(path):
    report = tl.report(tl.load(path))
    assert next(iter(report)) == "ops"
    short, long = report["ops"], report["unified_perf_summary"]
    assert len(short.columns) <= 15
    assert list(short["name"]) == list(long["name"])
    np.testing.assert_allclose(short["kernel_us_sum"], long["kernel_us_sum"])


def test_time_above_the_roofline_by_hand():
    rows = {
        "name": ["mm", "copy", "other"], "category": ["GEMM", "memory", "other"],
        "input_dims": ["((4, 8), (8, 2), ())", "((16,),)", None], "operation_count": [2, 1, 1],
        "kernel_us_sum": [4_000.0, 1_000.0, 500.0], "kernel_us_mean": [2_000.0, 1_000.0, 500.0],
        "percent": [72.7, 18.2, 9.1], "gflops": [1.0, 0.0, np.nan], "tflops_s_mean": [0.5, 0.0, np.nan],
        "hbm_tb_s_mean": [0.1, 2.0, np.nan], "roofline_bound": ["compute", "memory", None],
        "percent_of_roofline_mean": [25.0, 110.0, np.nan],
    }  # fmt: skip
    shown = perf_summary.overview(pd.DataFrame(rows), 11_000.0)
    np.testing.assert_allclose(
        shown["percent"], [400 / 11, 100 / 11, 50 / 11]
    )  # half of the GPU's time is collectives'
    # 4 ms at 25 % of the roofline: 3 ms above it; faster than the roofline: 0; without a model: unknown
    np.testing.assert_allclose(shown["above_roofline_us"], [3_000.0, 0.0, np.nan])
    assert list(shown["roofline_bound"])[:2] == ["compute", "HBM"]
    assert pd.isna(shown["roofline_bound"].iloc[2])
    assert list(shown["shapes"])[:2] == ["(4, 8), (8, 2)", "(16,)"]
    assert pd.isna(shown["shapes"].iloc[2])
    assert shown["tflops_s_mean"].isna().tolist() == [False, True, True]  # a copy does no arithmetic
