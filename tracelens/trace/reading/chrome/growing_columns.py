"""Columns that grow while a file is read, in memory that goes back to the system when they are done with."""

from __future__ import annotations

import mmap
from collections.abc import Container, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.trace.narrow_columns import narrowest

Array = npt.NDArray[Any]

_ROWS_PER_BLOCK = 1 << 17
# A smaller column is worth no pages of its own.
_LEAST_BYTES = 1 << 17


class GrowingColumns:
    """Columns of one length, by name.

    Their blocks are pages of their own: among everything else that reading allocates and frees, arrays of all sizes
    left holes of 190 MB by the end of 1 GB of JSON.
    """

    def __init__(self, types: Mapping[str, Any]) -> None:
        self._types = types
        self._blocks: dict[str, list[Array]] = {key: [] for key in types}
        self._limits: dict[str, list[Array]] = {key: [] for key in types}
        self._length = 0

    def append(self, columns: Mapping[str, Array]) -> None:
        """One more array for each of the columns, all of one length."""
        length = len(next(iter(columns.values())))
        done = 0
        if length:
            for key, limits in self._limits.items():
                limits += [columns[key].min(), columns[key].max()]
        while done < length:
            used = self._length % _ROWS_PER_BLOCK
            count = min(length - done, _ROWS_PER_BLOCK - used)
            for key, blocks in self._blocks.items():
                if not used:
                    blocks.append(_pages(_ROWS_PER_BLOCK, self._types[key]))
                blocks[-1][used : used + count] = columns[key][done : done + count]
            self._length += count
            done += count

    def taken(self, narrow: Container[str] = ()) -> dict[str, Array]:
        """Every column as one array, those ``narrow`` in the narrowest type; there is nothing left afterwards."""
        joined = {}
        for key, dtype in self._types.items():
            limits = np.array(self._limits[key], dtype)
            self._limits[key].clear()
            joined[key] = _pages(self._length, narrowest(limits) if key in narrow else dtype)
            blocks = self._blocks[key]
            for first in range(0, self._length, _ROWS_PER_BLOCK):
                joined[key][first : first + _ROWS_PER_BLOCK] = blocks.pop(0)[: self._length - first]
        self._length = 0
        return joined


def _pages(length: int, dtype: Any) -> Array:
    """An array without values; MemoryError where there is no room for it."""
    size = length * np.dtype(dtype).itemsize
    if size < _LEAST_BYTES or not hasattr(mmap, "MAP_PRIVATE"):
        return np.empty(length, dtype)
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no {size:,} bytes for a column") from error
    return np.frombuffer(pages, dtype, length)
