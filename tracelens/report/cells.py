"""Frame values as plain Python ones: what the writers of this room take."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import pandas as pd

Value: TypeAlias = str | bool | int | float | None

#: Whole numbers above this lose digits where all numbers are floating point (Excel, JavaScript).
LARGEST_EXACT = 2**53


def plain_values(values: pd.Series) -> list[Value]:
    """Python scalars; NaN, NaT and NA are None; anything else (lists, paths) is its text."""
    return [plain_value(value) for value in values.tolist()]


def plain_value(value: Any) -> Value:
    """One value, see ``plain_values``."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return None if math.isnan(value) else value
    item = getattr(value, "item", None)
    if callable(item):
        return plain_value(item())
    text = str(value)
    return None if text in ("<NA>", "NaT") else text
