"""A comparison as lines of a terminal, JSON and Markdown, and its gates as build servers read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import orjson

from tracelens.comparison.causes import WAITING
from tracelens.comparison.change_sentences import change_title, parts_text, signed_ms
from tracelens.comparison.compared import NOISE
from tracelens.files.documents import json_encoded
from tracelens.files.memory_limit import before_reading
from tracelens.files.safe_text import escaped_json, json_safe, terminal_text, xml_text
from tracelens.report.cells import plain_tree
from tracelens.report.figures import shown_percent

if TYPE_CHECKING:
    from tracelens.comparison.compared import Change, ComparedRow, Comparison, RankChange, SideSummary


_WIDTH = 120
#: Sentences that are printed; files have all of them.
_MOST_ON_TERMINAL = 15
#: Share of A's step below which a change of idle time is not worth a line.
_LEAST_SHOWN = 1e-4


def comparison_text(found: Comparison) -> str:
    """Both sides, the change of the step, and what it is made of."""
    return "\n".join(line for text in _lines(found) for line in _wrapped(terminal_text(text)))


def _wrapped(line: str) -> list[str]:
    """As lines of the terminal, what does not fit further in below."""
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return wrap(line, _WIDTH, subsequent_indent=indent, drop_whitespace=True, break_on_hyphens=False) or [""]


def _lines(found: Comparison) -> Iterator[str]:
    yield f" A  {_side(found.a)}"
    yield f" B  {_side(found.b)}"
    for note in found.notes:
        yield f" ! {note}"
    yield f" {change_title(found)}"
    yield f"     {parts_text(found)}"
    a, b = map(shown_percent, found.matched_share)
    yield f"     matched: {a} of A's kernel time, {b} of B's"
    yield from _chance(found)
    for gate in found.gates:
        yield f" {'ok  ' if gate.passed else 'FAIL'} {gate.text}"
    yield ""
    worth = [change for change in found.changes if not _is_nothing(change, found)]
    if not worth:
        yield " nothing changed" + (f" by {100 * _LEAST_SHOWN:g} % of a step" if found.changes else "")
    for change in worth[:_MOST_ON_TERMINAL]:
        yield f"   {change.text}"
    rest = [change for change in found.changes if change not in worth[:_MOST_ON_TERMINAL]]
    if not all(_is_nothing(change, found) for change in rest):
        yield f"   {signed_ms(sum(change.change_ms for change in rest))} in {len(rest)} more"


def _chance(found: Comparison) -> Iterator[str]:
    """Whether the change may be chance, and from which one on it would not be."""
    low, high = found.low_ms, found.high_ms
    if low is not None and high is not None:
        chance = "may be chance: " if low <= 0 <= high else ""
        least = f"changes show from {found.detectable_ms:,.3g} ms on"
        yield f"     {chance}between {low:+,.3f} and {high:+,.3f} ms with 99 % confidence; {least}"


def _is_nothing(change: Change, found: Comparison) -> bool:
    """Whether it is idle time, or chance, too short for a line."""
    return change.cause in (WAITING, NOISE) and abs(change.change_ms) < _LEAST_SHOWN * found.a.step_ms


def _side(side: SideSummary) -> str:
    ranks = f"{side.ranks} ranks · " if side.ranks > 1 else ""
    runs = f"{side.runs} runs · " if side.runs > 1 else ""
    steps = f"{side.steps} {'step' if side.steps == 1 else 'steps'} · " if side.has_steps else ""
    return f"{side.name}: {ranks}{runs}{steps}{side.device}" + (f" · torch {side.torch}" if side.torch else "")


SCHEMA = "tracelens.compare/1"
#: Rows of the Markdown table.
_MOST_IN_MARKDOWN = 20


def comparison_json(found: Comparison) -> bytes:
    """The ``tracelens.compare/1`` document; null is unknown. The ``change_ms`` of ``rows`` add up to ``change_ms``."""
    document = {
        "schema": SCHEMA,
        "change_ms": found.change_ms,
        "low_ms": found.low_ms,
        "high_ms": found.high_ms,
        "detectable_ms": found.detectable_ms,
        "matched_share": list(found.matched_share),
        "a": plain_tree(found.a),
        "b": plain_tree(found.b),
        "notes": list(found.notes),
        "gates": plain_tree(found.gates),
        "changes": plain_tree(found.changes),
        "ranks": [_with_change(rank) for rank in found.ranks],
        "rows": [_with_change(row) for row in found.rows],
        "unchanged": [_with_change(row) for row in found.unchanged],
    }
    return escaped_json(json_encoded(json_safe(document), orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def is_comparison(path: Path) -> bool:
    """Whether the file at ``path`` is one of these documents, of any version."""
    before_reading(path)
    try:
        with path.open("rb") as file:
            return b'"tracelens.compare/' in file.read(100)
    except OSError:
        return False


def _with_change(row: ComparedRow | RankChange) -> dict[str, Any]:
    return {"change_ms": row.change_ms, **plain_tree(row)}


def comparison_markdown(found: Comparison) -> bytes:
    """A table of the largest changes, for a pull request."""
    matched = f"matched {found.matched_share[0]:.1%} and {found.matched_share[1]:.1%} of the kernel time"
    names = [f"{_cell(side.name)}, {_cell(side.device)}" for side in (found.a, found.b)]
    sides = f"A {names[0]}; B {names[1]}; {matched}."
    lines = [
        f"### {change_title(found)}",
        "",
        sides,
        "",
        f"Of the step {parts_text(found)}.",
        "",
        *[f"- {_cell(note)}" for note in found.notes],
        *[f"- {'✅' if gate.passed else '❌'} {_cell(gate.text)}" for gate in found.gates],
        "",
        "| change, ms | what |",
        "|---:|---|",
        *[f"| {change.change_ms:+.3f} | {_cell(change.text)} |" for change in found.changes[:_MOST_IN_MARKDOWN]],
    ]
    rest = found.changes[_MOST_IN_MARKDOWN:]
    if rest:
        lines.append(f"| {sum(c.change_ms for c in rest):+.3f} | {len(rest)} more |")
    return ("\n".join(lines) + "\n").encode()


def _cell(text: str) -> str:
    """Text of a trace as Markdown shows it, without markup of its own."""
    safe = str(json_safe(text)).replace("\n", " ").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{c}" if c in "\\`*_[]|#~" else c for c in safe)


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
        lines.append(f"::{command} title={_property(f'tracelens {gate.gate}')}::{_data(text)}")
    return "\n".join(lines) + "\n" if lines else ""


def _why(found: Comparison, most: int = 5) -> list[str]:
    return [terminal_text(change.text) for change in found.changes[:most]]


def _data(text: str) -> str:
    lines = "%0A".join(terminal_text(line).replace("%", "%25") for line in text.split("\n"))
    return lines.replace("\r", "%0D")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
