"""Pages about many: the collectives of a job's ranks, a lake of traces, predictions beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING

from tracelens.report.charts import bars, line_chart
from tracelens.report.document import Document, heat_map, section, table
from tracelens.report.markup import Section, tag
from tracelens.types.records import pd
from tracelens.types.units import US_PER_MS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tracelens.report.assembly import Sheet

#: Ranks of a heat map, and collectives: those with most time.
MAX_RANKS, MAX_COLLECTIVES = 128, 12
#: The sheets that the page shows as tables.
_TABLES = {
    "unended": "Calls that differ or have not ended", "straggler_summary": "Who is late", "overlap": "What is hidden",
    "nccl_summary_implicit_sync": "Collectives", "ep_summary": "Token exchanges", "ranks": "Ranks",
}  # fmt: skip


def ranks_page(name: str, facts: list[str], sheets: Sequence[Sheet], notes: list[str]) -> bytes:
    """Of the sheets of the comparison of the ranks."""
    made = {sheet.title: sheet for sheet in sheets}
    full = {title: sheet.frame for title, sheet in made.items() if len(sheet.frame)}
    tables = [
        section(f"table-{title}", words, tag("p", sheet.text) if sheet.text else None,
                table(sheet.frame, words, {column.key: column.title for column in sheet.columns}))
        for title, words in _TABLES.items()
        if (sheet := made.get(title)) is not None
    ]  # fmt: skip
    return Document(title=name or "ranks", kind="collectives", facts=facts, tiles=_tiles(full), notes=notes,
                    sections=[*_charts(full), *tables]).page()  # fmt: skip


def _tiles(full: Mapping[str, pd.DataFrame]) -> Iterator[tuple[str, str, str]]:
    """Of the sheets with rows: calls without an end, and what waiting costs."""
    for row in full["unended"].head(3).to_dict("records") if "unended" in full else ():
        call, ranks = f"{row['collective']} {row['sequence']}", str(row["ranks"])
        which = f"rank{'s' * (not ranks.isdigit())} {ranks}"
        yield str(row["problem"]).capitalize(), call, f"of group {row['group_name']}: {which}"
    if (steps := full.get("step_cost")) is not None:
        cost, whole = steps["cost_us"].sum() / US_PER_MS, steps["step_us_median"].sum() / US_PER_MS
        yield "Waiting for the slowest rank", f"{cost:,.3f} ms", f"of {whole:,.3f} ms in {len(steps)} steps"
    if (late := full.get("straggler_summary")) is not None:
        worst = late.sort_values("cost_us", ascending=False, kind="stable").iloc[0]
        yield "Costs the others most", f"rank {int(worst['rank'])}", f"{worst['cost_us'] / US_PER_MS:,.3f} ms in all"
    if (pipelines := full.get("pipeline_bubbles")) is not None:
        share = 100 * pipelines["bubble_us"].sum() / pipelines["step_us"].sum()
        yield "Pipeline bubble", f"{share:.1f} %", "of a step, in send/recv or idle"


def _charts(full: Mapping[str, pd.DataFrame]) -> Iterator[Section]:
    """Of the sheets with rows: heat maps of ranks x collectives, stragglers, what is exposed."""
    calls = full.get("nccl_long")
    for key, words in (("wait_us", "waiting for others"), ("transfer_us", "transfer")):
        if calls is not None and key in calls and calls[key].notna().any():
            drawn = _by_rank(calls, key, f"Mean {words}, µs per call, by rank and collective")
            yield section(f"heat-{key}", f"Ranks x collectives: {words}", drawn)
    if (late := full.get("straggler_summary")) is not None:
        costs = zip(late["rank"], late["cost_us"], strict=True)
        rows = [(f"rank {rank}", float(us), f"{us / US_PER_MS:,.3f} ms") for rank, us in costs]
        yield section("stragglers", "Stragglers", bars(rows, "Time saved if this rank alone were on time"))
    if (overlap := full.get("overlap")) is not None:
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
    days = trend.loc[trend["axis"] == "day", "position"]
    if len(days):
        tiles.append(("Days", f"{days.nunique():,}", f"{days.min()} to {days.max()}"))
    tables = (
        section(key, key.replace("_", " ").capitalize(), tag("p", about[key]), table(frame, about[key]))
        for key, frame in answers.items()
        if len(frame)
    )
    facts, charts = ["written by tracelens ingest; tracelens query asks more"], [*_trend(trend)]
    if len(slow := answers["outlier_ranks"].head(_MOST)):
        named = zip(slow["run"], slow["rank"], slow["times_median"], strict=True)
        rows = [(f"{run} rank {rank}", float(times), f"{times:.3f} x") for run, rank, times in named]
        drawn = bars(rows, "Computation in a step, over the median of the run's ranks")
        charts.append(section("slow-ranks", "Slow ranks", drawn))
    sections = [*charts, *tables]
    return Document(title=name, kind="lake", facts=facts, tiles=tiles, sections=sections).page()


def _trend(trend: pd.DataFrame) -> Iterator[Section]:
    """The median step by day and by git revision, a line per device."""
    days = trend[trend["axis"] == "day"]
    if days["position"].nunique() > 1:
        at = [date.fromisoformat(day).toordinal() for day in days["position"]]
        chart = _lines(days, [day - min(at) for day in at], f"days since {days['position'].min()}")
        yield section("trend-chart", "From day to day", chart)
    revisions = trend[trend["axis"] == "git_revision"]
    if revisions["position"].nunique() > 1:
        names = list(dict.fromkeys(revisions["position"]))
        known = f"revisions since {names[0]}, the last is {names[-1]}"
        chart = _lines(revisions, [names.index(name) for name in revisions["position"]], known)
        yield section("revisions-chart", "From revision to revision", chart)


def _lines(trend: pd.DataFrame, at: list[int], along: str) -> str:
    lines: dict[str, list[tuple[float, float]]] = {}
    for place, device, step_us in zip(at, trend["trace_device"], trend["step_us_median"], strict=True):
        name = device if isinstance(device, str) else "unknown device"
        lines.setdefault(name, []).append((float(place), float(step_us) / US_PER_MS))
    return line_chart(lines, along, "Median step of all runs, ms")


#: Errors that a chart draws, in percent.
_ERRORS = [half / 2 for half in range(121)]


def score_page(
    name: str, lines: Sequence[Sequence[str]], words: Sequence[str], errors: Mapping[str, npt.NDArray[np.float64]]
) -> bytes:
    """``lines``: heads, all points, then groups of them; ``words``: what heads say; ``errors``: by area, ascending."""
    heads, *scores = lines
    first = dict(zip(heads, scores[0], strict=True))
    tiles = [
        ("Predictions", first["rows"], f"{first['no prediction']} points without one"),
        ("Median error", first["median"], f"signed {first['signed']}"),
        ("90th percentile", first["p90"], "of the errors"),
        ("Inside the interval", first["inside"] or "-", "of points with an interval"),
    ]
    chart = line_chart({area: _within(each) for area, each in errors.items()}, "error, %", "Points within an error, %")
    groups = table(pd.DataFrame(scores, columns=[*heads]), "Scores", {head: head for head in heads})
    sections = [section("within", "How far off", chart), section("scores", "Scores", groups)]
    return Document(title=f"Predictions of {name}", kind="score", facts=[*words], tiles=tiles, sections=sections).page()


def _within(errors: npt.NDArray[np.float64]) -> list[tuple[float, float]]:
    """(error, share of all that are at most so far off), both in percent."""
    return [(each, 100 * float((errors <= each / 100).mean())) for each in _ERRORS]
