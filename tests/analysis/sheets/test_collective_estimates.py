"""What collectives of a trace should take on the device's links."""

from __future__ import annotations

import pandas as pd
import pytest

from tracelens.analysis.sheets.coll_analysis import with_bus_rate, with_estimates
from tracelens.analysis.sheets.priced_calls import with_estimated_totals
from tracelens.analysis.verdict.summary import CategoryRow
from tracelens.backends import System
from tracelens.backends.chain import chain
from tracelens.backends.collective_times import Collectives
from tracelens.perf_models import Collective, WorkColumns
from tracelens.report.figures import bound_text, shown_tb_s
from tracelens.types.dtypes import DType

NODE = System.load("h100-sxm")


def estimate(columns: WorkColumns):
    return chain("tile").estimate_many(columns, NODE)


def rows(*groups: str | None) -> pd.DataFrame:
    row = {"collective": "allreduce", "in_nelems": 1 << 24, "out_nelems": 1 << 24, "dtype": "Float", "group_size": 4}
    return pd.DataFrame([row | {"group_ranks": group, "duration_us_mean": 1000.0} for group in groups])


def test_a_collective_is_priced_where_its_ranks_stand():
    found = with_estimates(rows("[0, 2, 4, 6]", "[0, 8, 16, 24]"), estimate)
    one = Collective(kind="allreduce", elements_in=1 << 24, elements_out=1 << 24, ranks=4, stride=2, dtype=DType.FP32)
    assert found["estimated_us"][0] == Collectives().estimate(one, NODE).time_us
    assert found["estimated_by"].tolist() == ["collectives", "collectives"]
    # 64 MiB in a node, and between four nodes.
    assert found["estimated_us"][0] < found["estimated_us"][1] / 3
    assert found["percent_of_achievable"].tolist() == pytest.approx((found["estimated_us"] / 10).tolist())


@pytest.mark.parametrize("group", [None, "[0, 1, ..., 31]", "[0, 1, 4, 5]", "every rank", "[]", "7"])
def test_a_group_whose_ranks_are_not_known_has_no_estimate(group):
    found = with_estimates(rows(group), estimate)
    assert found["estimated_us"].isna().all()
    assert found["estimated_by"].tolist() == [None]


def test_without_a_chosen_backend_nothing_is_added():
    assert "estimated_us" not in with_estimates(rows("[0, 1, 2, 3]"), None)


def test_totals_are_of_the_calls_that_have_an_estimate():
    unified = pd.DataFrame(
        {
            "category": ["GEMM", "GEMM", "GEMM", "other"],
            "estimated_us": [10.0, 20.0, None, None],
            "operation_count": [3, 1, 5, 2],
            "kernel_us_sum": [60.0, 40.0, 500.0, 9.0],
        }
    )
    frame = pd.DataFrame({"category": ["GEMM", "other"]})
    found = with_estimated_totals(frame, unified, "category")
    # 3 * 10 + 20 of 60 + 40 us
    assert found["estimated_us_sum"].tolist()[0] == pytest.approx(50)
    assert found["percent_of_achievable"].tolist()[0] == pytest.approx(50)
    assert found.iloc[1, 1:].isna().all()
    assert with_estimated_totals(frame, unified.drop(columns="estimated_us"), "category") is frame


COLLECTIVES = CategoryRow(name="collectives", time_us=400.0, share=0.5)


@pytest.mark.parametrize(
    ("rates", "shown", "bound"),
    [
        ((100.0, 20.0), "40.0 GB/s", "unknown"),  # (100 x 100 + 300 x 20) / 400
        ((None, 20.0), "20.0 GB/s", "unknown"),
        ((100.0, None), None, "no model"),  # of a quarter of the time alone
        ((None, None), None, "no model"),
    ],
)
def test_the_line_of_collectives_has_the_bus_bandwidth_of_most_of_its_time(rates, shown: str | None, bound: str):
    frame = pd.DataFrame({"effective_bus_gb_s": rates, "duration_us_sum": [100.0, 300.0]})
    row = with_bus_rate(COLLECTIVES, frame)
    assert (shown_tb_s(row), bound_text(row)) == (shown, bound)


def test_without_a_table_of_collectives_their_line_stays():
    assert with_bus_rate(COLLECTIVES, pd.DataFrame()) is COLLECTIVES
