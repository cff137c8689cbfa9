"""Routers by name, one file each."""

from __future__ import annotations

import functools

from tracelens.registry import Registry


@functools.cache
def routers() -> Registry:
    """Every router of this package by name."""
    return Registry.collect_below("router", __name__)
