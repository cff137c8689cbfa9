"""Charts beside the small summary sheets."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.report.xlsx.worksheet_rows import column_letter, markup
from tracelens.report.xlsx_file import RELATIONS, Chart, reference
from tracelens.schema import Column

_MOST_COLUMNS, _MOST_BARS = 6, 16
_COLOR = "4F81BD"
_DRAWING = "http://schemas.openxmlformats.org/drawingml/2006"


def charted_columns(columns: Sequence[Column]) -> tuple[int, int] | None:
    """(column of the names, column of the shares), from 1, of a sheet small enough to draw; None otherwise."""
    shares = [index for index, column in enumerate(columns, 1) if column.look == "share"]
    if len(columns) > _MOST_COLUMNS or len(shares) != 1 or not columns[0].is_text:
        return None
    return 1, shares[0]


def share_chart(title: str, bars: tuple[int, int], rows: int, place: int, heading: str) -> Chart:
    """A bar per row, largest on top, of its share in percent; ``rows`` are the sheet's rows below the header.

    ``place``: the column where it stands; ``heading``: what it shows.
    """
    names, shares = (column_letter(column) for column in bars)
    last = 1 + min(rows, _MOST_BARS)
    sheet = markup(reference(title))
    xml = (
        f'<c:chartSpace xmlns:c="{_DRAWING}/chart" xmlns:a="{_DRAWING}/main" xmlns:r="{RELATIONS}"><c:chart>'
        f"{_title(heading)}"
        '<c:plotArea><c:layout/><c:barChart><c:barDir val="bar"/><c:grouping val="clustered"/><c:ser>'
        f'<c:idx val="0"/><c:order val="0"/><c:tx><c:strRef><c:f>{sheet}!${shares}$1</c:f></c:strRef></c:tx><c:spPr>'
        f'<a:solidFill><a:srgbClr val="{_COLOR}"/></a:solidFill></c:spPr><c:invertIfNegative val="0"/>'
        f"<c:cat><c:strRef><c:f>{sheet}!${names}$2:${names}${last}</c:f></c:strRef></c:cat>"
        f"<c:val><c:numRef><c:f>{sheet}!${shares}$2:${shares}${last}</c:f></c:numRef></c:val></c:ser>"
        '<c:gapWidth val="40"/><c:axId val="10"/><c:axId val="100"/></c:barChart>'
        '<c:catAx><c:axId val="10"/><c:scaling><c:orientation val="maxMin"/></c:scaling><c:delete val="0"/>'
        '<c:axPos val="l"/><c:majorTickMark val="none"/><c:minorTickMark val="none"/><c:crossAx val="100"/></c:catAx>'
        '<c:valAx><c:axId val="100"/><c:scaling><c:orientation val="minMax"/><c:min val="0"/></c:scaling>'
        f'<c:delete val="0"/><c:axPos val="b"/><c:majorGridlines/>{_title("%")}'
        '<c:numFmt formatCode="0" sourceLinked="0"/><c:majorTickMark val="none"/><c:minorTickMark val="none"/>'
        '<c:crossAx val="10"/></c:valAx></c:plotArea><c:plotVisOnly val="1"/></c:chart></c:chartSpace>'
    )
    return Chart(xml=xml, column=place, width_cm=18, height_cm=3 + 0.7 * (last - 1))


def _title(text: str) -> str:
    return (
        "<c:title><c:tx><c:rich><a:bodyPr/><a:p><a:pPr><a:defRPr/></a:pPr><a:r>"
        f'<a:t>{markup(text)}</a:t></a:r></a:p></c:rich></c:tx><c:overlay val="0"/></c:title>'
    )
