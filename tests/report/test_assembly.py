"""Which sheets a report has, in which order, and what becomes of a broken one."""

from __future__ import annotations

import pandas as pd
import pytest

from tracelens.report.assembly import assemble
from tracelens.schema import sheet


def titles(assembly) -> list[str]:
    return [made.title for made in assembly.sheets]


def test_sheets_stand_in_the_order_users_know_with_families_last(analysis):
    assert titles(assemble(analysis)) == [
        "gpu_timeline",
        "kernel_summary",
        "unified_perf_summary",
        "EP_Communication",
        "GEMM",
    ]


def test_a_sheet_without_rows_is_left_out(analysis):
    assert "coll_analysis" in analysis.frames
    assert "coll_analysis" not in titles(assemble(analysis))


def test_dimensions_follow_the_name(analysis):
    gemm = next(made for made in assemble(analysis).sheets if made.title == "GEMM")
    assert [column.key for column in gemm.columns][:6] == [
        "name",
        "param_M",
        "param_N",
        "param_K",
        "param_bias",
        "gflops",
    ]


def test_a_token_exchange_has_no_hbm_column_and_a_gemm_no_wire_column(analysis):
    by_title = {made.title: list(made.frame.columns) for made in assemble(analysis).sheets}
    assert "effective_interconnect_tb_s_mean" in by_title["EP_Communication"]
    assert "hbm_tb_s_mean" not in by_title["EP_Communication"]
    assert "tflops_s_mean" in by_title["EP_Communication"]
    assert "hbm_tb_s_mean" in by_title["GEMM"]
    assert not [header for header in by_title["GEMM"] if "Interconnect" in header]


def test_an_extension_adds_a_sheet(analysis):
    @sheet("tokens")
    def tokens(result):
        """Tokens by op."""
        return result.frames["unified_perf_summary"][["name", "kernel_us_sum"]].assign(tokens=[1, 2, 3], _hidden=0)

    made = assemble(analysis, [tokens]).sheets[-1]
    assert (made.title, made.text) == ("tokens", "Tokens by op.")
    assert [column.key for column in made.columns] == ["name", "kernel_us_sum", "tokens"]


def test_a_broken_sheet_of_an_extension_costs_itself_and_says_where_it_is(analysis):
    @sheet("broken")
    def broken(result):
        return result.frames["no such frame"]

    assembly = assemble(analysis, [broken])
    assert titles(assembly) == titles(assemble(analysis))
    (notice,) = assembly.failures
    assert notice.id == "extension_failed"
    assert "'broken'" in notice.text
    assert "test_assembly.py" in notice.text
    assert "KeyError" in notice.text


def test_an_extension_does_not_leak_into_the_next_report(analysis):
    @sheet("tokens")
    def tokens(result):
        return pd.DataFrame({"name": ["x"]})

    assemble(analysis, [tokens])
    assert "tokens" not in titles(assemble(analysis))


def test_a_broken_sheet_of_the_core_is_an_error(analysis, monkeypatch):
    analysis.frames = None
    with pytest.raises(AttributeError):
        assemble(analysis)
