"""A sheet is one file: its columns, its place and what makes it, in tracelens or outside."""

from __future__ import annotations

from pathlib import Path

import openpyxl
import orjson
import pytest

import tracelens
from tracelens.analysis.sheets import perf_summary
from tracelens.report.result import Report

ADDED = '''
from tracelens import sheet
from tracelens.schema import column_set, count, flag, text, us

COLUMNS = column_set(
    text("kernel_name", "The kernel as the trace names it."),
    count("launches", "How often it ran."),
    us("total_us", "Durations added up."),
    flag("is_long", "Whether one of them took 1 ms.", shown_as="Long <1 ms>"),
)


@sheet("kernels_by_name", columns=COLUMNS, order=25, json=55)
def kernels_by_name(result):
    """One row per kernel name, whatever launched it.

    This part is not for the about sheet.
    """
    rows = result.frames["kernel_summary"].groupby("kernel_name", sort=True)
    found = rows.agg(total_us=("duration_us_sum", "sum"), launches=("kernels", "sum"), most=("duration_us_max", "max"))
    found["is_long"] = found.pop("most") >= 1000
    return found.sort_values("total_us", ascending=False).reset_index()
'''


@pytest.fixture(scope="module")
def report(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Of the example, with the sheet above and a copy of a built-in one."""
    folder = tmp_path_factory.mktemp("extensions")
    (folder / "by_name.py").write_text(ADDED, encoding="utf-8")
    source = Path(perf_summary.__file__).read_text(encoding="utf-8").partition("\nSHEETS = ")[0]
    mark = '@__import__("tracelens").sheet("again", columns=KERNEL_SUMMARY_COLUMNS, order=30, json=None)'
    copied = source.replace("@built_in(KERNEL_SUMMARY_TITLE)", mark).replace(
        'TITLE = "kernel_summary"', 'TITLE = "again"'
    )
    (folder / "again.py").write_text(copied, encoding="utf-8")
    trace = repository / "example_traces" / "moe_ep8" / "rank0.json.gz"
    return tracelens.report(trace, extensions=[folder / "by_name.py", folder / "again.py"])


def test_it_stands_at_its_place(report: Report) -> None:
    titles = list(report)
    at = titles.index("kernels_by_name")
    assert (titles[at - 1], titles[at + 1]) == ("ops_summary_by_category", "again")
    assert list(report["kernels_by_name"]) == ["kernel_name", "launches", "total_us", "is_long"]


def test_the_workbook_has_its_columns_with_comments(report: Report, tmp_path: Path) -> None:
    book = openpyxl.load_workbook(report.to_excel(tmp_path / "r.xlsx"))
    headers = list(book["kernels_by_name"][1])
    assert [cell.value for cell in headers] == ["Kernel name", "Launches", "Total time (\u00b5s)", "Long <1 ms>"]
    first = "The kernel as the trace names it."
    assert [cell.comment.text for cell in headers] == [
        f"One row per kernel name, whatever launched it. Scope: 3 steps (ProfilerStep 10-12). {first}",
        "How often it ran.", "Durations added up.",
        "Whether one of them took 1 ms.",
    ]  # fmt: skip
    about = [row for row in book["about"].iter_rows(values_only=True) if row[0] == "kernels_by_name"]
    assert [row[3] for row in about] == ["One row per kernel name, whatever launched it."]


def test_the_document_has_it_as_a_view_at_its_place(report: Report) -> None:
    views = orjson.loads(report.to_json())["views"]
    titles = list(views)
    assert titles.index("kernels_by_name") < titles.index("critical_path")
    assert list(views["kernels_by_name"][0]) == ["kernel_name", "launches", "total_us", "is_long"]
    assert len(views["kernels_by_name"]) == min(50, len(report["kernels_by_name"]))


def test_the_page_has_a_section_for_it(report: Report, tmp_path: Path) -> None:
    page = report.to_html(tmp_path / "r.html").read_text(encoding="utf-8")
    section = page.partition('<section id="section-added-1">')[2].partition("</section>")[0]
    assert "<h2>kernels_by_name</h2>" in section
    assert "Long &lt;1 ms&gt;" in section.replace("<wbr>", "")
    assert "One row per kernel name, whatever launched it." in section
    assert 'href="#section-added-1"' in page


def test_a_built_in_sheet_and_an_extension_s_are_the_same_thing(report: Report) -> None:
    assert report["again"].equals(report["kernel_summary"])
    assert list(report).index("again") == list(report).index("kernel_summary") - 1
