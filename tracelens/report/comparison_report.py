"""A comparison as lines, JSON, Markdown, tables, a workbook and a page, and its gates as build servers read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import orjson

from tracelens.comparison.change_sentences import FACTS, change_title, energy_text, parts_text
from tracelens.comparison.compared import AT_ONCE, NOISE, WAITING
from tracelens.files.atomic_write import whole_folder, write_whole
from tracelens.files.cells import plain_tree
from tracelens.files.documents import json_encoded
from tracelens.files.memory_limit import before_reading
from tracelens.files.safe_text import escaped_json, json_safe, markdown_text, short_kernel_name, terminal_text, xml_text
from tracelens.report.document import head, prose, section
from tracelens.report.export import meanings
from tracelens.report.markup import Markup, Section, framed, headings, joined, table, tag
from tracelens.schema import column_title
from tracelens.types.records import pd
from tracelens.types.units import NS_PER_MS, shown_percent, signed_ms

if TYPE_CHECKING:
    from tracelens.comparison.compared import Change, ComparedRow, Comparison, RowSide, SideSummary

_WIDTH = 120
#: Sentences that are printed; files have all of them.
_MOST_ON_TERMINAL = 15
#: Share of A's step below which a change of idle time is not worth a line.
_LEAST_SHOWN = 1e-4


def comparison_text(found: Comparison) -> str:
    """Both sides, the change of the step, and what it is made of."""
    lines = []
    for line in map(terminal_text, _lines(found)):
        further = " " * (len(line) - len(line.lstrip()) + 4)
        lines += wrap(line, _WIDTH, subsequent_indent=further, drop_whitespace=True, break_on_hyphens=False) or [""]
    return "\n".join(lines)


def _lines(found: Comparison) -> Iterator[str]:
    yield f" A  {_side_line(found.a)}"
    yield f" B  {_side_line(found.b)}"
    for note in found.notes:
        yield f" ! {note}"
    yield f" {change_title(found)}"
    yield f"     {parts_text(found)}"
    a, b = map(shown_percent, found.matched_share)
    yield f"     matched {a} of A's kernel time with {b} of B's"
    yield from _chance(found)
    if found.energy is not None:
        yield f"     {energy_text(found.energy)}"
    for gate in found.gates:
        yield f" {'ok  ' if gate.passed else 'FAIL'} {gate.text}"
    yield ""
    worth = [change for change in _measurable(found) if not _is_nothing(change, found)]
    if not worth:
        yield " nothing changed" + (f" by {100 * _LEAST_SHOWN:g} % of the step" if found.changes else "")
    for change in worth[:_MOST_ON_TERMINAL]:
        yield f"   {change.text}"
    rest = [change for change in _measurable(found) if change not in worth[:_MOST_ON_TERMINAL]]
    if not all(_is_nothing(change, found) for change in rest):
        yield f"   {signed_ms(sum(change.change_ms for change in rest))} in {len(rest)} more changes"


def _chance(found: Comparison) -> Iterator[str]:
    """Whether the change may be chance, and from which one on it would not be."""
    low, high = found.low_ms, found.high_ms
    if low is not None and high is not None:
        chance = ", so it may be chance" if low <= 0 <= high else ""
        least = f"a change is detected from {found.detectable_ms:,.3g} ms on"
        yield f"     the change is {low:+,.3f} to {high:+,.3f} ms with 99 % confidence{chance}; {least}"


def _measurable(found: Comparison) -> list[Change]:
    """Without what rounding to whole ns makes of a change's rows; overlap is what all rows leave."""
    rows = len(found.rows) + len(found.unchanged)
    return [
        change
        for change in found.changes
        if abs(change.change_ms) * NS_PER_MS >= (rows if change.category == AT_ONCE else len(change.rows))
        or change.cause in FACTS
    ]


def _is_nothing(change: Change, found: Comparison) -> bool:
    """Whether it is idle time, or chance, too short for a line."""
    return change.cause in (WAITING, NOISE) and abs(change.change_ms) < _LEAST_SHOWN * found.a.step_ms


def _side_line(side: SideSummary) -> str:
    ranks = f"{side.ranks} ranks · " if side.ranks > 1 else ""
    runs = f"{side.runs} runs · " if side.runs > 1 else ""
    steps = f"{side.steps} {'step' if side.steps == 1 else 'steps'} · " if side.has_steps else ""
    return f"{side.name}: {ranks}{runs}{steps}{side.device}" + (f" · torch {side.torch}" if side.torch else "")


SCHEMA = "tracelens.compare/1"
#: Rows of the Markdown table.
_MOST_IN_MARKDOWN = 20


def comparison_json(found: Comparison) -> bytes:
    """The ``tracelens.compare/1`` document; null is unknown. The ``change_ms`` of ``rows`` add up to ``change_ms``."""
    tree: dict[str, Any] = plain_tree(found)
    keys = ("low_ms", "high_ms", "detectable_ms", "matched_share", "a", "b", "notes", "gates", "changes")
    document = {"schema": SCHEMA, "change_ms": found.change_ms, **{key: tree[key] for key in keys}}
    for key in ("ranks", "rows", "unchanged"):
        own = zip(getattr(found, key), tree[key], strict=True)
        document[key] = [{"change_ms": row.change_ms, **plain} for row, plain in own]
    if found.energy is not None:
        document["energy"] = {"change_j": found.energy.change_j, **tree["energy"]}
    return escaped_json(json_encoded(json_safe(document), orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def is_comparison(path: Path) -> bool:
    """Whether the file at ``path`` is one of these documents, of any version."""
    before_reading(path)
    try:
        with path.open("rb") as file:
            return b'"tracelens.compare/' in file.read(100)
    except OSError:
        return False


def comparison_markdown(found: Comparison) -> bytes:
    """A table of the largest changes, for a pull request."""
    matched = f"{found.matched_share[0]:.1%} and {found.matched_share[1]:.1%} of the kernel time matched"
    names = [f"{markdown_text(side.name)}, {markdown_text(side.device)}" for side in (found.a, found.b)]
    sides = f"A {names[0]}; B {names[1]}; {matched}."
    lines = [
        f"### {change_title(found)}", "", sides, "", f"Of the step {parts_text(found)}.", "",
        *([] if found.energy is None else [f"E{energy_text(found.energy)[1:]}.", ""]),
        *[f"- {markdown_text(note)}" for note in found.notes],
        *[f"- {'✅' if gate.passed else '❌'} {markdown_text(gate.text)}" for gate in found.gates],
        "", "| change, ms | what |", "|---:|---|",
        *[f"| {c.change_ms:+.3f} | {markdown_text(c.text)} |" for c in _measurable(found)[:_MOST_IN_MARKDOWN]],
    ]  # fmt: skip
    rest = _measurable(found)[_MOST_IN_MARKDOWN:]
    if rest:
        lines.append(f"| {sum(c.change_ms for c in rest):+.3f} | {len(rest)} more |")
    return ("\n".join(lines) + "\n").encode()


_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


def junit_xml(found: Comparison) -> bytes:
    """A test suite with a case per gate."""
    failed = sum(not gate.passed for gate in found.gates)
    suite = Element(
        "testsuite", name="tracelens compare", tests=str(len(found.gates)), failures=str(failed), errors="0"
    )
    for gate in found.gates:
        case = SubElement(suite, "testcase", classname="tracelens.gates", name=xml_text(gate.gate))
        if not gate.passed:
            failure = SubElement(case, "failure", message=xml_text(gate.text), type="gate")
            failure.text = xml_text("\n".join(_why(found)))
    suites = Element("testsuites")
    suites.append(suite)
    indent(suites)
    return bytes(tostring(suites, encoding="utf-8", xml_declaration=True)) + b"\n"


def sarif(found: Comparison) -> bytes:
    """SARIF 2.1.0 with a result per gate that failed."""
    rules = [{"id": gate.gate, "shortDescription": {"text": f"gate {gate.gate}"}} for gate in found.gates]
    results = [
        {
            "ruleId": gate.gate,
            "level": "error",
            "message": {"text": "\n".join((gate.text, *_why(found)))},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": quote(found.b.name)}}}],
        }
        for gate in found.gates
        if not gate.passed
    ]
    driver = {"name": "tracelens", "rules": rules}
    document = {"$schema": _SARIF, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    return orjson.dumps(json_safe(document), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def github_annotations(found: Comparison) -> str:
    """Workflow commands: an error per gate that failed, a notice per gate that passed."""
    lines = []
    for gate in found.gates:
        text = gate.text if gate.passed else "\n".join((gate.text, *_why(found)))
        command = "notice" if gate.passed else "error"
        title = _data(f"tracelens {gate.gate}").replace(":", "%3A").replace(",", "%2C")
        lines.append(f"::{command} title={title}::{_data(text)}")
    return "\n".join(lines) + "\n" if lines else ""


def _why(found: Comparison, most: int = 5) -> list[str]:
    return [terminal_text(change.text) for change in _measurable(found)[:most]]


def _data(text: str) -> str:
    lines = "%0A".join(terminal_text(line).replace("%", "%25") for line in text.split("\n"))
    return lines.replace("\r", "%0D")


#: Kernels of a row that its cell names.
_MOST_KERNELS = 5


def comparison_tables(found: Comparison) -> dict[str, pd.DataFrame]:
    """``changes``, ``rows``, ``unchanged``, ``sides``, and ``ranks`` and ``gates`` where there are any."""
    sides: list[tuple[Any, ...]] = [("step_ms", found.a.step_ms, found.b.step_ms), ("change_ms", None, found.change_ms)]
    sides += [(key, getattr(found.a, key), getattr(found.b, key)) for key in _SIDE_KEYS]
    if (energy := found.energy) is not None:
        sides += [(f"{energy.kind}_energy_j", energy.a_j, energy.b_j), ("power_w", energy.a_w, energy.b_w)]
    sides += [("matched_share", *found.matched_share), *(("note", note, None) for note in found.notes)]
    changes = [
        {"what": c.text, "change_ms": c.change_ms, "cause": c.cause, "low_ms": c.low_ms, "high_ms": c.high_ms,
         "rows": ", ".join(str(at + 2) for at in c.rows)}
        for c in found.changes
    ]  # fmt: skip
    tables = {
        "changes": pd.DataFrame(changes, columns=["what", "change_ms", "cause", "low_ms", "high_ms", "rows"]),
        "rows": pd.DataFrame([_table_row(row) for row in found.rows], columns=_COLUMNS),
        "unchanged": pd.DataFrame([_table_row(row) for row in found.unchanged], columns=_COLUMNS),
        "sides": pd.DataFrame(
            [(column_title(key), *figures) for key, *figures in sides], columns=["figure", "A", "B"], dtype=object
        ),
    }
    if found.ranks:
        tables["ranks"] = pd.DataFrame([
            {key: getattr(rank, key) for key in _OF_RANK} | {"alone": ("no", "yes")[rank.is_alone]}
            for rank in found.ranks
        ])  # fmt: skip
    if found.gates:
        gates = [(g.gate, "passed" if g.passed else "failed", g.value, g.unit, g.text) for g in found.gates]
        tables["gates"] = pd.DataFrame(gates, columns=["gate", "result", "change", "unit", "text"])
    return tables


_SIDE_KEYS = ("name", "device", "torch", "files", "ranks", "runs", "steps", "kernel_ms", "busy_ms", "coverage")
_SHARED = ("name", "category", "change_ms", "low_ms", "high_ms", "match", "cause", "why", "module", "of_ranks_ms")
_OF_SIDE = (
    "ops", "calls", "ms", "kernel_ms", "kernels", "shapes", "dtypes", "tflops_s", "hbm_tb_s", "percent_of_roofline"
)  # fmt: skip
_OF_RANK = (
    "rank", "change_ms", "low_ms", "high_ms", "a_own_ms", "b_own_ms", "a_exposed_ms", "b_exposed_ms"
)  # fmt: skip
_COLUMNS = [*_SHARED, *(f"{side}_{key}" for key in _OF_SIDE for side in "ab")]


def _table_row(row: ComparedRow) -> dict[str, Any]:
    shared = {key: getattr(row, key) for key in _SHARED}
    return shared | {
        f"{name}_{key}": _side_cell(side, key) for name, side in (("a", row.a), ("b", row.b)) for key in _OF_SIDE
    }


def _side_cell(side: RowSide | None, key: str) -> Any:
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
    from tracelens.report.workbook import tables_xlsx

    of_side = {f"{side}_{key}": text for key, text in meanings("compare_side").items() for side in "ab"}
    return tables_xlsx(comparison_tables(found), meanings("compare") | of_side, titles=_title)


def _title(key: str) -> str:
    """
    >>> _title("b_kernel_ms"), _title("low_ms"), _title("name")
    ('Kernel time, B (ms)', 'Change, at least (ms)', 'Name')
    """
    side, _, of_side = key.partition("_")
    if side not in ("a", "b") or not of_side:
        return _TITLES.get(key) or column_title(key)
    title, bracket, unit = column_title(of_side).partition(" (")
    return f"{title}, {side.upper()}{bracket}{unit}"


_TITLES = {
    "low_ms": "Change, at least (ms)", "high_ms": "Change, at most (ms)", "of_ranks_ms": "Change of these ranks (ms)",
    "what": "What changed", "rows": "Rows of the sheet rows",
}  # fmt: skip

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
        least = f"{'no more' if is_chance else 'more'} than noise, which explains up to {found.detectable_ms:.3g} ms"
    tiles = [
        ("A", f"{found.a.step_ms:,.3f} ms", _side_below(found.a)),
        ("B", f"{found.b.step_ms:,.3f} ms", _side_below(found.b)),
        ("Change", f"{_signed(found.change_ms, 3)} ms", least),
        ("Matched", f"{shown_percent(a)} of A", f"{shown_percent(b)} of B's kernel time"),
    ]
    if (energy := found.energy) is not None:
        tiles.append(("Energy", f"{_signed(energy.change_j, 3)} J", energy_text(energy)))
    key, title, made = head(change_title(found).replace("->", "→"), (), tiles, found.notes)
    gates = [tag("li", prose(gate.text), class_="faster" if gate.passed else "slower") for gate in found.gates]
    return key, title, joined(made, section("gates", "Gates", tag("ul", gates))[2] if gates else None)


def _side_below(side: SideSummary) -> str:
    def counted(count: int, what: str) -> str:
        return f"{count} {what}{'s' if count != 1 else ''}"

    torch = [f"torch {side.torch}"] if side.torch else []
    several = [counted(count, what) for count, what in ((side.ranks, "rank"), (side.runs, "run")) if count > 1]
    return " · ".join([side.name, side.device, *torch, *several, counted(side.steps, "step")])


def _changes(found: Comparison) -> Section:
    changes = _measurable(found)
    top = max((abs(change.change_ms) for change in changes), default=0.0) or 1.0
    lines = []
    for change in changes:
        links = [tag("a", str(at + 1), href=f"#row-{at + 1}") for at in change.rows[:_LINKS] if at < MAX_ROWS]
        spaced = [piece for link in links for piece in (" ", link)][1:]
        more = f" and {len(change.rows) - len(links)} more" if len(change.rows) > len(links) else None
        width = f"{100 * abs(change.change_ms) / top:.2f}%"
        bar = tag("rect", width=width, height=12, class_="c3" if change.change_ms > 0 else "c2")
        drawn = tag("svg", bar, width="100%", height=12, aria_hidden="true")
        said = (tag("td", drawn, class_="bar-cell"), tag("td", prose(change.text)), tag("td", *spaced, more))
        lines.append(tag("tr", _number(change.change_ms), *said))
    if not lines:
        return section("changes", "What changed", tag("p", "Nothing changed."))
    parts = parts_text(found).replace("->", "→")
    text = f"The changes add up to that of the step: {parts}. Orange is slower, green is faster."
    made = table(headings("ms", "", "what", "rows", figures=("ms",)), lines)
    return section("changes", "What changed", tag("p", text), made)


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
    ops = " → ".join(dict.fromkeys(str(_side_cell(side, "ops")) for side in (row.a, row.b) if side))
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
            value = _side_cell(side, key)
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
    from tracelens.report.assembly import refuse_folder

    refuse_folder(folder, lambda: is_comparison(folder / "compare.json"), "a comparison")


def write_comparison(found: Comparison, path: Path) -> None:
    """Writes one file, or a folder of all formats (.xml and .sarif only with gates): whole or not at all."""
    if path.suffix in WRITERS:
        write_whole(path, WRITERS[path.suffix](found))
        return
    refuse_foreign(path)
    with whole_folder(path) as staging:
        for ending, write in WRITERS.items():
            if found.gates or ending not in _OF_GATES:
                (staging / f"compare{ending}").write_bytes(write(found))
