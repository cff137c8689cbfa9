"""A comparison as a page: both sides beside each other, every sentence linked to its rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tracelens.comparison.sentences.change_sentences import change_title, parts_text
from tracelens.files.short_names import short_kernel_name
from tracelens.report.comparing.comparison_tables import cell
from tracelens.report.figures import shown_percent
from tracelens.report.html.frame import Section, framed
from tracelens.report.html.markup import Content, Markup, headings, joined, table, tag
from tracelens.report.html.page_tables import prose
from tracelens.report.pages.parts import head, section

if TYPE_CHECKING:
    from tracelens.comparison.compared import ComparedRow, Comparison, SideSummary


#: Rows of the page; the other files have all of them.
MAX_ROWS = 500
#: Ranks of the page; the other files have all of them.
_MAX_RANKS = 64
#: Links that a sentence has to its rows.
_LINKS = 8
#: Figures of a row on each side: (title, key, format).
_FIGURES = (
    ("calls", "calls", "{:,.4g}"), ("ms", "ms", "{:,.4f}"), ("kernel ms", "kernel_ms", "{:,.4f}"),
    ("TFLOPS/s", "tflops_s", "{:,.1f}"), ("TB/s", "hbm_tb_s", "{:,.2f}"),
    ("% of roofline", "percent_of_roofline", "{:,.0f}"),
)  # fmt: skip


#: Of these, zero is work without FLOPs or bytes, not a slow one.
_RATES = ("tflops_s", "hbm_tb_s", "percent_of_roofline")


def comparison_html(found: Comparison) -> bytes:
    """One file, readable offline and without scripts. Text of a trace is never markup."""
    sections = [_verdict(found), _changes(found), *([_ranks(found)] if found.ranks else []), _rows(found)]
    return framed(f"{found.a.name} and {found.b.name} · comparison", sections)


def _verdict(found: Comparison) -> Section:
    a, b = found.matched_share
    least = ""
    if found.detectable_ms is not None:
        is_chance = abs(found.change_ms) < found.detectable_ms
        least = f"{'no more' if is_chance else 'more'} than chance, which explains up to {found.detectable_ms:.3g} ms"
    tiles = [
        ("A", f"{found.a.step_ms:,.3f} ms", _side(found.a)),
        ("B", f"{found.b.step_ms:,.3f} ms", _side(found.b)),
        ("Change", f"{_signed(found.change_ms, 3)} ms", least),
        ("Matched", f"{shown_percent(a)} of A", f"{shown_percent(b)} of B's kernel time"),
    ]
    key, title, made = head(change_title(found).replace("->", "→"), (), tiles, found.notes)
    gates = [tag("li", prose(gate.text), class_="faster" if gate.passed else "slower") for gate in found.gates]
    return key, title, joined(made, section("gates", "Gates", tag("ul", gates))[2] if gates else None)


def _side(side: SideSummary) -> str:
    def counted(count: int, what: str) -> str:
        return f"{count} {what}{'s' if count != 1 else ''}"

    torch = [f"torch {side.torch}"] if side.torch else []
    several = [counted(count, what) for count, what in ((side.ranks, "rank"), (side.runs, "run")) if count > 1]
    return " · ".join([side.name, side.device, *torch, *several, counted(side.steps, "step")])


def _changes(found: Comparison) -> Section:
    top = max((abs(change.change_ms) for change in found.changes), default=0.0) or 1.0
    lines = []
    for change in found.changes:
        links = [tag("a", str(at + 1), href=f"#row-{at + 1}") for at in change.rows[:_LINKS] if at < MAX_ROWS]
        more = f" and {len(change.rows) - len(links)} more" if len(change.rows) > len(links) else None
        width = f"{100 * abs(change.change_ms) / top:.2f}%"
        bar = tag("rect", width=width, height=12, class_="c3" if change.change_ms > 0 else "c2")
        drawn = tag("svg", bar, width="100%", height=12, aria_hidden="true")
        said = (tag("td", drawn, class_="bar-cell"), tag("td", prose(change.text)), tag("td", *_spaced(links), more))
        lines.append(tag("tr", _number(change.change_ms), *said))
    if not lines:
        return section("changes", "What changed", tag("p", "Nothing changed."))
    parts = parts_text(found).replace("->", "→")
    text = f"The changes add up to that of the step: {parts}. Orange is slower, green is faster."
    made = table(headings("ms", "", "what", "rows", figures=("ms",)), lines)
    return section("changes", "What changed", tag("p", text), made)


def _spaced(links: list[Markup]) -> Iterator[Content]:
    for number, link in enumerate(links):
        yield " " if number else ""
        yield link


def _ranks(found: Comparison) -> Section:
    titles = [f"{side} {what}" for what in ("own ms", "exposed ms") for side in "AB"]
    heads = headings("rank", "own change, ms", *titles, "alone", figures=("rank", "own change, ms", *titles))
    lines = [
        tag("tr", tag("td", str(rank.rank), class_="n"), _number(rank.change_ms),
            *(tag("td", f"{ms:,.4f}", class_="n")
              for ms in (rank.a_own_ms, rank.b_own_ms, rank.a_exposed_ms, rank.b_exposed_ms)),
            tag("td", "yes" if rank.is_alone else ""))
        for rank in sorted(found.ranks, key=lambda rank: -abs(rank.change_ms))[:_MAX_RANKS]
    ]  # fmt: skip
    text = (
        "Own is what a rank computes and copies, and its idle time; exposed is the time in which it did nothing but "
        "communicate, or wait for others in that."
    )
    if len(found.ranks) > _MAX_RANKS:
        text += f" The {_MAX_RANKS} of {len(found.ranks):,} ranks that changed most."
    return section("ranks", "Ranks", tag("p", text), table(heads, lines))


def _rows(found: Comparison) -> Section:
    sides = [f"{name} {title}" for title, _, _ in _FIGURES for name in "AB"]
    heads = headings("row", "change, ms", "what", *sides, figures=sides)
    rows = [_row(number, row) for number, row in enumerate(found.rows[:MAX_ROWS], 1)]
    more = f"The first {MAX_ROWS} of {len(found.rows):,} rows." if len(found.rows) > MAX_ROWS else None
    made = table(heads, rows, kind="compared", label="Row by row")
    return section("rows", "Row by row", tag("p", more) if more else None, made)


def _row(number: int, row: ComparedRow) -> Markup:
    ops = " → ".join(dict.fromkeys(str(cell(side, "ops")) for side in (row.a, row.b) if side))
    kernels = [
        tag("li", f"{name}: {short_kernel_name(kernel.name)} x{kernel.count:.3g}, {1e3 * kernel.ms:,.4g} µs",
            title=kernel.name)
        for name, side in (("A", row.a), ("B", row.b)) if side for kernel in side.kernels
    ]  # fmt: skip
    where = f"{row.match}, {row.module}" if row.module else row.match
    listed = tag("details", tag("summary", f"{where}; kernels"), tag("ul", kernels)) if kernels else tag("div", where)
    said = () if row.is_idle else (tag("div", prose(row.why)), listed)
    what = tag("td", tag("strong", row.category), f" {ops}", *said)
    figures = []
    for _, key, shape in _FIGURES:
        for side in (row.a, row.b):
            value = cell(side, key)
            figures.append(
                tag("td", shape.format(value) if value or (value == 0 and key not in _RATES) else "", class_="n")
            )
    return tag("tr", tag("td", str(number), class_="n"), _number(row.change_ms), what, *figures, id=f"row-{number}")


def _number(change_ms: float) -> Markup:
    color = "slower" if change_ms > 0 else "faster" if change_ms < 0 else ""
    return tag("td", _signed(change_ms), class_=f"n {color}".strip())


def _signed(ms: float, digits: int = 4) -> str:
    return f"{round(ms, digits) + 0.0:+,.{digits}f}"
