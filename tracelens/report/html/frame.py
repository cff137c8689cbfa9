"""The frame that all pages share: one file, the same style, nothing from the network, no script but ours."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from string import Template

from tracelens.report.html.markup import Markup, joined, tag

#: (id, title, markup) of a section.
Section = tuple[str, str, Markup]


def framed(title: str, sections: Sequence[Section], *, script: str = "", data: str = "") -> bytes:
    """A page of ``sections``, with links to them; ``data`` is what ``script`` unpacks."""
    style = asset("page.css")
    held = f'<script type="application/octet-stream" id="data">{data}</script>\n<script>{script}</script>'
    page = Template(asset("page.html")).substitute(
        policy=_policy(script, style),
        title=joined(title),
        style=style,
        contents=tag("nav", [tag("a", name, href=f"#{key}") for key, name, _ in sections], aria_label="Sections"),
        sections=joined(section for _, _, section in sections),
        scripts=held if script else "",
    )
    return page.encode()


def _policy(script: str, style: str) -> str:
    """The Content-Security-Policy: nothing is loaded, and of what stands in the page only ours runs."""
    runs = f"script-src '{_hash(script)}'; " if script else ""
    return f"default-src 'none'; {runs}style-src '{_hash(style)}'; img-src data:; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def asset(name: str) -> str:
    """A file that stands beside this module."""
    return resources.files("tracelens.report").joinpath("html", name).read_text(encoding="utf-8")
