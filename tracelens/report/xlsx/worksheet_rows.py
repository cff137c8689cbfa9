"""Rows of a worksheet as the text that stands in its XML.

openpyxl makes an element tree of every cell and writes that; nine tenths of a workbook's cells are plain numbers and
texts under a style of their column, and writing those as text takes a sixth of the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from openpyxl.utils import get_column_letter

from tracelens.files.safe_text import is_formula_like, xml_text
from tracelens.report.cells import LARGEST_EXACT, Value

#: The most characters a cell holds.
MAX_TEXT = 32_767
_ROWS_AT_A_TIME = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnStyles:
    """Indices into the workbook's styles for the cells of one column; ``quoted`` are texts that look like a formula."""

    number: int
    text: int
    quoted: int


def rows_xml(columns: Sequence[Sequence[Value]], styles: Sequence[ColumnStyles], *, first_row: int) -> Iterator[bytes]:
    """The ``<row>`` elements of the columns' values, some rows at a time; a missing or empty value has no cell."""
    letters = [get_column_letter(index) for index in range(1, len(columns) + 1)]
    makers = [_CellText(letter, style) for letter, style in zip(letters, styles, strict=True)]
    rows: list[str] = []
    for number, values in enumerate(zip(*columns, strict=True), first_row):
        cells = [maker.of(value, number) for maker, value in zip(makers, values, strict=True) if value is not None]
        rows.append(f'<row r="{number}">{"".join(cells)}</row>')
        if len(rows) == _ROWS_AT_A_TIME:
            yield "".join(rows).encode()
            rows.clear()
    yield "".join(rows).encode()


def fitting(text: str) -> str:
    """``text`` as a cell can hold it: what XML has no character for is shown as a picture, what is too long is cut."""
    text = xml_text(text)
    if len(text) <= MAX_TEXT:
        return text
    ending = f"… ({len(text):,} characters)"
    return text[: MAX_TEXT - len(ending)] + ending


def excel_value(value: Value) -> Value:
    """``value`` as a cell can hold it: texts that fit, numbers that Excel has no form for as texts."""
    if isinstance(value, str):
        return fitting(value)
    return str(value) if value is not None and _is_beyond_excel(value) else value


class _CellText:
    """The cells of one column."""

    def __init__(self, letter: str, styles: ColumnStyles) -> None:
        self._letter = letter
        self._styles = styles
        # The same texts come again and again: what stands around the row's number in each.
        self._texts: dict[str, str] = {}

    def of(self, value: Value, row: int) -> str:
        """The ``<c>`` element; empty for an empty text."""
        if value is None or value == "":
            return ""
        if isinstance(value, bool):
            return f'<c r="{self._letter}{row}" s="{self._styles.number}" t="b"><v>{value:d}</v></c>'
        if not isinstance(value, str):
            if not _is_beyond_excel(value):
                return f'<c r="{self._letter}{row}" s="{self._styles.number}"><v>{value!r}</v></c>'
            value = str(value)
        rest = self._texts.get(value)
        if rest is None:
            rest = self._texts[value] = self._text(fitting(value))
        return f'<c r="{self._letter}{row}"{rest}'

    def _text(self, text: str) -> str:
        style = self._styles.quoted if is_formula_like(text) else self._styles.text
        space = ' xml:space="preserve"' if text != text.strip() or "\n" in text else ""
        escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return f' s="{style}" t="inlineStr"><is><t{space}>{escaped}</t></is></c>'


def _is_beyond_excel(value: int | float) -> bool:
    """Whether Excel cannot hold the number: infinite, or whole and with more digits than a double has."""
    return math.isinf(value) if isinstance(value, float) else abs(value) > LARGEST_EXACT
