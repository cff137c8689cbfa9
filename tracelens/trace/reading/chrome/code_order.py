"""Codes of texts numbered by where they first stand in a table, however the file was cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_ROWS_AT_ONCE = 1 << 17


def by_appearance(codes: Array, count: int) -> Array:
    """The distinct ones of codes below ``count``, in order of appearance."""
    first = np.full(count, len(codes))
    # Of several values for one place the last one stays: the first row's
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    used = np.flatnonzero(first < len(codes))
    return used[np.argsort(first[used])]


def renumber(columns: Sequence[Array], count: int) -> list[int]:
    """Changes codes below ``count`` in place: by appearance in the columns, one column after the other.

    Returns the former code of each; those that no row has come last. Negative ones, for nothing, stay.
    """
    order = _order(columns, count)
    codes = np.empty(count + 1, np.int64)
    codes[order] = np.arange(count)
    codes[count] = -1
    if (codes[:count] != np.arange(count)).any():
        for column in columns:
            for start in range(0, len(column), _ROWS_AT_ONCE):
                rows = column[start : start + _ROWS_AT_ONCE]
                rows[:] = codes[rows]
    return order


def _order(columns: Sequence[Array], count: int) -> list[int]:
    order: list[int] = []
    is_new = np.ones(count + 1, bool)
    is_new[count] = False
    for column in columns:
        for start in range(0, len(column), _ROWS_AT_ONCE):
            rows = column[start : start + _ROWS_AT_ONCE]
            new = rows[is_new[rows]]
            if len(new):
                found = by_appearance(new, count)
                order += found.tolist()
                is_new[found] = False
    return order + np.flatnonzero(is_new[:count]).tolist()
