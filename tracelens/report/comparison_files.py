"""A comparison as files: tables, a workbook, a page, or a folder of all formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.comparison.change_sentences import change_title, parts_text
from tracelens.files.atomic_write import whole_folder, write_whole
from tracelens.files.safe_text import short_kernel_name
from tracelens.report.comparison_text import comparison_json, comparison_markdown, is_comparison, junit_xml, sarif
from tracelens.report.export import tables_xlsx
from tracelens.report.figures import shown_percent
from tracelens.report.html.markup import Content, Markup, Section, framed, headings, joined, table, tag
from tracelens.report.html.page_tables import head, prose, section

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.comparison.compared import ComparedRow, Comparison, RankChange, RowSide, SideSummary


#: Kernels of a row that its cell names.
_MOST_KERNELS = 5
#: What a column of ``rows`` means; those of a side stand once for A and once for B.
MEANINGS = {
    "change_ms": "Part of the step in B minus that in A; the column adds up to the change of the step exactly.",
    "low_ms": "The change is at least this, with 99 % confidence, by the spread of the steps.",
    "high_ms": "The change is at most this, with 99 % confidence, by the spread of the steps.",
    "match": "How the calls were found to be the same: by what they are, or by where they stand.",
    "cause": "What changed, in one word.",
    "why": "What changed, in a few words.",
    "of_ranks_ms": "Mean change of the ranks that alone changed (sheet ranks), in rows that are theirs.",
    "alone": "Whether this rank, or few, changed while the others are as before.",
    "a_own_ms": "Of a step of A, outside of collectives: what the rank computes and copies, and its idle time.",
    "b_own_ms": "The same of B.",
    "a_exposed_ms": "Of a step of A, the time in which it did nothing but communicate or wait for others in that.",
    "b_exposed_ms": "The same of B.",
    "module": "Classes of the modules around the calls, outermost first.",
}
_OF_SIDE = {
    "ops": "Ops, or kernels that stand for themselves.",
    "calls": "Calls per step.",
    "ms": "Part of the step: every moment belongs to one op, or is idle.",
    "kernel_ms": "Summed time of the kernels per step, hidden ones included.",
    "kernels": "Kernels per step, the longest first.",
    "shapes": "Recorded shapes.",
    "dtypes": "Recorded types.",
    "tflops_s": "FLOPs over kernel time, of calls of known work.",
    "hbm_tb_s": "Least bytes of device memory over kernel time, of calls of known work.",
    "percent_of_roofline": "Roofline time over kernel time, of calls of known work.",
}


def comparison_tables(found: Comparison) -> dict[str, pd.DataFrame]:
    """``changes``, ``rows``, ``unchanged``, ``sides``, and ``ranks`` and ``gates`` where there are any."""
    import pandas as pd

    sides: list[tuple[Any, ...]] = [("step_ms", found.a.step_ms, found.b.step_ms), ("change_ms", None, found.change_ms)]
    sides += [(key, getattr(found.a, key), getattr(found.b, key)) for key in _SIDE_KEYS]
    sides += [("matched_share", *found.matched_share), *(("note", note, None) for note in found.notes)]
    changes = [
        {"change_ms": c.change_ms, "what": c.text, "cause": c.cause, "low_ms": c.low_ms, "high_ms": c.high_ms,
         "rows": ", ".join(str(at + 2) for at in c.rows)}
        for c in found.changes
    ]  # fmt: skip
    tables = {
        "changes": pd.DataFrame(changes, columns=["change_ms", "what", "cause", "low_ms", "high_ms", "rows"]),
        "rows": pd.DataFrame([_table_row(row) for row in found.rows], columns=_COLUMNS),
        "unchanged": pd.DataFrame([_table_row(row) for row in found.unchanged], columns=_COLUMNS),
        "sides": pd.DataFrame(sides, columns=["what", "A", "B"], dtype=object),
    }
    if found.ranks:
        tables["ranks"] = pd.DataFrame([_rank(rank) for rank in found.ranks])
    if found.gates:
        gates = [(g.gate, "passed" if g.passed else "failed", g.value, g.unit, g.text) for g in found.gates]
        tables["gates"] = pd.DataFrame(gates, columns=["gate", "result", "change", "unit", "text"])
    return tables


_SIDE_KEYS = ("name", "device", "torch", "files", "ranks", "runs", "steps", "kernel_ms", "busy_ms", "coverage")
_SHARED = ("change_ms", "low_ms", "high_ms", "name", "category", "match", "cause", "why", "module", "of_ranks_ms")
_COLUMNS = [*_SHARED, *(f"{side}_{key}" for key in _OF_SIDE for side in "ab")]


def _rank(rank: RankChange) -> dict[str, Any]:
    return {
        "rank": rank.rank, "change_ms": rank.change_ms, "low_ms": rank.low_ms, "high_ms": rank.high_ms,
        "a_own_ms": rank.a_own_ms, "b_own_ms": rank.b_own_ms, "a_exposed_ms": rank.a_exposed_ms,
        "b_exposed_ms": rank.b_exposed_ms, "alone": "yes" if rank.is_alone else "no",
    }  # fmt: skip


def _table_row(row: ComparedRow) -> dict[str, Any]:
    shared = {key: getattr(row, key) for key in _SHARED}
    return shared | {
        f"{name}_{key}": cell(side, key) for name, side in (("a", row.a), ("b", row.b)) for key in _OF_SIDE
    }


def cell(side: RowSide | None, key: str) -> Any:
    """A figure of a side as a table shows it; None where it has none."""
    if side is None:
        return None
    if key == "kernels":
        return "; ".join(f"{k.name} x{k.count:g} {1e3 * k.ms:.2f} µs" for k in side.kernels[:_MOST_KERNELS])
    if key == "percent_of_roofline":
        return None if side.of_roofline is None else 100 * side.of_roofline
    value = getattr(side, key)
    return ", ".join(value) if isinstance(value, tuple) else value


def comparison_xlsx(found: Comparison) -> bytes:
    """The workbook; the same comparison gives the same bytes."""
    meanings = MEANINGS | {f"{side}_{key}": text for key, text in _OF_SIDE.items() for side in "ab"}
    return tables_xlsx(comparison_tables(found), meanings)


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
    rows = [_page_row(number, row) for number, row in enumerate(found.rows[:MAX_ROWS], 1)]
    more = f"The first {MAX_ROWS} of {len(found.rows):,} rows." if len(found.rows) > MAX_ROWS else None
    made = table(heads, rows, kind="compared", label="Row by row")
    return section("rows", "Row by row", tag("p", more) if more else None, made)


def _page_row(number: int, row: ComparedRow) -> Markup:
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


#: By ending; ``.xml`` is JUnit's.
WRITERS: dict[str, Callable[[Comparison], bytes]] = {
    ".json": comparison_json,
    ".md": comparison_markdown,
    ".html": comparison_html,
    ".xlsx": comparison_xlsx,
    ".xml": junit_xml,
    ".sarif": sarif,
}
_OF_GATES = (".xml", ".sarif")


def refuse_foreign(folder: Path) -> None:
    """Raises, see ``refuse_folder``, before any work is done when a comparison could not go to ``folder``."""
    # Which imports pandas: most comparisons are printed alone
    from tracelens.report.named_sheets import refuse_folder

    refuse_folder(folder, lambda: is_comparison(folder / "compare.json"), "a comparison")


def write_comparison(found: Comparison, path: Path) -> None:
    """Writes a file, or fills a folder with compare.json, .md, .html and .xlsx, and with .xml and .sarif where there
    are gates: whole or not at all."""
    if path.suffix in WRITERS:
        write_whole(path, WRITERS[path.suffix](found))
        return
    refuse_foreign(path)
    with whole_folder(path) as staging:
        for ending, write in WRITERS.items():
            if found.gates or ending not in _OF_GATES:
                (staging / f"compare{ending}").write_bytes(write(found))
