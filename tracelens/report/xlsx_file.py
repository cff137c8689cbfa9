"""A worksheet as the parts of an xlsx file: what stands around its rows, the notes on its headers, its chart."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from tracelens.lazy.records import dataclass
from tracelens.report.xlsx.cell_styles import MAIN
from tracelens.report.xlsx.worksheet_rows import column_letter, fitting, markup

RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_DRAWING = "http://schemas.openxmlformats.org/drawingml/2006"
_NOTE_WIDTH = 300
_AUTHOR = "tracelens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What is said beside the header of a column, from 1; ``height`` in pixels."""

    column: int
    text: str
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Its document, and where it stands: from the second row of a column, from 1; sizes in cm."""

    xml: str
    column: int
    width_cm: float
    height_cm: float

    def drawing_xml(self) -> str:
        """Where it stands."""
        width, height = (round(cm * 360_000) for cm in (self.width_cm, self.height_cm))
        return (
            f'<wsDr xmlns="{_DRAWING}/spreadsheetDrawing" xmlns:a="{_DRAWING}/main" xmlns:c="{_DRAWING}/chart" '
            f'xmlns:r="{RELATIONS}"><oneCellAnchor><from><col>{self.column - 1}</col><colOff>0</colOff>'
            f'<row>1</row><rowOff>0</rowOff></from><ext cx="{width}" cy="{height}"/><graphicFrame><nvGraphicFramePr>'
            '<cNvPr id="1" name="Chart 1"/><cNvGraphicFramePr/></nvGraphicFramePr><xfrm><a:off x="0" y="0"/>'
            f'<a:ext cx="0" cy="0"/></xfrm><a:graphic><a:graphicData uri="{_DRAWING}/chart"><c:chart r:id="chart"/>'
            "</a:graphicData></a:graphic></graphicFrame><clientData/></oneCellAnchor></wsDr>"
        )


#: Characters that stay readable on a page's width.
_PAGE_WIDTH = 200


def pages_of(widths: Sequence[float]) -> int:
    """How many pages side by side columns of these widths go on."""
    return max(1, math.ceil(sum(widths) / _PAGE_WIDTH))


@dataclass(frozen=True, slots=True, kw_only=True)
class Worksheet:
    """``rows``: ``<row>`` elements, made when the sheet is written. ``widths``: of its columns, in characters.

    ``pages``: how many print side by side, with the first row and column on each; None where nothing is set.
    ``printed``: the cells that print, all where empty. ``filtered``: the range of its table. ``rules``: conditional
    formats (range, elements). ``links``: from a cell to the sheet of a title.
    """

    title: str
    rows: Iterable[bytes]
    widths: Sequence[float]
    frozen: tuple[int, int] = (1, 1)
    tab: str = ""
    grid: bool = True
    zoom: int = 100
    pages: int | None = None
    printed: str = ""
    filtered: str = ""
    rules: Sequence[tuple[str, str]] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[Note] = ()
    chart: Chart | None = None

    def head(self) -> str:
        """The document up to its rows."""
        tab = f'<tabColor rgb="FF{self.tab}"/>' if self.tab else ""
        fitted = "" if self.pages is None else '<pageSetUpPr fitToPage="1"/>'
        columns = "".join(
            f'<col min="{at}" max="{at}" width="{width:g}" customWidth="1"/>' for at, width in enumerate(self.widths, 1)
        )
        return (
            f'<worksheet xmlns="{MAIN}" xmlns:r="{RELATIONS}"><sheetPr>{tab}{fitted}</sheetPr>{self._view()}'
            f'<sheetFormatPr baseColWidth="8" defaultRowHeight="15"/>{f"<cols>{columns}</cols>" if columns else ""}'
            "<sheetData>"
        )

    def _view(self) -> str:
        """What of it stays in sight, and how large."""
        columns, rows = self.frozen
        split = (f'xSplit="{columns}" ' if columns else "") + (f'ySplit="{rows}" ' if rows else "")
        pane = "bottomRight" if columns and rows else "bottomLeft" if rows else "topRight"
        corner = f"{column_letter(columns + 1)}{rows + 1}"
        frozen = f'<pane {split}topLeftCell="{corner}" activePane="{pane}" state="frozen"/><selection pane="{pane}"/>'
        seen = ("" if self.grid else 'showGridLines="0" ') + f'zoomScale="{self.zoom}"'
        return f'<sheetViews><sheetView {seen} workbookViewId="0">{frozen}</sheetView></sheetViews>'

    def tail(self) -> str:
        """The document from its rows on."""
        parts = ["</sheetData>"]
        if self.filtered:
            parts.append(f'<autoFilter ref="{self.filtered}"/>')
        parts += [
            f'<conditionalFormatting sqref="{cells}">{rules}</conditionalFormatting>' for cells, rules in self.rules
        ]
        if self.links:
            links = (
                f'<hyperlink ref="{cell}" location="{markup(reference(title))}!A1" display="{markup(title)}"/>'
                for cell, title in self.links.items()
            )
            parts.append(f"<hyperlinks>{''.join(links)}</hyperlinks>")
        parts.append('<pageMargins left="0.75" right="0.75" top="1" bottom="1" header="0.5" footer="0.5"/>')
        if self.pages is not None:
            parts.append(f'<pageSetup orientation="landscape" fitToWidth="{self.pages}" fitToHeight="0"/>')
        if self.chart is not None:
            parts.append('<drawing r:id="chart"/>')
        if self.notes:
            parts.append('<legacyDrawing r:id="shapes"/>')
        parts.append("</worksheet>")
        return "".join(parts)

    def names(self, number: int) -> str:
        """What the workbook says of the ``number``-th sheet: its filtered range, what prints on each page."""
        sheet, said = markup(reference(self.title)), []
        if self.filtered:
            cells = re.sub(r"([A-Z]+)(\d+)", r"$\1$\2", self.filtered)
            said.append(f'_FilterDatabase" localSheetId="{number}" hidden="1">{sheet}!{cells}')
        if self.pages is not None:
            if self.printed:
                said.append(f'Print_Area" localSheetId="{number}">{sheet}!{self.printed}')
            said.append(f'Print_Titles" localSheetId="{number}">{sheet}!$A:$A,{sheet}!$1:$1')
        return "".join(f'<definedName name="_xlnm.{name}</definedName>' for name in said)

    def comments_xml(self) -> str:
        """The texts of the notes."""
        notes = "".join(
            f'<comment ref="{column_letter(note.column)}1" authorId="0"><text><t xml:space="preserve">'
            f"{markup(fitting(note.text))}</t></text></comment>"
            for note in self.notes
        )
        return (
            f'<comments xmlns="{MAIN}"><authors><author>{_AUTHOR}</author></authors>'
            f"<commentList>{notes}</commentList></comments>"
        )

    def shapes_vml(self) -> str:
        """The boxes in which the notes are shown."""
        return f"{_SHAPE_TYPE}{''.join(_shape(number, note) for number, note in enumerate(self.notes, 1))}</xml>"


_SHAPE_TYPE = (
    '<xml xmlns:v="urn:schemas-microsoft-com:vml" xmlns:o="urn:schemas-microsoft-com:office:office" '
    'xmlns:x="urn:schemas-microsoft-com:office:excel"><o:shapelayout v:ext="edit"><o:idmap v:ext="edit" data="1"/>'
    '</o:shapelayout><v:shapetype id="_x0000_t202" coordsize="21600,21600" o:spt="202" '
    'path="m,l,21600r21600,l21600,xe"><v:stroke joinstyle="miter"/><v:path gradientshapeok="t" o:connecttype="rect"/>'
    "</v:shapetype>"
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
