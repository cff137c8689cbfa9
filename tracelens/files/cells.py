"""Frame values as plain Python ones: what the writers of files and pages take, and frames as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import numpy as np

from tracelens.files.safe_text import csv_cell
from tracelens.types.records import pd

Value: TypeAlias = str | bool | int | float | None

#: Whole numbers above this lose digits where all numbers are floating point (Excel, JavaScript).
LARGEST_EXACT = 2**53


def plain_values(values: pd.Series) -> list[Value]:
    """Python scalars; NaN, NaT and NA are None; anything else (lists, paths) is its text."""
    listed = values.tolist()
    # Most columns hold numbers of one kind: asking each value what it is takes five times as long.
    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "iub":
        return listed
    if isinstance(values.dtype, np.dtype) and values.dtype.kind == "f":
        return [None if value != value else value for value in listed]
    return [value if type(value) is str else plain_value(value) for value in listed]


def plain_rows(frame: pd.DataFrame, keys: Iterable[str]) -> Iterator[tuple[Value, ...]]:
    """Row by row what ``plain_values`` makes of some columns."""
    return zip(*(plain_values(frame[key]) for key in keys), strict=True)


def plain_records(frame: pd.DataFrame, keys: Sequence[str]) -> list[dict[str, Value]]:
    """The same by the columns' names."""
    return [dict(zip(keys, row, strict=True)) for row in plain_rows(frame, keys)]


def plain_columns(frame: pd.DataFrame) -> list[list[Value]]:
    """``plain_values`` of each column of a small frame, in half the time: pandas gives out all columns at once."""
    return [
        [v if type(v) is str or (type(v) is float and v == v) else plain_value(v) for v in column]
        for column in frame.to_numpy(object).T.tolist()
    ]


def plain_value(value: Any) -> Value:
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return None if math.isnan(value) else value
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "size", 1) == 1:
        return plain_value(item())
    text = str(value)
    return None if text in ("<NA>", "NaT") else text


def plain_tree(value: Any) -> Any:
    """Data classes and mappings as dictionaries, tuples as lists, to any depth: what JSON has."""
    if is_dataclass(value):
        return {field.name: plain_tree(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain_tree(entry) for key, entry in value.items()}
    return [plain_tree(entry) for entry in value] if isinstance(value, tuple) else value


def frame_csv(frame: pd.DataFrame) -> bytes:
    return columns_csv(frame.columns, [plain_values(values) for _, values in frame.items()])


def columns_csv(names: Iterable[object], columns: Sequence[Sequence[object]]) -> bytes:
    """Columns below their names as CSV: numbers with all their digits, None empty, lines ending in a line feed.

    No text or name in it is a formula or obeyed by a terminal.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([csv_cell(str(name)) for name in names])
    guarded = [[csv_cell(value) if isinstance(value, str) else value for value in values] for values in columns]
    writer.writerows(zip(*guarded, strict=True))
    return out.getvalue().encode()
