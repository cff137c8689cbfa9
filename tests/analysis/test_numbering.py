"""Numbers of alike rows against what a sort of the rows says."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracelens.analysis.grouping import distinct_rows, first_of_each, last_begun, numbered

# Near each other, and so far apart that no table spans them
CODES = st.one_of(st.integers(-2, 5), st.integers(-(2**31), 2**31 - 1))
ROWS = st.lists(st.tuples(CODES, CODES, CODES), max_size=30)


@given(ROWS)
def test_numbers_are_places_among_the_distinct_rows_in_order(rows: list[tuple[int, int, int]]) -> None:
    columns = np.array(rows, np.int32).reshape(-1, 3).T
    distinct = sorted(set(rows))
    assert numbered(*columns).tolist() == [distinct.index(row) for row in rows]


@given(ROWS)
def test_each_number_has_its_first_row(rows: list[tuple[int, int, int]]) -> None:
    group = numbered(*np.array(rows, np.int32).reshape(-1, 3).T)
    assert first_of_each(group).tolist() == [rows.index(row) for row in sorted(set(rows))]


def test_more_pairs_than_32_bits_count() -> None:
    up = np.arange(70_000, dtype=np.int32)
    assert (numbered(up, up[::-1]) == up).all()


def test_codes_of_a_type_that_their_range_does_not_fit() -> None:
    assert numbered(np.array([27, 28, -100, 127], np.int8)).tolist() == [1, 2, 0, 3]


def test_distinct_rows_are_in_order() -> None:
    assert distinct_rows(np.array([4, 1, 4, 0]), 6).tolist() == [0, 1, 4]


NEAR = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), max_size=12)


@given(NEAR, NEAR)
def test_the_last_begun_of_a_group_is_the_latest_start_up_to_a_time(starts, asked) -> None:
    columns = (np.array(each, np.int64).reshape(-1, 2).T for each in (starts, asked))
    (group, start), (of, time) = columns
    # Of starts at one time the last in order counts
    expected = [
        max((begun, i) for i, (g, begun) in enumerate(starts) if g == one and begun <= at)[1]
        if any(g == one and begun <= at for g, begun in starts)
        else -1
        for one, at in asked
    ]
    assert last_begun(group, start, of, time).tolist() == expected
