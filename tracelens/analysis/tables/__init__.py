"""The tables that SQL sees of one trace: a module per table, its columns and the function that makes it.

Cells that were not determined are NULL; times are µs, on the clock that begins with the trace's first event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING

from tracelens.files.sql import typed
from tracelens.registry import Registry

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.analyze import Analysis


@cache
def built_in_tables() -> Registry:
    """Every table by its name in SQL."""
    return Registry.collect_below("table", __name__)


class Tables(Mapping[str, "pd.DataFrame"]):
    """The tables of an analysis by name, each made when first asked for."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._made: dict[str, pd.DataFrame] = {}

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self._made:
            claim = built_in_tables()[name]
            self._made[name] = typed(claim.target(self._analysis), claim.options["columns"])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(built_in_tables())

    def __len__(self) -> int:
        return len(built_in_tables())
