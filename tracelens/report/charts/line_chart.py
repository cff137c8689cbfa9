"""Lines over a common axis, both axes linear and from zero, in the colors of the pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from tracelens.report.charts.markup import Markup, joined, tag
from tracelens.report.charts.page_charts import COLORS, legend

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 1180.0, 300.0, 74.0, 16.0, 14.0, 44.0
_TICKS = 5
_MARKED = 64


def line_chart(lines: Mapping[str, Sequence[tuple[float, float]]], across: str, up: str) -> Markup:
    """A chart with its legend; every point of a short line has a tooltip."""
    points = [point for line in lines.values() for point in line]
    right = max((x for x, _ in points), default=1.0) or 1.0
    top = max((y for _, y in points), default=1.0) or 1.0

    def place(point: tuple[float, float]) -> tuple[float, float]:
        x = _LEFT + point[0] / right * (_WIDTH - _LEFT - _RIGHT)
        return x, _HEIGHT - _BOTTOM - point[1] / top * (_HEIGHT - _TOP - _BOTTOM)

    drawn = [*_grid(right, top, place)]
    for number, (name, line) in enumerate(lines.items()):
        color = f"c{number % COLORS}"
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in map(place, line))
        drawn.append(tag("path", d=path, class_=f"line l{color}"))
        if len(line) <= _MARKED:
            for point in line:
                x, y = place(point)
                tip = tag("title", f"{name}: {point[1]:,.4g} at {point[0]:,.4g}")
                drawn.append(tag("circle", tip, cx=x, cy=y, r=4, class_=color))
    drawn.append(tag("text", across, x=_WIDTH / 2, y=_HEIGHT - 6, class_="axis", text_anchor="middle"))
    shape = f"0 0 {_WIDTH:g} {_HEIGHT:g}"
    chart = tag("svg", drawn, class_="roofline", role="img", aria_label=f"{up} over {across}", viewBox=shape)
    return tag(
        "figure",
        tag("figcaption", up),
        tag("div", chart, class_="wide", tabindex="0"),
        legend([(name, f"c{number % COLORS}") for number, name in enumerate(lines)]) if len(lines) > 1 else None,
    )


def _grid(right: float, top: float, place: Callable[[tuple[float, float]], tuple[float, float]]) -> Iterator[Markup]:
    for i in range(_TICKS):
        share = i / (_TICKS - 1)
        x, y = place((share * right, share * top))
        yield tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="grid")
        yield tag("text", f"{share * top:,.4g}", x=_LEFT - 8, y=y + 4, class_="tick", text_anchor="end")
        anchor = "start" if i == 0 else "end" if share == 1 else "middle"
        below = _HEIGHT - _BOTTOM + 17
        yield tag("text", f"{share * right:,.4g}", x=x, y=below, class_="tick", text_anchor=anchor)


def bars(rows: Sequence[tuple[str, float, str]], title: str) -> Markup:
    """``rows``: (name, value, the value as text); a bar each."""
    top = max((value for _, value, _ in rows), default=0.0) or 1.0
    lines = []
    for name, value, text in rows:
        bar = tag("rect", width=f"{100 * value / top:.3f}%", height=16, class_="c0")
        drawn = tag("svg", bar, width="100%", height=16, aria_hidden="true")
        cells = (tag("th", name, scope="row"), tag("td", drawn, class_="span"), tag("td", text, class_="n"))
        lines.append(tag("tr", cells))
    table = tag("table", tag("tbody", lines), class_="waterfall")
    return joined(tag("h3", title), tag("div", table, class_="scroll", tabindex="0"))
