"""A comparison as a page of its own: both sides beside each other, every sentence linked to its rows."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from tracelens.comparison.change_sentences import change_title
from tracelens.report.charts.markup import Markup, tag
from tracelens.report.comparing.comparison_tables import cell

if TYPE_CHECKING:
    from tracelens.comparison.compared import ComparedRow, Comparison, SideSummary

_STYLE = (
    "body{font:14px/1.45 system-ui,sans-serif;margin:2em auto;max-width:90em;padding:0 1em;color-scheme:light dark}"
    "table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .7em;border-bottom:1px solid #8884;"
    "text-align:left;vertical-align:top}td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}"
    "tr:target{background:#fd84}td.s{border-left:2px solid #8886}small{color:#888}.slower{color:#b3261e}"
    ".faster{color:#1b7a3d}@media print{body{max-width:none}}"
)
#: Figures of a row on each side: (title, key, format).
_FIGURES = (
    ("calls", "calls", "{:,.4g}"), ("ms", "ms", "{:,.4f}"), ("kernel ms", "kernel_ms", "{:,.4f}"),
    ("TFLOP/s", "tflops_s", "{:,.1f}"), ("TB/s", "hbm_tb_s", "{:,.2f}"),
    ("% of roofline", "percent_of_roofline", "{:,.0f}"),
)  # fmt: skip


def comparison_html(found: Comparison) -> bytes:
    """One file, readable offline and without scripts. Text of a trace is never markup."""
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("title", f"{found.a.name} and {found.b.name}"),
        tag("style", Markup(_STYLE)),
    )
    body = tag("body", _header(found), _gates(found), _changes(found), _rows(found))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n".encode()


def _header(found: Comparison) -> Markup:
    matched = f"matched {found.matched_share[0]:.1%} of A's and {found.matched_share[1]:.1%} of B's kernel time"
    least = (
        "" if found.detectable_ms is None else f"; changes from {found.detectable_ms:.3g} ms on are more than chance"
    )
    both = (("A", found.a), ("B", found.b))
    sides = tag("table", *(tag("tr", tag("th", name), *_side(side)) for name, side in both))
    notes = tag("ul", *(tag("li", note) for note in found.notes)) if found.notes else None
    return Markup(tag("h1", change_title(found)) + sides + tag("p", matched + least) + (notes or ""))


def _side(side: SideSummary) -> list[Markup]:
    torch = f"torch {side.torch}" if side.torch else ""
    texts = (side.name, side.device, torch, f"{side.ranks} ranks", f"{side.runs} runs", f"{side.steps} steps")
    return [tag("td", text) for text in texts]


def _gates(found: Comparison) -> Markup | None:
    if not found.gates:
        return None
    return tag("ul", *(tag("li", gate.text, class_="faster" if gate.passed else "slower") for gate in found.gates))


def _changes(found: Comparison) -> Markup:
    if not found.changes:
        return tag("p", "Nothing changed.")
    rows = []
    for change in found.changes:
        links = [tag("a", str(at + 1), href=f"#row-{at + 1}") for at in change.rows[:8]]
        more = f" and {len(change.rows) - 8} more" if len(change.rows) > 8 else None
        rows.append(tag("tr", _number(change.change_ms), tag("td", change.text), tag("td", _spaced(links), more)))
    return Markup(
        tag("h2", "What changed")
        + tag("table", tag("tr", tag("th", "ms"), tag("th", "what"), tag("th", "rows")), *rows)
    )


def _spaced(links: list[Markup]) -> Markup:
    return Markup(" ".join(links))


def _rows(found: Comparison) -> Markup:
    titles = [tag("th", title) for title in ("row", "change, ms", "what")]
    sides = [tag("th", f"{name} {title}") for title, _, _ in _FIGURES for name in "AB"]
    rows = [_row(number, row) for number, row in enumerate(found.rows, 1)]
    return Markup(tag("h2", "Row by row") + tag("table", tag("tr", *titles, *sides), *rows))


def _row(number: int, row: ComparedRow) -> Markup:
    ops = " → ".join(dict.fromkeys(str(cell(side, "ops")) for side in (row.a, row.b) if side))
    kernels = [
        f"{name}: {cell(side, 'kernels')}" for name, side in (("A", row.a), ("B", row.b)) if side and side.kernels
    ]
    what = tag(
        "td", tag("b", row.category), f" {ops}", tag("br"), row.why, tag("br"),
        tag("small", row.match, f", {row.module}" if row.module else None,
            *(Markup(tag("br") + tag("span", text)) for text in kernels)),
    )  # fmt: skip
    figures = []
    for _, key, shape in _FIGURES:
        for name, side in (("n s", row.a), ("n", row.b)):
            value = cell(side, key)
            figures.append(tag("td", "" if value is None else shape.format(value), class_=name))
    return tag("tr", tag("td", str(number), class_="n"), _number(row.change_ms), what, *figures, id=f"row-{number}")


def _number(change_ms: float) -> Markup:
    colour = "slower" if change_ms > 0 else "faster" if change_ms < 0 else ""
    return tag("td", _signed(change_ms), class_=f"n {colour}".strip())


def _signed(ms: float) -> str:
    return f"{round(ms, 4) + 0.0:+,.4f}"
