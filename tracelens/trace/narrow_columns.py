"""Columns of whole numbers in the narrowest type that holds them, and columns that grow while a file is read."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

Number = TypeVar("Number", bound=np.integer[Any])
_TYPES = (np.int8, np.int16, np.int32, np.int64)


def narrowest(values: npt.NDArray[np.integer]) -> type[np.integer[Any]]:
    """The first of int8, int16, int32 and int64 that holds all the values."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    return next(each for each in _TYPES if np.iinfo(each).min <= low and high <= np.iinfo(each).max)


def narrowed(values: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """The same values in the narrowest type: a stable sort of two bytes or fewer counts, and compares nothing."""
    return values.astype(narrowest(values), copy=False)


def keep_narrow(holder: object, types: Mapping[str, type[np.integer[Any]]]) -> None:
    """Makes a ``Column`` of each of these attributes that is a plain array."""
    for name, type_ in types.items():
        setattr(holder, name, Column(getattr(holder, name), type_))


class _Whole(NDArrayOperatorsMixin):
    """What takes part in arithmetic as the array that ``[:]`` gives, and has its methods."""

    __slots__ = ()

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, at: Any) -> Any:
        raise NotImplementedError

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError(f"a {type(self).__name__.lower()} cannot be an array without a copy")
        return np.asarray(self[:], dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        given = (each._operand(ufunc) if isinstance(each, _Whole) else each for each in inputs)
        call: Callable[..., Any] = getattr(ufunc, method)
        return call(*given, **options)

    def _operand(self, ufunc: np.ufunc) -> npt.NDArray[np.integer]:
        return self[:]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self[:], name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self[:]!r})"


class Column(_Whole, Generic[Number]):
    """Whole numbers, one per row: read as ``type``, whatever they are kept in.

    What comes out is an array of ``type``, so that sums and products of it have its room: ``column[rows]`` of some
    rows, ``column[:]`` of all. A column does what such an array does, but cannot be written to.
    """

    __slots__ = ("_kept", "type")

    def __init__(self, values: Column[Any] | npt.NDArray[np.integer], type: type[Number]) -> None:  # noqa: A002
        kept = values._kept if isinstance(values, Column) else np.asarray(values)
        self._kept: npt.NDArray[np.integer] = narrowed(kept)
        self.type = type

    @property
    def nbytes(self) -> int:
        return self._kept.nbytes

    def __len__(self) -> int:
        return len(self._kept)

    @overload
    def __getitem__(self, at: int | np.integer[Any]) -> Number: ...
    @overload
    def __getitem__(self, at: slice | npt.NDArray[Any] | Sequence[int]) -> npt.NDArray[Number]: ...
    def __getitem__(self, at: Any) -> Any:
        found = self._kept[at]
        return found.astype(self.type, copy=False) if isinstance(found, np.ndarray) else self.type(found)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        wanted = np.dtype(self.type if dtype is None else dtype)
        if copy is not False:
            return self._kept.astype(wanted)
        if wanted != self._kept.dtype:
            raise ValueError(f"a column kept as {self._kept.dtype} cannot be an array of {wanted} without a copy")
        return self._kept

    def _operand(self, ufunc: np.ufunc) -> npt.NDArray[np.integer]:
        # A comparison has no result to overflow: nothing is widened for it.
        return self._kept if ufunc in _COMPARISONS else self[:]


class Derived(_Whole, Generic[Number]):
    """Whole numbers, one for each of ``length`` rows, which ``of`` works out from other columns at the same places.

    It does what an array of them does, takes no memory, and cannot be written to.
    """

    __slots__ = ("_length", "_of")
    nbytes = 0

    def __init__(self, length: int, of: Callable[[Any], npt.NDArray[Number]]) -> None:
        self._length, self._of = length, of

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int | np.integer[Any]) -> Number: ...
    @overload
    def __getitem__(self, at: slice | npt.NDArray[Any] | Sequence[int]) -> npt.NDArray[Number]: ...
    def __getitem__(self, at: Any) -> Any:
        return self._of(np.array([at]))[0] if isinstance(at, int | np.integer) else self._of(at)


_COMPARISONS = {np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal}

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

    def take(self, narrow: Container[str] = ()) -> dict[str, Array]:
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
