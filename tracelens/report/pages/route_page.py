"""A routing result as a page."""

from __future__ import annotations

from tracelens.report.charts.markup import Markup
from tracelens.report.charts.route_picture import picture as route_picture
from tracelens.report.html.frame import framed
from tracelens.report.pages.parts import head, picture, section, table
from tracelens.routing.route_result import RouteResult


def route_page(result: RouteResult) -> bytes:
    """Who sends to whom, how evenly, and what it costs."""
    figures = result.summary
    title = (
        f"{figures['tokens']:,} tokens, top {figures['topk']} of {figures['experts']} experts, {figures['ranks']} ranks"
    )
    tiles = [
        ("A token reaches", f"{figures['mean_ranks']:.2f} ranks", f"on {figures['mean_nodes']:.2f} nodes"),
        ("Leaves its rank", f"{figures['remote_share']:.1%}", "of the bytes"),
        ("Busiest expert", f"{figures['expert_imbalance']:.2f} x", "the mean"),
        ("Busiest rank", f"{figures['rank_imbalance']:.2f} x", "the mean"),
    ]
    drawn = section("traffic", "Traffic", picture(Markup(route_picture(result))))
    tables = [section(f"table-{name}", name.capitalize(), table(each, name)) for name, each in result.frames.items()]
    return framed(f"{title} · routing", [head(title, (), tiles), drawn, *tables])
