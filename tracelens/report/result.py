"""``Report``: what ``tl.report`` returns."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.analysis.sheets import perf_summary
from tracelens.analysis.sheets.context import plain_strings
from tracelens.analysis.verdict.summary import Notice, Summary
from tracelens.errors import UsageError
from tracelens.files.atomic_write import whole_folder, write_whole
from tracelens.files.documents import is_report
from tracelens.files.safe_text import escaped_json
from tracelens.report.assembly import Analyzed, NamedSheets, assemble, by_title, json_views, refuse_folder
from tracelens.report.json_report import brief_document, json_bytes, otlp_json, prometheus_text, write_json
from tracelens.report.terminal import verdict
from tracelens.schema import KEYS
from tracelens.types.records import pd

if TYPE_CHECKING:
    from tracelens.laboratory.report_laws import SelfCheck
    from tracelens.report.explanation import Explanation
    from tracelens.report.notebook import Plots

XLSX, HTML, JSON, CSV = "report.xlsx", "report.html", "report.json", "csv"


class Report(NamedSheets):
    """Named tables of one trace, and what they add up to.

    ``report["GEMM"]`` is the sheet of that name as a DataFrame; ``list(report)`` are the names. ``sql`` asks the tables
    of docs/query.md. A column has one name everywhere, such as ``kernel_us_sum``. ``summary`` holds the figures of the
    verdict, which is also how a report prints.
    """

    def __init__(
        self, result: Analyzed, summary: Summary, *, extensions: Iterable[object] = (), column_names: str = KEYS
    ) -> None:
        """``extensions``: modules or marked functions that may add sheets."""
        assembly = assemble(result, extensions)
        super().__init__(assembly.sheets, column_names)
        self.result = result
        self.failures: tuple[Notice, ...] = assembly.failures
        self.summary = replace(summary, notices=(*assembly.failures, *summary.notices))

    @property
    def has_failed_extension(self) -> bool:
        """Whether an extension cost an op its model or the report a sheet, or a rule its findings."""
        failed = (self.failures, *(getattr(self.result, key, ()) for key in ("failures", "rule_failures")))
        return any(failed)

    @property
    def ops(self) -> pd.DataFrame:
        """``report["ops"]``: distinct op calls, longest first (all columns: ``unified_perf_summary``)."""
        title = perf_summary.PERF_SUMMARY_TITLE
        return self[title] if title in self else pd.DataFrame()

    def explain(self, row: pd.Series | int | str) -> Explanation:
        """How the figures of an op were computed: formula, inputs, device figure and its source.

        ``row``: of ``report.ops`` or ``report["ops"]``, its position, or the name of an op, which means that of its
        rows with most time. UsageError for anything else.
        """
        from tracelens.report.explanation import explain

        return explain({str(key): value for key, value in self._op_row(row).items()}, self.summary.device)

    def _op_row(self, row: pd.Series | int | str) -> pd.Series:
        sheet = by_title(self.sheets, perf_summary.UNIFIED_PERF_SUMMARY_TITLE)
        ops = pd.DataFrame() if sheet is None else sheet.frame
        if isinstance(row, str):
            names = ops["name"].tolist() if len(ops) else []
            if row not in names:
                raise UsageError.unknown("op", row, list(dict.fromkeys(names)))
            return ops.iloc[names.index(row)]
        if isinstance(row, pd.Series):
            if {"name", "perf_params"} <= set(row.index):
                return row
            # The sheet ``ops`` has the same rows with other columns, and columns may have other names
            same = ops[ops.index == row.name]
            if len(same) and same["name"].iloc[0] == row.get("name", row.get("op")):
                return same.iloc[0]
        elif -len(ops) <= operator.index(row) < len(ops):
            return ops.iloc[operator.index(row)]
        what = "this row is not one of them" if isinstance(row, pd.Series) else f"there is no row {row}"
        raise UsageError(f"report.explain takes a row of report.ops (0 to {len(ops) - 1}) or an op's name: {what}")

    def sql(self, statement: str) -> pd.DataFrame:
        """What a SELECT over the tables ops, kernels, calls, steps, memory and collectives answers (docs/query.md).

        UsageError for a statement that does not run, and for a report that was not made from a trace.
        """
        from tracelens.files.sql import query

        return query(self.tables, statement)

    @cached_property
    def tables(self) -> Mapping[str, pd.DataFrame]:
        from tracelens.analysis.analyze import Analysis
        from tracelens.analysis.tables import Tables

        if not isinstance(self.result, Analysis):
            raise UsageError("report.sql and report.tables need a report that was made from a trace")
        return Tables(self.result)

    @property
    def plot(self) -> Plots:
        """Pictures with matplotlib (extra ``notebook``): ``plot.roofline()``, timeline, headroom, heatmap."""
        from tracelens.report.notebook import Plots

        return Plots(self.result, lambda: self.tables)

    def show(self) -> Path:
        """Writes the page to a temporary file and opens it in the browser; the file."""
        import tempfile
        import webbrowser

        page = self.to_html(Path(tempfile.mkdtemp(prefix="tracelens-")) / HTML)
        webbrowser.open(page.as_uri())
        return page

    def check(self, trace: str | PathLike[str]) -> SelfCheck:
        """Which laws it breaks, also against a second, slow reading of its file; UsageError if not from a trace."""
        from tracelens.analysis.analyze import Analysis
        from tracelens.laboratory.report_laws import check_report

        if not isinstance(self.result, Analysis):
            raise UsageError("report.check needs a report that was made from a trace")
        return check_report(self.result, self.summary, Path(trace))

    def verdict(self, **options: Any) -> str:
        """The verdict as text, see ``report.terminal.verdict``."""
        return verdict(self.summary, **options)

    def to_excel(self, path: str | PathLike[str], *, all_sheets: bool = False) -> Path:
        """Writes the workbook, whole or not at all: the sheets that people read first, or all of them."""
        from tracelens.report.workbook import write_workbook

        sheets, further = self.of_workbook(all_sheets=all_sheets)
        write_workbook(path, sheets, self.summary, further=further)
        return Path(path)

    def to_html(self, path: str | PathLike[str]) -> Path:
        """Writes the page, whole or not at all."""
        from tracelens.report.html_page import html_bytes

        write_whole(path, html_bytes(self.sheets, self.summary, self.result))
        return Path(path)

    def to_json(self, path: str | PathLike[str] | None = None, *, brief: bool = False) -> str:
        """The ``tracelens.report/2`` document as text; also written to ``path``, whole or not at all, when given.

        ``brief``: the text is ``tracelens.report.brief/2`` instead, on one line.
        """
        ops = self._ops_frame()
        if brief:
            import orjson

            whole = orjson.loads(json_bytes(self.summary, None))
            return escaped_json(orjson.dumps(brief_document(whole))).decode()
        if path is not None:
            write_json(path, self.summary, ops, json_views(self.result, self.sheets))
        return json_bytes(self.summary, ops, json_views(self.result, self.sheets)).decode()

    def to_prometheus(self, path: str | PathLike[str] | None = None) -> str:
        """The main figures in Prometheus' exposition format; also written to ``path`` (.prom) when given."""
        text = prometheus_text(self.summary)
        if path is not None:
            write_whole(path, text)
        return text

    def to_otlp(self, path: str | PathLike[str] | None = None) -> str:
        """The main figures as a line of OpenTelemetry's OTLP; also written to ``path`` (.jsonl) when given."""
        from tracelens.analysis.analyze import Analysis

        began_ns = self.result.trace.table.began_ns if isinstance(self.result, Analysis) else None
        text = otlp_json(self.summary, began_ns)
        if path is not None:
            write_whole(path, text)
        return text

    def write(self, folder: str | PathLike[str], *, csv: bool = False, all_sheets: bool = False) -> Path:
        """Fills ``folder`` with report.xlsx, report.html and report.json (and csv/): all of them or none.

        An earlier report of ours is replaced; UsageError when the folder holds something else.
        """
        folder = Path(folder)
        refuse_foreign(folder)
        with plain_strings(), whole_folder(folder) as staging:
            # The page first: its tree of all ops takes most memory, on top of what the workbook would leave behind
            self.to_html(staging / HTML)
            self.to_excel(staging / XLSX, all_sheets=all_sheets)
            if csv:
                self.to_csv(staging / CSV)
            write_json(staging / JSON, self.summary, self._ops_frame(), json_views(self.result, self.sheets))
        return folder

    def __repr__(self) -> str:
        return self.verdict()

    def _repr_html_(self) -> str:
        from tracelens.report.notebook import notebook_html

        return notebook_html(self.summary, self.sheets)

    def _ops_frame(self) -> pd.DataFrame | None:
        return self.result.frames.get(perf_summary.UNIFIED_PERF_SUMMARY_TITLE)


def refuse_foreign(folder: Path) -> None:
    """Raises, see ``refuse_folder``, before any work is done when a report could not go to ``folder``."""
    refuse_folder(folder, lambda: is_report(folder / JSON), "a tracelens report")
