"""HTML and SVG in which every text is escaped: a plain ``str`` is content, only what ``tag`` made is markup."""

from __future__ import annotations

from collections.abc import Container, Iterable
from html import escape

from tracelens.files.safe_text import terminal_text

#: Elements without content and end tag.
_VOID = frozenset({"br", "hr", "input", "link", "meta", "wbr"})


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Content = str | Iterable[str] | None


def tag(element: str, *content: Content, **attributes: str | float | None) -> Markup:
    """One element. A trailing underscore of an attribute's name is dropped, others become hyphens (``class_``,
    ``data_row``); None leaves the attribute out."""
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
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


def _attribute(value: str | float) -> str:
    if isinstance(value, str):
        return escape(terminal_text(value))
    return f"{value:.2f}".rstrip("0").rstrip(".")
