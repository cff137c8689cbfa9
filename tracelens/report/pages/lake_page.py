"""A lake of traces as a page: how steps change from day to day, what became slower, which ranks are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from typing import TYPE_CHECKING

from tracelens.report.charts.line_chart import bars, line_chart
from tracelens.report.html.frame import Section, framed
from tracelens.report.html.markup import tag
from tracelens.report.pages.parts import head, section, table
from tracelens.units import US_PER_MS

if TYPE_CHECKING:
    import pandas as pd

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
        section(key, _title(key), tag("p", about[key]), table(frame, about[key]))
        for key, frame in answers.items()
        if len(frame)
    )
    facts = ["written by tracelens ingest; tracelens query asks more"]
    return framed(
        f"{name} · lake", [head(name, facts, tiles), *_trend(trend), *_slow(answers["outlier_ranks"]), *tables]
    )


def _title(key: str) -> str:
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
