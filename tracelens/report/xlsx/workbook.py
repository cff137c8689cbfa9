"""Sheets to one xlsx workbook: the same input gives the same bytes, and a text is never a formula."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from tracelens.analysis.sheets import kernel_time
from tracelens.analysis.verdict.summary import Summary
from tracelens.files.atomic_write import whole_file
from tracelens.files.safe_text import is_formula_like, xml_text
from tracelens.lazy.records import dataclass
from tracelens.report.assembly import Sheet
from tracelens.report.cells import Value, plain_columns, plain_values
from tracelens.report.workbook import Line, about_lines
from tracelens.report.xlsx.cell_styles import Style, Styles, edge, font, solid
from tracelens.report.xlsx.workbook_charts import charted_columns, share_chart
from tracelens.report.xlsx.worksheet_rows import ColumnStyles, column_letter, row_xml, rows_xml
from tracelens.report.xlsx.xlsx_file import write_xlsx
from tracelens.report.xlsx_file import Chart, Note, Worksheet, pages_of
from tracelens.schema import Column

#: Limits of the format.
MAX_ROWS = 1_048_576
MAX_TITLE = 31

ABOUT = "about"
_INK, _PALE, _LINE = "1F3A5F", "EEF2F7", "C9D3E0"
_HEADER = Style(
    font=font(bold=True, color="FFFFFF"),
    fill=solid(_INK),
    border=edge("right", "thin", "5B7391"),
    alignment='horizontal="left" vertical="center" wrapText="1"',
)
_INDENTED = 'horizontal="left" indent="1"'
_BODY_FONT, _NAME_FONT, _LINK_FONT = font(), font(bold=True), font(color="1155CC", underlined=True)
_TAB_FIXED, _TAB_FAMILY = _INK, "2E8B7A"
_WIDEST_NUMBER, _NARROWEST = 24, 8
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
    styles = Styles()
    about = _about(about_lines(summary, [(part.title, part.sheet) for part in parts]), styles, _main_chart(parts))
    tables = [_worksheet(part, styles) for part in parts]
    title = f"Trace report of {summary.input.file}"
    write_xlsx(file, [about, *tables], styles, title=title, differences=_RED)


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
        if not self.kept and (self.stop - self.start) * len(self.sheet.columns) <= _FEW_CELLS:
            small = self.sheet.frame.iloc[self.start : self.stop]
            self.kept.update(zip(small.columns, plain_columns(small), strict=True))
        if self.kept:
            return self.kept[column.key]
        return plain_values(self.sheet.frame[column.key].iloc[self.start : self.stop])


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


def _worksheet(part: _Part, styles: Styles) -> Worksheet:
    sheet = part.sheet
    columns = sheet.columns
    rows = part.stop - part.start
    widths = [_width(column, part.values(column), is_first=i == 0) for i, column in enumerate(columns)]
    lines = max(_header_lines(column.title, width) for column, width in zip(columns, widths, strict=True))
    headers = [column.title for column in columns]
    header = row_xml(1, 8 + 14 * lines, headers, [styles.index(_HEADER)] * len(columns)).encode()
    body = _rows(part, [_column_styles(column, styles, is_first=i == 0) for i, column in enumerate(columns)])
    bars = charted_columns(columns)
    return Worksheet(
        title=part.title,
        rows=chain([header], body),
        widths=widths,
        tab=_TAB_FAMILY if sheet.is_family else _TAB_FIXED,
        zoom=90,
        pages=pages_of(widths),
        filtered=f"A1:{column_letter(len(columns))}{rows + 1}",
        rules=list(_rules(columns, rows + 1)),
        notes=[_note(number, column.note) for number, column in enumerate(columns, 1) if column.note],
        chart=share_chart(part.title, bars, rows, len(columns) + 2, sheet.text) if bars else None,
    )


def _column_styles(column: Column, styles: Styles, *, is_first: bool) -> ColumnStyles:
    """For the cells below a header; a text right of a number would touch it."""
    fonted = _NAME_FONT if is_first else _BODY_FONT
    text = Style(font=fonted, alignment="" if is_first else _INDENTED)
    number_format = "General" if column.is_text else column.number_format
    return ColumnStyles(
        number=styles.index(Style(font=fonted, number_format=number_format)),
        text=styles.index(text),
        quoted=styles.index(text._replace(quoted=True)),
    )


def _rows(part: _Part, styles: Sequence[ColumnStyles]) -> Iterator[bytes]:
    """The values are taken from the frame again when the sheet is written: one sheet's are in memory, not all."""
    yield from rows_xml([part.values(column) for column in part.sheet.columns], styles, first_row=2)


#: How a share above its limit looks.
_RED = (
    '<dxf><font><b/><color rgb="FFFFFFFF"/></font><fill><patternFill patternType="solid"><bgColor rgb="FFC00000"/>'
    "</patternFill></fill></dxf>"
)
_BAR = (
    '<cfRule type="dataBar" priority="{}"><dataBar><cfvo type="num" val="0"/><cfvo type="num" val="100"/>'
    '<color rgb="FF7FA8D9"/></dataBar></cfRule>'
)
_OF_LIMIT = (
    '<cfRule type="cellIs" dxfId="0" priority="{}" stopIfTrue="1" operator="greaterThan"><formula>100</formula>'
    "</cfRule>"
    '<cfRule type="colorScale" priority="{}"><colorScale><cfvo type="num" val="0"/><cfvo type="num" val="50"/>'
    '<cfvo type="num" val="100"/><color rgb="FFF8B4A6"/><color rgb="FFFFF0B3"/><color rgb="FFA9D8A4"/></colorScale>'
    "</cfRule>"
)


def _rules(columns: Sequence[Column], last: int) -> Iterator[tuple[str, str]]:
    """Bars in columns of shares; what reaches its limit in green, what exceeds it in red."""
    for number, column in enumerate(columns, 1):
        cells = f"{column_letter(number)}2:{column_letter(number)}{last}"
        if column.look == "share":
            yield cells, _BAR.format(2 * number)
        elif column.look == "of_limit" and column.statistic != "std":
            yield cells, _OF_LIMIT.format(2 * number, 2 * number + 1)


def _note(number: int, text: str) -> Note:
    return Note(column=number, text=text, height=28 + 18 * math.ceil(len(text) / 42))


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
    word = max(len(word) for word in _header_words(column.title))
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
_ABOUT_HEIGHTS = {"title": 30, "section": 24}


def _main_chart(parts: Sequence[_Part]) -> Chart | None:
    """Time by category, or what else is small enough to draw, for the first sheet."""
    drawn = [(part, bars) for part in parts if (bars := charted_columns(part.sheet.columns))]
    for part, bars in sorted(drawn, key=lambda each: each[0].title != kernel_time.OPS_SUMMARY_BY_CATEGORY_TITLE):
        return share_chart(part.title, bars, part.stop - part.start, len(_ABOUT_WIDTHS) + 2, part.sheet.text)
    return None


def _about(lines: Iterable[Line], styles: Styles, chart: Chart | None) -> Worksheet:
    rows, links = [], {}
    for number, line in enumerate(lines, 1):
        cells = (*line.cells, *(None,) * (4 - len(line.cells)))
        numbers = [styles.index(_about_style(line, index, value)) for index, value in enumerate(cells)]
        rows.append(row_xml(number, _about_height(line), cells, numbers))
        if line.link:
            links[f"A{number}"] = line.link
    return Worksheet(
        title=ABOUT,
        rows=["".join(rows).encode()],
        widths=_ABOUT_WIDTHS,
        frozen=(0, 1),
        tab="D9822B",
        grid=False,
        pages=pages_of(_ABOUT_WIDTHS),
        printed=f"$A$1:${column_letter(len(_ABOUT_WIDTHS))}${len(rows)}",
        links=links,
        chart=chart,
    )


def _about_height(line: Line) -> float:
    if line.kind in _ABOUT_HEIGHTS:
        return _ABOUT_HEIGHTS[line.kind]
    # What fits is on one line; finding that out by wrapping takes a hundred times as long
    long = [(text, int(width * 1.2)) for text, width in _wrapped(line) if len(text.expandtabs()) > int(width * 1.2)]
    return 14.5 * max([1, *(len(textwrap.wrap(text, width)) for text, width in long)])


def _wrapped(line: Line) -> list[tuple[str, int]]:
    texts = [value if isinstance(value, str) else "" for value in (*line.cells, "", "", "", "")]
    return list(zip(texts[:4], _ABOUT_WIDTHS, strict=True))


def _about_style(line: Line, index: int, value: Value) -> Style:
    style = _ABOUT_STYLES.get(line.kind) or (_FIRST if index == 0 and value is not None else _OTHER)
    if index == 0 and line.link:
        style = style._replace(font=_LINK_FONT)
    if isinstance(value, str):
        return style._replace(quoted=is_formula_like(value))
    return style if value is None else style._replace(number_format=line.number_format)


_ABOUT_STYLES = {
    "title": Style(font=font(16, bold=True, color=_INK), alignment='vertical="center"'),
    "section": Style(
        font=font(12, bold=True, color=_INK), border=edge("bottom", "medium", _INK), alignment='vertical="bottom"'
    ),
    "head": Style(font=font(bold=True, color=_INK), fill=solid(_PALE)),
}
_OTHER = Style(border=edge("bottom", "hair", _LINE), alignment='horizontal="left" vertical="top" wrapText="1"')
_FIRST = _OTHER._replace(font=_NAME_FONT)
