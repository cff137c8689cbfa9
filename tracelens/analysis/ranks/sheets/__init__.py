"""One module per sheet of the multi-rank report: its columns, its place, and the function that makes its frame."""

from __future__ import annotations

from functools import cache

from tracelens.registry import Registry


@cache
def rank_sheets() -> Registry:
    """Title -> sheet function, over all modules below this package."""
    return Registry.collect_below("sheet", __name__)
