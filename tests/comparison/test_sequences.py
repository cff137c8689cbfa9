"""Common subsequences are in order, and the longest where little differs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracelens.comparison.places import common

SEQUENCE = st.lists(st.integers(0, 4), max_size=14)


def longest(one: list[int], other: list[int]) -> int:
    """The plain table of all prefixes."""
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, x in enumerate(one):
        for j, y in enumerate(other):
            table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


@given(SEQUENCE, SEQUENCE)
def test_what_is_common_is_the_longest(one: list[int], other: list[int]) -> None:
    assert len(common(np.array(one, int), np.array(other, int))) == longest(one, other)


@given(SEQUENCE, SEQUENCE, st.integers(0, 40))
def test_pairs_are_equal_and_rise_whatever_the_limit(one: list[int], other: list[int], limit: int) -> None:
    pairs = common(np.array(one, int), np.array(other, int), limit)
    assert all(one[i] == other[j] for i, j in pairs)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(pairs))
