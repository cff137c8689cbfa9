"""From the measured step to the achievable one and the roofline: a bar less for every category."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.report.figures import shown_ms
from tracelens.report.html.markup import Markup, joined, tag

#: Categories with a bar of their own, and the share of the whole that it must have; the others share one.
MAX_BARS, _LEAST = 10, 0.0005


def headroom_chart(rows: Sequence[tuple[str, float, float, float]], whole: str) -> Markup | None:
    """``rows``: (category, own, achievable and roofline ms), the largest headroom first; ``whole``: step or window.

    None where nothing is known of what could be faster.
    """
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
    return joined(
        tag("h3", "Headroom: from the measured to the achievable time"),
        tag("div", tag("table", tag("tbody", lines), class_="waterfall"), class_="scroll", tabindex="0"),
    )


def _line(name: str, start: float, share: float, text: str, color: str) -> Markup:
    bar = tag("rect", x=f"{100 * start:.3f}%", width=f"{max(100 * share, 0.15):.3f}%", height=16, class_=color)
    drawn = tag("svg", bar, width="100%", height=16, aria_hidden="true")
    return tag("tr", tag("th", name, scope="row"), tag("td", drawn, class_="span"), tag("td", text, class_="n"))


def _ms(value: float) -> str:
    return shown_ms(1000 * value)
