"""The collectives of a job as a page: who waits for whom, who is late, what is hidden."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tracelens.report.charts.line_chart import bars
from tracelens.report.html.frame import Section, framed
from tracelens.report.pages.parts import head, heat_map, section, table

if TYPE_CHECKING:
    import pandas as pd

#: Ranks of a heat map, and collectives: those with most time.
MAX_RANKS, MAX_COLLECTIVES = 128, 12
_TABLES = ("straggler_summary", "overlap", "nccl_summary_implicit_sync", "ep_summary", "ranks")


def ranks_page(name: str, facts: list[str], frames: Mapping[str, pd.DataFrame], notes: list[str]) -> bytes:
    """``frames``: the sheets of the ranks under their keys, and those that a reader sees by their names."""
    charts = (*_heat_maps(frames.get("nccl_long")), *_stragglers(frames.get("straggler_summary")))
    tables = [
        section(f"table-{title}", f"Table {title}", table(frame, title))
        for title in _TABLES
        if (frame := frames.get(title)) is not None and len(frame)
    ]
    sections = [head(name or "ranks", facts, (), notes), *charts, *_overlap(frames.get("overlap")), *tables]
    return framed(f"{name or 'ranks'} · collectives", sections)


def _heat_maps(calls: pd.DataFrame | None) -> Iterator[Section]:
    for key, words in (("wait_us", "waiting for others"), ("transfer_us", "transfer")):
        if calls is not None and len(calls) and key in calls and calls[key].notna().any():
            drawn = _by_rank(calls, key, f"Mean {words}, µs per call, by rank and collective")
            yield section(f"heat-{key}", f"Ranks x collectives: {words}", drawn)


def _stragglers(late: pd.DataFrame | None) -> Iterator[Section]:
    if late is not None and len(late):
        costs = zip(late["rank"], late["cost_us"], strict=True)
        rows = [(f"rank {rank}", float(us), f"{us / 1000:,.3f} ms") for rank, us in costs]
        yield section("stragglers", "Stragglers", bars(rows, "Time saved if this rank alone were on time"))


def _overlap(overlap: pd.DataFrame | None) -> Iterator[Section]:
    if overlap is not None and len(overlap):
        shown = overlap.head(MAX_COLLECTIVES)
        names = zip(shown["collective"], shown["exposed_us"], shown["exposed_percent"], strict=True)
        rows = [(str(each), float(us), f"{us / 1000:,.3f} ms · {share:.0f} % exposed") for each, us, share in names]
        yield section("overlap", "Overlap", bars(rows, "Exposed time of all ranks by collective"))


def _by_rank(calls: pd.DataFrame, key: str, unit: str) -> list[str]:
    names = calls.groupby("collective")["duration_us"].sum().sort_values(ascending=False).index[:MAX_COLLECTIVES]
    means = calls[calls["collective"].isin(names)].pivot_table(index="rank", columns="collective", values=key)
    means = means.reindex(columns=[each for each in names if each in means]).head(MAX_RANKS)
    values = [[None if value != value else float(value) for value in row] for row in means.to_numpy().tolist()]
    return [heat_map([f"rank {rank}" for rank in means.index], [str(each) for each in means.columns], values, unit)]
