"""Rows of a worksheet as the text that stands in its XML.

Libraries make an object of every cell; nearly all cells are plain numbers and texts under a style of their column, and
writing those as text takes a sixth of the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tracelens.files.safe_text import is_formula_like, xml_text
from tracelens.lazy.records import dataclass
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


def markup(text: str) -> str:
    """``text`` as it stands in an element or an attribute."""
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
    return f' t="inlineStr"><is><t{space}>{markup(text)}</t></is></c>'


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
            if isinstance(value, bool):
                return f'<c r="{self._letter}{row}" s="{self._styles.number}"{_content(value)}'
            if not _is_beyond_excel(value):
                return f'<c r="{self._letter}{row}" s="{self._styles.number}"><v>{value!r}</v></c>'
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
