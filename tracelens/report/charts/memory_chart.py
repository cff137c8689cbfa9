"""Memory in use over time, with what was open at the peak."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.report.charts.axis_ticks import round_ticks
from tracelens.report.html.markup import Markup, tag

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 1180.0, 240.0, 74.0, 16.0, 26.0, 30.0


def memory_chart(time_us: Sequence[float], allocated_mb: Sequence[float], peak_op: str | None) -> Markup:
    """Steps from event to event; the peak is marked."""
    first, last, top = min(time_us), max(time_us), max(allocated_mb) or 1.0
    span = (last - first) or 1.0
    base = _HEIGHT - _BOTTOM

    def x(us: float) -> float:
        return _LEFT + (us - first) / span * (_WIDTH - _LEFT - _RIGHT)

    def y(mb: float) -> float:
        return base - mb / top * (base - _TOP)

    points = [f"M{x(first):.1f} {base:.1f}V{y(allocated_mb[0]):.1f}"]
    points += [f"H{x(us):.1f}V{y(mb):.1f}" for us, mb in zip(time_us, allocated_mb, strict=True)]
    drawn = [tag("path", d="".join([*points, f"V{base:.1f}z"]), class_="held")]
    for held in round_ticks(top):
        if held <= top:
            at = y(held)
            drawn.append(tag("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=at, y2=at, class_="grid"))
            drawn.append(tag("text", f"{held:,.6g} MB", x=_LEFT - 8, y=at + 4, class_="tick", text_anchor="end"))
    for ms in round_ticks(span / 1000):
        if 1000 * ms <= span:
            at = x(first + 1000 * ms)
            drawn.append(tag("text", f"{ms:,.6g} ms", x=at, y=_HEIGHT - 8, class_="tick", text_anchor="middle"))
    peak = max(range(len(time_us)), key=lambda i: allocated_mb[i])
    text = f"peak {top:,.1f} MB" + (f" in {peak_op}" if peak_op else "")
    at, is_right = x(time_us[peak]), x(time_us[peak]) > _WIDTH / 2
    drawn.append(tag("circle", cx=at, cy=y(top), r=4, class_="peak-mark"))
    side, anchor = (-8, "end") if is_right else (8, "start")
    drawn.append(tag("text", text, x=at + side, y=_TOP - 9, text_anchor=anchor))
    label = f"Memory in use over time; {text}"
    return tag("svg", drawn, class_="roofline", role="img", aria_label=label, viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}")
