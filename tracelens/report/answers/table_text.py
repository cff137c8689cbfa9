"""A frame as lines of text, its columns aligned."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tracelens.files.safe_text import clipped, display_width, terminal_text
from tracelens.files.say import terminal_width
from tracelens.report.cells import Value, plain_values
from tracelens.report.figures import shown_figure

if TYPE_CHECKING:
    import pandas as pd

#: Columns of the terminal that a cell may take.
_WIDEST = 60
#: What a cell keeps in a narrow terminal.
_LEAST = 16


def table_text(frame: pd.DataFrame) -> Iterator[str]:
    """A line of headers, then a line per row; numbers to four digits, ``-`` where there is none, long texts clipped,
    on a terminal to its width.
    """
    columns = [_counts(plain_values(frame[name])) for name in frame.columns]
    cells = [[str(name), *map(_cell, values)] for name, values in zip(frame.columns, columns, strict=True)]
    widths = [max(map(display_width, column)) for column in cells]
    is_text = [any(isinstance(value, str) for value in values) for values in columns]
    _narrow(cells, widths, [at for at, left in enumerate(is_text) if left])
    for row in zip(*cells, strict=True):
        padded = [
            cell + fill if left else fill + cell
            for cell, width, left in zip(row, widths, is_text, strict=True)
            for fill in (" " * (width - display_width(cell)),)
        ]
        yield "  ".join(padded).rstrip()


def _narrow(cells: list[list[str]], widths: list[int], texts: list[int]) -> None:
    """The widest of the ``texts`` clipped by what is wider than the terminal."""
    too_wide = sum(widths) + 2 * len(widths) - 2 - (terminal_width(sys.stdout) or sys.maxsize)
    if too_wide > 0 and texts:
        widest = max(texts, key=widths.__getitem__)
        widths[widest] = max(widths[widest] - too_wide, min(widths[widest], _LEAST))
        cells[widest] = [clipped(cell, widths[widest]) for cell in cells[widest]]


def _counts(values: list[Value]) -> list[Value]:
    """Figures that are all whole, as sums of counts are, without decimals."""
    if all(each is None or (isinstance(each, float) and each.is_integer()) for each in values):
        return [int(each) if isinstance(each, float) else None for each in values]
    return values


def _cell(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return shown_figure(value)
    return clipped(terminal_text(str(value)), _WIDEST)
