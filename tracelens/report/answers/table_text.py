"""A frame as lines of text, its columns aligned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tracelens.files.safe_text import clipped, display_width, terminal_text
from tracelens.report.cells import Value, plain_values

if TYPE_CHECKING:
    import pandas as pd

#: Columns of the terminal that a cell may take.
_WIDEST = 60


def table_text(frame: pd.DataFrame) -> Iterator[str]:
    """A line of headers, then a line per row; numbers to four digits, ``-`` where there is none, long texts clipped."""
    columns = [plain_values(frame[name]) for name in frame.columns]
    cells = [[str(name), *map(_cell, values)] for name, values in zip(frame.columns, columns, strict=True)]
    widths = [max(map(display_width, column)) for column in cells]
    is_text = [any(isinstance(value, str) for value in values) for values in columns]
    for row in zip(*cells, strict=True):
        padded = [
            cell + fill if left else fill + cell
            for cell, width, left in zip(row, widths, is_text, strict=True)
            for fill in (" " * (width - display_width(cell)),)
        ]
        yield "  ".join(padded).rstrip()


def _cell(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return clipped(terminal_text(str(value)), _WIDEST)
