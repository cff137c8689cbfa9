"""One file per sheet, found by its ``@sheet`` mark; the families of perf models need none."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from tracelens.registry import Registry


@cache
def built_in_sheets() -> Registry:
    """Title -> sheet function, over all modules of this package. Extensions are laid over it per report."""
    return Registry.collect(
        "sheet", [import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    )
