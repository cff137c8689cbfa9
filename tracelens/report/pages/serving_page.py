"""A served load, or a sweep of rates, as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tracelens.report.charts.line_chart import bars, line_chart
from tracelens.report.charts.markup import Markup
from tracelens.report.html.frame import framed
from tracelens.report.pages.parts import head, section, table
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
        (name, "-" if figures.get(key) is None else f"{figures[key]:,.4g} {unit}", below)
        for name, key, unit, below in (
            ("Requests", "requests_per_s", "/s", "completed"),
            ("Output", "output_tokens_per_s", "tokens/s", "all GPUs"),
            ("First token", "ttft_p99_ms", "ms", "99 of 100 requests are faster"),
            ("Per token", "tpot_p99_ms", "ms", "99 of 100 requests are faster"),
        )
    ]  # fmt: skip
    charts = []
    for key, words in _LATENCIES:
        known = [(part, figures.get(f"{key}_{part}_ms")) for part in _PERCENTILES]
        rows = [(part, float(value), f"{value:,.4g} ms") for part, value in known if value is not None]
        if rows:
            charts.append(bars(rows, f"Latency {words}"))
    made = [head(repr(result), (), tiles, result.notes), section("latency", "Latency", charts)]
    steps = result.steps
    if len(steps):
        made.append(section("replica", "A replica over time", *_replica(steps), table(steps, "Steps")))
    return framed("Served load", [*made, section("requests", "Requests", table(result.requests, "Requests"))])


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
    first = rows[0][1]

    def line(name: str) -> list[tuple[float, float]]:
        return [(rate, float(value)) for rate, each in rows if (value := each.summary.get(name)) is not None]

    def lines(names: dict[str, str]) -> dict[str, list[tuple[float, float]]]:
        return {word: found for name, word in names.items() if (found := line(name))}

    best = max(rows, key=lambda row: (row[1].summary.get("goodput_requests_per_s") or 0.0, -row[0]))
    good = best[1].summary.get("goodput_requests_per_s")
    edge = (
        []
        if best[0] < max(rate for rate, _ in rows) or not good
        else ["the most goodput is at the highest rate of the sweep; a higher one may give more"]
    )
    tiles = [("Most goodput", f"{good:,.4g} requests/s", f"at a rate of {best[0]:g}")] if good else []
    rates = {"goodput_requests_per_s": "within the limits", "requests_per_s": "completed"}
    first_token = {f"ttft_{part}_ms": f"first token {part}" for part in _PERCENTILES}
    per_token = {f"tpot_{part}_ms": f"per token {part}" for part in _PERCENTILES}
    charts = [
        line_chart(found, "requests/s that arrive", up)
        for found, up in (
            (lines(rates), "requests/s"), (lines(first_token), "ms to the first token"),
            (lines(per_token), "ms per token"),
        )
        if found
    ]  # fmt: skip
    deployment = first.experiment.deployment
    title = f"{deployment.model.label} on {deployment.parallelism.devices} x {deployment.system.device.label}"
    sections = [head(title, [f"{len(rows)} rates"], tiles, edge), section("curves", "Over the rate", charts)]
    return framed(f"{title} · sweep", sections)
