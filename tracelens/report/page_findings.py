"""The findings on the page: gain and certainty in color and words, the rows behind each, the predicted step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tracelens.analysis.analyze import Analysis
from tracelens.analysis.sheets import coll_analysis, device_memory, perf_summary
from tracelens.analysis.sheets.device_timeline import IDLE_CAUSES_TITLE
from tracelens.analysis.verdict.summary import Evidence, Finding, FixesTogether, Said, Summary
from tracelens.files.cells import plain_values
from tracelens.report.assembly import Sheet, by_title, shown_number
from tracelens.report.charts import steps_after
from tracelens.report.document import prose, shown_text
from tracelens.report.figures import counts_of, gain_range, unseen_text
from tracelens.report.markup import Markup, headings, joined, tag
from tracelens.report.markup import table as scrolled
from tracelens.report.page_sections import column_cell, how, texts
from tracelens.report.page_timeline import Pool
from tracelens.types.records import Record
from tracelens.types.units import shown_ms, shown_percent

#: Share of the step from which a gain is called so.
SEVERITIES = (("major", 0.1), ("moderate", 0.03), ("minor", 0.0))
#: Rows of a sheet that a finding shows, and columns of each.
_MOST_ROWS, _MOST_COLUMNS = 5, 9
_OPS_TITLE = perf_summary.UNIFIED_PERF_SUMMARY_TITLE
#: Findings about communication without rows of their own.
_OF_COMMUNICATION = "exposed_communication"


def look_here_first(summary: Summary, read: SheetRows) -> Markup | None:
    if not summary.findings and summary.unseen is None:
        return None
    per = "per step" if summary.steps else "in the window"
    heads = headings("", "finding", f"gain {per}, up to", "range", "certainty", figures=(f"gain {per}, up to", "range"))
    shown = read.shown(summary.findings)
    bodies = []
    for number, each in enumerate(summary.findings, 1):
        ways = tag("td", tag("div", _to_ops(each), _evidence(each, read, shown), class_="ways"), colspan=4)
        said = tag("tr", list(_cells(number, each, summary)))
        bodies.append(tag("tbody", said, tag("tr", tag("td", class_="n"), ways), id=f"finding-{number}"))
    found = tag("table", tag("thead", tag("tr", heads)), bodies, class_="findings")
    unseen = None  # what no finding can speak of, and what to type
    if summary.unseen is not None:
        command = tag("code", shown_text(summary.unseen.command)) if summary.unseen.command else None
        blind = shown_text(unseen_text(summary.unseen))
        unseen = tag("p", "Findings cannot see ", blind, ". " if command else ".", command)
    words = ", ".join(f"{word} from {least:.0%}" for word, least in SEVERITIES if least).replace("%", " %")
    return joined(
        tag("h2", f"Look here first{counts_of(summary)}"),
        unseen,
        tag("div", found, class_="scroll", tabindex="0") if bodies else None,
        predicted(summary.together, "step" if summary.steps else "window") if summary.together is not None else None,
        how(texts()["gains"].format(words=words)),
    )


def _cells(number: int, finding: Finding, summary: Summary) -> Iterator[Markup]:
    yield tag("th", str(number), scope="row", class_="n")
    yield tag(
        "td", prose(finding.why),
        tag("div", "Try: ", prose(finding.remedy), class_="remedy") if finding.remedy else None,
        tag("div", prose(f"{finding.limited_by}."), class_="remedy") if finding.limited_by else None,
    )  # fmt: skip
    gain, word = "not known", None
    if finding.gain_us is not None:
        gain = f"{shown_ms(finding.gain_us)} ms"
        whole_us = summary.steps.time_us if summary.steps else summary.busy.total_us if summary.busy else None
        # A word for the share of the step that it gains at most, where the step is known
        word = next(each for each, least in SEVERITIES if finding.gain_us >= least * whole_us) if whole_us else None
    yield tag(
        "td", gain, " ", tag("span", word, class_=f"pill {word}") if word else None, class_="n", data_label="gain up to"
    )
    yield tag("td", gain_range(finding), class_="n", data_label="range")
    sure = finding.certainty if finding.certainty in ("high", "medium", "low") else None
    yield tag(
        "td", tag("span", finding.certainty, class_=f"pill sure-{sure}" if sure else "pill"), data_label="certainty"
    )


def _to_ops(finding: Finding) -> Markup | None:
    name = finding.op or next((row.row["name"] for row in finding.evidence if row.sheet == _OPS_TITLE), None)
    if name is None:
        return None
    return tag("a", "show its rows", href="#section-ops", data_filter=shown_text(str(name)), class_="to-ops")


def _evidence(finding: Finding, read: SheetRows, shown: Mapping[str, ShownRows]) -> Markup | None:
    """The figures of the sentence, and the rows of the sheets that they are from."""
    figures = [
        tag("tr", tag("th", said.what, scope="row"), tag("td", shown_said(said), class_="n"))
        for said in (*finding.figures, *finding.limit_figures)
    ]
    said = scrolled(headings("figure", "value", figures=("value",)), figures, kind="said") if figures else None
    notes = (("How the gain is computed", finding.computed), ("Wrong when", finding.wrong_when))
    content = joined(
        said,
        [_rows_of(shown[title], at[:_MOST_ROWS]) for title, at in read.behind(finding).items()],
        [tag("p", tag("strong", f"{label}: "), prose(text)) for label, text in notes if text],
        tag("p", tag("strong", "Next: "), tag("code", shown_text(finding.command))) if finding.command else None,
    )
    return tag("details", tag("summary", "evidence"), content, class_="evidence") if content else None


def _rows_of(shown: ShownRows, at: list[int]) -> Markup:
    label = f"Rows of the sheet {shown.title}"
    rows = [shown.rows[row] for row in at]
    return joined(tag("p", f"{label}:", class_="below"), scrolled(shown.heads, rows, kind="figures", label=label))


class ShownRows(Record, frozen=True, kw_only=True):
    """Rows of a sheet as markup, by position."""

    title: str
    heads: list[Markup]
    rows: Mapping[int, Markup]

    @classmethod
    def of(cls, sheet: Sheet, at: list[int]) -> ShownRows:
        """Columns that are empty in all of them are left out."""
        frame = sheet.frame.iloc[at]
        by_key = {column.key: column for column in sheet.columns}
        keys = [key for key in texts()["proof"].get(sheet.title, by_key) if key in by_key]
        values = {key: plain_values(frame[key]) for key in keys}
        columns = [by_key[key] for key in keys if any(value is not None for value in values[key])][:_MOST_COLUMNS]
        heads = [
            tag("th", c.title, scope="col", class_=None if c.is_text else "n", title=c.note or None) for c in columns
        ]
        cells = [[column_cell(column, value) for value in values[column.key]] for column in columns]
        rows = [tag("tr", row) for row in zip(*cells, strict=True)]
        return cls(title=sheet.title, heads=heads, rows=dict(zip(at, rows, strict=True)))


class SheetRows:
    """Which rows of the sheets evidence names. ``overview``: the sheet of ops as readable lines."""

    def __init__(self, sheets: Sequence[Sheet], overview: Sheet | None = None) -> None:
        self.sheets, self.overview = sheets, overview
        self._behind: dict[int, dict[str, list[int]]] = {}
        self._known: dict[tuple[str, ...], dict[tuple[object, ...], list[int]]] = {}

    def behind(self, finding: Finding) -> dict[str, list[int]]:
        """Positions of the rows that a finding is from, by sheet."""
        if id(finding) not in self._behind:
            at: dict[str, set[int]] = {}
            for each in finding.evidence:
                at.setdefault(each.sheet, set()).update(self.named_by(each))
            self._behind[id(finding)] = {title: sorted(rows) for title, rows in at.items() if rows}
        return self._behind[id(finding)]

    def shown(self, findings: Iterable[Finding]) -> dict[str, ShownRows]:
        """The rows that findings are from, by sheet."""
        at: dict[str, set[int]] = {}
        for finding in findings:
            for title, rows in self.behind(finding).items():
                at.setdefault(title, set()).update(rows[:_MOST_ROWS])
        read = {title: by_title(self.sheets, title) for title in at}
        if self.overview is not None and _OPS_TITLE in read:
            read[_OPS_TITLE] = self.overview
        return {title: ShownRows.of(sheet, sorted(at[title])) for title, sheet in read.items() if sheet is not None}

    def named_by(self, evidence: Evidence) -> list[int]:
        """Their positions."""
        keys, sheet = tuple(evidence.row), by_title(self.sheets, evidence.sheet)
        if sheet is None or not set(keys) <= set(sheet.frame.columns):
            return []
        known = self._known.get((evidence.sheet, *keys))
        if known is None:
            known = self._known[evidence.sheet, *keys] = {}
            for row, values in enumerate(zip(*(plain_values(sheet.frame[key]) for key in keys), strict=True)):
                known.setdefault(values, []).append(row)
        return known.get(tuple(evidence.row.values()), [])


def shown_said(said: Said) -> str:
    """A number of a sentence with its unit."""
    if said.unit == "share":
        return shown_percent(said.value)
    if said.unit == "us":
        return f"{shown_number(said.value, 1)} µs" if said.value < 1000 else f"{shown_ms(said.value)} ms"
    return f"{shown_number(said.value, 0)}" if said.unit == "count" else f"{shown_number(said.value, 2)} {said.unit}"


def predicted(together: FixesTogether, what: str) -> Markup:
    """The measured step, and below it the replayed step after the first findings, each on top of those before."""
    now, *after = together.step_us
    which = ["fix 1", *(f"fixes 1-{number}" for number in range(2, len(after) + 1))]
    limit = {"host": "the host", "device": "the GPU"}.get(together.limited_by or "")
    said = f"After {which[-1]} {limit} limits the {what}." if limit else ""
    switch = tag(
        "label", tag("input", type="checkbox", role="switch", id="what-if", disabled=""),
        f" What if {which[-1]} {'are all' if len(after) > 1 else 'is'} done?", class_="what-if", hidden="",
    )  # fmt: skip
    rows = [(f"measured {what}", now), *((f"after {name}", us) for name, us in zip(which, after, strict=True))]
    text = f"Predicted by replaying the {what} without the time of the findings, each fix on top of the one before."
    return tag(
        "div", steps_after(rows, f"The {what} now and after the first fixes"), switch,
        tag("p", f"{text} {said}".rstrip(), class_="below"), class_="predicted",
    )  # fmt: skip


def finding_data(
    summary: Summary, read: SheetRows, rows: int, analysis: Analysis | None, pool: Pool
) -> list[dict[str, Any]]:
    """What of the timeline each finding speaks of: rows of ops on the page, causes of idle time, categories."""
    sent: list[int] = []
    copied: list[int] = []
    if analysis is not None:
        activity = analysis.activity
        texts, codes = analysis.event_category.texts, analysis.event_category.code
        sent, copied = (
            [pool.add(texts[code]) for code in np.unique(codes[mask]).tolist()]
            for mask in (activity.communication, activity.memcpy)
        )
    made = []
    for finding in summary.findings:
        found = [row for row in read.behind(finding).get(_OPS_TITLE, []) if row < rows]
        causes = [each.row["cause"] for each in finding.evidence if each.sheet == IDLE_CAUSES_TITLE]
        titles = {each.sheet for each in finding.evidence}
        is_sent = finding.id == _OF_COMMUNICATION or coll_analysis.TITLE in titles
        categories = [*(sent if is_sent else ()), *(copied if device_memory.COPIES_TITLE in titles else ())]
        made.append({
            "rows": found, "causes": [pool.add(str(cause)) for cause in causes],
            "categories": [] if found else categories,
        })  # fmt: skip
    return made
