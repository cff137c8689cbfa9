"""Pages about fleets: the collectives of a job's ranks, a lake of traces day by day, a served load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING

from tracelens.report.figures import shown_figure, shown_share
from tracelens.report.html.charts import bars, line_chart
from tracelens.report.html.markup import Markup, Section, framed, tag
from tracelens.report.html.page_tables import head, heat_map, section, table
from tracelens.report.serving_text import requests_text
from tracelens.units import MS_PER_S, US_PER_MS

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.predict.serving.experiment import ServingResult
    from tracelens.report.assembly import Sheet


#: Ranks of a heat map, and collectives: those with most time.
MAX_RANKS, MAX_COLLECTIVES = 128, 12
#: The sheets that the page shows as tables.
_TABLES = {
    "straggler_summary": "Who is late", "overlap": "What is hidden", "nccl_summary_implicit_sync": "Collectives",
    "ep_summary": "Token exchanges", "ranks": "Ranks",
}  # fmt: skip


def ranks_page(name: str, facts: list[str], sheets: Sequence[Sheet], notes: list[str]) -> bytes:
    """Of the sheets of the comparison of the ranks."""
    made = {sheet.title: sheet for sheet in sheets}
    frames = {title: sheet.frame for title, sheet in made.items()}
    late = frames.get("straggler_summary")
    charts = (*_heat_maps(frames.get("nccl_long")), *_stragglers(late), *_overlap(frames.get("overlap")))
    tables = [
        section(f"table-{title}", words, tag("p", sheet.text) if sheet.text else None,
                table(sheet.frame, words, {column.key: column.title for column in sheet.columns}))
        for title, words in _TABLES.items()
        if (sheet := made.get(title)) is not None
    ]  # fmt: skip
    tiles = [*_tiles(frames.get("step_cost"), late), *_bubble(frames.get("pipeline_bubbles"))]
    first = head(name or "ranks", facts, tiles, notes)
    return framed(f"{name or 'ranks'} · collectives", [first, *charts, *tables])


def _tiles(steps: pd.DataFrame | None, late: pd.DataFrame | None) -> Iterator[tuple[str, str, str]]:
    if steps is not None and len(steps):
        cost, whole = steps["cost_us"].sum() / US_PER_MS, steps["step_us_median"].sum() / US_PER_MS
        yield "Waiting for the slowest rank", f"{cost:,.3f} ms", f"of {whole:,.3f} ms in {len(steps)} steps"
    if late is not None and len(late):
        worst = late.sort_values("cost_us", ascending=False, kind="stable").iloc[0]
        yield "Costs the others most", f"rank {int(worst['rank'])}", f"{worst['cost_us'] / US_PER_MS:,.3f} ms in all"


def _bubble(pipelines: pd.DataFrame | None) -> Iterator[tuple[str, str, str]]:
    if pipelines is not None and len(pipelines):
        share = 100 * pipelines["bubble_us"].sum() / pipelines["step_us"].sum()
        yield "Pipeline bubble", f"{share:.1f} %", "of a step, in send/recv or idle"


def _heat_maps(calls: pd.DataFrame | None) -> Iterator[Section]:
    for key, words in (("wait_us", "waiting for others"), ("transfer_us", "transfer")):
        if calls is not None and len(calls) and key in calls and calls[key].notna().any():
            drawn = _by_rank(calls, key, f"Mean {words}, µs per call, by rank and collective")
            yield section(f"heat-{key}", f"Ranks x collectives: {words}", drawn)


def _stragglers(late: pd.DataFrame | None) -> Iterator[Section]:
    if late is not None and len(late):
        costs = zip(late["rank"], late["cost_us"], strict=True)
        rows = [(f"rank {rank}", float(us), f"{us / US_PER_MS:,.3f} ms") for rank, us in costs]
        yield section("stragglers", "Stragglers", bars(rows, "Time saved if this rank alone were on time"))


def _overlap(overlap: pd.DataFrame | None) -> Iterator[Section]:
    if overlap is not None and len(overlap):
        shown = overlap.head(MAX_COLLECTIVES)
        names = zip(shown["collective"], shown["exposed_us_sum"], shown["exposed_percent"], strict=True)
        rows = [
            (str(each), float(us), f"{us / US_PER_MS:,.3f} ms · {share:.0f} % exposed") for each, us, share in names
        ]
        yield section("overlap", "Overlap", bars(rows, "Exposed time of all ranks by collective"))


def _by_rank(calls: pd.DataFrame, key: str, unit: str) -> list[str]:
    names = calls.groupby("collective")["duration_us"].sum().sort_values(ascending=False).index[:MAX_COLLECTIVES]
    means = calls[calls["collective"].isin(names)].pivot_table(index="rank", columns="collective", values=key)
    means = means.reindex(columns=[each for each in names if each in means]).head(MAX_RANKS)
    values = [[None if value != value else float(value) for value in row] for row in means.to_numpy().tolist()]
    return [heat_map([f"rank {rank}" for rank in means.index], [str(each) for each in means.columns], values, unit)]


#: Bars of a chart.
_MOST = 12


def lake_page(name: str, answers: Mapping[str, pd.DataFrame], about: Mapping[str, str]) -> bytes:
    """``answers`` of the lake's ready queries by name, and what each is about."""
    runs, trend = answers["runs"], answers["trend"]
    tiles = [
        ("Runs", f"{len(runs):,}", f"{int(runs['traces'].sum()):,} traces with whole steps"),
        ("Devices", f"{runs['device'].nunique():,}", ", ".join(sorted(runs["device"].dropna().unique())[:3])),
    ]
    days = trend["date"].dropna()
    if len(days):
        tiles.append(("Days", f"{days.nunique():,}", f"{days.min()} to {days.max()}"))
    tables = (
        section(key, _lake_title(key), tag("p", about[key]), table(frame, about[key]))
        for key, frame in answers.items()
        if len(frame)
    )
    facts = ["written by tracelens ingest; tracelens query asks more"]
    return framed(
        f"{name} · lake", [head(name, facts, tiles), *_trend(trend), *_slow(answers["outlier_ranks"]), *tables]
    )


def _lake_title(key: str) -> str:
    return key.replace("_", " ").capitalize()


def _trend(trend: pd.DataFrame) -> Iterator[Section]:
    """The median step by day, a line per device."""
    dated = trend[trend["date"].notna()]
    if dated["date"].nunique() < 2:
        return
    days = [date.fromisoformat(day) for day in dated["date"]]
    lines: dict[str, list[tuple[float, float]]] = {}
    for day, device, step_us in zip(days, dated["trace_device"], dated["step_us_median"], strict=True):
        name = device if isinstance(device, str) else "unknown device"
        lines.setdefault(name, []).append((float((day - min(days)).days), float(step_us) / US_PER_MS))
    chart = line_chart(lines, f"days since {min(days)}", "Median step of all runs, ms")
    yield section("trend-chart", "From day to day", chart)


def _slow(ranks: pd.DataFrame) -> Iterator[Section]:
    if len(ranks):
        shown = ranks.head(_MOST)
        named = zip(shown["run"], shown["rank"], shown["times_median"], strict=True)
        rows = [(f"{run} rank {rank}", float(times), f"{times:.3f} x") for run, rank, times in named]
        yield section(
            "slow-ranks", "Slow ranks", bars(rows, "Computation in a step, over the median of the run's ranks")
        )


_LATENCIES = (("ttft", "to the first token"), ("tpot", "per token"), ("itl", "between tokens"), ("e2e", "end to end"))
_POINTS = 300
_PERCENTILES = ("mean", "p50", "p90", "p99")


def served_page(result: ServingResult) -> bytes:
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
    title = _serving_title(result)
    first = head(title, _facts(result), tiles, result.notes)
    made = [first, section("latency", "Latency", tag("div", charts, class_="columns"))]
    steps = result.steps
    if len(steps):
        listed = tag("details", tag("summary", "step by step"), table(steps, "Steps"))
        made.append(section("replica", "A replica over time", *_replica(steps), listed))
    made.append(section("requests", "Requests", table(result.requests, "Requests")))
    return framed(f"{title} · served load", made)


def _serving_title(result: ServingResult) -> str:
    deployment = result.experiment.deployment
    return f"{deployment.model.label} on {deployment.parallelism.devices} x {deployment.system.device.label}"


def _facts(result: ServingResult) -> Iterator[str]:
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


def sweep_page(rows: Sequence[tuple[float, ServingResult]]) -> bytes:
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
    title = _serving_title(rows[0][1])
    rates = sorted(rate for rate, _ in rows)
    facts = [f"{len(rows)} rates, {rates[0]:g} to {rates[-1]:g} requests/s"]
    sections = [head(title, facts, tiles, warnings=edge), section("curves", "Over the rate", charts)]
    return framed(f"{title} · sweep", sections)
