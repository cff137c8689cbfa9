"""Words without which a regular expression finds nothing: looking for them takes a fraction of the search."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

Words = tuple[str, ...]

#: In most names of kernels, so that it rules out few.
_COMMON = "kernel"
_TELLING = 4


def required_words(regex: str) -> Words:
    """Words of which the lower-case form of each ASCII text that ``regex`` finds holds at least one; () where none is
    known. Raises re.error for what is no regular expression.

    >>> required_words(r"(?i)nccl|rccl"), required_words(r"^\\w+::(?:Copy|Fill)\\d*"), required_words(r"a?\\d+")
    (('nccl', 'rccl'), ('copy', 'fill'), ())
    """
    # Public functions of the standard library give the compiled form only
    return _required(importlib.import_module("re._parser").parse(regex))


def _required(parts: Iterable[tuple[Any, Any]]) -> Words:
    """Of parts that follow each other: the words of the part that rule out most."""
    found: list[Words] = []
    letters = ""
    for kind, value in parts:
        if str(kind) == "LITERAL":
            letters += chr(value).lower()
            continue
        found += [(letters,), _required_by(str(kind), value)]
        letters = ""
    return max([*found, (letters,)], key=_rules_out)


def _required_by(kind: str, value: Any) -> Words:
    if kind == "SUBPATTERN":
        return _required(value[-1])
    if kind == "ATOMIC_GROUP":
        return _required(value)
    if kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        least, _, repeated = value
        return _required(repeated) if least else ()
    if kind == "BRANCH":
        branches = [_required(branch) for branch in value[1]]
        return tuple(dict.fromkeys(word for words in branches for word in words)) if all(branches) else ()
    return ()


def _rules_out(words: Words) -> tuple[int, int, int]:
    """How much: one word of a few letters rules out more than several longer ones."""
    shortest = min((len(word.replace(_COMMON, "")) for word in words), default=0)
    return min(shortest, _TELLING), -len(words), shortest
