"""A result as a document: facts, figures, sections of charts and tables; a page that opens offline, without script."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from tracelens.files.cells import plain_values
from tracelens.files.safe_text import short_kernel_name, terminal_text
from tracelens.report.markup import Content, Markup, Section, framed, joined, tag
from tracelens.report.markup import table as scrolled
from tracelens.schema import column_title
from tracelens.types.records import Record, pd
from tracelens.types.units import shown_figure

#: Longest text of a cell; kernel names of templates can have thousands of characters.
MAX_TEXT = 500
#: Rows of a table; the files of the answer have them all.
MAX_ROWS = 200
_FIGURE = re.compile(r"[-+−]?[\d.,]*")
_QUOTED = re.compile(r"`([^`]+)`")


class Document(Record, frozen=True, kw_only=True):
    """``title``: what the result is of; ``kind``: what it is (window title); ``tiles``: (what, figure, below it)."""

    title: str
    kind: str
    facts: Iterable[str] = ()
    tiles: Iterable[tuple[str, str, str]] = ()
    notes: Iterable[str] = ()
    warnings: Iterable[str] = ()
    sections: Iterable[Section] = ()

    def page(self) -> bytes:
        first = head(self.title, self.facts, self.tiles, self.notes, self.warnings)
        return framed(f"{self.title} · {self.kind}", [first, *self.sections])


def shown_text(text: str) -> str:
    """Trace text on one line, without control characters, cut where it is very long."""
    text = terminal_text(text)
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 30]}… ({len(text):,} characters)"


def prose(text: str) -> Markup:
    """A sentence as the page shows it: what stands between backticks is code."""
    pieces = _QUOTED.split(shown_text(text))
    return joined(tag("code", piece) if i % 2 else piece for i, piece in enumerate(pieces))


def breakable(header: str) -> Markup:
    """With places to break a line after underscores."""
    first, *others = header.split("_")
    return joined(first, *(joined("_", tag("wbr"), piece) for piece in others))


def head(
    title: str,
    facts: Iterable[str],
    tiles: Iterable[tuple[str, str, str]],
    notes: Iterable[str] = (),
    warnings: Iterable[str] = (),
) -> Section:
    """What was asked and the figures that answer: ``tiles`` are (what, figure, below it)."""
    made = [
        tag("div", tag("span", what, class_="what"), tag("strong", figure), tag("span", below), class_="tile plain")
        for what, figure, below in tiles
    ]
    warned, said = ([tag("li", prose(each)) for each in listed] for listed in (warnings, notes))
    content = joined(
        tag("h1", shown_text(title)),
        tag("ul", [tag("li", shown_text(fact)) for fact in facts], class_="facts"),
        tag("div", made, class_="tiles") if made else None,
        tag("ul", warned, class_="notices") if warned else None,
        tag("ul", said, class_="remarks") if said else None,
    )
    return "verdict", "Verdict", tag("section", content, id="verdict")


def section(key: str, title: str, *content: Content) -> Section:
    return key, title, tag("section", tag("h2", title), *content, id=key)


def picture(svg: Markup) -> Markup:
    """A chart that scrolls where the window is narrow."""
    return tag("div", svg, class_="wide picture", tabindex="0")


def table(frame: pd.DataFrame, label: str, titles: Mapping[str, str] = MappingProxyType({})) -> Markup:
    """The first rows of a frame without its empty columns; ``titles`` by key, else those of the schema."""
    shown = frame.head(MAX_ROWS)
    shown = shown[
        [name for name in shown.columns if not len(shown) or (shown[name].notna() & (shown[name] != "")).any()]
    ]
    columns = [plain_values(shown[name]) for name in shown.columns]
    is_number = [all(not isinstance(v, str) or _FIGURE.fullmatch(v) for v in values) for values in columns]
    heads = [
        tag("th", titles.get(str(name), column_title(str(name))), scope="col", class_="n" if right else None)
        for name, right in zip(shown.columns, is_number, strict=True)
    ]
    rows = [
        tag("tr", [_plain_cell(value, right) for value, right in zip(row, is_number, strict=True)])
        for row in zip(*columns, strict=True)
    ]
    more = f"The first {MAX_ROWS} of {len(frame):,} rows." if len(frame) > MAX_ROWS else None
    return joined(scrolled(heads, rows, kind="figures", label=label), tag("p", more) if more else None)


def _plain_cell(value: object, right: bool) -> Markup:
    if isinstance(value, bool):
        return tag("td", "yes" if value else "no", class_="n")
    if not isinstance(value, int | float):
        return tag("td", None if value is None else breakable(shown_text(str(value))), class_="n" if right else None)
    return tag("td", shown_figure(value), class_="n")


def heat_map(
    rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float | None]], unit: str
) -> Markup:
    """A table whose cells are the darker the larger their figures, which stand in them."""
    top = max((value for row in values for value in row if value is not None), default=0.0) or 1.0
    heads = [
        tag("th", "", scope="col"),
        *(tag("th", short_kernel_name(name), scope="col", title=name) for name in columns),
    ]
    lines = []
    for name, row in zip(rows, values, strict=True):
        cells = [tag("th", name, scope="row")]
        for value in row:
            level = 0 if value is None else round(5 * max(value, 0.0) / top)
            cells.append(tag("td", "" if value is None else shown_figure(value, 3), class_=f"heat{level}"))
        lines.append(tag("tr", cells))
    said = tag("p", f"{unit}; the darkest cell is {shown_figure(top)}.")
    return joined(said, scrolled(heads, lines, kind="heat", label=unit))
