"""Which sheets a workbook has, in which order, and how their headers, numbers and columns look in all of them."""

from __future__ import annotations

import io
import re
from functools import cache
from pathlib import Path

import openpyxl
import pandas as pd
import pytest
from openpyxl.worksheet.worksheet import Worksheet

import tracelens
from tests.conftest import part
from tests.report.conftest import HandMade
from tracelens.cli import main
from tracelens.report.assembly import MOST_SHEETS
from tracelens.report.comparison_report import comparison_xlsx
from tracelens.report.result import Report
from tracelens.schema import sheet

EXAMPLES = Path(__file__).resolve().parents[2] / "example_traces"
REAL = (
    "h100/gaunernst_bert-small-uncased__1016001", "mi300/resnet_act_checkpoint",
    "inference/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode", "more/torchbench/trace",
    "more/torchrec_pr1460/sst_long_a2a_optimizer_5/rank0.pt.trace", "hta/triton_example/triton_example",
)  # fmt: skip
#: Words, then in brackets the unit. A sheet of figures of two sides says the side before the unit.
HEADER = re.compile(
    r"[A-Z][^()%_]*(?: \((?:µs|ms|s|MB|%|GFLOP|ppm|bytes|(?:TFLOPS|TB|GB|tokens)/s|W|J|FLOP/byte)\))?"
    r"|Parameter [^()%]+"
)
READ_FIRST = ["about", "ops", "gpu_timeline", "idle_causes", "critical_path", "headroom", "ops_summary_by_category"]


@cache
def report_of(path: Path) -> Report:
    return tracelens.report(path)


def is_number(text: str) -> bool:
    return re.fullmatch(r"[-+]?[\d,]*\.?\d+(?:[eE][-+]?\d+)?\s?%?", text) is not None


def check_look(ws: Worksheet, *, mixed: bool = False) -> None:
    """A header of words and unit, frozen and filtered; numbers under a format; columns as wide as they need.

    ``mixed``: a column has texts and figures of several units.
    """
    assert ws.freeze_panes == "B2"
    assert ws.auto_filter.ref == ws.dimensions
    for column in ws.iter_cols():
        head, *cells = column
        assert HEADER.fullmatch(head.value), (ws.title, head.value)
        values = [cell.value for cell in cells if cell.value is not None]
        texts = [value for value in values if isinstance(value, str)]
        if len(texts) < len(values):
            assert not [text for text in texts if is_number(text)], (ws.title, head.value)
        width = ws.column_dimensions[head.column_letter].width
        assert 8 <= width <= 92
        assert width >= max(len(word) for word in head.value.split()) or width > 26, (ws.title, head.value)
        assert head.alignment.wrap_text
        if mixed:
            continue
        decimals = [cell for cell in cells if isinstance(cell.value, float) and not cell.value.is_integer()]
        assert not [cell for cell in decimals if cell.number_format == "General" and not is_parameter(head.value)]
    assert all(ws.row_dimensions[number].height is None for number in range(2, min(ws.max_row, 50)))


def is_parameter(header: str) -> bool:
    return header.startswith("Parameter ")


def check_workbook(report: Report, folder: Path) -> None:
    book = openpyxl.load_workbook(report.to_excel(folder / "few.xlsx"))
    assert len(book.sheetnames) <= 14
    first = [title for title in READ_FIRST if title in ("about", *report)]
    assert book.sheetnames[: len(first)] == first
    assert book.sheetnames[1:] == [title for title in report if title in book.sheetnames]
    assert all(ws.max_row > 1 for ws in book.worksheets)
    whole = openpyxl.load_workbook(report.to_excel(folder / "all.xlsx", all_sheets=True))
    assert len(whole.sheetnames) == len(report) + 1
    about = "\n".join(str(cell.value) for row in book["about"].iter_rows() for cell in row if cell.value is not None)
    further = [title for title in whole.sheetnames if title not in book.sheetnames and not title.endswith(" ops")]
    assert further
    assert not [title for title in further if title not in about]
    assert "--all-sheets" in about
    for ws in (*book.worksheets[1:], *whole.worksheets[1:]):
        check_look(ws)
        assert "~" not in ws.title


@pytest.mark.parametrize("name", part(["moe_ep8/rank0.json.gz", "gloo_ranks2/rank0.json.gz"], 2))
def test_a_workbook_has_at_most_14_sheets_and_names_the_others(name: str, tmp_path: Path) -> None:
    path = EXAMPLES / name
    check_workbook(tracelens.report(path, cpu="gloo" in name), tmp_path)


@pytest.mark.sweep
@pytest.mark.shared
@pytest.mark.parametrize("name", part(REAL, len(REAL)))
def test_so_has_that_of_a_real_trace(name: str, shared_traces: Path, tmp_path: Path) -> None:
    check_workbook(tracelens.report(shared_traces / f"{name}.json.gz"), tmp_path)


@pytest.mark.sweep
def test_workbooks_of_ranks_and_of_comparisons_look_alike(tmp_path: Path) -> None:
    ranks = tracelens.collectives(EXAMPLES / "moe_ep8")
    for all_sheets in (False, True):
        book = openpyxl.load_workbook(ranks.to_excel(tmp_path / "c.xlsx", all_sheets=all_sheets))
        assert len(book.sheetnames) <= (18 if all_sheets else 14)
        for ws in book.worksheets[1:]:
            check_look(ws)
    found = tracelens.compare(EXAMPLES / "moe_ep8" / "rank0.json.gz", EXAMPLES / "moe_ep8" / "rank3.json.gz")
    book = openpyxl.load_workbook(io.BytesIO(comparison_xlsx(found)))
    assert len(book.sheetnames) <= 14
    for ws in book.worksheets:
        check_look(ws, mixed=ws.title == "sides")
    assert [cell.value for cell in book["rows"][1]][:3] == ["Name", "Category", "Change (ms)"]
    assert {"Kernel time, A (ms)", "Compute rate, B (TFLOPS/s)"} <= {cell.value for cell in book["rows"][1]}


def test_the_name_that_people_look_for_comes_first() -> None:
    report = report_of(EXAMPLES / "moe_ep8" / "rank0.json.gz")
    first = {sheet.title: sheet.columns[0].key for sheet in report.sheets if not sheet.is_further}
    assert first["ops"] == "name"
    assert (first["kernel_summary"], first["coll_analysis"]) == ("kernel_name", "collective")


def test_the_first_header_says_what_a_row_is_and_of_which_steps(tmp_path: Path) -> None:
    report = report_of(EXAMPLES / "moe_ep8" / "rank0.json.gz")
    book = openpyxl.load_workbook(report.to_excel(tmp_path / "r.xlsx"))
    notes = {ws.title: ws["A1"].comment.text for ws in book.worksheets[1:]}
    assert "Scope: 3 steps (ProfilerStep 10-12)." in notes["ops"]
    assert notes["steps"].startswith("Of the whole file")
    assert "Scope" not in notes["steps"]


def test_files_for_machines_have_every_table_whatever_the_workbook_has(tmp_path: Path) -> None:
    report = report_of(EXAMPLES / "moe_ep8" / "rank0.json.gz")
    report.to_csv(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == set(report)
    assert {"ops_unique_args", "GEMM", "idle_gaps"} <= set(report)
    assert len(report["unified_perf_summary"].columns) > 40


def test_a_sheet_of_an_extension_is_there_however_many_others_there_are(analysis, summary, tmp_path: Path) -> None:
    @sheet("mine", order=500)
    def mine(result):
        """One row."""
        return pd.DataFrame({"name": ["x"]})

    frames = dict.fromkeys(tracelens_titles(), analysis.frames["unified_perf_summary"])
    report = Report(HandMade(frames=frames, families={}), summary, extensions=[mine])
    titles = openpyxl.load_workbook(report.to_excel(tmp_path / "r.xlsx")).sheetnames
    assert len(titles) == MOST_SHEETS + 1
    assert titles[-1] == "mine"


def tracelens_titles() -> list[str]:
    from tracelens.analysis.sheets import built_in_sheets

    return list(built_in_sheets())


def test_a_category_named_like_a_sheet_is_not_numbered(analysis, summary, tmp_path: Path) -> None:
    frames = {"memory": pd.DataFrame({"device": ["cuda:0"]})}
    report = Report(HandMade(frames=frames, families={"Memory": analysis.families["GEMM"]}), summary)
    book = openpyxl.load_workbook(report.to_excel(tmp_path / "r.xlsx", all_sheets=True))
    assert book.sheetnames == ["about", "memory", "Memory ops"]


@pytest.mark.sweep
def test_the_command_writes_all_sheets_and_refuses_where_there_is_no_workbook(tmp_path: Path, capsys) -> None:
    trace = str(EXAMPLES / "moe_ep8" / "rank0.json.gz")
    assert main(["report", trace, "--all-sheets", "-o", str(tmp_path / "r.xlsx")]) == 0
    assert "unified_perf_summary" in openpyxl.load_workbook(tmp_path / "r.xlsx", read_only=True).sheetnames
    capsys.readouterr()
    for verb in ("report", "collectives"):
        assert main([verb, trace, "--all-sheets", "-o", str(tmp_path / "r.json")]) == 2
        assert "-o must be a folder or FILE.xlsx" in capsys.readouterr().err


@pytest.mark.shared
def test_what_findings_cannot_see_stands_in_the_wide_column(shared_data: Path, tmp_path: Path) -> None:
    """A recording without shapes: its sentence is in the column of sentences, and says no None."""
    trace = shared_data / "traces/more/torchrec_pr1460/sst_long_a2a_optimizer_5/rank0.pt.trace.json.gz"
    report_of(trace).to_excel(tmp_path / "r.xlsx")
    about = openpyxl.load_workbook(tmp_path / "r.xlsx")["about"]
    (row,) = [row for row in about.iter_rows(values_only=True) if row[0] == "Not seen"]
    assert row[3] == (
        "40 % of GPU time (no shapes were recorded: use record_shapes=True), mostly aten::mm, aten::bmm, aten::addmm"
    )
