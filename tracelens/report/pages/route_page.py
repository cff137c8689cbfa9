"""A routing result as a page."""

from __future__ import annotations

from tracelens.report.answers.route_text import UNMEASURED
from tracelens.report.charts.route_picture import blocks_of, matrix_picture
from tracelens.report.figures import shown_figure, shown_percent
from tracelens.report.html.frame import framed
from tracelens.report.html.markup import Markup, tag
from tracelens.report.pages.parts import head, section, table
from tracelens.routing.route_result import RouteResult


def route_page(result: RouteResult) -> bytes:
    """Who sends to whom, how evenly, and what it costs."""
    figures = result.summary
    title = (
        f"{figures['tokens']:,} tokens, top {figures['topk']} of {figures['experts']} experts, {figures['ranks']} ranks"
    )
    unit, word = ("ms", "ms") if "time_ms" in figures else ("us", "µs")
    tiles = [
        *(
            (str(row["phase"]).capitalize(), f"{shown_figure(row[f'time_{unit}'])} {word}", "until the last packet")
            for row in result.frames["phases"].to_dict("records")
        ),
        ("Imbalance", f"{shown_figure(figures[f'imbalance_{unit}'], 3)} {word}", "more than an even load"),
        ("A token reaches", f"{figures['mean_ranks']:.2f} ranks", f"on {figures['mean_nodes']:.2f} nodes"),
        ("Leaves its rank", shown_percent(figures["remote_share"]), "of the bytes"),
        ("Busiest expert", f"{figures['expert_imbalance']:.2f} x", "the mean"),
        ("Busiest rank", f"{figures['rank_imbalance']:.2f} x", "the mean"),
    ]
    drawn = tag("div", Markup(matrix_picture(result)), class_="wide picture square", tabindex="0")
    said = f"Bytes of the dispatch from rank (down) to rank (right); the darkest cell is {_most(result)} bytes."
    traffic = section("traffic", "Traffic", tag("p", said), drawn)
    tables = [section(f"table-{name}", name.capitalize(), table(each, name)) for name, each in result.frames.items()]
    notes = (UNMEASURED,) if "expected_error_percent" in figures else ()
    return framed(f"{title} · routing", [head(title, (), tiles, notes), traffic, *tables])


def _most(result: RouteResult) -> str:
    return f"{blocks_of(result)[0].max(initial=0):,.0f}"
