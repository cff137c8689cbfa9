"""One module per sheet: its columns, its place, and the function that makes its frame, found by the ``@sheet`` mark."""

from __future__ import annotations

from functools import cache

from tracelens.registry import Registry


@cache
def built_in_sheets() -> Registry:
    """Title -> sheet function, over all modules below this package. Extensions are laid over it per report."""
    return Registry.collect_below("sheet", __name__)
