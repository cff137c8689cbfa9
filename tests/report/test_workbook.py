"""The workbook: dressed, deterministic, whole or absent, and deaf to what trace text tries to be."""

from __future__ import annotations

import io
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tracelens.analysis.sheets.perf_summary import KERNEL_SUMMARY_COLUMNS as KERNELS
from tracelens.analysis.sheets.perf_summary import UNIFIED_PERF_SUMMARY_COLUMNS as UNIFIED
from tracelens.report import xlsx_file
from tracelens.report.assembly import assemble, make_sheet
from tracelens.report.workbook import about_lines, write_workbook, write_workbook_to


def sheet_of(title: str = "t", **columns):
    return make_sheet(title, pd.DataFrame(columns), UNIFIED)


def written(sheets, summary, **options) -> openpyxl.Workbook:
    return openpyxl.load_workbook(io.BytesIO(raw(sheets, summary, **options)))


def raw(sheets, summary, **options) -> bytes:
    file = io.BytesIO()
    write_workbook_to(file, sheets, summary, **options)
    return file.getvalue()


@pytest.fixture
def book(analysis, summary) -> openpyxl.Workbook:
    return written(assemble(analysis).sheets, summary)


def test_about_comes_first_and_the_families_last(book):
    assert book.sheetnames == [
        "about",
        "gpu_timeline",
        "kernel_summary",
        "unified_perf_summary",
        "EP_Communication",
        "GEMM",
    ]


def test_every_table_has_a_frozen_corner_a_filter_and_a_wrapped_header(book):
    for ws in book.worksheets[1:]:
        assert ws.freeze_panes == "B2"
        assert ws.auto_filter.ref == ws.dimensions
        assert all(cell.alignment.wrap_text and cell.font.bold for cell in ws[1])
        assert all(8 <= dimension.width <= 75 for dimension in ws.column_dimensions.values())


def test_headers_carry_their_note(book):
    notes = {cell.value: cell.comment.text for cell in book["GEMM"][1] if cell.comment}
    assert "HBM" in notes["HBM bandwidth, mean (TB/s)"]
    wire = {cell.value: cell.comment.text for cell in book["EP_Communication"][1] if cell.comment}
    assert "interconnect" in wire["Effective interconnect bandwidth, mean (TB/s)"]


def test_numbers_stay_numbers_under_a_format(book):
    ws = book["GEMM"]
    cells = {ws.cell(1, c).value: ws.cell(2, c) for c in range(1, ws.max_column + 1)}
    assert (cells["Parameter M"].value, cells["Kernel time, mean (\u00b5s)"].value) == (128, 10.0)
    assert cells["Kernel time, mean (\u00b5s)"].number_format == "#,##0.00"
    assert cells["Calls"].number_format == "#,##0"
    assert cells["Kernel time, std (\u00b5s)"].value is None
    assert cells["Parameter bias"].value is False


def test_shares_have_bars_and_above_the_roofline_is_red(book):
    kinds = {ws.title: {r.type for rules in ws.conditional_formatting for r in rules.rules} for ws in book.worksheets}
    assert kinds["gpu_timeline"] == {"dataBar"}
    assert kinds["GEMM"] == {"cellIs", "colorScale"}
    red = [r for rules in book["GEMM"].conditional_formatting for r in rules.rules if r.type == "cellIs"]
    assert all(r.operator == "greaterThan" and r.formula == ["100"] for r in red)


def test_about_names_the_file_the_device_its_sources_the_coverage_and_every_column(book):
    rows = [[cell.value for cell in row] for row in book["about"].iter_rows()]
    text = "\n".join(str(value) for row in rows for value in row if value is not None)
    for expected in (
        "moe-16b.pt.trace.json.gz",
        "MI300X",
        "AMD data sheet, dense",
        "fp6 matrix peak",
        "14 device events",
        "steps 0-2",
    ):
        assert expected in text
    assert ["With a perf model", 0.912] in [row[:2] for row in rows]
    first = [row[0] for row in rows]
    assert {
        "Effective interconnect bandwidth, * (TB/s)",
        "Kernel time, * (\u00b5s)",
        "Parameter *",
        "Work (GFLOP)",
    } <= set(first)
    assert ["Kernel time, * (\u00b5s)", "kernel_us_*"] in [row[:2] for row in rows]


def test_about_says_what_all_sheets_are_of_and_what_of_the_file_they_are_not(book):
    """700 + 36 ms inside and outside: 736 ms in the file."""
    rows = [[cell.value for cell in row] for row in book["about"].iter_rows()]
    said = {row[0]: row[1:] for row in rows}
    heading = "Sheets: totals over the 4 complete steps, unless a sheet says otherwise"
    assert {"4 complete steps (ms)", heading} <= set(said)
    assert said["Scope of all sheets"][0] == "4 steps (ProfilerStep 3-6)"
    assert said["  in scope"][:2] == [700.0, 9_000]
    assert said["  excluded"] == [36.0, 14, "launched before profiling began"]
    assert said["  in the file"][:2] == [736.0, 9_014]


def test_about_prints_its_text_and_not_the_chart_beside_it(book):
    assert book["about"].print_area == f"'about'!$A$1:$D${book['about'].max_row}"


def test_about_leads_to_every_sheet(book):
    links = {
        cell.value: cell.hyperlink.location
        for row in book["about"].iter_rows(max_col=1)
        for cell in row
        if cell.hyperlink
    }
    assert links == {title: f"'{title}'!A1" for title in book.sheetnames[1:]}


def test_small_summaries_have_a_chart_and_wide_tables_do_not(analysis, summary):
    with zipfile.ZipFile(io.BytesIO(raw(assemble(analysis).sheets, summary))) as archive:
        charts = [archive.read(name).decode() for name in archive.namelist() if "charts/chart" in name]
    chart, again = charts  # beside the verdict too
    assert again == chart
    assert "GPU time: computation, exposed communication" in chart
    assert "'gpu_timeline'!$A$2:$A$3" in chart
    assert "'gpu_timeline'!$C$2:$C$3" in chart


DANGEROUS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "#N/A", '=HYPERLINK("http://x")', "{=1}"]


def test_no_text_of_a_trace_is_a_formula(summary):
    names = DANGEROUS
    book = written([sheet_of(name=names, input_dims=names)], summary)
    cells = [cell for row in book["t"].iter_rows(min_row=2) for cell in row]
    assert {cell.data_type for cell in cells} == {"s"}
    assert [cell.value for cell in book["t"]["A"][1:]] == [name.replace("\r", "\u240d") for name in names]
    quoted = [name for name, cell in zip(names, book["t"]["A"][1:], strict=True) if cell.quotePrefix]
    assert quoted == ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", '=HYPERLINK("http://x")']


def test_no_formula_is_anywhere_in_the_file(analysis, summary):
    with zipfile.ZipFile(io.BytesIO(raw(assemble(analysis).sheets, summary))) as archive:
        pages = [archive.read(name) for name in archive.namelist() if "worksheets/sheet" in name]
    assert len(pages) == 6
    assert not [page for page in pages if b"<f>" in page or b"<f " in page]


@settings(max_examples=examples(30), deadline=None)
@given(st.text(alphabet=st.characters(), min_size=1, max_size=30))
@example("\ud800")
def test_any_text_survives_or_is_visibly_replaced(text):
    from tracelens.analysis.verdict.summary import DeviceSummary, InputSummary, Summary

    summary = Summary(
        input=InputSummary(file=text, events=1), device=DeviceSummary(id=None, label=text, matched_by="none")
    )
    # pandas' own texts, which pyarrow stores, cannot hold a lone surrogate
    book = written([sheet_of(title=text, name=pd.Series([text, "x"], dtype=object))], summary)
    value = book.worksheets[1]["A2"].value
    assert len(value) == len(text)
    assert [
        b for a, b in zip(text, value, strict=True) if a != b and b != "\ufffd" and not "\u2400" <= b <= "\u241f"
    ] == []


def test_a_control_character_is_shown_as_a_picture(summary):
    assert written([sheet_of(name=["a\x1b[2J\x00"])], summary)["t"]["A2"].value == "a\u241b[2J\u2400"


def test_missing_values_are_empty_and_numpy_scalars_are_numbers(summary):
    frame = {"name": ["a", None], "gflops": np.array([np.nan, np.float32(0.5)]), "operation_count": np.array([2, 3])}
    ws = written([sheet_of(**frame)], summary)["t"]
    assert [[cell.value for cell in row] for row in ws.iter_rows(min_row=2)] == [["a", 2, None], [None, 3, 0.5]]


def test_a_number_is_read_back_to_its_last_digit_and_a_text_with_its_markup_and_blanks(summary):
    texts = [" a<b> & c ", "two\nlines", "]]>"]
    frame = {"name": texts, "gflops": [0.1 + 0.2, 1e-300, -1.7976931348623157e308], "example_row": [2**53, -1, 0]}
    ws = written([sheet_of(**frame)], summary)["t"]
    assert [cell.value for cell in ws["A"][1:]] == texts
    headers = [cell.value for cell in ws[1]]
    rows = [dict(zip(headers, (cell.value for cell in row), strict=True)) for row in ws.iter_rows(min_row=2)]
    assert [row["Work (GFLOP)"] for row in rows] == [0.1 + 0.2, 1e-300, -1.7976931348623157e308]
    assert [row["Example row"] for row in rows] == [2**53, -1, 0]


def test_what_a_cell_cannot_hold_is_text(summary):
    ws = written([sheet_of(name=["x" * 40_000], gflops=[float("inf")], example_row=[2**60])], summary)["t"]
    cells = {ws.cell(1, c).value: ws.cell(2, c).value for c in range(1, 4)}
    assert cells["Work (GFLOP)"] == "inf"
    assert cells["Example row"] == str(2**60)
    assert len(cells["Name"]) == 32_767
    assert cells["Name"].endswith("(40,000 characters)")


def test_a_long_sheet_continues_on_the_next(summary):
    book = written([sheet_of(title="ops", name=[f"op{i}" for i in range(5)])], summary, max_rows=3)
    assert book.sheetnames == ["about", "ops", "ops (2)", "ops (3)"]
    names = [[cell.value for cell in book[title]["A"]] for title in book.sheetnames[1:]]
    assert names == [["Name", "op0", "op1"], ["Name", "op2", "op3"], ["Name", "op4"]]


def test_titles_are_unique_short_and_legal(summary):
    sheets = [sheet_of(title=title, name=["x"]) for title in ("a" * 40, "A" * 40, "x/y:z", "About", "History", "'q'")]
    names = written(sheets, summary).sheetnames
    assert len({name.lower() for name in names}) == len(names)
    assert all(len(name) <= 31 for name in names)
    assert names[1:] == ["a" * 31, "A" * 29 + "~2", "x_y_z", "About~2", "History~2", "q"]


def test_the_same_input_gives_the_same_bytes_at_another_time(analysis, summary, monkeypatch):
    first = raw(assemble(analysis).sheets, summary)
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: 2_000_000_000.0)
        patched.setattr(time, "localtime", lambda *_: time.gmtime(2_000_000_000))
        second = raw(assemble(analysis).sheets, summary)
    assert first == second
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert b"1980-01-01T00:00:00Z" in archive.read("docProps/core.xml")


def test_an_exception_midway_leaves_the_old_file_and_nothing_else(analysis, summary, tmp_path, monkeypatch):
    target = tmp_path / "y.xlsx"
    target.write_bytes(b"old")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    original = xlsx_file._CellText.of
    calls = []

    def failing(self, value, row):
        calls.append(value)
        if len(calls) == 20:
            raise RuntimeError("midway")
        return original(self, value, row)

    monkeypatch.setattr(xlsx_file._CellText, "of", failing)
    with pytest.raises(RuntimeError, match="midway"):
        write_workbook(target, assemble(analysis).sheets, summary)
    assert target.read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["temporary", "y.xlsx"]
    assert list(temporary.iterdir()) == []


def test_the_file_is_readable_by_those_who_may_read_its_folder(analysis, summary, tmp_path):
    write_workbook(tmp_path / "y.xlsx", assemble(analysis).sheets, summary)
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "y.xlsx").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_pandas_reads_back_what_the_frame_holds(analysis, summary, tmp_path):
    sheets = assemble(analysis).sheets
    write_workbook(tmp_path / "y.xlsx", sheets, summary)
    kernels = next(made for made in sheets if made.title == "kernel_summary")
    assert kernels.columns[0] == KERNELS["kernel_name"]
    read = pd.read_excel(Path(tmp_path / "y.xlsx"), sheet_name="kernel_summary")
    assert list(read) == [column.title for column in kernels.columns]
    pd.testing.assert_frame_equal(read.set_axis(list(kernels.frame), axis=1), kernels.frame, check_dtype=False)


def test_about_shows_the_utilization_and_what_it_rests_on(summary, utilization):
    lines = about_lines(replace(summary, utilization=utilization), [])
    rows = {line.cells[0]: line.cells[1:] for line in lines}
    assert rows["Model"][:2] == ("moe-16b", "training")
    assert rows["Tokens per step"] == (32_768, None, "--batch x --sequence")
    assert rows["Ranks that share these tokens"] == (2, None, "--ranks")
    assert rows["MFU (model FLOPs utilization)"] == (0.2, None, "Of the dense bf16 peak.")
    assert rows["  share of GPU time"] == (0.912,)
    assert rows["  3"] == (184.0, 0.2, 0.23)
