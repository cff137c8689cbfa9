"""A comparison as files: JSON, Markdown for a pull request."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from tracelens.files.atomic_write import whole_file
from tracelens.files.safe_text import escaped_json, json_safe

if TYPE_CHECKING:
    from tracelens.comparison.compared import ComparedRow, Comparison

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
        "a": _plain(found.a),
        "b": _plain(found.b),
        "notes": list(found.notes),
        "changes": [_plain(change) for change in found.changes],
        "rows": [_row(row) for row in found.rows],
        "unchanged": [_row(row) for row in found.unchanged],
    }
    return escaped_json(orjson.dumps(json_safe(document), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _row(row: ComparedRow) -> dict[str, Any]:
    return {"change_ms": row.change_ms, **_plain(row)}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def comparison_markdown(found: Comparison) -> str:
    """A table of the largest changes, for a pull request."""
    what = "step" if found.a.has_steps and found.b.has_steps else "window"
    share = f" ({100 * found.change_ms / found.a.step_ms:+.1f} %)" if found.a.step_ms else ""
    matched = f"matched {found.matched_share[0]:.1%} and {found.matched_share[1]:.1%} of the kernel time"
    names = [f"{_cell(side.name)}, {_cell(side.device)}" for side in (found.a, found.b)]
    sides = f"A {names[0]}; B {names[1]}; {matched}."
    lines = [
        f"### {what} {found.a.step_ms:,.3f} → {found.b.step_ms:,.3f} ms: {found.change_ms:+,.3f} ms{share}",
        "",
        sides,
        "",
        *[f"- {_cell(note)}" for note in found.notes],
        "",
        "| change, ms | what |",
        "|---:|---|",
        *[f"| {change.change_ms:+.3f} | {_cell(change.text)} |" for change in found.changes[:_MOST]],
    ]
    rest = found.changes[_MOST:]
    if rest:
        lines.append(f"| {sum(c.change_ms for c in rest):+.3f} | {len(rest)} more |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Text of a trace as Markdown shows it, without markup of its own."""
    safe = str(json_safe(text)).replace("\n", " ").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{c}" if c in "\\`*_[]|#~" else c for c in safe)


def write_comparison(found: Comparison, path: Path) -> None:
    """Writes ``path`` whole or not at all, in the format of its ending."""
    content = comparison_json(found) if path.suffix == ".json" else comparison_markdown(found).encode()
    with whole_file(path) as file:
        file.write(content)
