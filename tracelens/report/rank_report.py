"""``RankReport``: the comparison of many ranks as workbook, JSON, CSV and text."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import orjson

from tracelens.analysis.ranks import rank_comparison
from tracelens.analysis.ranks.rank_comparison import RanksAnalysis, compare_ranks
from tracelens.analysis.ranks.rank_files import RankOptions, find_logs_of_devices, find_traces, job_folder
from tracelens.analysis.ranks.rank_summary import ranks_text
from tracelens.analysis.verdict.summary import DeviceSummary, InputSummary, Notice, Summary
from tracelens.files.atomic_write import whole_folder, write_whole
from tracelens.files.cells import plain_records
from tracelens.files.documents import json_encoded
from tracelens.files.safe_text import clipped, escaped_json, json_safe, terminal_text
from tracelens.files.say import aligned
from tracelens.report.assembly import NamedSheets, refuse_folder, sheets_of
from tracelens.schema import KEYS
from tracelens.trace.reading.read import FLIGHT_RECORDER
from tracelens.types.records import pd
from tracelens.types.units import NS_PER_US, US_PER_MS, counted, shown_figure

SCHEMA = "tracelens.collectives/2"
XLSX, HTML, JSON, CSV = "collectives.xlsx", "collectives.html", "collectives.json", "csv"
#: Rows of a sheet that lists single calls: a workbook of a thousand ranks would take hours. CSV files hold all of them.
LONG_ROWS = 50_000
_WIDTH = 80
#: By how much one stage of a pipeline computes longer than the mean of all before it is named.
_UNEVEN = 1.05
#: Share of the others' clock below which that of a late rank's device is told.
_SLOWER_CLOCK = 0.97
#: Share of the time from which waiting for a rank is told: below it, ranks that do the same come last by turns.
_LEAST_LATE = 0.01
#: Share of the longest waiting of a rank below which another one is among those that are waited for.
_WAITS_LITTLE = 0.5


def collectives(
    *traces: str | PathLike[str],
    options: RankOptions | None = None,
    executor: Executor | None = None,
    column_names: str = KEYS,
) -> RankReport:
    """The ranks of a job compared, as ``tracelens collectives`` does: ``traces`` are folders, glob patterns or files.

    ``executor`` reads the traces, None: processes, one per core. ``column_names``: as for ``report``.
    InputError where nothing can be read, NothingToAnalyzeError where no trace holds communication.
    """
    given = [str(each) for each in traces]
    paths, logs = find_logs_of_devices(given, find_traces(given))
    options = replace(options or RankOptions(), device_logs=logs)
    found = compare_ranks(paths, options, executor=executor, name=job_folder(traces[0], paths).name)
    return RankReport(found, column_names)


class RankReport(NamedSheets):
    """Named tables of a job's ranks, and what they add up to. ``report["straggler_summary"]`` is a DataFrame."""

    def __init__(self, result: RanksAnalysis, column_names: str = KEYS) -> None:
        super().__init__(sheets_of(result.frames, rank_comparison.rank_sheets()), column_names)
        self.result = result

    @property
    def summary(self) -> Summary:
        """What the workbook's first sheet says."""
        result = self.result
        return Summary(
            input=InputSummary(
                file=result.name or "ranks",
                events=sum(summary.events for summary in result.ranks.values()),
                ranks=tuple(sorted(result.ranks)),
                world_size=result.world_size,
            ),
            device=DeviceSummary(id=None, label="not needed, because nothing here is an estimate", matched_by="none"),
            notices=result.notices,
        )

    def to_excel(self, path: str | PathLike[str], *, all_sheets: bool = False) -> Path:
        """Writes the workbook, whole or not at all; sheets of single calls end after ``LONG_ROWS`` rows, and say so."""
        from tracelens.report.workbook import write_workbook

        summary, sheets = self.summary, []
        shown, further = self.of_workbook(all_sheets=all_sheets)
        for sheet in shown:
            rows = len(sheet.frame)
            if sheet.json is None and rows > LONG_ROWS:
                text = f"{sheet.title} has {rows:,} rows; the workbook has the first {LONG_ROWS:,}, --csv writes all"
                notice = Notice(id="rows_left_out", count=rows - LONG_ROWS, text=text)
                summary = replace(summary, notices=(*summary.notices, notice))
                sheet = replace(sheet, frame=sheet.frame.iloc[:LONG_ROWS])
            sheets.append(sheet)
        said = [line.strip() for line in self._late()]
        write_workbook(path, sheets, summary, further=further, said=said)
        return Path(path)

    def to_json(self, path: str | PathLike[str] | None = None) -> str:
        """The ``tracelens.collectives/2`` document: every table but those of single calls, by keys; null is unknown."""
        result = self.result
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "input": {"name": result.name, "ranks": sorted(result.ranks), "world_size": result.world_size},
            "clocks": {"residual_us": result.clocks.residual_us, "hosts_from": result.clocks.how},
            "warnings": [{"id": n.id, "count": n.count, "text": n.text} for n in result.notices],
            "tables": {
                sheet.title: plain_records(sheet.frame, [column.key for column in sheet.columns])
                for sheet in self.sheets
                if sheet.json is not None
            },
        }
        options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        content = escaped_json(json_encoded(json_safe(document), options))
        if path is not None:
            write_whole(path, content)
        return content.decode()

    def to_html(self, path: str | PathLike[str]) -> Path:
        """Writes the page, whole or not at all."""
        from tracelens.report.fleet_pages import ranks_page

        result = self.result
        of = f" of {result.world_size}" if result.world_size is not None else ""
        facts = [f"{counted(len(result.ranks), 'rank')}{of}: {ranks_text(result.ranks)}"]
        notes = [notice.text for notice in result.notices]
        write_whole(path, ranks_page(result.name, facts, self.sheets, notes))
        return Path(path)

    def write(self, folder: str | PathLike[str], *, csv: bool = False, all_sheets: bool = False) -> Path:
        """Fills ``folder`` with collectives.xlsx, .html and .json (and csv/): all of them or none."""
        folder = Path(folder)
        refuse_foreign(folder)
        with whole_folder(folder) as staging:
            self.to_excel(staging / XLSX, all_sheets=all_sheets)
            self.to_html(staging / HTML)
            if csv:
                self.to_csv(staging / CSV)
            self.to_json(staging / JSON)
        return folder

    def __repr__(self) -> str:
        return self.verdict()

    def verdict(self) -> str:
        """The result as text, at most 80 columns wide."""
        return "\n".join(clipped(terminal_text(line), _WIDTH) for line in self._lines())

    def _lines(self) -> Iterator[str]:
        result = self.result
        of = f" of {result.world_size}" if result.world_size is not None else ""
        yield f" {result.name or 'ranks'}  {counted(len(result.ranks), 'rank')}{of}: {ranks_text(result.ranks)}"
        residual = result.clocks.residual_us
        hosts = len(result.clocks.hosts)
        known = "not placed" if residual is None else f"residual ±{residual:.1f} µs"
        how = f"{hosts} hosts by {result.clocks.how}; {known}"
        if hosts == 1:
            is_log = result.clocks.hosts[0].host == "any"
            how = f"not needed: {result.clocks.how}" if is_log else "of one host, as recorded"
        yield f" clocks    {how}"
        late = self._late()
        yield from ["", *late] if late else []
        yield from self._collectives()
        yield from self._exchanges()
        for notice in result.notices:
            yield from textwrap.wrap(notice.text, _WIDTH, initial_indent=" ! ", subsequent_indent="   ")

    def _late(self) -> list[str]:
        """What ranks never did, and what waiting for slow ones cost."""
        return [*self._unended(), *self._steps(), *self._stragglers(self.result.clocks.residual_us), *self._pipelines()]

    def _unended(self) -> Iterator[str]:
        frame = self.result.frames.get(rank_comparison.UNENDED_TITLE)
        if frame is None:
            return
        logs = [summary.log for summary in self.result.ranks.values() if summary.log is not None]
        texts = list(frame["text"].head(6))
        if not texts and (calls := sum(int((log.group >= 0).sum()) for log in logs)):
            texts = self._nothing_differs(calls, all(log.kind == FLIGHT_RECORDER for log in logs))
        for text in texts:
            yield from textwrap.wrap(terminal_text(text), _WIDTH, initial_indent=" ", subsequent_indent="   ")

    def _nothing_differs(self, calls: int, are_ends_logged: bool) -> list[str]:
        """Of the ranks whose logs were read; Inspector writes what has ended, and nothing else."""
        ranks, of = self.result.ranks, self.result.world_size
        said = [" have ended"] * are_ends_logged + [" are alike on "] * (len(ranks) > 1)
        if not said:
            return []
        which = "all ranks" if of in (None, len(ranks)) else f"ranks {ranks_text(ranks)} of {of}"
        logged = f"all {calls:,} logged collective calls{' and'.join(said)}"
        return [f"{logged}{which}" if len(ranks) > 1 else f"{logged} on rank {ranks_text(ranks)}"]

    def _steps(self) -> Iterator[str]:
        frame = self.result.frames[rank_comparison.STEP_COST_TITLE]
        if frame.empty:
            return
        worst = frame.sort_values("cost_us", ascending=False, kind="stable").iloc[0]
        if len(frame) > 1:
            cost, steps = frame["cost_us"].sum() / US_PER_MS, frame["step_us_median"].sum() / US_PER_MS
            yield f" {len(frame)} steps spend {cost:.3f} of {steps:.3f} ms waiting for the slowest rank of each"
        if worst["cost_us"] < _LEAST_LATE * worst["step_us_median"]:
            return
        yield (
            f" step {int(worst['step'])} spends {worst['cost_us'] / US_PER_MS:.3f} of "
            f"{worst['step_us_median'] / US_PER_MS:.3f} ms waiting for rank {int(worst['slowest_rank'])}"
        )
        yield "   GPUs wait that long; the step gains less where hosts need the time"

    def _stragglers(self, residual: float | None) -> Iterator[str]:
        result = self.result
        frame = result.frames[rank_comparison.RANK_TIMES_TITLE]
        if frame.empty:
            return
        typical = result.typical_skew_us
        if residual is None or (residual > 0 and residual >= typical):
            why = "the clock of a host is not known" if residual is None else f"clocks are off by {residual:.1f} µs"
            yield f" no verdict on stragglers: the typical skew is {typical:.1f} µs, and {why}"
            return
        calls = result.calls
        recorded_us = (calls.end.max() - calls.start.min()) / NS_PER_US
        late = frame[frame["cost_us"] >= _LEAST_LATE * recorded_us].head(3).to_dict("records")
        beyond = not result.frames[rank_comparison.STEP_COST_TITLE].empty and bool((calls.step < 0).any())
        for row in late:
            yield (
                f" rank {row['rank']} is late on its own by {row['cost_us'] / US_PER_MS:.3f} ms and last at "
                f"{row['arrived_last_percent']:.0f} % of {row['num_collectives']} collectives"
            )
            if beyond:
                yield "   in the whole recording, with what lies outside of the steps"
            yield from self._clock_of(int(row["rank"]))
        if not late:
            yield from _late_together(frame, recorded_us)

    def _clock_of(self, rank: int) -> Iterator[str]:
        """That the device of a late rank ran slower than those of the others, by a log of them."""
        clocks = {r: use.clock_mhz for r, use in self.result.devices.items() if use.clock_mhz is not None}
        if rank not in clocks or len(clocks) < 2:
            return
        own, others = clocks[rank], statistics.median(mhz for other, mhz in clocks.items() if other != rank)
        if own <= _SLOWER_CLOCK * others:
            yield f"   its device ran at {own:,.0f} MHz, those of the others at {others:,.0f} (median)"

    def _pipelines(self) -> Iterator[str]:
        frame = self.result.frames[rank_comparison.PIPELINE_BUBBLES_TITLE]
        if frame.empty:
            return
        bubble, ranks = frame["bubble_percent"], frame.groupby("pipeline").size()
        yield (
            f" {counted(len(ranks), 'pipeline')} of {_span(ranks.min(), ranks.max())} ranks: "
            f"bubbles (send/recv, idle) take {_span(f'{bubble.min():.1f}', f'{bubble.max():.1f}')} % of a step"
        )
        compute_us = frame.groupby("stage")["computation_us"].mean()
        if compute_us.max() > _UNEVEN * compute_us.mean():
            most, mean = compute_us.max() / US_PER_MS, compute_us.mean() / US_PER_MS
            yield f" stage {compute_us.idxmax()} computes longest: {most:.3f} ms per step, {mean:.3f} on average"

    def _collectives(self) -> Iterator[str]:
        frame = self.result.frames[rank_comparison.NCCL_SUMMARY_IMPLICIT_SYNC_TITLE]
        if frame.empty:
            yield from self._calls_of_one_rank()
            return
        rows = [("collective", "group", "MB", "bus GB/s", "waiting", "mostly")]
        for row in frame.head(6).to_dict("records"):
            bus, full = (_figure(row[key]) for key in ("bus_gb_s_median", "full_mb"))
            name, group = clipped(row["collective"], 14), clipped(str(row["group_name"]), 19)
            waiting, mostly = f"{row['waiting_percent']:.1f} %", row["verdict"].removesuffix("-dominated")
            rows.append((name, group, full, bus, waiting, mostly.replace("-", " ")))
        yield from ["", *(f" {line}" for line in aligned(rows, words=(0, 1, 5)).splitlines())]

    def _calls_of_one_rank(self) -> Iterator[str]:
        """Without counterparts nothing says how long a call waited: its bandwidth is at least what is shown."""
        frame = self.result.frames[rank_comparison.NCCL_SUMMARY_LONG_TITLE]
        known = frame if frame.empty else frame[frame["effective_bus_gb_s"].notna()]
        if known.empty:
            return
        rows = [("collective", "group", "MB", "bus GB/s, waiting included", "calls")]
        for row in known.head(6).to_dict("records"):
            bus, sent = (_figure(row[key]) for key in ("effective_bus_gb_s", "in_mb"))
            name, group = clipped(row["collective"], 14), clipped(str(row["group_name"]), 19)
            rows.append((name, group, sent, bus, f"{row['operation_count']:,}"))
        yield from ["", *(f" {line}" for line in aligned(rows, words=(0, 1)).splitlines())]

    def _exchanges(self) -> Iterator[str]:
        frame = self.result.frames[rank_comparison.EP_SUMMARY_TITLE]
        if frame.empty:
            return
        rows = [("token exchange", "effective TB/s", "without waiting TB/s", "waiting")]
        for row in frame.head(8).to_dict("records"):
            rates = (row[f"{rate}_interconnect_tb_s"] for rate in ("effective", "true"))
            effective, true = ("-" if rate is None or rate != rate else f"{rate:.3f}" for rate in rates)
            rows.append((clipped(str(row["name"]), 33), effective, true, f"{row['waiting_percent']:.1f} %"))
        yield from ["", *(f" {line}" for line in aligned(rows, words=(0,)).splitlines())]


def refuse_foreign(folder: Path) -> None:
    """Raises, see ``refuse_folder``, before any work is done when a report could not go to ``folder``."""
    refuse_folder(folder, (folder / JSON).is_file, "a tracelens report on ranks")


def _late_together(frame: pd.DataFrame, recorded_us: float) -> Iterator[str]:
    """Ranks that the others wait for, though no one of them alone: they wait least themselves."""
    waited_us = frame["wait_us_sum"]
    least = waited_us < _WAITS_LITTLE * waited_us.max()
    told_us = waited_us[~least].mean() - waited_us[least].mean()
    if 2 * least.sum() <= len(frame) and told_us >= _LEAST_LATE * recorded_us:
        few, others = (waited_us[which].mean() / US_PER_MS for which in (least, ~least))
        ranks = ranks_text(frame["rank"][least])
        text = f"ranks {ranks} are late together: each waits {few:.3f} ms in all, the others wait {others:.3f} ms"
        yield from textwrap.wrap(text, _WIDTH, initial_indent=" ", subsequent_indent="   ")


def _span(low: object, high: object) -> str:
    return f"{low}" if low == high else f"{low} to {high}"


def _figure(value: float | None) -> str:
    return "-" if value is None or value != value else shown_figure(value, 3)
