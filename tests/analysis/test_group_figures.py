"""Figures of groups equal those of pandas, whichever way the medians are found."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tracelens.analysis import grouping
from tracelens.analysis.grouping import ByGroup, Spread, numbered
from tracelens.schema import SPREAD

VALUES = st.one_of(st.floats(-1e9, 1e9), st.just(math.nan))


@settings(max_examples=examples(30))
@given(st.lists(st.tuples(st.integers(0, 4), VALUES), min_size=1, max_size=30), st.booleans())
def test_figures_are_those_of_pandas(rows: list[tuple[int, float]], many: bool) -> None:
    groups = sorted({group for group, _ in rows})
    group = np.array([groups.index(group) for group, _ in rows], np.int32)
    values = np.array([value for _, value in rows])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "_LARGE_GROUP", 3 if many else 1000)
        found = Spread(values, ByGroup(group))
    plain = pd.Series(values).groupby(group)
    for name in (*SPREAD, "sum", "count"):
        scale = np.abs(values[~np.isnan(values)]).max(initial=0.0)
        assert getattr(found, name) == pytest.approx(
            getattr(plain, name)().to_numpy(), nan_ok=True, abs=1e-9 * scale + 1e-300
        )


@given(st.floats(1e-6, 1e9), st.integers(1, 50))
def test_equal_values_have_no_spread(value: float, count: int) -> None:
    found = Spread(np.full(count, value), ByGroup(np.zeros(count, np.int32)))
    assert (found.mean[0], found.median[0], found.min[0], found.max[0]) == (value,) * 4
    assert found.std[0] == 0 or (count == 1 and math.isnan(found.std[0]))


def test_no_values_are_no_groups() -> None:
    assert Spread(np.empty(0), ByGroup(np.empty(0, np.int32))).mean.tolist() == []
    assert Spread(np.array([math.nan]), ByGroup(np.zeros(1, np.int32))).sum.tolist() == [0.0]


def test_more_groups_than_two_bytes_number() -> None:
    group = numbered(np.random.default_rng(0).permutation(np.repeat(np.arange(70_000), 2)))
    values = np.arange(140_000.0)
    figures = Spread(values, ByGroup(group))
    assert np.array_equal(figures.median, (figures.min + figures.max) / 2)
    assert np.array_equal(figures.max, pd.Series(values).groupby(group).max())
