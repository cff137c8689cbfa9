"""The numbers of sentences: whether each one that a finding prints is a figure of it, rounded as printed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tracelens.analysis.verdict.summary import Finding, Said
from tracelens.lazy.patterns import lazy_pattern

_NUMBER = lazy_pattern(r"(?<![\w.])(?P<digits>\d[\d,]*(?:\.\d+)?)(?P<unit> (?:%|µs|ms|s|kB|MB|GB/s|GB)(?!\w))?")
#: What a printed unit is of the unit that a figure is kept in.
_FACTORS = {
    "%": ("share", 100.0),
    "µs": ("us", 1.0),
    "ms": ("us", 1e-3),
    "s": ("us", 1e-6),
    "kB": ("MB", 1e3),
    "MB": ("MB", 1.0),
    "GB": ("MB", 1e-3),
    "GB/s": ("GB/s", 1.0),
}
#: Numbers that are part of a name or a rule, not of the trace.
_WORDING = lazy_pattern(r"16 bytes|10-bit")
#: What the trace has: an op and the shapes of its arguments, or what the host was at.
_QUOTED = lazy_pattern(
    r"^.*, (?=[\d,]+ calls?(?: of [\d,]+ (?:shapes|signatures))?: )"
    r"|(?<=; most to gain in ).*?(?=; \d+ % of|$)"
    r"|(?<=, most of it in ).*?(?=; \d+ % of|$)"
)


def unexplained_numbers(finding: Finding) -> Iterator[str]:
    """The numbers of a finding's sentence that none of its figures gives."""
    sentence = _WORDING.sub("", _QUOTED.sub("", finding.why))
    for match in _NUMBER.finditer(sentence):
        if not any(_is_printed(said, match) for said in finding.figures):
            yield match[0]


def _is_printed(said: Said, match: re.Match[str]) -> bool:
    """Whether a figure, in the unit printed, rounds to the digits printed."""
    digits = match["digits"].replace(",", "")
    unit, factor = _FACTORS.get((match["unit"] or "").strip(), (said.unit, 1.0))
    if unit != said.unit:
        return False
    decimals = len(digits.partition(".")[2])
    return abs(said.value * factor - float(digits)) <= 0.5 * 10.0**-decimals * (1 + 1e-9)
