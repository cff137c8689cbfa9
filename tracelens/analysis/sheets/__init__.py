"""The sheets of a report: of each its columns, its place, and what makes its frame, by subject.

A sheet is a function with the ``@sheet`` mark; one whose frame is an expression is a row of its module's ``SHEETS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tracelens.registry import Registry, modules_below
from tracelens.schema import TableColumn, column_set, sheet

if TYPE_CHECKING:
    import pandas as pd

Frame = Callable[[Any], "pd.DataFrame | None"]


@cache
def built_in_sheets() -> Registry:
    """Title -> sheet function, over all modules below this package. Extensions are laid over it per report."""
    return collect_sheets(modules_below(__name__))


def collect_sheets(modules: list[ModuleType]) -> Registry:
    """Title -> sheet function of these modules."""
    return Registry.collect("sheet", [*modules, *(row for module in modules for row in getattr(module, "SHEETS", ()))])


def sheet_row(
    title: str, order: int, json: int | None, meaning: str, frame: Frame, *columns: TableColumn | Iterable[TableColumn]
) -> Frame:
    """A sheet whose frame is one expression of the context; ``meaning``: what a row of it is. Else as ``@sheet``."""
    row = partial(frame)
    row.__doc__ = meaning
    return sheet(title, columns=column_set(*columns), order=order, json=json)(row)
