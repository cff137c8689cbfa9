"""Lines over a common axis, both axes linear and from zero, in the colors of the pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from tracelens.report.charts.axis_ticks import round_ticks
from tracelens.report.html.charts import COLORS, legend
from tracelens.report.html.markup import Markup, joined, tag

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 1180.0, 300.0, 74.0, 16.0, 14.0, 44.0
_MARKED = 64


def line_chart(lines: Mapping[str, Sequence[tuple[float, float]]], across: str, up: str) -> Markup:
    """A chart with its legend; every point of a short line has a tooltip."""
    points = [point for line in lines.values() for point in line]
    right = max((x for x, _ in points), default=1.0) or 1.0
    top = round_ticks(max((y for _, y in points), default=1.0) or 1.0)[-1]

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
    for value in round_ticks(top):
        _, y = place((0.0, value))
        yield tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="grid")
        yield tag("text", f"{value:,.6g}", x=_LEFT - 8, y=y + 4, class_="tick", text_anchor="end")
    for value in round_ticks(right):
        if value <= right:
            x, _ = place((value, 0.0))
            yield tag("text", f"{value:,.6g}", x=x, y=_HEIGHT - _BOTTOM + 17, class_="tick", text_anchor="middle")


def bars(rows: Sequence[tuple[str, float, str]], title: str) -> Markup:
    """``rows``: (name, value, the value as text); a bar each."""
    return stacked_bars([(name, [("", value)], text) for name, value, text in rows], title)


def stacked_bars(rows: Sequence[tuple[str, Sequence[tuple[str, float]], str]], title: str, whole: float = 0) -> Markup:
    """``rows``: (name, its parts, their sum as text). The longest bar, or ``whole`` if that is more, takes all room;
    a gray track behind each bar is as long as ``whole``, with a line at its end.
    """
    top = max((sum(value for _, value in parts) for _, parts, _ in rows), default=0.0)
    top = max(top, whole) or 1.0
    names = list(dict.fromkeys(name for _, parts, _ in rows for name, value in parts if value))
    end = f"{100 * whole / top:.3f}%"
    track = tag("rect", width=end, height=16, class_="gauge") if whole else None
    limit = tag("rect", x=end, width=2, height=16, transform="translate(-2 0)", class_="limit") if whole else None
    lines = []
    for row, parts, text in rows:
        drawn = joined(track, *_side_by_side(parts, names, top), limit)
        picture = tag("svg", drawn, width="100%", height=16, aria_hidden="true")
        cells = (tag("th", row, scope="row"), tag("td", picture, class_="span"), tag("td", text, class_="n"))
        lines.append(tag("tr", cells))
    table = tag("div", tag("table", tag("tbody", lines), class_="waterfall"), class_="scroll", tabindex="0")
    keys = legend([(name, f"c{number % COLORS}") for number, name in enumerate(names)]) if names != [""] else None
    return joined(tag("h3", title), table, keys)


def _side_by_side(parts: Sequence[tuple[str, float]], names: Sequence[str], top: float) -> Iterator[Markup]:
    at = 0.0
    for name, value in parts:
        if value or not name:
            tip = tag("title", f"{name} {value:,.3g}") if name else None
            color = f"c{names.index(name) % COLORS}" if name else "c0"
            yield tag(
                "rect", tip, x=f"{100 * at / top:.3f}%", width=f"{100 * value / top:.3f}%", height=16, class_=color
            )
        at += value
