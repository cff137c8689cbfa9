"""``Report``: tables by name, outputs whole or not at all, nothing of anybody else's overwritten."""

from __future__ import annotations

import pydoc
import re
from dataclasses import replace

import jsonschema
import numpy as np
import orjson
import pandas as pd
import pytest

import tracelens
from tracelens.errors import InputError, UsageError
from tracelens.report.explanation import explain
from tracelens.report.json_report import schema
from tracelens.report.result import Report
from tracelens.schema import sheet


@pytest.fixture
def report(analysis, summary) -> Report:
    return Report(analysis, summary)


def test_a_sheet_is_a_frame_under_the_headers_of_the_workbook(report):
    gemm = report["GEMM"]
    assert (gemm["name"][0], gemm["param_K"][0], gemm["kernel_us_sum"][0]) == ("aten::mm", 512, 40.0)
    assert list(report) == ["gpu_timeline", "kernel_summary", "unified_perf_summary", "EP_Communication", "GEMM"]
    assert "GEMM" in report
    assert "SDPA_fwd" not in report


def test_an_unknown_sheet_is_answered_with_the_names_there_are(report):
    with pytest.raises(UsageError, match="no sheet named 'attention'; known: EP_Communication, GEMM, "):
        report["attention"]


def test_ops_is_the_sheet_of_that_name(moe_report):
    assert moe_report.ops is moe_report["ops"]
    assert set(moe_report.ops["name"]) == set(moe_report.tables["ops"]["name"])


def test_sql_and_the_sheet_of_ops_sum_alike(moe_report):
    pytest.importorskip("duckdb", reason="the query extra is not installed")
    said = moe_report.sql("select sum(kernel_us_sum) as us, sum(operation_count) as calls from ops").iloc[0]
    assert said["us"] == pytest.approx(moe_report.ops["kernel_us_sum"].sum())
    assert said["calls"] == moe_report.ops["operation_count"].sum()


def test_a_column_has_one_name_in_sheets_and_in_sql(moe_report):
    of_sql = {name for table in moe_report.tables.values() for name in table.columns}
    own = {"shapes", "above_roofline_us", "module", "line"}
    assert set(moe_report["ops"].columns) - own <= of_sql
    assert set(moe_report["unified_perf_summary"].columns) <= of_sql
    assert {
        column.key for sheet in moe_report.sheets for column in sheet.columns if column.title == column.key
    } == set()


def test_a_notebook_shows_a_sheet_with_titles_units_and_formats(moe_report):
    ops = moe_report["ops"]
    shown = ops._repr_html_()
    assert ">Kernel time, sum (µs)</th>" in shown
    assert f"<td>{ops['kernel_us_sum'].iloc[0]:,.2f}</td>" in shown
    assert "173 rows × 14 columns" in shown
    assert "kernel_us_sum" in repr(ops[["kernel_us_sum"]])
    assert type(ops["name"]) is pd.Series
    part = ops.sort_values("operation_count")[["operation_count", "name"]].head(2)
    assert part._repr_html_().count("<tr>") == 3
    assert ">Calls</th>" in part._repr_html_()
    with pd.option_context("display.max_columns", 3):
        assert "not shown: operation_count, kernel_us_sum" in ops._repr_html_()
    with pd.option_context("display.notebook_repr_html", False):
        assert ops._repr_html_() is None


def test_text_of_a_trace_is_no_markup_in_a_table(report):
    frame = report["unified_perf_summary"].head(1)
    frame.loc[frame.index[0], "name"] = "<script>alert(1)</script>"
    assert "<script>" not in frame._repr_html_()
    assert "&lt;script&gt;" in frame._repr_html_()


@pytest.mark.parametrize("made", [lambda f: f.merge(f[["name"]]), lambda f: pd.concat([f, f], axis=1), lambda f: f.T,
                                  lambda f: f.set_index(["name", "category"]), lambda f: f.head(0),
                                  lambda f: f.groupby("category").agg({"kernel_us_sum": ["sum", "mean"]})])  # fmt: skip
def test_whatever_pandas_makes_of_a_table_can_be_shown(moe_report, made):
    assert made(moe_report["ops"].head(4))._repr_html_().startswith("<div")


def test_help_fits_on_one_screen_and_names_what_there_is():
    text = pydoc.plain(pydoc.render_doc(tracelens))
    assert len(text.splitlines()) <= 50
    assert "tl.report(" in text
    for name in dir(tracelens):
        assert name.startswith("__") or re.search(rf"\b{name}\b", text), name
        assert name == "__version__" or getattr(tracelens, name) is not None


def test_an_unknown_sheet_names_the_near_ones_whatever_their_case(report):
    with pytest.raises(UsageError, match="no sheet named 'gem'; did you mean GEMM"):
        report["gem"]


def test_explain_names_the_formula_the_device_figure_and_its_source(report):
    text = str(report.explain(report["unified_perf_summary"].iloc[0]))
    assert "2*b*m*n*k" in text
    assert "bf16 matrix peak: 1,307 TFLOPS/s (AMD data sheet, dense)" in text
    assert "measured: the kernels of a call take 10 µs, over 4 calls" in text
    assert "estimate: 5 µs by roofline, bound by compute; the call reaches 50 %" in text
    assert str(report.explain(0)) == str(report.explain(np.int64(0))) == text
    assert "no perf model" in str(report.explain(2))


def test_explain_takes_an_op_as_users_have_it(report):
    """Its name, its row in the full table or in the sheet that notebooks show; and refuses what is none in words."""
    ops = report["unified_perf_summary"]
    text, name = str(report.explain(0)), ops["name"].iloc[0]
    of_sheet = pd.Series({"name": name, "operation_count": 4}, name=ops.index[0])
    assert str(report.explain(name)) == str(report.explain(of_sheet)) == text
    with pytest.raises(UsageError, match="no op named 'aten::nothing'"):
        report.explain("aten::nothing")
    with pytest.raises(UsageError, match=r"there is no row 99"):
        report.explain(99)
    with pytest.raises(UsageError, match="this row is not one of them"):
        report.explain(report["kernel_summary"].iloc[0])


@pytest.mark.parametrize(
    ("hbm_mb", "figures", "why"),
    [
        (None, True, "the recorded arguments do not determine its bytes"),
        (1.0, True, "the device file has no rate for it"),
        (1.0, False, "pass --device"),
    ],
)
def test_explain_says_why_there_is_no_estimate(summary, hbm_mb, figures, why):
    device = replace(summary.device, note="recognized" if figures else "pass --device")
    row = {"name": "aten::_fused_adamw_", "model": "MultiTensor", "gflops": 1.0, "hbm_mb": hbm_mb}
    found = explain(row, device if figures else replace(device, figures=()))
    assert found.lines[-1] == f"no estimate: {why}"


def test_printing_a_report_gives_the_verdict_and_a_notebook_gets_it_escaped(report, analysis, summary):
    assert repr(report) == report.verdict()
    hostile = Report(analysis, replace(summary, extensions=(), input=replace(summary.input, file="<script>.json")))
    assert "<script>" in repr(hostile)
    assert "<script>" not in hostile._repr_html_()
    assert "&lt;script&gt;" in hostile._repr_html_()


def test_a_folder_holds_page_workbook_and_json(report, tmp_path):
    written = report.write(tmp_path / "t.report")
    assert sorted(path.name for path in (tmp_path / "t.report").iterdir()) == [
        "report.html",
        "report.json",
        "report.xlsx",
    ]
    jsonschema.validate(orjson.loads((written / "report.json").read_bytes()), schema())
    assert [path.name for path in tmp_path.iterdir()] == ["t.report"]


def test_writing_twice_gives_the_same_bytes_and_keeps_what_else_is_there(report, tmp_path):
    folder = tmp_path / "t.report"
    report.write(folder, csv=True)
    first = {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*.*"))}
    (folder / "notes.txt").write_text("mine")
    (folder / "csv" / "stale.csv").write_text("old")
    report.write(folder, csv=True)
    assert (folder / "notes.txt").read_text() == "mine"
    (folder / "notes.txt").unlink()
    assert {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*.*"))} == first


def test_an_empty_folder_is_filled(report, tmp_path):
    (tmp_path / "t.report").mkdir()
    report.write(tmp_path / "t.report")
    assert (tmp_path / "t.report" / "report.json").exists()


def test_a_folder_that_is_not_ours_is_never_touched(report, tmp_path):
    (tmp_path / "t.report").mkdir()
    (tmp_path / "t.report" / "report.json").write_text('{"theirs": 1}')
    with pytest.raises(UsageError, match="is not a tracelens report"):
        report.write(tmp_path / "t.report")
    assert [path.name for path in tmp_path.rglob("*")] == ["t.report", "report.json"]
    assert (tmp_path / "t.report" / "report.json").read_text() == '{"theirs": 1}'


def test_a_file_where_the_folder_should_be_is_an_error(report, tmp_path):
    (tmp_path / "t.report").write_text("")
    with pytest.raises(InputError, match="is a file"):
        report.write(tmp_path / "t.report")


def test_a_missing_parent_is_an_error_before_any_work(report, tmp_path):
    with pytest.raises(InputError, match="there is no folder"):
        report.write(tmp_path / "absent" / "t.report")


def test_when_the_json_fails_there_is_no_workbook_either(report, tmp_path, monkeypatch):
    def failing(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("tracelens.report.result.write_json", failing)
    with pytest.raises(KeyboardInterrupt):
        report.write(tmp_path / "t.report", csv=True)
    assert list(tmp_path.iterdir()) == []


def test_when_a_second_report_fails_the_first_one_stays(report, tmp_path, monkeypatch):
    folder = tmp_path / "t.report"
    report.write(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr("tracelens.report.result.write_json", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        report.write(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["t.report"]


def test_a_failed_extension_is_in_the_verdict_and_in_the_json(analysis, summary):
    @sheet("broken")
    def broken(result):
        raise ValueError("no")

    made = Report(analysis, summary, extensions=[broken])
    assert made.has_failed_extension
    assert "sheet 'broken' left out" in made.verdict()
    assert orjson.loads(made.to_json())["warnings"][0]["id"] == "extension_failed"


def test_a_report_without_gpu_work_has_no_ops(summary, analysis):
    analysis.frames.clear()
    analysis.families.clear()
    bare = Report(analysis, summary)
    assert list(bare) == []
    assert orjson.loads(bare.to_json())["ops"] == []
    assert bare.ops.empty


def test_a_report_without_any_table_is_still_a_workbook(summary, analysis, tmp_path):
    import openpyxl

    analysis.frames.clear()
    analysis.families.clear()
    assert openpyxl.load_workbook(Report(analysis, summary).to_excel(tmp_path / "y.xlsx")).sheetnames == ["about"]


def test_a_notebook_shows_tiles_and_findings_without_script_or_request(report, summary):
    shown = report._repr_html_()
    assert "Step time" in shown
    assert "Look here first" in shown
    assert "<script" not in shown
    assert "http" not in shown.replace("http://www.w3.org/2000/svg", "")
    assert ":root" not in shown.split("</style>")[0]  # styles nothing of the notebook around it
    assert shown.startswith('<div class="tracelens"><style>.tracelens {')


def test_the_package_lists_its_names_and_nothing_of_how_it_is_made():
    names = [name for name in dir(tracelens) if not name.startswith("__")]
    assert {"report", "load", "project", "serve"} <= set(names)
    assert not {"Any", "sys", "importlib", "ModuleType", "_Package"} & set(names)
