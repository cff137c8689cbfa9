"""The styles of a workbook's cells, each numbered once: its ``styles.xml``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tracelens.report.xlsx.worksheet_rows import markup

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
    """A fill."""
    return f'<fill><patternFill patternType="solid"><fgColor rgb="FF{color}"/></patternFill></fill>'


def edge(side: str, style: str, color: str) -> str:
    """A border on one side."""
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
        """Its number in the workbook."""
        return self._made.setdefault(style, len(self._made))

    def xml(self, differences: str) -> str:
        """The document; ``differences``: the ``<dxf>`` elements of conditional formats."""
        fonts: dict[str, int] = {}
        fills = {Style().fill: 0, '<fill><patternFill patternType="gray125"/></fill>': 1}
        borders: dict[str, int] = {}
        formats: dict[str, int] = {}
        cells = []
        for style in self._made:
            numbers = [_numbered(known, part) for known, part in zip((fonts, fills, borders), style[:3], strict=True)]
            kind = _KNOWN_FORMATS.get(style.number_format)
            if kind is None:
                kind = _OWN_FORMATS + _numbered(formats, style.number_format)
            cells.append(_cell_format(kind, numbers, style))
        own = (f'<numFmt numFmtId="{_OWN_FORMATS + at}" formatCode="{markup(text)}"/>' for text, at in formats.items())
        return (
            f'<styleSheet xmlns="{MAIN}">{_counted("numFmts", own)}{_counted("fonts", fonts)}{_counted("fills", fills)}'
            f"{_counted('borders', borders)}"
            '<cellStyleXfs count="1"><xf numFmtId="0" fontId="0" fillId="0" borderId="0"/></cellStyleXfs>'
            f"{_counted('cellXfs', cells)}"
            '<cellStyles count="1"><cellStyle name="Normal" xfId="0" builtinId="0"/></cellStyles>'
            f'<dxfs count="{differences.count("<dxf>")}">{differences}</dxfs></styleSheet>'
        )


def _numbered(known: dict[str, int], part: str) -> int:
    return known.setdefault(part, len(known))


def _cell_format(kind: int, numbers: list[int], style: Style) -> str:
    fonted, filled, bordered = numbers
    quoted = ' quotePrefix="1"' if style.quoted else ""
    aligned = f' applyAlignment="1"><alignment {style.alignment}/></xf>' if style.alignment else "/>"
    return (
        f'<xf numFmtId="{kind}" fontId="{fonted}" fillId="{filled}" borderId="{bordered}" xfId="0"{quoted} '
        f'applyNumberFormat="1" applyFont="1" applyFill="1" applyBorder="1"{aligned}'
    )


def _counted(name: str, elements: Iterable[str]) -> str:
    listed = list(elements)
    return f'<{name} count="{len(listed)}">{"".join(listed)}</{name}>' if listed else ""
