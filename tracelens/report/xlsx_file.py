"""Worksheets as an xlsx file: rows, cell styles, notes and charts as XML, in a zip without a date.

Libraries make an object of every cell; nearly all cells are plain numbers and texts under a style of their column, and
writing those as text takes a sixth of the time.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import msgspec

from tracelens.files.cells import LARGEST_EXACT, Value
from tracelens.files.safe_text import is_formula_like, xml_text
from tracelens.types.records import Record

#: The most characters a cell holds.
MAX_TEXT = 32_767
_ROWS_AT_A_TIME = 256


class ColumnStyles(Record, frozen=True, kw_only=True):
    """Indices into the workbook's styles for the cells of one column; ``quoted`` are texts that look like a formula."""

    number: int
    text: int
    quoted: int


def rows_xml(columns: Sequence[Sequence[Value]], styles: Sequence[ColumnStyles], *, first_row: int) -> Iterator[bytes]:
    """The ``<row>`` elements of the columns' values, some rows at a time; a missing or empty value has no cell."""
    makers = [_CellText(column_letter(number), style) for number, style in enumerate(styles, 1)]
    for start in range(0, max(map(len, columns), default=0), _ROWS_AT_A_TIME):
        made = [
            maker.all_of(values[start : start + _ROWS_AT_A_TIME], first_row + start)
            for maker, values in zip(makers, columns, strict=True)
        ]
        rows = enumerate(zip(*made, strict=True), first_row + start)
        yield "".join([f'<row r="{number}">{"".join(cells)}</row>' for number, cells in rows]).encode()


def fitting(text: str) -> str:
    """``text`` as a cell can hold it: what XML has no character for is shown as a picture, what is too long is cut."""
    text = xml_text(text)
    if len(text) <= MAX_TEXT:
        return text
    ending = f"… ({len(text):,} characters)"
    return text[: MAX_TEXT - len(ending)] + ending


def column_letter(number: int) -> str:
    """From 1.

    >>> column_letter(1), column_letter(26), column_letter(27), column_letter(703)
    ('A', 'Z', 'AA', 'AAA')
    """
    letters = ""
    while number:
        number, letter = divmod(number - 1, 26)
        letters = chr(65 + letter) + letters
    return letters


def escape_xml(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def row_xml(number: int, height: float, values: Sequence[Value], styles: Sequence[int]) -> str:
    """A row of its own height, each cell in a style of its own; a missing value's cell has its style."""
    cells = (
        f'<c r="{column_letter(column)}{number}" s="{style}"{_content(value)}'
        for column, (value, style) in enumerate(zip(values, styles, strict=True), 1)
    )
    return f'<row r="{number}" ht="{height:g}" customHeight="1">{"".join(cells)}</row>'


def _content(value: Value) -> str:
    """What follows the style in a ``<c>`` element."""
    if value is None or value == "":
        return "/>"
    if isinstance(value, bool):
        return f' t="b"><v>{value:d}</v></c>'
    if isinstance(value, str) or _is_beyond_excel(value):
        return _text(fitting(str(value)))
    return f"><v>{value!r}</v></c>"


def _text(text: str) -> str:
    space = ' xml:space="preserve"' if text != text.strip() or "\n" in text else ""
    return f' t="inlineStr"><is><t{space}>{escape_xml(text)}</t></is></c>'


class _CellText:
    """The cells of one column."""

    def __init__(self, letter: str, styles: ColumnStyles) -> None:
        self._letter = letter
        self._styles = styles
        # The same texts come again and again: what stands around the row's number in each.
        self._texts: dict[str, str] = {}

    def all_of(self, values: Sequence[Value], first_row: int) -> list[str]:
        """The elements of values below each other. Nearly all are numbers, or texts that were there before."""
        start, number, known = f'<c r="{self._letter}', f'" s="{self._styles.number}"><v>', self._texts
        return [
            f"{start}{row}{number}{value!r}</v></c>"
            if type(value) is float and -LARGEST_EXACT < value < LARGEST_EXACT
            else f'{start}{row}"{known[value]}'
            if type(value) is str and value in known
            else self.of(value, row)
            for row, value in enumerate(values, first_row)
        ]

    def of(self, value: Value, row: int) -> str:
        """The ``<c>`` element; empty for an empty text."""
        if value is None or value == "":
            return ""
        if not isinstance(value, str):
            if not _is_beyond_excel(value):
                return f'<c r="{self._letter}{row}" s="{self._styles.number}"{_content(value)}'
            value = str(value)
        rest = self._texts.get(value)
        if rest is None:
            text = fitting(value)
            style = self._styles.quoted if is_formula_like(text) else self._styles.text
            rest = self._texts[value] = f' s="{style}"{_text(text)}'
        return f'<c r="{self._letter}{row}"{rest}'


def _is_beyond_excel(value: int | float) -> bool:
    """Whether Excel cannot hold the number: infinite, or whole and with more digits than a double has."""
    return math.isinf(value) if isinstance(value, float) else abs(value) > LARGEST_EXACT


@functools.cache
def _template(name: str) -> str:
    return "".join((Path(__file__).with_name("xlsx") / name).read_text(encoding="utf-8").splitlines())


def part(name: str, kind: str = "xml", **values: object) -> str:
    """A document of the folder ``xlsx`` with these values in it, which are XML already."""
    return _template(f"{name}.{kind}").format(**values)


MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
#: Formats that every spreadsheet numbers alike; others are numbered from ``_OWN_FORMATS`` on.
_KNOWN_FORMATS = {"General": 0, "0": 1, "0.00": 2, "#,##0": 3, "#,##0.00": 4, "0%": 9, "0.00%": 10, "@": 49}
_OWN_FORMATS = 164
_NO_BORDER = "<border><left/><right/><top/><bottom/><diagonal/></border>"


def font(size: int = 10, *, bold: bool = False, color: str = "000000", underlined: bool = False) -> str:
    weight, line = "<b/>" if bold else "", "<u/>" if underlined else ""
    return (
        f'<font>{weight}{line}<sz val="{size}"/><color rgb="FF{color}"/><name val="Calibri"/><family val="2"/></font>'
    )


_PLAIN = font()


def solid(color: str) -> str:
    return f'<fill><patternFill patternType="solid"><fgColor rgb="FF{color}"/></patternFill></fill>'


def edge(side: str, style: str, color: str) -> str:
    line = f'<{side} style="{style}"><color rgb="FF{color}"/></{side}>'
    return _NO_BORDER.replace(f"<{side}/>", line)


class Style(NamedTuple):
    """How a cell looks. ``alignment``: attributes as XML has them. ``quoted``: a text, whatever it begins with."""

    font: str = _PLAIN
    fill: str = "<fill><patternFill/></fill>"
    border: str = _NO_BORDER
    alignment: str = ""
    number_format: str = "General"
    quoted: bool = False


class Styles:
    """The styles that were asked for, in that order."""

    def __init__(self) -> None:
        self._made = {Style(font=font(11)): 0}

    def index(self, style: Style) -> int:
        return self._made.setdefault(style, len(self._made))

    def xml(self, differences: str) -> str:
        """The document; ``differences``: the ``<dxf>`` elements of conditional formats."""
        fonts: dict[str, int] = {}
        fills = {Style().fill: 0, '<fill><patternFill patternType="gray125"/></fill>': 1}
        borders: dict[str, int] = {}
        formats: dict[str, int] = {}
        cells = []
        for style in self._made:
            parts = zip((fonts, fills, borders), style[:3], strict=True)
            numbers = [known.setdefault(part, len(known)) for known, part in parts]
            kind = _KNOWN_FORMATS.get(style.number_format)
            if kind is None:
                kind = _OWN_FORMATS + formats.setdefault(style.number_format, len(formats))
            fonted, filled, bordered = numbers
            quoted = ' quotePrefix="1"' if style.quoted else ""
            aligned = f' applyAlignment="1"><alignment {style.alignment}/></xf>' if style.alignment else "/>"
            cells.append(
                f'<xf numFmtId="{kind}" fontId="{fonted}" fillId="{filled}" borderId="{bordered}" xfId="0"{quoted} '
                f'applyNumberFormat="1" applyFont="1" applyFill="1" applyBorder="1"{aligned}'
            )
        own = (
            f'<numFmt numFmtId="{_OWN_FORMATS + at}" formatCode="{escape_xml(text)}"/>' for text, at in formats.items()
        )
        return (
            f'<styleSheet xmlns="{MAIN}">{_counted("numFmts", own)}{_counted("fonts", fonts)}{_counted("fills", fills)}'
            f"{_counted('borders', borders)}"
            '<cellStyleXfs count="1"><xf numFmtId="0" fontId="0" fillId="0" borderId="0"/></cellStyleXfs>'
            f"{_counted('cellXfs', cells)}"
            '<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles>'
            f'<dxfs count="{differences.count("<dxf>")}">{differences}</dxfs></styleSheet>'
        )


def _counted(name: str, elements: Iterable[str]) -> str:
    listed = list(elements)
    return f'<{name} count="{len(listed)}">{"".join(listed)}</{name}>' if listed else ""


RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_NOTE_WIDTH = 300
#: English metric units, in which drawings are measured.
_EMU_PER_CM = 360_000
_AUTHOR = "tracelens"


class Note(Record, frozen=True, kw_only=True):
    """What is said beside the header of a column, from 1; ``height`` in pixels."""

    column: int
    text: str
    height: int


class Chart(Record, frozen=True, kw_only=True):
    """Its document, and where it stands: from the second row of a column, from 1; sizes in cm."""

    xml: str
    column: int
    width_cm: float
    height_cm: float


#: Characters that stay readable on a page's width.
_PAGE_WIDTH = 260


class Worksheet(Record, frozen=True, kw_only=True):
    """``rows``: ``<row>`` elements, made when the sheet is written. ``widths``: of its columns, in characters.

    The first row and column print on each page. ``printed``: the cells that print, all where empty. ``filtered``: the
    range of its table. ``rules``: conditional formats (range, elements). ``links``: from a cell to the sheet of a
    title. ``merged``: ranges shown as one cell.
    """

    title: str
    rows: Iterable[bytes]
    widths: Sequence[float]
    frozen: tuple[int, int] = (1, 1)
    tab: str = ""
    grid: bool = True
    zoom: int = 100
    printed: str = ""
    filtered: str = ""
    merged: Sequence[str] = ()
    rules: Sequence[tuple[str, str]] = ()
    links: Mapping[str, str] = msgspec.field(default_factory=dict)
    notes: Sequence[Note] = ()
    chart: Chart | None = None

    def head(self) -> str:
        tab = f'<tabColor rgb="FF{self.tab}"/>' if self.tab else ""
        columns = "".join(
            f'<col min="{at}" max="{at}" width="{width:g}" customWidth="1"/>' for at, width in enumerate(self.widths, 1)
        )
        # What of it stays in sight, and how large
        across, down = self.frozen
        split = (f'xSplit="{across}" ' if across else "") + (f'ySplit="{down}" ' if down else "")
        pane = "bottomRight" if across and down else "bottomLeft" if down else "topRight"
        corner = f"{column_letter(across + 1)}{down + 1}"
        frozen = f'<pane {split}topLeftCell="{corner}" activePane="{pane}" state="frozen"/><selection pane="{pane}"/>'
        seen = ("" if self.grid else 'showGridLines="0" ') + f'zoomScale="{self.zoom}"'
        return (
            f'<worksheet xmlns="{MAIN}" xmlns:r="{RELATIONS}">'
            f'<sheetPr>{tab}<pageSetUpPr fitToPage="1"/></sheetPr>'
            f'<sheetViews><sheetView {seen} workbookViewId="0">{frozen}</sheetView></sheetViews>'
            f'<sheetFormatPr baseColWidth="8" defaultRowHeight="15"/>{f"<cols>{columns}</cols>" if columns else ""}'
            "<sheetData>"
        )

    def tail(self) -> str:
        parts = ["</sheetData>"]
        if self.filtered:
            parts.append(f'<autoFilter ref="{self.filtered}"/>')
        if self.merged:
            cells = "".join(f'<mergeCell ref="{each}"/>' for each in self.merged)
            parts.append(f'<mergeCells count="{len(self.merged)}">{cells}</mergeCells>')
        parts += [
            f'<conditionalFormatting sqref="{cells}">{rules}</conditionalFormatting>' for cells, rules in self.rules
        ]
        if self.links:
            links = (
                f'<hyperlink ref="{cell}" location="{escape_xml(reference(title))}!A1" display="{escape_xml(title)}"/>'
                for cell, title in self.links.items()
            )
            parts.append(f"<hyperlinks>{''.join(links)}</hyperlinks>")
        parts.append('<pageMargins left="0.75" right="0.75" top="1" bottom="1" header="0.5" footer="0.5"/>')
        # Pages side by side
        pages = max(1, math.ceil(sum(self.widths) / _PAGE_WIDTH))
        parts.append(f'<pageSetup orientation="landscape" fitToWidth="{pages}" fitToHeight="0"/>')
        if self.chart is not None:
            parts.append('<drawing r:id="chart"/>')
        if self.notes:
            parts.append('<legacyDrawing r:id="shapes"/>')
        parts.append("</worksheet>")
        return "".join(parts)

    def names(self, number: int) -> str:
        """What the workbook says of the ``number``-th sheet: its filtered range, what prints on each page."""
        sheet, said = escape_xml(reference(self.title)), []
        if self.filtered:
            cells = re.sub(r"([A-Z]+)(\d+)", r"$\1$\2", self.filtered)
            said.append(f'_FilterDatabase" localSheetId="{number}" hidden="1">{sheet}!{cells}')
        if self.printed:
            said.append(f'Print_Area" localSheetId="{number}">{sheet}!{self.printed}')
        said.append(f'Print_Titles" localSheetId="{number}">{sheet}!$A:$A,{sheet}!$1:$1')
        return "".join(f'<definedName name="_xlnm.{name}</definedName>' for name in said)

    def comments_xml(self) -> str:
        notes = "".join(
            f'<comment ref="{column_letter(note.column)}1" authorId="0"><text><t xml:space="preserve">'
            f"{escape_xml(fitting(note.text))}</t></text></comment>"
            for note in self.notes
        )
        return (
            f'<comments xmlns="{MAIN}"><authors><author>{_AUTHOR}</author></authors>'
            f"<commentList>{notes}</commentList></comments>"
        )


def _shape(number: int, note: Note) -> str:
    return (
        f'<v:shape id="_x0000_s{1024 + number}" type="#_x0000_t202" style="position:absolute;margin-left:59.25pt;'
        f'margin-top:1.5pt;width:{_NOTE_WIDTH}px;height:{note.height}px;z-index:1;visibility:hidden" '
        'fillcolor="#ffffe1" o:insetmode="auto"><v:fill color2="#ffffe1"/><v:shadow color="black" obscured="t"/>'
        '<v:path o:connecttype="none"/><v:textbox style="mso-direction-alt:auto"><div style="text-align:left"/>'
        '</v:textbox><x:ClientData ObjectType="Note"><x:MoveWithCells/><x:SizeWithCells/><x:AutoFill>False</x:AutoFill>'
        f"<x:Row>0</x:Row><x:Column>{note.column - 1}</x:Column></x:ClientData></v:shape>"
    )


def reference(title: str) -> str:
    """A sheet as formulas and links name it."""
    return "'" + title.replace("'", "''") + "'"


_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_OFFICE = "application/vnd.openxmlformats-officedocument"
#: Of zlib's 1 to 9: a third of the default's (6) time, and a workbook a seventh larger.
_EFFORT = 3
#: The day that a report has.
_DATE = (1980, 1, 1, 0, 0, 0)
_CORE = f'<Relationship Id="core" Type="{_PACKAGE}/relationships/metadata/core-properties" Target="docProps/core.xml"/>'

_TYPES = {
    "sheet": f"{_OFFICE}.spreadsheetml.worksheet+xml",
    "comments": f"{_OFFICE}.spreadsheetml.comments+xml",
    "drawing": f"{_OFFICE}.drawing+xml",
    "chart": f"{_OFFICE}.drawingml.chart+xml",
    "workbook": f"{_OFFICE}.spreadsheetml.sheet.main+xml",
    "styles": f"{_OFFICE}.spreadsheetml.styles+xml",
    "core": "application/vnd.openxmlformats-package.core-properties+xml",
}


def write_xlsx(
    file: BinaryIO, sheets: Sequence[Worksheet], styles: Styles, *, title: str = "", differences: str = ""
) -> None:
    """``differences``: the ``<dxf>`` elements that the sheets' conditional formats name by number."""
    with ZipFile(file, "w", ZIP_DEFLATED, allowZip64=True) as archive:
        parts = _Parts(archive)
        for number, sheet in enumerate(sheets, 1):
            parts.add_sheet(number, sheet)
        books = [(f"sheet{n}", "worksheet", f"worksheets/sheet{n}.xml") for n in range(1, len(sheets) + 1)]
        parts.add("xl/_rels/workbook.xml.rels", _relations([*books, ("styles", "styles", "styles.xml")]))
        parts.add("xl/workbook.xml", _workbook(sheets), "workbook")
        parts.add("xl/styles.xml", styles.xml(differences), "styles")
        named = f"<dc:title>{escape_xml(xml_text(title))}</dc:title>" if title else ""
        parts.add("docProps/core.xml", part("properties", named=named), "core")
        parts.add("_rels/.rels", _relations([("workbook", "officeDocument", "xl/workbook.xml")], _CORE))
        parts.add("[Content_Types].xml", parts.types())


class _Parts:
    """The documents of the file, with what they are."""

    def __init__(self, archive: ZipFile) -> None:
        self._archive = archive
        self._types: list[str] = []

    def add(self, name: str, document: str | Iterable[bytes], kind: str = "") -> None:
        if kind:
            self._types.append(f'<Override PartName="/{name}" ContentType="{_TYPES[kind]}"/>')
        member = ZipInfo(name, _DATE)
        member.compress_type = ZIP_DEFLATED
        member._compresslevel = _EFFORT  # type: ignore[attr-defined]  # without a public name before Python 3.13
        member.create_system = 3
        member.external_attr = 0o644 << 16
        with self._archive.open(member, "w", force_zip64=not isinstance(document, str)) as target:
            target.write(_HEAD.encode())
            if isinstance(document, str):
                target.write(document.encode())
            else:
                target.writelines(document)

    def types(self) -> str:
        return (
            f'<Types xmlns="{_PACKAGE}/content-types">'
            '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
            '<Default Extension="xml" ContentType="application/xml"/>'
            f'<Default Extension="vml" ContentType="{_OFFICE}.vmlDrawing"/>{"".join(self._types)}</Types>'
        )

    def add_sheet(self, number: int, sheet: Worksheet) -> None:
        whole = chain([sheet.head().encode()], sheet.rows, [sheet.tail().encode()])
        self.add(f"xl/worksheets/sheet{number}.xml", whole, "sheet")
        related = []
        if sheet.notes:
            self.add(f"xl/comments{number}.xml", sheet.comments_xml(), "comments")
            shapes = "".join(_shape(at, note) for at, note in enumerate(sheet.notes, 1))
            self.add(f"xl/drawings/vmlDrawing{number}.vml", part("shapes", "vml", shapes=shapes))
            related += [("notes", "comments", f"../comments{number}.xml")]
            related += [("shapes", "vmlDrawing", f"../drawings/vmlDrawing{number}.vml")]
        if (chart := sheet.chart) is not None:
            self.add(f"xl/charts/chart{number}.xml", chart.xml, "chart")
            width, height = (round(cm * _EMU_PER_CM) for cm in (chart.width_cm, chart.height_cm))
            drawing = part("drawing", column=chart.column - 1, width=width, height=height)
            self.add(f"xl/drawings/drawing{number}.xml", drawing, "drawing")
            drawn = _relations([("chart", "chart", f"../charts/chart{number}.xml")])
            self.add(f"xl/drawings/_rels/drawing{number}.xml.rels", drawn)
            related += [("chart", "drawing", f"../drawings/drawing{number}.xml")]
        if related:
            self.add(f"xl/worksheets/_rels/sheet{number}.xml.rels", _relations(related))


def _relations(related: Iterable[tuple[str, str, str]], more: str = "") -> str:
    """Of (id, kind, target)."""
    listed = "".join(f'<Relationship Id="{id_}" Type="{RELATIONS}/{kind}" Target="{to}"/>' for id_, kind, to in related)
    return f'<Relationships xmlns="{_PACKAGE}/relationships">{listed}{more}</Relationships>'


def _workbook(sheets: Sequence[Worksheet]) -> str:
    listed = "".join(
        f'<sheet name="{escape_xml(sheet.title)}" sheetId="{number}" r:id="sheet{number}"/>'
        for number, sheet in enumerate(sheets, 1)
    )
    names = "".join(sheet.names(number) for number, sheet in enumerate(sheets))
    defined = f"<definedNames>{names}</definedNames>" if names else ""
    return (
        f'<workbook xmlns="{MAIN}" xmlns:r="{RELATIONS}"><bookViews><workbookView/></bookViews>'
        f"<sheets>{listed}</sheets>{defined}</workbook>"
    )
