"""What pages and pictures are made of: escaped HTML and SVG, colors, ticks of an axis, the frame of a page."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Container, Iterable, Sequence
from html import escape
from importlib import resources
from string import Template

from tracelens.files.safe_text import terminal_text

#: Elements without content and end tag.
_VOID = frozenset({"br", "hr", "input", "link", "meta", "wbr"})


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Content = str | Iterable[str] | None


def tag(element: str, *content: Content, **attributes: str | float | None) -> Markup:
    """One element. In attributes ``class_`` is ``class``, ``data_row`` is ``data-row``; None leaves one out."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="'
        f'{escape(terminal_text(value)) if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")}"'
        for name, value in attributes.items()
        if value is not None
    )
    if element in _VOID:
        return Markup(f"<{element}{written}>")
    return Markup(f"<{element}{written}>{joined(*content)}</{element}>")


def joined(*content: Content) -> Markup:
    """Pieces one after another, plain text escaped, control characters shown as pictures."""
    pieces: list[str] = []
    for entry in content:
        if isinstance(entry, Markup):
            pieces.append(entry)
        elif isinstance(entry, str):
            pieces.append(escape(terminal_text(entry)))
        elif entry is not None:
            pieces.extend(joined(piece) for piece in entry)
    return Markup("".join(pieces))


def table(heads: Iterable[Content], rows: Content, *, kind: str | None = None, label: str | None = None) -> Markup:
    """A table that scrolls where the window is narrow. ``kind``: its class; ``label`` names it to screen readers."""
    made = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", rows), class_=kind)
    return tag("div", made, class_="scroll", tabindex="0", role=label and "region", aria_label=label)


def headings(*titles: str, figures: Container[str] = ()) -> list[Markup]:
    """The heads of columns; those of ``figures`` stand on the right."""
    return [tag("th", title, scope="col", class_="n" if title in figures else None) for title in titles]


#: By Okabe and Ito, to be told apart by color-blind readers too; the last ones are for what is left.
COLORS = (
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#7a5ca8", "#a3a02f", "#8b95a3", "#4d5866",
)  # fmt: skip

#: Parts of an axis, at most, but for one that ends above its largest figure.
_MOST = 6
#: A logarithmic axis has at least as many ticks where finer ones give them.
_LEAST = 4
_FACTORS = ((1.0,), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0))


def round_ticks(top: float) -> list[float]:
    """From 0 to the first one at or above ``top``, which is more than 0.

    >>> round_ticks(7.193)
    [0.0, 2.0, 4.0, 6.0, 8.0]
    """
    least = top / _MOST
    unit = 10.0 ** math.floor(math.log10(least))
    step = next(factor * unit for factor in (1, 2, 5, 10) if least <= factor * unit * (1 + 1e-9))
    return [float(f"{i * step:.9g}") for i in range(math.ceil(top / step - 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, or of finer steps where those are few; the bounds where none lies between them.

    >>> log_ticks(14, 70)
    [15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0]
    """
    decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for factors in _FACTORS:
        every = [float(f"{factor * 10.0**decade:.9g}") for decade in decades for factor in factors]
        ticks = [tick for tick in every if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
        if len(ticks) >= _LEAST:
            break
    return ticks or [low, high]


#: (id, title, markup) of a section.
Section = tuple[str, str, Markup]


def framed(title: str, sections: Sequence[Section], *, script: str = "", data: str = "") -> bytes:
    """A page of ``sections``, with links to them; ``data`` is what ``script`` unpacks."""
    style = asset("page.css")
    held = f'<script type="application/octet-stream" id="data">{data}</script>\n<script>{script}</script>'
    page = Template(asset("page.html")).substitute(
        policy=policy(script, style),
        title=joined(title),
        style=style,
        contents=tag("nav", [tag("a", name, href=f"#{key}") for key, name, _ in sections], aria_label="Sections"),
        sections=joined(section for _, _, section in sections),
        scripts=held if script else "",
    )
    return page.encode()


def policy(script: str, style: str) -> str:
    """The Content-Security-Policy: nothing is loaded, and of what stands in the page only ours runs."""
    runs = f"script-src '{_hash(script)}'; " if script else ""
    return f"default-src 'none'; {runs}style-src '{_hash(style)}'; img-src data:; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def asset(name: str) -> str:
    """A file of the page's folder."""
    return resources.files("tracelens.report").joinpath("html", name).read_text(encoding="utf-8")
