"""Interval unions against a set of nanoseconds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.analysis import intervals
from tracelens.analysis.intervals import idle_spans, idle_within, overlapping, union_by_group, union_ns

spans = st.lists(st.tuples(st.integers(0, 3), st.integers(-60, 60), st.integers(0, 25)), max_size=30)


def columns(rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    group = np.array([g for g, _, _ in rows], np.int64)
    start = np.array([s for _, s, _ in rows], np.int64)
    return group, start, start + np.array([d for _, _, d in rows], np.int64)


def covered(rows: list[tuple[int, int, int]]) -> set[int]:
    return {t for _, s, d in rows for t in range(s, s + d)}


@given(spans)
def test_a_union_is_as_long_as_the_set_of_its_nanoseconds(rows: list[tuple[int, int, int]]) -> None:
    _, start, end = columns(rows)
    assert union_ns(start, end) == len(covered(rows))


@given(spans)
def test_groups_do_not_see_each_other(rows: list[tuple[int, int, int]]) -> None:
    group, start, end = columns(rows)
    expected = [len(covered([r for r in rows if r[0] == g])) for g in range(4)]
    assert union_by_group(group, start, end, 4).tolist() == expected


@given(spans)
def test_it_does_not_matter_how_many_are_summed_at_a_time(rows: list[tuple[int, int, int]]) -> None:
    group, start, end = columns(rows)
    at_once = union_by_group(group, start, end, 4).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "_CHUNK", 3)
        assert union_by_group(group, start, end, 4).tolist() == at_once


def test_groups_stay_apart_when_their_offsets_would_overflow() -> None:
    start = np.array([0, 0, 5], np.int64)
    end = np.array([1 << 60, 1 << 60, 7], np.int64)
    assert union_by_group(np.array([0, 1, 2]), start, end, 3).tolist() == [1 << 60, 1 << 60, 2]


@given(spans)
def test_what_does_not_overlap_adds_up(rows: list[tuple[int, int, int]]) -> None:
    _, start, end = columns(rows)
    alone = ~overlapping(start, end)
    together = union_ns(start[~alone], end[~alone])
    assert int((end - start)[alone].sum()) + together == union_ns(start, end)


@given(spans)
def test_gaps_and_union_fill_the_span(rows: list[tuple[int, int, int]]) -> None:
    _, start, end = columns(rows)
    if len(rows):
        opens, closes = idle_spans(start, end, int(start.min()), int(end.max()))
        assert int((closes - opens).sum()) + union_ns(start, end) == int(end.max() - start.min())


@given(spans, spans)
def test_what_is_idle_within_spans_are_the_moments_of_these_that_nothing_covers(
    rows: list[tuple[int, int, int]], around: list[tuple[int, int, int]]
) -> None:
    _, start, end = columns(rows)
    _, opens, closes = columns(around)
    # spans in order and apart: what a large range has left of others
    free = idle_spans(opens, closes, -60, 60) if around else (start[:0], end[:0])
    found = idle_within(start, end, free)
    moments = {t for a, b in zip(*map(np.ndarray.tolist, free), strict=True) for t in range(a, b)}
    assert {t for a, b in zip(*map(np.ndarray.tolist, found), strict=True) for t in range(a, b)} == moments - covered(
        rows
    )
