"""Columns that are kept narrow behave as the arrays that they stand for."""

from __future__ import annotations

import copy
import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.trace.narrow_columns import Column, Derived

INT32 = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("values", "nbytes"),
    [([], 0), ([-1, 127], 2), ([-1, 128], 4), ([-129, 0], 4), ([40_000], 4), ([2**31 - 1, -1], 8), ([2**31, 0], 16)],
)
def test_a_column_is_kept_in_the_narrowest_type(values: list[int], nbytes: int):
    column = Column(np.array(values, np.int64), np.int64)
    assert column.nbytes == nbytes
    assert column.tolist() == values
    assert column[:].dtype == np.int64


def assert_reads_as(column: Column | Derived, array: np.ndarray, data: st.DataObject) -> None:
    rows = np.array(data.draw(st.lists(st.integers(-len(array), len(array) - 1))), np.intp)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(array), max_size=len(array))))
    for at in (rows, mask, slice(1, None), rows.tolist()):
        assert column[at].dtype == array.dtype
        assert column[at].tolist() == array[at].tolist()
    assert (column[0], type(column[-1])) == (array[0], array.dtype.type)
    assert np.asarray(column).dtype == array.dtype
    assert np.concatenate((column, array)).tolist() == [*array, *array]
    assert (column.max(), column.shape, len(column), list(column)) == (max(array), array.shape, len(array), list(array))


@given(INT32, st.data())
def test_it_reads_as_the_array_that_it_stands_for(values: list[int], data: st.DataObject):
    column = Column(np.array(values, np.int32), np.int32)
    assert_reads_as(column, np.array(values, np.int32), data)
    for same in (copy.copy(column), copy.deepcopy(column), Column(column, np.int32)):
        assert same.tolist() == values


@given(INT32, st.integers(-(2**31), 2**31 - 1))
def test_it_compares_as_the_array_that_it_stands_for(values: list[int], limit: int):
    array = np.array(values, np.int32)
    column = Column(array, np.int32)
    for compare in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge):
        for other in (limit, np.int32(limit), array[::-1], Column(array[::-1], np.int32)):
            assert compare(column, other).tolist() == compare(array, other).tolist()
            assert compare(other, column).tolist() == compare(other, array).tolist()


def test_sums_and_products_have_the_room_of_the_type_that_is_read():
    column = Column(np.array([100, 27]), np.int64)  # kept in one byte, whose largest number is 127
    assert column.nbytes == 2
    assert (column + column).tolist() == [200, 54]
    assert (column * 2**40).tolist() == [100 * 2**40, 27 * 2**40]
    assert (column[:1] * np.int64(2**40)).tolist() == [100 * 2**40]
    assert (2**40 - column).tolist() == [2**40 - 100, 2**40 - 27]
    assert int(column.sum()) == 127


def test_a_column_cannot_be_written_to():
    with pytest.raises(TypeError, match="item assignment"):
        Column(np.zeros(2, np.int64), np.int32)[0] = 1  # type: ignore[index]


def test_an_array_without_a_copy_is_the_kept_one_or_refused():
    column = Column(np.array([100, 27]), np.int64)  # kept in one byte
    kept = column.__array__(np.int8, copy=False)
    assert kept is column.__array__(np.int8, copy=False)
    assert column.__array__(np.int8) is not kept
    with pytest.raises(ValueError, match="kept as int8 cannot be an array of int64 without a copy"):
        column.__array__(copy=False)


@given(INT32, st.data())
def test_a_derived_column_reads_as_the_array_that_it_stands_for(values: list[int], data: st.DataObject):
    kept = np.array(values, np.int32) // 2
    column = Derived(len(values), lambda at: kept[at] + np.int32(1))
    assert_reads_as(column, kept + np.int32(1), data)
    assert (column >= 0).tolist() == (kept + 1 >= 0).tolist()
    assert column.nbytes == 0
