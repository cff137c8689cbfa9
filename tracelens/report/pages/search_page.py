"""The answer of a search as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from tracelens.report import search_plots
from tracelens.report.charts.line_chart import bars
from tracelens.report.figures import shown_percent
from tracelens.report.html.frame import framed
from tracelens.report.html.markup import Markup
from tracelens.report.pages.parts import head, picture, section, table
from tracelens.report.projection_text import best_of_each, change_of, expected_of, shown_rows, tokens_per_s

if TYPE_CHECKING:
    from tracelens.projection.search.request import Answer


def search_page(found: Answer) -> bytes:
    """The best split, what its time and memory go to, how much a bad choice costs, and the front."""
    request, rules = found.request, found.rule_sets[0]
    title = f"{request.model} on {request.cluster}"
    batch = f"{request.global_batch:,} sequences of {rules.tokens_per_sample:,} tokens per step"
    facts = [batch, f"rules {request.rules}", f"{sum(map(len, found.ranking().values())):,} splits fit"]
    if not len(found.fits):
        return framed(f"{title} · search", [head(title, facts, (), warnings=["no split that was tried fits"])])
    fits, front = found.fits, found.front()
    fastest = fits.sort_values("t").iloc[0]
    speed = tokens_per_s(found, fastest)
    tiles = [
        ("Fastest step", f"{fastest['t']:,.4g} s", f"on {fastest['n_gpus']:,} GPUs"),
        ("Throughput", f"{speed:,.0f} tokens/s", "per GPU"),
        ("10¹² tokens", f"{search_plots.days_of(speed * int(fastest['n_gpus'])):,.3g} days", "of training"),
        ("Memory", f"{fastest['mem']:,.1f} GB", f"of {rules.capacity_gb:,.1f} GB per GPU"),
    ]  # fmt: skip
    asked = sorted(set(request.gpus) - set(fits["n_gpus"]))
    warnings = [f"nothing fits on {', '.join(map(str, asked))} GPUs"] if asked else []
    sections = [
        head(title, facts, tiles, expected_of(found, float(fastest["t"])), warnings),
        section("best", "The best by number of GPUs", _shown(found, best_of_each(found)[0], "Best splits")),
    ]
    if reasons := found.reasons():
        rows = [(change_of(each), each.slower, f"+{shown_percent(each.slower)}") for each in reasons]
        sections.append(
            section("reasons", "Why not otherwise", bars(rows, "Time of the step that each other choice adds"))
        )
    times = [picture(search_plots.components(fits, search_plots.TIMES, "seconds per step"))]
    if fits["n_gpus"].nunique() > 1:
        days = search_plots.training_days(fits, rules.tokens_per_sample)
        pictures = (search_plots.scaling(fits), days, search_plots.degrees(fits))
        sections.append(section("scaling", "Scaling", *map(picture, pictures)))
        times.append(picture(search_plots.components(fits, search_plots.TIMES, "percent of the step", of_whole=True)))
    sections.append(section("time", "Where the time goes", *times))
    sections.append(
        section("memory", "Memory", picture(search_plots.components(fits, search_plots.MEMORY, "GB per device")))
    )
    if ranking := found.ranking():
        sections.append(section("landscape", "What a bad choice costs", picture(search_plots.landscape(ranking))))
    sections.append(section("front", "Pareto front of time, devices and memory", _shown(found, front, "Pareto front")))
    return framed(f"{title} · search", sections)


def _shown(found: Answer, rows: pd.DataFrame, label: str) -> Markup:
    titles, *cells = shown_rows(found, rows)
    return table(pd.DataFrame(cells, columns=titles), label)
