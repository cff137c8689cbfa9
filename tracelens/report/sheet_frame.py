"""A sheet as a DataFrame whose columns keep their keys and that a notebook shows with titles, units and formats."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import pandas as pd

from tracelens.report.markup import Markup, tag
from tracelens.schema import GENERAL, IDENTIFIER, TableColumn

_LEFT = "text-align: left"


class SheetFrame(pd.DataFrame):
    """A DataFrame in everything but its HTML: rows and columns selected from it are shown in the same way."""

    _metadata: ClassVar[list[str]] = ["_column_of"]
    #: Without entries after operations that keep no such attributes, as of merges: keys are shown then.
    _column_of: Mapping[str, TableColumn] = MappingProxyType({})

    @classmethod
    def of(cls, frame: pd.DataFrame, columns: tuple[TableColumn, ...]) -> SheetFrame:
        """``frame`` with what its columns mean."""
        made = cls(frame)
        object.__setattr__(made, "_column_of", {column.key: column for column in columns})
        return made

    @property
    def _constructor(self) -> type[SheetFrame]:
        return SheetFrame

    def _repr_html_(self) -> str | None:
        """What Jupyter shows. Options of pandas hold: whether HTML is shown at all, rows, columns, width of a text."""
        if not pd.get_option("display.notebook_repr_html"):
            return None
        most = pd.get_option("display.max_columns") or len(self.columns)
        columns = [(str(key), self._column_of.get(str(key))) for key in self.columns[:most]]
        first, last = _ends(len(self))
        at = [*range(first), *range(len(self) - last, len(self))]
        cells = [[_cell(value, column) for value in self.iloc[at, i]] for i, (_, column) in enumerate(columns)]
        rows = [
            tag("tr", tag("th", str(self.index[i])), *line)
            for i, line in zip(at, zip(*cells, strict=True), strict=False)
        ]
        if first + last < len(self):
            rows.insert(first, tag("tr", tag("td", "…", colspan=len(columns) + 1, style="text-align: center")))
        head = [tag("th"), *(_head(key, column) for key, column in columns)]
        table = tag("table", tag("thead", tag("tr", head)), tag("tbody", rows), class_="dataframe")
        left_out = ", ".join(map(str, self.columns[most:]))
        size = f"{len(self):,} rows × {len(self.columns)} columns{left_out and f'; not shown: {left_out}'}"
        return tag("div", table, tag("p", size), style="overflow-x: auto")


def _ends(rows: int) -> tuple[int, int]:
    """How many rows are shown at the head and at the foot of a table."""
    most, fewest = pd.get_option("display.max_rows"), pd.get_option("display.min_rows")
    if most is None or rows <= most:
        return rows, 0
    half = max(1, min(most, fewest or most) // 2)
    return half, half


def _head(key: str, column: TableColumn | None) -> Markup:
    if column is None:
        return tag("th", key)
    return tag("th", column.title, title=column.note, style=_LEFT if column.is_text else None)


def shown_number(value: float, decimals: int) -> str:
    """With thousands separators; two significant digits where ``decimals`` would leave only zeros.

    >>> shown_number(1234.5, 1), shown_number(0.0004, 2), shown_number(0, 2)
    ('1,234.5', '0.00040', '0.00')
    """
    if value and abs(value) < 0.5 * 10**-decimals:
        return f"{value:#.2g}"
    return f"{value:,.{decimals}f}"


def _cell(value: Any, column: TableColumn | None) -> Markup:
    if isinstance(value, bool) or not pd.api.types.is_number(value):
        text = "" if pd.api.types.is_scalar(value) and pd.isna(value) else str(value)
        most = pd.get_option("display.max_colwidth") or len(text)
        shown = text if len(text) <= most else f"{text[: most - 1]}…"
        return tag("td", shown, title=None if shown == text else text, style=_LEFT)
    number: Any = value
    if number != number:
        return tag("td")
    pattern = GENERAL if column is None else column.number_format
    if pattern == IDENTIFIER:
        return tag("td", f"{number:.0f}")
    if column is None or column.is_flag or column.is_text:
        return tag("td", f"{number:,.6g}" if isinstance(number, float) else f"{number:,}")
    return tag("td", shown_number(number, len(pattern.partition(".")[2])))
