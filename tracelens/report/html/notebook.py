"""A report as a notebook shows it: the verdict's tiles, the findings and where time goes, in the style of the page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tracelens.analysis.verdict.summary import Summary
from tracelens.lazy.patterns import lazy_pattern
from tracelens.report.assembly import Sheet
from tracelens.report.html import page_sections as sections
from tracelens.report.html.charts import color_classes
from tracelens.report.html.frame import asset
from tracelens.report.html.markup import Markup, joined, tag

#: What the page's style sheet says of the whole document; in a notebook it holds for our part alone.
_WHOLE_DOCUMENT = lazy_pattern(r"^(\s*)(?::root(?::not\(\[data-print\]\))?|body)(?= \{)", re.MULTILINE)


def notebook_html(summary: Summary, sheets: Sequence[Sheet]) -> str:
    """Markup that styles itself, runs no script and loads nothing."""
    colors = color_classes([row.name for row in summary.categories])
    made = (
        sections.verdict(summary),
        sections.look_here_first(summary),
        sections.where_time_goes(summary, colors, sheets),
    )
    own = _WHOLE_DOCUMENT.sub(r"\1&", asset("page.css"))
    style = Markup(f".tracelens {{ {own} .to-ops {{ display: none; }} }}")
    body = [tag("section", content) for content in made if content is not None]
    return joined(tag("div", tag("style", style), *body, class_="tracelens"))
