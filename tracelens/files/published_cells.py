"""How published tables head their columns and write their cells."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from tracelens.lazy.patterns import lazy_pattern

#: What a table writes where the answer is elsewhere.
_UNSAID = lazy_pattern(
    r"(see|cf|in|per)\b.*|unknown|unstated|not (stated|given|known|published)|\?+|tbd|default|auto|nan|null"
)
#: Units that headings state, and cells beside numbers.
_UNITS = lazy_pattern(r"\((?:s|sec|seconds|tokens?|t|ms|per gpu)\)")
_NUMBER = lazy_pattern(
    r"([0-9]{1,3}(?:[ \u00a0\u202f'][0-9]{3})+\b|[0-9][0-9,_]*(?:\.[0-9]+)?) ?(k|m)?\b(?!\^)", re.IGNORECASE
)
#: A heading that a cell repeats (``TP=2``), and signs for about.
_BEFORE = lazy_pattern(r"^(?:[~≈\"']|(?:[a-z]?tp|v?pp|[a-z]?[cdev]p|[mg]?bs|isl|osl) ?[=:]? ?(?=[0-9]))", re.IGNORECASE)
_SCALE = {"": 1, "k": 1024, "m": 1024**2}


class Headings:
    """Names of columns, and the headings that other tables have for them, without case, blanks and signs.

    >>> Headings({"gbs": ("globalbatchsize",)}).name("Global Batch-Size")
    'gbs'
    """

    def __init__(self, words: Mapping[str, tuple[str, ...]]) -> None:
        self._words = words
        self._known = {_letters(word): name for name, others in words.items() for word in (name, *others)}
        self.name = functools.lru_cache(maxsize=4096)(self._name)

    def _name(self, text: str) -> str:
        return self._known.get(_letters(_UNITS.sub("", text.lower())), text)

    def first(self, columns: Mapping[str, object]) -> list[str]:
        """The columns, those before the others that have their names already."""
        return sorted(columns, key=lambda name: name not in self._words)


def is_unsaid(text: str) -> bool:
    """Whether a cell says nothing, or that the answer is elsewhere.

    >>> is_unsaid(""), is_unsaid("see doc"), is_unsaid("int4")
    (True, True, False)
    """
    word = text.strip().lower()
    return not word or _UNSAID.fullmatch(word) is not None


def number(text: str) -> str:
    """The number that a cell begins with, without separators and unit; the cell where it is none.

    >>> number("4,096"), number("~4 096"), number("8K tokens"), number("TP=64"), number("H100")
    ('4096', '4096', '8192', '64', 'H100')
    """
    found = _NUMBER.match(_BEFORE.sub("", text.strip()))
    if found is None:
        return text
    value = float(re.sub("[^0-9.]", "", found[1])) * _SCALE[(found[2] or "").lower()]
    return f"{value:.0f}" if value.is_integer() else f"{value:g}"


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
