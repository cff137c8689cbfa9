"""The charts of the pages as SVG: stacked bars, the roofline, lines over an axis, headroom, memory over time; and
pictures of search results: scaling, time and memory by part, degrees, heat maps, the landscape.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from tracelens.errors import UsageError
from tracelens.files.atomic_write import whole_folder
from tracelens.report.markup import COLORS, Content, Markup, joined, log_ticks, round_ticks, tag
from tracelens.types.records import Record, pd
from tracelens.types.units import S_PER_DAY, shown_ms, shown_rate, shown_share

if TYPE_CHECKING:
    from tracelens.analysis.page_charts import Roofs

#: Colors of the style sheet: c0 to c7, and ``rest``.
COLOR_CLASSES = 8
REST = "rest"
_LABEL_SHARE = 0.04


class Part(Record, frozen=True, kw_only=True):
    """A stretch of a stacked bar. ``share`` is of the whole bar; ``color`` a class of the style sheet."""

    label: str
    share: float
    color: str
    note: str = ""


def color_classes(names: Sequence[str]) -> dict[str, str]:
    """The color class of each name, the first ones in the list getting one of their own."""
    return {name: f"c{i}" if i < COLOR_CLASSES else REST for i, name in enumerate(names)}


def stacked_bar(parts: Sequence[Part], label: str) -> Markup:
    """Full width, with the names of parts that have room for one; every part has a tooltip."""
    drawn: list[Markup] = []
    at = 0.0
    for part in parts:
        text = f"{shown_share(part.share)} {part.label}"
        tip = tag("title", f"{text}. {part.note}" if part.note else text)
        pieces: list[Content] = [tip, tag("rect", width="100%", height=34, class_=part.color)]
        if part.share >= _LABEL_SHARE:
            fitting = text if part.share > 0.01 + 0.006 * len(text) else shown_share(part.share)
            pieces.append(tag("text", fitting, x=7, y=22, class_=f"on-{part.color}"))
        # In a narrow window an inner svg cuts off what does not fit
        drawn.append(tag("svg", *pieces, x=f"{100 * at:.3f}%", width=f"{100 * part.share:.3f}%", height=34))
        at += part.share
    return tag("svg", drawn, class_="bar", role="img", aria_label=label, width="100%", height=34)


def legend(entries: Sequence[tuple[str, str]], shapes: Mapping[str, str] | None = None) -> Markup:
    """(label, color class) pairs; with ``shapes`` by label, their markers instead of squares."""
    items = []
    for label, color in entries:
        shape = tag("path", d=marker((shapes or {}).get(label, "square"), 8, 8, 6), class_=color)
        items.append(tag("li", tag("svg", shape, class_="key", width=16, height=16, aria_hidden="true"), label))
    return tag("ul", items, class_="legend")


class Point(Record, frozen=True, kw_only=True):
    """An op on the roofline chart: ``row`` is its index in the table of ops, which a click leads to."""

    row: int
    label: str
    intensity: float
    tflops_s: float
    time_us: float
    share: float
    category: str


class _Plot(NamedTuple):
    """The size of a chart, and the room around its axes."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float

    @property
    def wide(self) -> float:
        return self.width - self.left - self.right

    @property
    def tall(self) -> float:
        return self.height - self.top - self.bottom

    @property
    def foot(self) -> float:
        return self.height - self.bottom

    @property
    def end(self) -> float:
        return self.width - self.right

    def y_tick(self, y: float, text: str) -> Iterator[Markup]:
        yield tag("line", x1=self.left, x2=self.end, y1=y, y2=y, class_="grid")
        yield tag("text", text, x=self.left - 8, y=y + 4, class_="tick", text_anchor="end")

    def x_tick(self, x: float, text: str, below: float = 17) -> Markup:
        return tag("text", text, x=x, y=self.foot + below, class_="tick", text_anchor="middle")

    def svg(self, label: str, *drawn: Content, role: str = "img") -> Markup:
        """The chart; ``label`` says to screen readers what it shows."""
        shape = f"0 0 {self.width:g} {self.height:g}"
        return tag("svg", *drawn, class_="roofline", role=role, aria_label=label, viewBox=shape)


_ROOFLINE = _Plot(1180.0, 470.0, 62.0, 16.0, 18.0, 44.0)
_LARGEST_RADIUS, _SMALLEST_RADIUS = 17.0, 3.5
_LABEL_HEIGHT = 14.0
_NUMBERED = 8
#: Decades below the highest roof that the chart shows; what is slower is drawn at its lower edge.
_DECADES = 6
SHAPES = ("circle", "square", "triangle", "diamond", "down", "plus", "hexagon", "bar", "cross")
_ROOFS = 3


class _Axes(Record, frozen=True, kw_only=True):
    """Logarithmic axes; limits are exponents of ten."""

    x0: float
    x1: float
    y0: float
    y1: float

    def x(self, value: float) -> float:
        return _ROOFLINE.left + _share(value, self.x0, self.x1) * _ROOFLINE.wide

    def y(self, value: float) -> float:
        return _ROOFLINE.foot - _share(value, self.y0, self.y1) * _ROOFLINE.tall


def _share(value: float, low: float, high: float) -> float:
    """How far along an axis; what lies beyond it is at its end."""
    return min(max((math.log10(value) - low) / (high - low), 0.0), 1.0)


def roofline_chart(points: Sequence[Point], roofs: Roofs | None, colors: Mapping[str, str]) -> Markup:
    """Arithmetic intensity against achieved rate, both logarithmic; the area of a mark is its share of device time.

    Roofs are drawn where the device is known: solid at achievable rates, dashed at the data sheet's.
    """
    axes = _axes(points, roofs)
    shapes = marker_shapes(colors)
    largest = max(point.time_us for point in points)
    marks = [_mark(axes, point, number, largest, colors, shapes) for number, point in enumerate(points, 1)]
    drawn = (_log_grid(axes), _roof_lines(axes, roofs) if roofs is not None else None, marks[::-1])
    label = f"Roofline: {len(points)} ops by arithmetic intensity and achieved rate"
    return _ROOFLINE.svg(label, *drawn, role="group")


def marker_shapes(colors: Mapping[str, str]) -> dict[str, str]:
    return {name: SHAPES[-1] if color == REST else SHAPES[int(color[1:])] for name, color in colors.items()}


def _axes(points: Sequence[Point], roofs: Roofs | None) -> _Axes:
    tops = [roof.peak_tflops_s for roof in roofs.compute[:_ROOFS]] if roofs is not None else []
    rates = [math.log10(value) for value in (*tops, *(point.tflops_s for point in points))]
    intensities = [math.log10(point.intensity) for point in points]
    if roofs is not None and roofs.hbm_peak_tb_s:
        intensities += [math.log10(top / roofs.hbm_peak_tb_s) for top in tops]
    y1 = max(rates) + 0.25
    return _Axes(
        x0=min(intensities) - 0.3, x1=max(intensities) + 0.3, y0=max(min(rates) - 0.3, y1 - _DECADES), y1=y1
    )  # fmt: skip


def _log_grid(axes: _Axes) -> Iterator[Markup]:
    plot = _ROOFLINE
    for value in log_ticks(10.0**axes.x0, 10.0**axes.x1):
        x = axes.x(value)
        yield tag("line", x1=x, x2=x, y1=plot.top, y2=plot.foot, class_="grid")
        yield plot.x_tick(x, f"{value:,.6g}")
    for value in log_ticks(10.0**axes.y0, 10.0**axes.y1):
        yield from plot.y_tick(axes.y(value), f"{value:,.6g}")
    middle, up = (plot.left + plot.width - plot.right) / 2, (plot.top + plot.foot) / 2
    across = "arithmetic intensity, FLOPS per byte of HBM traffic"
    yield tag("text", across, x=middle, y=plot.height - 6, class_="axis", text_anchor="middle")
    turned = {"class_": "axis", "text_anchor": "middle", "transform": f"rotate(-90 14 {up:g})"}
    yield tag("text", "achieved TFLOPS/s", x=14, y=up, **turned)


def _roof_lines(axes: _Axes, roofs: Roofs) -> Iterator[Markup]:
    """Labels stand left of where a roof begins: nothing can be above the slope there."""
    compute = roofs.compute[:_ROOFS]
    memory = {"achievable": roofs.hbm_achievable_tb_s, "peak": roofs.hbm_peak_tb_s}
    lines = [
        (rate, kind, f"{roof.spec.replace('_', ' ')} {shown_rate(rate)} TFLOPS/s {kind}")
        for roof in compute
        for rate, kind in ((roof.peak_tflops_s, "peak"), (roof.achievable_tflops_s, "achievable"))
        if rate
    ]
    highest = max((rate for rate, _, _ in lines), default=10.0**axes.y1)
    known = [(tb_s, kind) for kind, tb_s in memory.items() if tb_s]
    for number, (tb_s, kind) in enumerate(known):
        yield from _slope(axes, tb_s, highest, kind, has_label=number == 0)
    below = -_LABEL_HEIGHT
    for rate, kind, text in sorted(lines, key=lambda line: (-line[0], line[2])):
        slope = memory[kind] or (known[0][0] if known else None)
        start, y = axes.x(rate / slope) if slope else _ROOFLINE.left, axes.y(rate)
        yield tag("line", x1=start, x2=_ROOFLINE.end, y1=y, y2=y, class_=f"roof {kind}")
        below = max(y + 4, below + _LABEL_HEIGHT)
        if start > _ROOFLINE.width / 4:
            yield tag("text", text, x=start - 7, y=below, class_="roof-label", text_anchor="end")
        else:
            yield tag("text", text, x=start + 7, y=below - 9, class_="roof-label")


def _slope(axes: _Axes, tb_s: float, limit: float, kind: str, *, has_label: bool) -> Iterator[Markup]:
    """The line of one HBM rate, from where it enters the chart to the roof at ``limit``."""
    start, end = max(10.0**axes.x0, 10.0**axes.y0 / tb_s), min(10.0**axes.x1, limit / tb_s)
    x, y = axes.x(start), axes.y(start * tb_s)
    yield tag("line", x1=x, y1=y, x2=axes.x(end), y2=axes.y(end * tb_s), class_=f"roof {kind}")
    if has_label:
        across, up = axes.x(2.0 * start) - x, y - axes.y(2.0 * start * tb_s)
        at_x, at_y = x + across, y - up - 7
        turned = f"rotate({-math.degrees(math.atan2(up, across)):.2f} {at_x:.1f} {at_y:.1f})"
        text = f"HBM {shown_rate(tb_s)} TB/s {kind}"
        yield tag("text", text, x=at_x, y=at_y, class_="roof-label", transform=turned)


def _mark(
    axes: _Axes, point: Point, number: int, largest: float, colors: Mapping[str, str], shapes: Mapping[str, str]
) -> Markup:
    radius = max(_SMALLEST_RADIUS, _LARGEST_RADIUS * math.sqrt(point.time_us / largest))
    x, y = axes.x(point.intensity), axes.y(point.tflops_s)
    tip = (
        f"#{point.row + 1} {point.label} · {point.category} · {shown_share(point.share)} of device time · "
        f"{shown_rate(point.tflops_s)} TFLOPS/s at {point.intensity:,.3g} FLOPS/byte"
    )
    shape, color = shapes.get(point.category, SHAPES[-1]), colors.get(point.category, REST)
    pieces: list[Content] = [tag("title", tip), tag("path", d=marker(shape, x, y, radius), class_=color)]
    if number <= _NUMBERED:
        pieces.append(tag("text", str(point.row + 1), x=x + radius * 0.8 + 3, y=y - radius * 0.5 - 2, class_="number"))
    return tag("a", joined(*pieces), href=f"#ops-{point.row}", class_="point", aria_label=tip, data_row=str(point.row))


def marker(shape: str, x: float, y: float, r: float) -> str:
    """Path data of a mark of radius ``r`` round (x, y); the shapes have about the same area."""
    if shape == "circle":
        return f"M{x - r:.1f} {y:.1f}a{r:.1f} {r:.1f} 0 1 0 {2 * r:.1f} 0a{r:.1f} {r:.1f} 0 1 0 {-2 * r:.1f} 0z"
    outlines: dict[str, Sequence[tuple[float, float]]] = {
        "square": ((-0.89, -0.89), (0.89, -0.89), (0.89, 0.89), (-0.89, 0.89)),
        "triangle": ((0, -1.3), (1.2, 0.85), (-1.2, 0.85)),
        "down": ((0, 1.3), (1.2, -0.85), (-1.2, -0.85)),
        "diamond": ((0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)),
        "hexagon": ((-0.55, -0.95), (0.55, -0.95), (1.1, 0), (0.55, 0.95), (-0.55, 0.95), (-1.1, 0)),
        "bar": ((-1.3, -0.6), (1.3, -0.6), (1.3, 0.6), (-1.3, 0.6)),
        "plus": (
            (-0.4, -1.2), (0.4, -1.2), (0.4, -0.4), (1.2, -0.4), (1.2, 0.4), (0.4, 0.4),
            (0.4, 1.2), (-0.4, 1.2), (-0.4, 0.4), (-1.2, 0.4), (-1.2, -0.4), (-0.4, -0.4),
        ),
        "cross": (
            (-1.1, -0.6), (-0.6, -1.1), (0, -0.5), (0.6, -1.1), (1.1, -0.6), (0.5, 0),
            (1.1, 0.6), (0.6, 1.1), (0, 0.5), (-0.6, 1.1), (-1.1, 0.6), (-0.5, 0),
        ),
    }  # fmt: skip
    return "M" + "L".join(f"{x + dx * r:.1f} {y + dy * r:.1f}" for dx, dy in outlines[shape]) + "z"


_LINES = _Plot(1180.0, 300.0, 74.0, 16.0, 14.0, 44.0)
_MARKED = 64


def line_chart(lines: Mapping[str, Sequence[tuple[float, float]]], across: str, up: str) -> Markup:
    """A chart with its legend; every point of a short line has a tooltip."""
    points = [point for line in lines.values() for point in line]
    right = max((x for x, _ in points), default=1.0) or 1.0
    top = round_ticks(max((y for _, y in points), default=1.0) or 1.0)[-1]

    def place(point: tuple[float, float]) -> tuple[float, float]:
        return _LINES.left + point[0] / right * _LINES.wide, _LINES.foot - point[1] / top * _LINES.tall

    drawn = [*_linear_grid(right, top, place)]
    for number, (name, line) in enumerate(lines.items()):
        color = f"c{number % COLOR_CLASSES}"
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in map(place, line))
        drawn.append(tag("path", d=path, class_=f"line l{color}"))
        if len(line) <= _MARKED:
            for point in line:
                x, y = place(point)
                tip = tag("title", f"{name}: {point[1]:,.4g} at {point[0]:,.4g}")
                drawn.append(tag("circle", tip, cx=x, cy=y, r=4, class_=color))
    drawn.append(tag("text", across, x=_LINES.width / 2, y=_LINES.height - 6, class_="axis", text_anchor="middle"))
    chart = _LINES.svg(f"{up} over {across}", drawn)
    named = legend([(name, f"c{number % COLOR_CLASSES}") for number, name in enumerate(lines)])
    framed = tag("div", chart, class_="wide", tabindex="0")
    return tag("figure", tag("figcaption", up), framed, named if len(lines) > 1 else None)


def _linear_grid(
    right: float, top: float, place: Callable[[tuple[float, float]], tuple[float, float]]
) -> Iterator[Markup]:
    for value in round_ticks(top):
        yield from _LINES.y_tick(place((0.0, value))[1], f"{value:,.6g}")
    for value in round_ticks(right):
        if value <= right:
            yield _LINES.x_tick(place((value, 0.0))[0], f"{value:,.6g}")


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
    lines = [
        _bar_row(name, joined(track, *_side_by_side(parts, names, top), limit), text) for name, parts, text in rows
    ]
    keys = [(name, f"c{number % COLOR_CLASSES}") for number, name in enumerate(names)]
    return joined(tag("h3", title), _bar_table(lines), legend(keys) if names != [""] else None)


def _bar_row(name: str, drawn: Markup, text: str) -> Markup:
    picture = tag("svg", drawn, width="100%", height=16, aria_hidden="true")
    return tag("tr", tag("th", name, scope="row"), tag("td", picture, class_="span"), tag("td", text, class_="n"))


def _bar_table(rows: list[Markup]) -> Markup:
    return tag("div", tag("table", tag("tbody", rows), class_="waterfall"), class_="scroll", tabindex="0")


def _side_by_side(parts: Sequence[tuple[str, float]], names: Sequence[str], top: float) -> Iterator[Markup]:
    at = 0.0
    for name, value in parts:
        if value or not name:
            tip = tag("title", f"{name} {value:,.3g}") if name else None
            color = f"c{names.index(name) % COLOR_CLASSES}" if name else "c0"
            yield tag(
                "rect", tip, x=f"{100 * at / top:.3f}%", width=f"{100 * value / top:.3f}%", height=16, class_=color
            )
        at += value


#: Categories with a bar of their own, and the share of the whole that it must have; the others share one.
MAX_BARS, _LEAST = 10, 0.0005


def headroom_chart(rows: Sequence[tuple[str, float, float, float]], whole: str) -> Markup | None:
    """``rows``: (category, own, achievable, roofline ms), largest headroom first; None where no headroom is known."""
    measured = sum(own for _, own, _, _ in rows)
    gains = [(name, own - achievable) for name, own, achievable, _ in rows if own > achievable]
    if not measured or not gains:
        return None
    own = sum(gain >= _LEAST * measured for _, gain in gains[:MAX_BARS])
    shown, rest = gains[:own], gains[own:]
    if rest:
        name = rest[0][0] if len(rest) == 1 else f"{len(rest)} more"
        shown.append((name, sum(gain for _, gain in rest)))
    lines = [_line(f"measured {whole}", 0.0, 1.0, f"{_ms(measured)} ms", "compute")]
    at = measured
    for name, gain in shown:
        at -= gain
        lines.append(_line(name, at / measured, gain / measured, f"−{_ms(gain)} ms", "copies"))
    least = sum(roofline for _, _, _, roofline in rows)
    lines.append(_line("achievable", 0.0, at / measured, f"{_ms(at)} ms", "c2"))
    lines.append(_line("at the roofline", 0.0, least / measured, f"{_ms(least)} ms", "rest"))
    return joined(tag("h3", "Headroom: from the measured to the achievable time"), _bar_table(lines))


def steps_after(rows: Sequence[tuple[str, float]], title: str) -> Markup:
    """``rows``: (name, µs), the measured time first; the others show what they save of it."""
    whole = rows[0][1] or 1.0
    lines = []
    for number, (name, us) in enumerate(rows):
        share = us / whole
        kept = tag("rect", width=f"{100 * share:.3f}%", height=16, class_="c2" if number else "compute")
        saved = tag("rect", x=f"{100 * share:.3f}%", width=f"{100 * (1 - share):.3f}%", height=16, class_="saved")
        text = f"{shown_ms(us)} ms" + (f" (\N{MINUS SIGN}{shown_share(1 - share)})" if number else "")
        lines.append(_bar_row(name, joined(kept, saved if number else None), text))
    return joined(tag("h3", title), _bar_table(lines))


def _line(name: str, start: float, share: float, text: str, color: str) -> Markup:
    bar = tag("rect", x=f"{100 * start:.3f}%", width=f"{max(100 * share, 0.15):.3f}%", height=16, class_=color)
    return _bar_row(name, bar, text)


def _ms(value: float) -> str:
    return shown_ms(1000 * value)


_MEMORY = _Plot(1180.0, 240.0, 74.0, 16.0, 26.0, 30.0)


def memory_chart(time_us: Sequence[float], allocated_mb: Sequence[float], peak_op: str | None) -> Markup:
    """Steps from event to event; the peak is marked."""
    first, last, top = min(time_us), max(time_us), max(allocated_mb) or 1.0
    span = (last - first) or 1.0
    base = _MEMORY.foot

    def x(us: float) -> float:
        return _MEMORY.left + (us - first) / span * _MEMORY.wide

    def y(mb: float) -> float:
        return base - mb / top * (base - _MEMORY.top)

    points = [f"M{x(first):.1f} {base:.1f}V{y(allocated_mb[0]):.1f}"]
    points += [f"H{x(us):.1f}V{y(mb):.1f}" for us, mb in zip(time_us, allocated_mb, strict=True)]
    drawn = [tag("path", d="".join([*points, f"V{base:.1f}z"]), class_="held")]
    drawn += [part for held in round_ticks(top) if held <= top for part in _MEMORY.y_tick(y(held), f"{held:,.6g} MB")]
    shown = (ms for ms in round_ticks(span / 1000) if 1000 * ms <= span)
    drawn += [_MEMORY.x_tick(x(first + 1000 * ms), f"{ms:,.6g} ms", 22) for ms in shown]
    peak = max(range(len(time_us)), key=lambda i: allocated_mb[i])
    text = f"peak {top:,.1f} MB" + (f" in {peak_op}" if peak_op else "")
    at, is_right = x(time_us[peak]), x(time_us[peak]) > _MEMORY.width / 2
    drawn.append(tag("circle", cx=at, cy=y(top), r=4, class_="peak-mark"))
    side, anchor = (-8, "end") if is_right else (8, "start")
    drawn.append(tag("text", text, x=at + side, y=_MEMORY.top - 9, text_anchor=anchor))
    return _MEMORY.svg(f"Memory in use over time; {text}", drawn)


#: Seconds by strategy and number of devices.
Ranking: TypeAlias = Mapping[tuple[str, int], Sequence[float]]

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 1180.0, 380.0, 74.0, 190.0, 44.0, 56.0
_FOOT, _TALL = _HEIGHT - _BOTTOM, _HEIGHT - _TOP - _BOTTOM
TIMES = {
    "t_comp": "computing", "t_mem": "memory-bound", "t_tp_comm": "tensor, context", "t_ep_comm": "experts",
    "t_recompute": "recomputation", "t_host": "host", "t_pp_comm": "stage to stage", "t_bubble": "bubble",
    "t_dp_comm": "weights, gradients", "t_optimizer": "optimizer", "t_scale_loss": "loss with scale",
}  # fmt: skip
MEMORY = {
    "wts_mem": "weights", "wts_grad_mem": "gradients", "wts_optimizer_states_mem": "optimizer",
    "acts_mem": "activations", "logits_mem": "logits", "other_mem": "other",
}  # fmt: skip
#: Strategy -> how its splits are called, in a legend and below a bar.
_SPLITS = {
    "1d": ("no context parallel", "no cp"),
    "2d-seqp": ("context parallel", "cp"),
    "2d": ("2D grid (SUMMA)", "grid"),
}
#: How columns of swept figures begin.
_SWEPT = "set_"
#: Pale on white and on black.
_GRID: dict[str, Any] = {"stroke": "#8b95a3", "stroke_opacity": 0.35}
_DEGREES = {"tp1": "tp 1", "tp2": "tp 2", "pp": "pp", "vpp": "vpp", "dp": "dp", "ep": "ep", "mbs": "micro-batch"}
#: Points of a line of the landscape, evenly over the logarithm of the ranking.
_LANDSCAPE = 300


def write_plots(folder: Path, table: pd.DataFrame, ranking: Ranking) -> list[Path]:
    """Whatever the table has: scaling, components and degrees over device counts; heat maps over swept figures.

    ``ranking``: seconds of every feasible configuration, fastest first, by strategy and devices. Returns the files.
    """
    pictures: dict[str, Markup] = {}
    if _best(table)["n_gpus"].nunique() > 1:
        pictures = {"scaling": scaling(table), "degrees": degrees(table)}
        pictures["time_shares"] = components(table, TIMES, "percent of the step", of_whole=True)
    pictures["time"] = components(table, TIMES, "seconds per step")
    pictures["memory"] = components(table, MEMORY, "GB per device")
    swept = [str(name) for name in table if str(name).startswith(_SWEPT) and table[name].nunique() > 1]
    for y, x in itertools.combinations(swept, 2):
        pictures[f"{y.removeprefix(_SWEPT)}_{x.removeprefix(_SWEPT)}"] = sweep_heat_map(table, x, y)
    if ranking:
        pictures["landscape"] = landscape(ranking)
    with whole_folder(folder) as staging:
        for name, picture in pictures.items():
            (staging / f"{name}.svg").write_bytes(picture.encode())
    return [folder / f"{name}.svg" for name in pictures]


def scaling(table: pd.DataFrame) -> Markup:
    """Throughput of the best configuration over devices, per strategy; dotted: as fast per device as at the start."""
    best = _best(table)
    first = best.sort_values("n_gpus").iloc[0]
    ideal = [(n, first["throughput"] / first["n_gpus"] * n) for n in sorted(best["n_gpus"].unique())]
    return _lines({**_throughputs(best), "ideal": ideal}, "GPUs", "samples/s", dotted={"ideal"})


def training_days(table: pd.DataFrame, tokens_per_sample: int) -> Markup:
    """Days that 10^12 tokens take on the best configuration over devices, per strategy."""
    rates = _throughputs(_best(table))
    lines = {name: [(n, days_of(rate * tokens_per_sample)) for n, rate in line] for name, line in rates.items()}
    return _lines(lines, "GPUs", "days for 10¹² tokens")


def _throughputs(best: pd.DataFrame) -> dict[str, list[tuple[float, float]]]:
    """(devices, samples/s) per strategy."""
    groups = best.groupby("strategy")
    return {_split(name)[0]: list(zip(each["n_gpus"], each["throughput"], strict=True)) for name, each in groups}


def days_of(tokens_per_s: float) -> float:
    """Days that 10^12 tokens take."""
    return 1e12 / tokens_per_s / S_PER_DAY


def degrees(table: pd.DataFrame) -> Markup:
    """Degrees of the fastest configuration over devices."""
    best = _best(table).sort_values("throughput").groupby("n_gpus").tail(1).sort_values("n_gpus")
    shown = [name for name in _DEGREES if name in best and best[name].max() > 1]
    lines = {_DEGREES[name]: list(zip(best["n_gpus"], best[name], strict=True)) for name in shown}
    return _lines(lines, "GPUs", "degree of the fastest")


def components(table: pd.DataFrame, parts: Mapping[str, str], unit: str, *, of_whole: bool = False) -> Markup:
    """A stacked bar per device count and strategy of the best configuration; ``of_whole``: in percent of its sum."""
    best = _best(table)
    labels = [
        (f"{gpus:,} GPUs", _split(strategy)[1]) for gpus, strategy in zip(best["n_gpus"], best["strategy"], strict=True)
    ]
    shown = {name: word for name, word in parts.items() if name in best and best[name].max() > 0}
    values = best[list(shown)].to_numpy(float)
    sums = values.sum(axis=1)
    if of_whole:
        values = 100 * values / np.where(sums > 0, sums, 1)[:, None]
    ticks = round_ticks(100.0 if of_whole else float(sums.max(initial=0)) or 1.0)
    per_unit, wide = _TALL / ticks[-1], (_WIDTH - _LEFT - _RIGHT) / max(len(labels), 1)
    drawn = [_y_tick(value, _FOOT - value * per_unit) for value in ticks]
    for i, (label, column) in enumerate(zip(labels, values.tolist(), strict=True)):
        x, base = _LEFT + (i + 0.1) * wide, _FOOT
        for color, (word, value) in enumerate(zip(shown.values(), column, strict=True)):
            base -= value * per_unit
            tip, fill = tag("title", f"{', '.join(label)}: {word} {value:.4g}"), COLORS[color % len(COLORS)]
            drawn.append(tag("rect", tip, x=x, y=base, width=0.8 * wide, height=value * per_unit, fill=fill))
    named = dict.fromkeys(_split(strategy) for strategy in best["strategy"])
    below = "; ".join(f"{short}: {name}" for name, short in named)
    return _page(unit, below, [*drawn, *_bar_labels(labels, wide), *_legend(list(shown.values()))])


def _split(strategy: object) -> tuple[str, str]:
    """How splits of a strategy are called, in full and in short."""
    return _SPLITS.get(str(strategy), (str(strategy),) * 2)


def _bar_labels(labels: Sequence[tuple[str, str]], wide: float) -> Iterator[Markup]:
    """Below the bars, in two lines; in one, and turned, where they would run into each other."""
    is_narrow = 7 * max((len(line) for label in labels for line in label), default=0) > wide
    for i, label in enumerate(labels):
        x, y = _LEFT + (i + 0.5) * wide, _FOOT + 14
        if is_narrow:
            text = f"{label[0].removesuffix(' GPUs')} {label[1]}"
            yield tag("text", text, x=x, y=y, text_anchor="end", transform=f"rotate(-40 {x:.1f} {y - 2:.1f})")
        else:
            yield from (tag("text", line, x=x, y=y + 14 * row, text_anchor="middle") for row, line in enumerate(label))


def sweep_heat_map(table: pd.DataFrame, x: str, y: str) -> Markup:
    """Seconds per step of the best configuration for each pair of figures; empty where nothing fits."""
    if x not in table or y not in table:
        raise UsageError(f"the table has no columns {x} and {y}")
    fastest = table.groupby([y, x])["t"].min()
    columns, rows = (sorted(table[name].unique(), key=float) for name in (x, y))
    low, high = float(fastest.min()), float(fastest.max())
    wide, tall = (_WIDTH - _LEFT - _RIGHT) / len(columns), _TALL / len(rows)
    drawn: list[Markup] = []
    for i, row in enumerate(rows):
        top = _FOOT - (i + 1) * tall
        drawn.append(tag("text", str(row), x=_LEFT - 6, y=top + tall / 2, text_anchor="end"))
        for j, column in enumerate(columns):
            value = fastest.get((row, column))
            if value is None:
                continue
            share = 0.0 if high == low else math.log(value / low) / math.log(high / low)
            fill = f"rgb({int(60 + 180 * share)},{int(110 + 90 * (1 - share))},{int(200 - 150 * share)})"
            left = _LEFT + j * wide
            tip = tag("title", f"{y} {row}, {x} {column}: {value:.4g} s")
            drawn.append(tag("rect", tip, x=left, y=top, width=wide, height=tall, fill=fill))
            drawn.append(tag("text", f"{value:.3g}", x=left + wide / 2, y=top + tall / 2, text_anchor="middle"))
    for j, column in enumerate(columns):
        drawn.append(tag("text", str(column), x=_LEFT + (j + 0.5) * wide, y=_FOOT + 18, text_anchor="middle"))
    return _page(f"seconds per step; {y.removeprefix('set_')} up", x.removeprefix(_SWEPT), drawn)


def landscape(ranking: Ranking) -> Markup:
    """Every feasible configuration's seconds per step, fastest first: how much a bad choice costs."""
    lines = {}
    for (strategy, gpus), times in ranking.items():
        label = f"{gpus:,} GPUs, {_split(strategy)[1]}"
        places = sorted({round(len(times) ** (i / _LANDSCAPE)) for i in range(_LANDSCAPE + 1)})
        lines[label] = [(place, times[place - 1]) for place in places]
    return _lines(lines, "configurations, fastest first", "seconds per step")


def _best(table: pd.DataFrame) -> pd.DataFrame:
    order = table.sort_values(["strategy", "n_gpus", "t"], kind="stable")
    return order.groupby(["strategy", "n_gpus"], as_index=False).head(1)


def _lines(
    lines: Mapping[str, Sequence[tuple[float, float]]], x_label: str, y_label: str, dotted: Iterable[str] = ()
) -> Markup:
    """Both axes logarithmic."""
    points = [point for line in lines.values() for point in line]
    ends = [(min(values), max(values)) for values in zip(*points, strict=True)]
    bounds = [(low, high) if high > low else (low / 2, high * 2) for low, high in ends]

    def place(point: tuple[float, float]) -> tuple[float, float]:
        shares = [
            (math.log(v) - math.log(low)) / math.log(high / low) for v, (low, high) in zip(point, bounds, strict=True)
        ]
        return (_LEFT + shares[0] * (_WIDTH - _LEFT - _RIGHT), _FOOT - shares[1] * _TALL)

    drawn = [*_grid(bounds, place)]
    for color, (label, line) in enumerate(lines.items()):
        path = " ".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(map(place, line)))
        dash = "4 4" if label in dotted else None
        stroke = COLORS[color % len(COLORS)]
        drawn.append(tag("path", d=path, fill="none", stroke=stroke, stroke_width=2, stroke_dasharray=dash))
        if len(line) <= 64:
            for point in line:
                (x, y), (cx, cy) = point, place(point)
                drawn.append(tag("circle", tag("title", f"{label}: {x:.6g}, {y:.4g}"), cx=cx, cy=cy, r=3, fill=stroke))
    return _page(y_label, x_label, [*drawn, *_legend(list(lines))])


def _grid(
    bounds: Sequence[tuple[float, float]], place: Callable[[tuple[float, float]], tuple[float, float]]
) -> Iterator[Markup]:
    (left, right), (low, high) = bounds
    # Powers of two, as devices come, or of ten where those are too many
    base = 2 if right / left <= 2**13 else 10
    first, last = math.ceil(math.log(left, base) - 1e-9), math.floor(math.log(right, base) + 1e-9)
    for value in [float(base) ** i for i in range(first, last + 1)] or [left, right]:
        x, y = place((value, low))
        yield tag("line", x1=x, x2=x, y1=y, y2=_TOP, **_GRID)
        yield tag("text", f"{value:,g}", x=x, y=y + 18, text_anchor="middle")
    for value in log_ticks(low, high):
        yield _y_tick(value, place((left, value))[1])


def _y_tick(value: float, y: float) -> Markup:
    line = tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, **_GRID)
    return tag("g", line, tag("text", f"{value:,.6g}", x=_LEFT - 6, y=y + 4, text_anchor="end"))


def _legend(labels: Sequence[str]) -> Iterator[Markup]:
    for i, label in enumerate(labels):
        y = _TOP + 20 * i
        yield tag("rect", x=_WIDTH - _RIGHT + 20, y=y, width=12, height=12, fill=COLORS[i % len(COLORS)])
        yield tag("text", label, x=_WIDTH - _RIGHT + 38, y=y + 11)


def _page(title: str, below: str, drawn: Iterable[Markup]) -> Markup:
    return tag(
        "svg",
        tag("rect", width=_WIDTH, height=_HEIGHT, fill="white", class_="paper"),
        tag("text", title, x=_LEFT, y=26, font_size=15),
        tag("text", below, x=(_LEFT + _WIDTH - _RIGHT) / 2, y=_HEIGHT - 12, text_anchor="middle"),
        list(drawn),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}",
        font_family="sans-serif",
        font_size=12,
    )
