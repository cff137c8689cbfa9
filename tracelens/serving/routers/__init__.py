"""Routers by name, one file each."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from tracelens.registry import Registry


@functools.cache
def routers() -> Registry:
    """Every router of this package by name."""
    return Registry.collect(
        "router", [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    )
