"""Columns in blocks are what joining all arrays gives, and give their memory back."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.trace import narrow_columns
from tracelens.trace.narrow_columns import GrowingColumns, narrowest


@given(
    lengths=st.lists(st.integers(0, 40), max_size=12), block=st.integers(1, 30), least=st.sampled_from([0, 64, 1 << 17])
)
def test_columns_are_their_arrays_joined(lengths: list[int], block: int, least: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(narrow_columns, "_ROWS_PER_BLOCK", block)
        patch.setattr(narrow_columns, "_LEAST_BYTES", max(least, 1))
        columns = GrowingColumns({"a": np.int32, "b": np.float64})
        for again in range(2):
            arrays = [np.arange(length) + 100 * (i + again) for i, length in enumerate(lengths)]
            for array in arrays:
                columns.append({"a": array, "b": array / 4})
            taken = columns.take()
            whole = np.concatenate([np.zeros(0, np.int64), *arrays])
            assert taken["a"].dtype == np.int32
            assert taken["a"].tolist() == whole.tolist()
            assert taken["b"].tolist() == (whole / 4).tolist()
            taken["a"][:] = -1


@given(st.lists(st.lists(st.integers(-(2**40), 2**40), max_size=5), max_size=5), st.sampled_from([6, 14, 30, 39]))
def test_narrow_columns_have_the_narrowest_type_that_holds_them(lists: list[list[int]], bits: int) -> None:
    columns = GrowingColumns({"a": np.int64, "b": np.int64})
    arrays = [np.array(values, np.int64) >> (40 - bits) for values in lists]
    for array in arrays:
        columns.append({"a": array, "b": array})
    taken = columns.take(narrow={"a"})
    whole = np.concatenate([np.zeros(0, np.int64), *arrays])
    assert (taken["a"].dtype, taken["b"].dtype) == (narrowest(whole), np.int64)
    assert taken["a"].tolist() == taken["b"].tolist() == whole.tolist()


def test_without_room_it_is_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refused)
    with pytest.raises(MemoryError, match="no 1,048,576 bytes for a column"):
        GrowingColumns({"a": np.int64}).append({"a": np.zeros(1)})
