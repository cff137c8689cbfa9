"""A served load, or a sweep of rates, as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tracelens.report.charts.line_chart import bars, line_chart
from tracelens.report.figures import shown_figure, shown_share
from tracelens.report.html.frame import framed
from tracelens.report.html.markup import Markup, tag
from tracelens.report.pages.parts import head, section, table
from tracelens.report.serving_text import requests_text
from tracelens.units import MS_PER_S

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.serving.experiment import Result


_LATENCIES = (("ttft", "to the first token"), ("tpot", "per token"), ("itl", "between tokens"), ("e2e", "end to end"))
_POINTS = 300
_PERCENTILES = ("mean", "p50", "p90", "p99")


def served_page(result: Result) -> bytes:
    """Latencies by percentile, throughput, and what the replicas did over time."""
    figures = result.summary
    tiles = [
        (name, "-" if (value := figures.get(key)) is None else f"{shown_figure(value)} {unit}", below)
        for name, key, unit, below in (
            ("Requests", "requests_per_s", "/s", "completed"),
            ("Output", "output_tokens_per_s", "tokens/s", "all GPUs"),
            ("First token", "ttft_p99_ms", "ms", "99 of 100 requests are faster"),
            ("Per token", "tpot_p99_ms", "ms", "99 of 100 requests are faster"),
        )
    ]  # fmt: skip
    charts: list[Markup] = []
    for key, words in _LATENCIES:
        known = [(part, figures.get(f"{key}_{part}_ms")) for part in _PERCENTILES]
        rows = [(part, float(value), f"{shown_figure(value)} ms") for part, value in known if value is not None]
        if rows:
            charts.append(tag("div", bars(rows, f"Latency {words}")))
    title = _title(result)
    first = head(title, _facts(result), tiles, result.notes)
    made = [first, section("latency", "Latency", tag("div", charts, class_="columns"))]
    steps = result.steps
    if len(steps):
        listed = tag("details", tag("summary", "step by step"), table(steps, "Steps"))
        made.append(section("replica", "A replica over time", *_replica(steps), listed))
    made.append(section("requests", "Requests", table(result.requests, "Requests")))
    return framed(f"{title} · served load", made)


def _title(result: Result) -> str:
    deployment = result.experiment.deployment
    return f"{deployment.model.label} on {deployment.parallelism.devices} x {deployment.system.device.label}"


def _facts(result: Result) -> Iterator[str]:
    figures = result.summary
    yield requests_text(result)
    yield f"{figures['completed'] or 0:,} completed in {shown_figure(figures['window_s'] or 0)} s"
    if (busy := figures.get("utilization")) is not None:
        yield f"GPU busy {shown_share(busy)}"


def _replica(steps: pd.DataFrame) -> Iterator[Markup]:
    """What the first replica has to do and keeps in its cache, at most ``_POINTS`` points a line, each the most."""
    own = steps[steps["replica"] == steps["replica"].iloc[0]]
    width = max(float(own["time_ms"].max() - own["time_ms"].min()) / _POINTS, 1e-9)
    part = ((own["time_ms"] - own["time_ms"].min()) // width).astype(int)
    most = own.groupby(part.rename("part")).max()
    for names, words in (
        (("decoding", "prefilling", "waiting"), "requests"),
        (("blocks_in_use",), "blocks of the cache"),
    ):
        lines = {
            name.replace("_", " "): [
                (ms / MS_PER_S, float(n)) for ms, n in zip(most["time_ms"], most[name], strict=True)
            ]
            for name in names
        }
        yield line_chart(lines, "seconds", words)


def sweep_page(rows: Sequence[tuple[float, Result]]) -> bytes:
    """Goodput and latency over the rate of requests."""

    def line(name: str) -> list[tuple[float, float]]:
        return [(rate, float(value)) for rate, each in rows if (value := each.summary.get(name)) is not None]

    def lines(names: dict[str, str]) -> dict[str, list[tuple[float, float]]]:
        return {word: found for name, word in names.items() if (found := line(name))}

    best = max(rows, key=lambda row: (row[1].summary.get("goodput_requests_per_s") or 0.0, -row[0]))
    good = best[1].summary.get("goodput_requests_per_s")
    edge, tiles = [], []
    if good:
        tiles = [("Most goodput", f"{shown_figure(good)} requests/s", f"at {best[0]:g} requests/s that arrive")]
        if best[0] == max(rate for rate, _ in rows):
            edge = ["the most goodput is at the highest rate of the sweep; a higher one may give more"]
    names = {"goodput_requests_per_s": "within the limits", "requests_per_s": "completed"}
    first_token = {f"ttft_{part}_ms": f"first token {part}" for part in _PERCENTILES}
    per_token = {f"tpot_{part}_ms": f"per token {part}" for part in _PERCENTILES}
    charts = [
        line_chart(found, "requests/s that arrive", up)
        for found, up in (
            (lines(names), "requests/s"), (lines(first_token), "ms to the first token"),
            (lines(per_token), "ms per token"),
        )
        if found
    ]  # fmt: skip
    title = _title(rows[0][1])
    rates = sorted(rate for rate, _ in rows)
    facts = [f"{len(rows)} rates, {rates[0]:g} to {rates[-1]:g} requests/s"]
    sections = [head(title, facts, tiles, warnings=edge), section("curves", "Over the rate", charts)]
    return framed(f"{title} · sweep", sections)
