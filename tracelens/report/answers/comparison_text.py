"""A comparison as lines of a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tracelens.files.safe_text import clipped, terminal_text

if TYPE_CHECKING:
    from tracelens.comparison.compared import Comparison, SideSummary

_WIDTH = 100
#: Sentences that are printed; files have all of them.
_MOST = 15


def comparison_text(found: Comparison) -> str:
    """Both sides, the change of the step, and what it is made of."""
    return "\n".join(clipped(terminal_text(line), _WIDTH) for line in _lines(found))


def _lines(found: Comparison) -> Iterator[str]:
    yield f" A  {_side(found.a)}"
    yield f" B  {_side(found.b)}"
    for note in found.notes:
        yield f" ! {note}"
    share = f" ({100 * found.change_ms / found.a.step_ms:+.1f} %)" if found.a.step_ms else ""
    yield f" {_what(found)} {found.a.step_ms:,.3f} -> {found.b.step_ms:,.3f} ms: {found.change_ms:+,.3f} ms{share}"
    yield f"     matched: {found.matched_share[0]:.1%} of A's kernel time, {found.matched_share[1]:.1%} of B's"
    yield ""
    if not found.changes:
        yield " nothing changed"
    for change in found.changes[:_MOST]:
        yield f" {change.change_ms:+10.3f} ms  {change.text}"
    rest = found.changes[_MOST:]
    if rest:
        yield f" {sum(c.change_ms for c in rest):+10.3f} ms  {len(rest)} more"


def _what(found: Comparison) -> str:
    return "step" if found.a.has_steps and found.b.has_steps else "window"


def _side(side: SideSummary) -> str:
    ranks = f"{side.ranks} ranks · " if side.ranks > 1 else ""
    runs = f"{side.runs} runs · " if side.runs > 1 else ""
    steps = f"{side.steps} {'step' if side.steps == 1 else 'steps'} · " if side.has_steps else ""
    return f"{side.name}: {ranks}{runs}{steps}{side.device}" + (f" · torch {side.torch}" if side.torch else "")
