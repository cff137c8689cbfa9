"""Batching policies by name, one file each."""

from __future__ import annotations

import functools

from tracelens.registry import Registry


@functools.cache
def policies() -> Registry:
    """Every policy of this package by name."""
    return Registry.collect_below("policy", __name__)
