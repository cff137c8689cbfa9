"""Sheets to one xlsx workbook: the same input gives the same bytes, and a text is never a formula."""

from __future__ import annotations

import datetime
import math
import re
import textwrap
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from openpyxl import Workbook
from openpyxl.cell import WriteOnlyCell
from openpyxl.comments import Comment
from openpyxl.formatting import rule
from openpyxl.styles import Alignment, Border, Font, PatternFill, Side
from openpyxl.utils import get_column_letter
from openpyxl.worksheet.hyperlink import Hyperlink
from openpyxl.writer.excel import ExcelWriter

from tracelens.analysis.verdict.summary import Summary
from tracelens.files.atomic_write import whole_file
from tracelens.files.safe_text import is_formula_like, xml_text
from tracelens.report.about import Line, about_lines
from tracelens.report.assembly import Sheet
from tracelens.report.cells import Value, plain_values
from tracelens.report.xlsx.workbook_charts import charted_columns, share_chart
from tracelens.report.xlsx.worksheet_rows import ColumnStyles, fitting, rows_xml
from tracelens.schema import Column

#: The stubs leave its functions untyped.
_rules: Any = rule

#: Limits of the format.
MAX_ROWS = 1_048_576
MAX_TITLE = 31

ABOUT = "about"
#: openpyxl writes the time of day into the document and every zip member; a report has no date.
EPOCH = datetime.datetime(1980, 1, 1)
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)
_END_OF_ROWS = b"</sheetData>"

_INK, _PALE, _LINE = "1F3A5F", "EEF2F7", "C9D3E0"
_HEADER_FONT = Font(name="Calibri", size=10, bold=True, color="FFFFFF")
_HEADER_FILL = PatternFill("solid", fgColor=_INK)
_HEADER_ALIGNMENT = Alignment(wrap_text=True, vertical="center", horizontal="left")
_HEADER_BORDER = Border(right=Side(style="thin", color="5B7391"))
_TEXT_ALIGNMENT = Alignment(horizontal="left", indent=1)
_BODY_FONT = Font(name="Calibri", size=10)
_NAME_FONT = Font(name="Calibri", size=10, bold=True)
_LINK_FONT = Font(name="Calibri", size=10, color="1155CC", underline="single")
_TAB_FIXED, _TAB_FAMILY = _INK, "2E8B7A"
_WIDEST_NUMBER, _NARROWEST, _PAGE_WIDTH = 24, 8, 200
#: Cells of a sheet that are kept from the column widths to the rows; beyond, memory is worth more than time.
_FEW_CELLS = 20_000


def write_workbook(
    path: str | PathLike[str], sheets: Sequence[Sheet], summary: Summary, *, max_rows: int = MAX_ROWS
) -> None:
    """Writes ``path`` whole or not at all; OutputError when the folder is not writable.

    A sheet with more than ``max_rows`` rows, header included, continues in ``<title> (2)``.
    """
    with whole_file(Path(path)) as file:
        write_workbook_to(file, sheets, summary, max_rows=max_rows)


def write_workbook_to(file: BinaryIO, sheets: Sequence[Sheet], summary: Summary, *, max_rows: int = MAX_ROWS) -> None:
    """The bytes of the workbook."""
    parts = list(_parts(sheets, max_rows))
    workbook = Workbook(write_only=True)
    workbook.properties.creator = "tracelens"
    workbook.properties.title = xml_text(f"Trace report of {summary.input.file}")
    workbook.properties.created = workbook.properties.modified = EPOCH
    styles = _Styles()
    rows: dict[str, Iterator[bytes]] = {}
    try:
        _write_about(workbook, about_lines(summary, [(part.title, part.sheet) for part in parts]), styles)
        for number, part in enumerate(parts, 2):
            rows[f"xl/worksheets/sheet{number}.xml"] = _write_sheet(workbook, part, styles)
        with DatelessZip(file, rows) as archive:
            ExcelWriter(workbook, archive).write_data()
    except BaseException:
        _discard(workbook)
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What goes on one worksheet: rows ``start`` to ``stop`` of a sheet."""

    title: str
    sheet: Sheet
    start: int
    stop: int
    kept: dict[str, list[Value]] = field(default_factory=dict)

    def values(self, column: Column) -> list[Value]:
        """The cells of a column; those of a small part are kept, a large one's are taken from the frame each time."""
        if column.key in self.kept:
            return self.kept[column.key]
        frame, rows = self.sheet.frame, self.stop - self.start
        values = frame[column.key]
        cells = plain_values(values if len(values) == rows else values.iloc[self.start : self.stop])
        if rows * len(self.sheet.columns) <= _FEW_CELLS:
            self.kept[column.key] = cells
        return cells


class DatelessZip(ZipFile):
    """A zip whose members all have one date and one mode, so that the same content gives the same bytes.

    ``rows``: by worksheet, what follows the header row that openpyxl wrote.
    """

    def __init__(self, file: BinaryIO, rows: Mapping[str, Iterator[bytes]] = MappingProxyType({})) -> None:
        super().__init__(file, "w", ZIP_DEFLATED, allowZip64=True)
        self._rows = rows

    def writestr(self, zinfo_or_arcname: str | ZipInfo, data: Any, *_: Any, **__: Any) -> None:
        """As ``ZipFile.writestr``, without the current date."""
        name = zinfo_or_arcname.filename if isinstance(zinfo_or_arcname, ZipInfo) else zinfo_or_arcname
        super().writestr(self._member(name), data, ZIP_DEFLATED)

    def write(
        self, filename: str | PathLike[str], arcname: str | PathLike[str] | None = None, *_: Any, **__: Any
    ) -> None:
        """As ``ZipFile.write``, without the file's date; a worksheet gets its rows."""
        name = str(arcname or filename)
        content = Path(filename).read_bytes()
        with self.open(self._member(name), "w") as target:
            if name in self._rows:
                head, end, tail = content.rpartition(_END_OF_ROWS)
                target.write(head)
                for rows in self._rows[name]:
                    target.write(rows)
                content = end + tail
            target.write(content)

    @staticmethod
    def _member(name: str) -> ZipInfo:
        member = ZipInfo(name.lstrip("/"), _ZIP_EPOCH)
        member.compress_type = ZIP_DEFLATED
        member.create_system = 3
        member.external_attr = 0o644 << 16
        return member


def _parts(sheets: Sequence[Sheet], max_rows: int) -> Iterator[_Part]:
    taken = {ABOUT, "history"}
    body = max_rows - 1
    for sheet in sheets:
        for number, start in enumerate(range(0, len(sheet.frame), body), 1):
            title = _free_title(sheet.title, "" if number == 1 else f" ({number})", taken)
            yield _Part(title=title, sheet=sheet, start=start, stop=min(start + body, len(sheet.frame)))


def _free_title(title: str, suffix: str, taken: set[str]) -> str:
    """At most 31 characters, none of ``[]:*?/\\``, unique whatever the case."""
    clean = re.sub(r"[\[\]:*?/\\]", "_", xml_text(title)).strip().strip("'") or "sheet"
    candidate, number = clean[: MAX_TITLE - len(suffix)] + suffix, 1
    while candidate.lower() in taken:
        number += 1
        ending = f"~{number}{suffix}"
        candidate = clean[: MAX_TITLE - len(ending)] + ending
    taken.add(candidate.lower())
    return candidate


class _Styles:
    """Styles of cells, each made once: openpyxl compares every font and border with all that there are."""

    def __init__(self) -> None:
        self._made: dict[Hashable, Any] = {}

    def dress(self, cell: Any, key: Hashable, apply: Callable[[Any], None]) -> Any:
        """``cell`` in the style of that key; ``apply`` sets it on the first cell that asks for it."""
        if key in self._made:
            cell._style = self._made[key]
        else:
            apply(cell)
            self._made[key] = cell._style
        return cell

    def of_column(self, ws: Any, column: Column, *, is_first: bool) -> ColumnStyles:
        """For the cells below a header."""
        number_format = "General" if column.is_text else column.number_format

        def index(kind: str) -> int:
            def apply(cell: Any) -> None:
                cell.font = _NAME_FONT if is_first else _BODY_FONT
                if kind == "number":
                    cell.number_format = number_format
                elif not is_first:  # a text right of a number would touch it
                    cell.alignment = _TEXT_ALIGNMENT
                cell.quotePrefix = kind == "quoted"

            key = (kind, is_first, number_format if kind == "number" else None)
            return int(self.dress(WriteOnlyCell(ws), key, apply).style_id)

        return ColumnStyles(number=index("number"), text=index("text"), quoted=index("quoted"))


def _write_sheet(workbook: Workbook, part: _Part, styles: _Styles) -> Iterator[bytes]:
    """Adds the sheet with its header; returns the rows that follow."""
    sheet = part.sheet
    columns = sheet.columns
    widths = [_width(column, part.values(column), is_first=i == 0) for i, column in enumerate(columns)]
    ws = workbook.create_sheet(part.title)
    rows = part.stop - part.start
    ws.sheet_properties.tabColor = _TAB_FAMILY if sheet.is_family else _TAB_FIXED
    ws.freeze_panes = "B2"
    ws.sheet_view.zoomScale = 90
    for index, width in enumerate(widths, 1):
        ws.column_dimensions[get_column_letter(index)].width = width
    lines = max(_header_lines(column.header, width) for column, width in zip(columns, widths, strict=True))
    ws.row_dimensions[1].height = 8 + 14 * lines
    last = get_column_letter(len(columns))
    ws.auto_filter.ref = f"A1:{last}{rows + 1}"
    _set_up_print(ws, sum(widths))
    for index, column in enumerate(columns, 1):
        _mark_up(ws, column, f"{get_column_letter(index)}2:{get_column_letter(index)}{rows + 1}")
    if bars := charted_columns(columns):
        ws.add_chart(share_chart(ws, part.title, bars, rows), f"{get_column_letter(len(columns) + 2)}2")
    ws.append([_header_cell(ws, column, styles) for column in columns])
    column_styles = [styles.of_column(ws, column, is_first=i == 0) for i, column in enumerate(columns)]
    return _rows(part, column_styles)


def _rows(part: _Part, styles: Sequence[ColumnStyles]) -> Iterator[bytes]:
    """The values are taken from the frame again when the sheet is written: one sheet's are in memory, not all."""
    yield from rows_xml([part.values(column) for column in part.sheet.columns], styles, first_row=2)


def _set_up_print(ws: Any, width: float) -> None:
    """Landscape; a sheet ``width`` characters wide goes on as many pages side by side as stay readable."""
    ws.page_setup.orientation = "landscape"
    ws.page_setup.fitToWidth = math.ceil(width / _PAGE_WIDTH)
    ws.page_setup.fitToHeight = 0
    ws.sheet_properties.pageSetUpPr.fitToPage = True
    ws.print_title_rows = "1:1"
    ws.print_title_cols = "A:A"


def _mark_up(ws: Any, column: Column, cells: str) -> None:
    if column.look == "share":
        bar = _rules.DataBarRule(start_type="num", start_value=0, end_type="num", end_value=100, color="7FA8D9")
        ws.conditional_formatting.add(cells, bar)
    elif column.look == "of_limit" and column.statistic != "std":
        red = _rules.CellIsRule(
            operator="greaterThan",
            formula=["100"],
            stopIfTrue=True,
            font=Font(color="FFFFFF", bold=True),
            fill=PatternFill("solid", bgColor="C00000"),
        )
        ws.conditional_formatting.add(cells, red)
        scale = _rules.ColorScaleRule(
            start_type="num", start_value=0, start_color="F8B4A6",
            mid_type="num", mid_value=50, mid_color="FFF0B3",
            end_type="num", end_value=100, end_color="A9D8A4",
        )  # fmt: skip
        ws.conditional_formatting.add(cells, scale)


def _header_cell(ws: Any, column: Column, styles: _Styles) -> Any:
    cell = styles.dress(_text_cell(ws, column.header), "header", _dress_header)
    note = column.note
    if note:
        cell.comment = Comment(note, "tracelens", height=28 + 18 * math.ceil(len(note) / 42), width=300)
    return cell


def _dress_header(cell: Any) -> None:
    cell.font = _HEADER_FONT
    cell.fill = _HEADER_FILL
    cell.alignment = _HEADER_ALIGNMENT
    cell.border = _HEADER_BORDER


def _text_cell(ws: Any, text: str) -> Any:
    cell = WriteOnlyCell(ws)
    cell.value = fitting(text)
    cell.data_type = "s"  # openpyxl takes a leading "=" for a formula and "#N/A" for an error
    return cell


def _width(column: Column, values: Sequence[Value], *, is_first: bool) -> float:
    """In characters: what the values need, capped; a header breaks into lines."""
    texts = [len(value) for value in values if isinstance(value, str)]
    numbers = [value for value in values if value is not None and not isinstance(value, str)]
    longest = max(texts, default=0)
    if numbers:
        # Of numbers under one format the longest is the largest or the smallest.
        extremes = numbers if column.number_format in _UNFORMATTED else (min(numbers), max(numbers))
        longest = max(longest, *(_printed_length(value, column) for value in extremes))
    cap = column.width if texts else _WIDEST_NUMBER
    word = max(len(word) for word in _header_words(column.header))
    width = max(min(longest, cap) + 1.5, min(word, 26) + 3.5, _NARROWEST)
    return round(max(width, 18.0) if is_first else width, 1)


def _header_words(header: str) -> list[str]:
    return header.split() or [""]


def _header_lines(header: str, width: float) -> int:
    """Lines a header takes at a width; the filter button covers about three characters."""
    lines, used = 1, 0.0
    for word in _header_words(header):
        pieces = max(1, math.ceil(len(word) / max(1.0, width - 3)))
        if used and used + 1 + len(word) > width - 3:
            lines, used = lines + 1, 0.0
        lines += pieces - 1
        used += len(word) + (1 if used else 0)
    return lines


_UNFORMATTED = ("General", "@")


def _printed_length(value: bool | int | float, column: Column) -> int:
    if isinstance(value, bool):
        return 5
    if column.number_format in _UNFORMATTED:
        return min(12, len(str(value)))
    decimals = len(column.number_format.partition(".")[2])
    return len(f"{value:,.{decimals}f}")


_ABOUT_WIDTHS = (34, 40, 30, 92)


def _write_about(workbook: Workbook, lines: Iterable[Line], styles: _Styles) -> None:
    ws = workbook.create_sheet(ABOUT)
    ws.sheet_properties.tabColor = "D9822B"
    ws.sheet_view.showGridLines = False
    ws.freeze_panes = "A2"
    for letter, width in zip("ABCD", _ABOUT_WIDTHS, strict=True):
        ws.column_dimensions[letter].width = width
    _set_up_print(ws, sum(_ABOUT_WIDTHS))
    for number, line in enumerate(lines, 1):
        if line.kind == "title":
            ws.row_dimensions[number].height = 30
        elif line.kind == "section":
            ws.row_dimensions[number].height = 24
        else:
            tall = max(len(textwrap.wrap(text, int(width * 1.2))) for text, width in _wrapped(line))
            ws.row_dimensions[number].height = 14.5 * max(1, tall)
        cells = (*line.cells, *(None,) * (4 - len(line.cells)))
        ws.append([_about_cell(ws, line, index, value, styles) for index, value in enumerate(cells)])


def _wrapped(line: Line) -> list[tuple[str, int]]:
    texts = [value if isinstance(value, str) else "" for value in (*line.cells, "", "", "", "")]
    return list(zip(texts[:4], _ABOUT_WIDTHS, strict=True))


def _about_cell(ws: Any, line: Line, index: int, value: Value, styles: _Styles) -> Any:
    if isinstance(value, str):
        cell = _text_cell(ws, value)
    else:
        cell = WriteOnlyCell(ws)
        cell.value = value
    is_number = value is not None and not isinstance(value, str)
    is_quoted = isinstance(value, str) and is_formula_like(value)
    is_link = index == 0 and bool(line.link)

    def apply(cell: Any) -> None:
        _dress(cell, line, index if value is not None else 1)
        cell.quotePrefix = is_quoted
        if is_number:
            cell.number_format = line.number_format
        if is_link:
            cell.font = _LINK_FONT

    key = (line.kind, index == 0 and value is not None, is_quoted, line.number_format if is_number else None, is_link)
    styles.dress(cell, ("about", *key), apply)
    if is_link:
        target = line.link.replace("'", "''")
        cell.hyperlink = Hyperlink(ref="", location=f"'{target}'!A1", display=line.link)
    return cell


def _dress(cell: Any, line: Line, index: int) -> None:
    if line.kind == "title":
        cell.font = Font(name="Calibri", size=16, bold=True, color=_INK)
        cell.alignment = Alignment(vertical="center")
    elif line.kind == "section":
        cell.font = Font(name="Calibri", size=12, bold=True, color=_INK)
        cell.alignment = Alignment(vertical="bottom")
        cell.border = Border(bottom=Side(style="medium", color=_INK))
    elif line.kind == "head":
        cell.font = Font(name="Calibri", size=10, bold=True, color=_INK)
        cell.fill = PatternFill("solid", fgColor=_PALE)
    else:
        cell.font = _NAME_FONT if index == 0 else _BODY_FONT
        cell.alignment = Alignment(wrap_text=True, vertical="top", horizontal="left")
        cell.border = Border(bottom=Side(style="hair", color=_LINE))


def _discard(workbook: Workbook) -> None:
    """Ends the sheets that were begun and removes openpyxl's temporary files of them."""
    for ws in workbook.worksheets:
        writer = getattr(ws, "_writer", None)
        if writer is None:
            continue
        if not ws.closed:
            with suppress(Exception):
                ws.close()
        with suppress(OSError, ValueError):
            writer.cleanup()
