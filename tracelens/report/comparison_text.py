"""A comparison as lines of a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import TYPE_CHECKING

from tracelens.comparison.causes import WAITING
from tracelens.comparison.compared import NOISE
from tracelens.comparison.sentences.amounts_in_words import signed_ms
from tracelens.comparison.sentences.change_sentences import change_title, parts_text
from tracelens.files.safe_text import terminal_text
from tracelens.report.figures import shown_percent

if TYPE_CHECKING:
    from tracelens.comparison.compared import Change, Comparison, SideSummary


_WIDTH = 120
#: Sentences that are printed; files have all of them.
_MOST = 15
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
    for change in worth[:_MOST]:
        yield f"   {change.text}"
    rest = [change for change in found.changes if change not in worth[:_MOST]]
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
