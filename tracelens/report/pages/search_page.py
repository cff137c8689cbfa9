"""The answer of a search as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.report.charts import search_plots as plots
from tracelens.report.html.frame import framed
from tracelens.report.pages.parts import head, picture, section, table

if TYPE_CHECKING:
    from tracelens.projection.search.request import Answer


def search_page(found: Answer) -> bytes:
    """The best split, what its time and memory go to, how much a bad choice costs, and the front."""
    request = found.request
    title = f"{request.model} on {request.cluster}"
    facts = [f"global batch {request.global_batch}", f"rules {request.rules}", f"{len(found.fits):,} splits fit"]
    if not len(found.fits):
        return framed(f"{title} · search", [head(title, facts, (), ["no split that was tried fits"])])
    fits, best = found.fits, found.best.sort_values("n_gpus")
    fastest = fits.sort_values("t").iloc[0]
    per_gpu = fastest["throughput"] / fastest["n_gpus"]
    tiles = [
        ("Fastest step", f"{fastest['t']:,.4g} s", f"on {fastest['n_gpus']:,} GPUs"),
        ("Throughput", f"{fastest['throughput']:,.4g} samples/s", f"{per_gpu:,.3g} per GPU"),
        ("Memory", f"{fastest['mem']:,.4g} GB", "per GPU"),
    ]  # fmt: skip
    sections = [head(title, facts, tiles), section("best", "The best by number of GPUs", table(best, "Best splits"))]
    if best["n_gpus"].nunique() > 1:
        sections.append(section("scaling", "Scaling", picture(plots.scaling(fits)), picture(plots.degrees(fits))))
    sections.append(
        section("time", "Where the time goes", picture(plots.components(fits, plots.TIMES, "seconds per step")))
    )
    sections.append(section("memory", "Memory", picture(plots.components(fits, plots.MEMORY, "GB per device"))))
    if ranking := found.ranking():
        sections.append(section("landscape", "What a bad choice costs", picture(plots.landscape(ranking))))
    sections.append(section("front", "Pareto front of time, devices and memory", table(found.front(), "Pareto front")))
    return framed(f"{title} · search", sections)
