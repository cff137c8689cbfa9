"""A part of the model that runs more or less often: all its ops do, in the same ratio."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import takewhile
from math import gcd

from tracelens.comparison.causes import CALLS, REPEATS
from tracelens.comparison.compared import ComparedRow

#: Rows of one ratio that are told as one part, at least.
_LEAST_ROWS = 3


def with_repeats(rows: Sequence[ComparedRow]) -> list[ComparedRow]:
    """The rows; those of which B has as many times the calls of A as several others have with that cause."""
    of_ratio: dict[Fraction, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        if row.cause == CALLS and (ratio := ratio_of(row)) is not None:
            of_ratio[ratio].append(number)
    found = list(rows)
    for numbers in of_ratio.values():
        if len(numbers) >= _LEAST_ROWS:
            for number in numbers:
                found[number] = replace(rows[number], cause=REPEATS)
    return found


def ratio_of(row: ComparedRow) -> Fraction | None:
    """Calls of B over those of A; None where either is no whole number."""
    if row.a is None or row.b is None or not row.a.calls.is_integer() or not row.b.calls.is_integer():
        return None
    return Fraction(int(row.b.calls), int(row.a.calls))


def times(rows: Sequence[ComparedRow]) -> tuple[int, int]:
    """How often A and B run the part, as far as the calls of its ops say."""
    a, b = (
        gcd(*(int(side.calls) for side in sides if side)) for sides in zip(*((r.a, r.b) for r in rows), strict=True)
    )
    return a, b


def part(rows: Sequence[ComparedRow]) -> str | None:
    """The innermost module around all of them, outermost first; None where there is none."""
    paths = [(row.module or "").split("/") for row in rows]
    same = takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False))
    return "/".join(names[0] for names in same) or None
