"""Worksheets to one xlsx file: a zip of XML documents without a date, so that the same content gives the same bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import BinaryIO
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from tracelens.files.safe_text import xml_text
from tracelens.report.xlsx.cell_styles import MAIN, Styles
from tracelens.report.xlsx.worksheet_rows import markup
from tracelens.report.xlsx_file import RELATIONS, Worksheet

_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_OFFICE = "application/vnd.openxmlformats-officedocument"
#: Of zlib's 1 to 9: a third of the default's (6) time, and a workbook a seventh larger.
_EFFORT = 3
#: The day that a report has.
_DATE = (1980, 1, 1, 0, 0, 0)
_DATE_TEXT = "1980-01-01T00:00:00Z"
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
        parts.add("docProps/core.xml", _core(title), "core")
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
        with self._archive.open(_member(name), "w", force_zip64=not isinstance(document, str)) as target:
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
        """The worksheet, and what it refers to."""
        self.add(f"xl/worksheets/sheet{number}.xml", _whole(sheet), "sheet")
        related = []
        if sheet.notes:
            self.add(f"xl/comments{number}.xml", sheet.comments_xml(), "comments")
            self.add(f"xl/drawings/vmlDrawing{number}.vml", sheet.shapes_vml())
            related += [("notes", "comments", f"../comments{number}.xml")]
            related += [("shapes", "vmlDrawing", f"../drawings/vmlDrawing{number}.vml")]
        if sheet.chart is not None:
            self.add(f"xl/charts/chart{number}.xml", sheet.chart.xml, "chart")
            self.add(f"xl/drawings/drawing{number}.xml", sheet.chart.drawing_xml(), "drawing")
            drawn = _relations([("chart", "chart", f"../charts/chart{number}.xml")])
            self.add(f"xl/drawings/_rels/drawing{number}.xml.rels", drawn)
            related += [("chart", "drawing", f"../drawings/drawing{number}.xml")]
        if related:
            self.add(f"xl/worksheets/_rels/sheet{number}.xml.rels", _relations(related))


def _whole(sheet: Worksheet) -> Iterable[bytes]:
    yield sheet.head().encode()
    yield from sheet.rows
    yield sheet.tail().encode()


def _member(name: str) -> ZipInfo:
    member = ZipInfo(name, _DATE)
    member.compress_type = ZIP_DEFLATED
    member._compresslevel = _EFFORT  # type: ignore[attr-defined]  # without a public name before Python 3.13
    member.create_system = 3
    member.external_attr = 0o644 << 16
    return member


def _relations(related: Iterable[tuple[str, str, str]], more: str = "") -> str:
    """Of (id, kind, target)."""
    listed = "".join(f'<Relationship Id="{id_}" Type="{RELATIONS}/{kind}" Target="{to}"/>' for id_, kind, to in related)
    return f'<Relationships xmlns="{_PACKAGE}/relationships">{listed}{more}</Relationships>'


def _workbook(sheets: Sequence[Worksheet]) -> str:
    listed = "".join(
        f'<sheet name="{markup(sheet.title)}" sheetId="{number}" r:id="sheet{number}"/>'
        for number, sheet in enumerate(sheets, 1)
    )
    names = "".join(sheet.names(number) for number, sheet in enumerate(sheets))
    defined = f"<definedNames>{names}</definedNames>" if names else ""
    return (
        f'<workbook xmlns="{MAIN}" xmlns:r="{RELATIONS}"><bookViews><workbookView/></bookViews>'
        f"<sheets>{listed}</sheets>{defined}</workbook>"
    )


def _core(title: str) -> str:
    named = f"<dc:title>{markup(xml_text(title))}</dc:title>" if title else ""
    dates = "".join(
        f'<dcterms:{kind} xsi:type="dcterms:W3CDTF">{_DATE_TEXT}</dcterms:{kind}>' for kind in ("created", "modified")
    )
    return (
        f'<cp:coreProperties xmlns:cp="{_PACKAGE}/metadata/core-properties" '
        'xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:dcterms="http://purl.org/dc/terms/" '
        f'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"><dc:creator>tracelens</dc:creator>{named}{dates}'
        "</cp:coreProperties>"
    )
