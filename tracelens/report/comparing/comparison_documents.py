"""A comparison as JSON, and as Markdown for a pull request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from tracelens.comparison.sentences.change_sentences import change_title, parts_text
from tracelens.files.before_reading import before_reading
from tracelens.files.json_bytes import encoded
from tracelens.files.safe_text import escaped_json, json_safe
from tracelens.report.cells import plain_tree

if TYPE_CHECKING:
    from tracelens.comparison.compared import ComparedRow, Comparison, RankChange

SCHEMA = "tracelens.compare/1"
#: Rows of the Markdown table.
_MOST = 20


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
    return escaped_json(encoded(json_safe(document), orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


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
        *[f"| {change.change_ms:+.3f} | {_cell(change.text)} |" for change in found.changes[:_MOST]],
    ]
    rest = found.changes[_MOST:]
    if rest:
        lines.append(f"| {sum(c.change_ms for c in rest):+.3f} | {len(rest)} more |")
    return ("\n".join(lines) + "\n").encode()


def _cell(text: str) -> str:
    """Text of a trace as Markdown shows it, without markup of its own."""
    safe = str(json_safe(text)).replace("\n", " ").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{c}" if c in "\\`*_[]|#~" else c for c in safe)
