"""A frame as a file: no date, no formula, no number that Excel cannot hold."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import openpyxl
import pandas as pd

from tracelens.report.export import write_frame

FRAME = pd.DataFrame({"name": ["=1+1", "a"], "t": [0.125, float("inf")], "n": [3, 4]})


def test_a_workbook_holds_texts_numbers_and_no_date(tmp_path: Path) -> None:
    write_frame(tmp_path / "t.xlsx", FRAME, {"query": "SELECT name, t, n FROM ops"})
    content = (tmp_path / "t.xlsx").read_bytes()
    sheet = openpyxl.load_workbook(io.BytesIO(content))["table"]
    assert [[cell.value for cell in row] for row in sheet.iter_rows()] == [
        ["name", "t", "n"],
        ["=1+1", 0.125, 3],
        ["a", "inf", 4],
    ]
    assert [cell.data_type for cell in sheet["A"]] == ["s"] * 3
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        dates = archive.read("docProps/core.xml").decode()
    assert dates.count("1980-01-01T00:00:00Z") == 2


def test_headers_are_words_and_units_unless_a_statement_named_the_columns(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"name": ["a", "b"], "step_time_s": [1.5, 2.0], "busy_percent": [50.0, 1.25], "tokens": [1, 2]}
    )
    headers = []
    for about in ({}, {"query": "SELECT ..."}):
        write_frame(tmp_path / "t.xlsx", frame, about)
        sheet = openpyxl.load_workbook(tmp_path / "t.xlsx")["table"]
        headers.append([cell.value for cell in sheet[1]])
    assert headers == [["Name", "Step time (s)", "Busy (%)", "Tokens"], list(frame.columns)]
    assert [cell.number_format for cell in sheet[2]] == ["General", "#,##0.###", "#,##0.###", "#,##0"]


def test_a_sheet_filters_and_prints_as_wide_as_its_columns(tmp_path: Path) -> None:
    for frame, cells in ((FRAME, "A1:C3"), (pd.DataFrame(), "A1:A1")):
        write_frame(tmp_path / "t.xlsx", frame, {})
        sheet = openpyxl.load_workbook(tmp_path / "t.xlsx")["table"]
        assert (sheet.auto_filter.ref, sheet.page_setup.orientation, sheet.page_setup.fitToWidth) == (
            cells, "landscape", 1,
        )  # fmt: skip


def test_a_csv_guards_what_a_spreadsheet_would_evaluate(tmp_path: Path) -> None:
    write_frame(tmp_path / "t.csv", FRAME, {})
    assert (tmp_path / "t.csv").read_text() == "name,t,n\n'=1+1,0.125,3\na,inf,4\n"
