"""Charts beside the small summary sheets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openpyxl.chart import BarChart, Reference

from tracelens.schema import Column

_MOST_COLUMNS, _MOST_BARS = 6, 16
_COLOR = "4F81BD"


def charted_columns(columns: Sequence[Column]) -> tuple[int, int] | None:
    """(column of the names, column of the shares), from 1, of a sheet small enough to draw; None otherwise."""
    shares = [index for index, column in enumerate(columns, 1) if column.look == "share"]
    if len(columns) > _MOST_COLUMNS or len(shares) != 1 or not columns[0].is_text:
        return None
    return 1, shares[0]


def share_chart(ws: Any, title: str, bars: tuple[int, int], rows: int) -> Any:
    """A bar per row, largest on top, of its share in percent; ``rows`` are the sheet's rows below the header."""
    names, shares = bars
    last = 1 + min(rows, _MOST_BARS)
    chart: Any = BarChart()
    chart.type = "bar"
    chart.title = title
    chart.legend = None
    chart.gapWidth = 40
    chart.add_data(Reference(ws, min_col=shares, min_row=1, max_row=last), titles_from_data=True)
    chart.set_categories(Reference(ws, min_col=names, min_row=2, max_row=last))
    chart.series[0].graphicalProperties.solidFill = _COLOR
    chart.y_axis.title = "%"
    chart.y_axis.number_format = "0"
    chart.y_axis.scaling.min = 0
    chart.x_axis.scaling.orientation = "maxMin"
    chart.x_axis.delete = chart.y_axis.delete = False
    chart.width, chart.height = 18, 3 + 0.7 * (last - 1)
    return chart
